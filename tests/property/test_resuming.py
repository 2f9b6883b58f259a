"""Sequences that are resumed together, beside the specification."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import BlockManager
from tests.stress.run import Failure, Plan, stress


@pytest.mark.parametrize("profile", ["families", "families_in_groups"])
def test_the_manager_resumes_sequences_together_as_the_specification_does(profile: str) -> None:
    outcome = stress(Plan(2400, profiles=[profile], detectors="D"))
    assert outcome.calls["resume_together", "done"] > 100
    assert outcome.lock_step > 400


class ResumesOneByOne(BlockManager):
    """Nothing but what is cached is shared again."""

    def resume_together(self, handles: Any, **key: Any) -> None:
        for handle in handles:
            self.resume(handle, **key)


def test_a_manager_that_shares_less_is_noticed() -> None:
    with pytest.raises(Failure):
        stress(Plan(2400, profiles=["families"], detectors="D", manager=ResumesOneByOne))
