"""Random runs of layouts with sizes of their own, and of each broken rule."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups import broken_sizes as broken
from tests.specification.layouts import ModelLayouts
from tests.stress.perform import finish_up
from tests.stress.run import Plan, Run

OPS = 60
MOST_SEEDS = 300

REACHED_BY: dict[type[ModelLayouts], tuple[tuple[str, ...], dict[str, Any]]] = {
    broken.KeepsWhatIsOverwritten: (("window 5 block_size=4",), {"block_size": 2}),
    broken.KeepsAStateBehindALaterStep: (
        ("full", "state"),
        {"block_size": 1, "steps_in_flight": 8, "early_commit": False},
    ),
    broken.KeepsAStopFromTheLiveSlot: (
        ("full block_size=4", "state extra_blocks=3"),
        {"block_size": 1, "early_commit": False, "steps_in_flight": 0, "halfway_stop_tokens": 1},
    ),
    broken.TakesTheFirstSlotToBeLive: (("full", "state extra_blocks=3"), {}),
    broken.FindsWhereARingLacksItsBeginning: (("full", "ring 8 restart=4"), {"block_size": 2}),
    broken.FallsToWhereTheRingIsOverwritten: (("full", "ring 4 restart=4"), {}),
    broken.ForksGoOnWithAnEmptyRing: (("full", "ring 4 restart=4"), {}),
    broken.BeginsWithADirtyRing: (("full", "ring 4 restart=4"), {}),
    broken.FallsToWhereAWindowHasAGap: (("full block_size=4", "window 3"), {"block_size": 2}),
    broken.FindsWithoutLookingAhead: (("full", "window 5 look_ahead=1"), {"block_size": 2}),
    broken.ReplaysIntoBlocksOfOthers: (
        ("full block_size=4", "window 5 cached=0 replay=5 block_size=4"),
        {"block_size": 2},
    ),
    broken.ForksOfAReplayGoOnWhereItIs: (
        ("full block_size=4", "window 5 cached=0 replay=5 block_size=4"),
        {"block_size": 2},
    ),
}
"""Layouts and options that soon exercise the rule; all others: any."""


def play(manager: type[ModelLayouts], seed: int, layout: Any = (), **options: Any) -> Run:
    options |= {"min_partial_tokens": 0} if options else {}  # it must fit the node
    plan = Plan(OPS, detectors="IK", manager=manager, layout=layout, options=options)
    run = Run(plan, "sizes", seed)
    for _ in range(OPS):
        run.one()
    finish_up(run.world)
    return run


def test_no_engine_reads_anything_wrong() -> None:
    worlds = [play(ModelLayouts, seed).world for seed in range(60)]
    assert sum(world.found for world in worlds) > 200
    assert sum(world.device.num_reads for world in worlds) > 10_000


def outcome(manager: type[ModelLayouts]) -> Exception | None:
    """The first error of a broken rule."""
    layout, options = REACHED_BY.get(manager, ((), {}))
    for seed in range(MOST_SEEDS):
        try:
            play(manager, seed, layout, **options)
        except Exception as error:  # any other error means that the rule was missed
            return error
    return None


@pytest.mark.parametrize("manager", broken.WRONG, ids=lambda manager: manager.__name__)
def test_each_broken_rule_is_noticed(manager: type[ModelLayouts]) -> None:
    assert outcome(manager) is not None


@pytest.mark.parametrize("layout", sorted({layout for layout, _ in REACHED_BY.values()}), ids=str)
def test_no_rule_is_broken_where_the_broken_ones_are_noticed(layout: tuple[str, ...]) -> None:
    for seed in range(3):
        for other, options in REACHED_BY.values():
            if other == layout:
                play(ModelLayouts, seed, layout, **options)
