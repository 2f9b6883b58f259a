"""A short slice of ``python -m tests.soak`` for every profile."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager
from tests import soak
from tests.model import ModelManager


@pytest.mark.parametrize("profile", soak.PROFILES)
def test_random_operations_leave_books_and_memory_right(profile: str) -> None:
    done = soak.soak(2_000, 1, [profile], manager=BlockManager)
    assert done[profile] == 2_000


@pytest.mark.parametrize("profile", soak.PROFILES)
def test_random_operations_agree_with_the_model(profile: str) -> None:
    done = soak.soak(800, 1, [profile], manager=BlockManager, model=ModelManager, detectors="IKD")
    assert done[profile] == 800


def test_a_violation_is_reported_with_the_run_it_happened_in() -> None:
    class Forgetful(ModelManager):
        def record(self, *_: object) -> None:
            pass

    lines: list[str] = []
    with pytest.raises(soak.Violation, match=r"profile balanced, seed \d+, operation \d+"):
        soak.soak(20_000, 1, ["balanced"], manager=Forgetful, report=lines.append)
    assert lines[0].startswith("profile balanced seed")
