"""A short slice of ``python -m tests.soak`` for every profile."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import BlockManager
from blockmgr.config import EVICTION_POLICIES
from tests import soak
from tests.model import ModelManager
from tests.reference_policies import Lru


@pytest.mark.parametrize("profile", soak.PROFILES)
def test_random_operations_leave_books_and_memory_right(profile: str) -> None:
    done = soak.soak(2_000, 1, [profile], manager=BlockManager)
    assert done[profile] == 2_000


@pytest.mark.parametrize("profile", soak.PROFILES)
def test_random_operations_agree_with_the_model(profile: str) -> None:
    done = soak.soak(800, 1, [profile], manager=BlockManager, model=ModelManager, detectors="IKD")
    assert done[profile] == 800


@pytest.mark.parametrize("eviction", [*EVICTION_POLICIES[1:], Lru])
def test_random_operations_agree_with_the_model_under_every_policy(eviction: Any) -> None:
    """Books and memory too: the profiles where most is evicted, and the one with most tails."""
    for profile in ("balanced", "pressure", "tiny", "wide", "swarm"):
        options = {"eviction": eviction}
        done = soak.soak(
            600,
            1,
            [profile],
            manager=BlockManager,
            model=ModelManager,
            detectors="IKD",
            options=options,
        )
        assert done[profile] == 600


def test_a_violation_is_reported_with_the_run_it_happened_in() -> None:
    class Forgetful(ModelManager):
        def record(self, *_: object) -> None:
            pass

    lines: list[str] = []
    with pytest.raises(soak.Violation, match=r"profile balanced, seed \d+, operation \d+"):
        soak.soak(20_000, 1, ["balanced"], manager=Forgetful, report=lines.append)
    assert lines[0].startswith("profile balanced seed")
