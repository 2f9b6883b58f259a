"""The manager decides like the specification, as long as nothing is evicted."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import BlockManager
from tests.groups.random_runs import WITH_DRAFTS, WITH_FULL, Layout, layout_of, play
from tests.stress.lockstep import DivergenceError

SEEDS = 5
SEVERAL = [*(layout for layout in WITH_FULL if len(layout) > 1), *WITH_DRAFTS]
SEVERAL += [("window 5",), ("window 9", "state"), ("window 4", "window 9")]
SEVERAL += [("chunk 8",), ("chunk 4", "window 9"), ("chunk 8", "chunk 5"), ("chunk 5", "state")]


@pytest.mark.parametrize("layout", SEVERAL, ids=", ".join)
def test_the_manager_decides_like_the_specification(layout: Layout) -> None:
    assert sum(play(seed, layout, detectors="D").compared for seed in range(SEEDS)) > 50 * SEEDS


def test_so_it_does_with_any_layout() -> None:
    layouts = [(seed, layout_of(seed)) for seed in range(8 * SEEDS)]
    several = [(seed, layout) for seed, layout in layouts if len(layout) > 1 and "full" in layout]
    runs = [play(seed, layout, detectors="D") for seed, layout in several]
    assert sum(run.compared for run in runs) > 50 * len(runs)


class StaysInItsSlot(BlockManager):
    """The states of a sequence are always in its first slot."""

    def place_state(self, handle: int, slot: int) -> None:
        super().place_state(handle, slot and 0)


class KeepsNoTails(BlockManager):
    """The manager keeps no tails, the specification does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"min_partial_tokens": 0, "prompt_end_stop": None})


def test_a_manager_that_decides_otherwise_is_noticed() -> None:
    with pytest.raises(DivergenceError):
        [play(s, ("full", "state"), manager=KeepsNoTails, detectors="D") for s in range(SEEDS)]
    with pytest.raises(DivergenceError):
        [play(s, WITH_DRAFTS[0], manager=StaysInItsSlot, detectors="D") for s in range(SEEDS)]
