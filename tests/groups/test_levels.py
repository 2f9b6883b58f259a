"""Levels with groups on the manager itself: pins, hints, time, and engines of all habits."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager, BlockState, Priority
from blockmgr.errors import PinBudgetError
from tests.groups.adapter import Adapter
from tests.groups.random_runs import WITH_FULL, play
from tests.groups.test_retention import SYSTEM, crowd
from tests.groups.world import FULL, STATE, World
from tests.specification import layers as kinds
from tests.specification.layers import SlidingWindow


def build(*groups: kinds.Kind, num_blocks: int = 25) -> World:
    made = World(num_blocks - 1, 4, *groups)
    made.manager = Adapter(num_blocks, 4, groups, build=BlockManager, retention=True)
    return made


def test_a_pin_keeps_its_state() -> None:
    made = build(FULL, STATE)
    made.serve(SYSTEM, 12)
    core = made.manager.core
    pin = core.pin(SYSTEM)
    assert core.pinned(pin).num_blocks == 3
    crowd(made, 10)
    assert core.match([*SYSTEM, 3]).num_cached_tokens == 12
    assert core.stats().pinned_blocks == 3
    made.serve([5] * 17, 16)
    with pytest.raises(PinBudgetError):
        core.pin([5] * 16)
    core.unpin(pin)
    crowd(made, 20)
    assert core.match([*SYSTEM, 3]).num_cached_tokens == 0


def test_a_pin_covers_what_prompts_can_go_on_from() -> None:
    made = build(FULL, STATE)
    core = made.manager.core
    handle = made.manager.admit([1] * 16)
    made.compute(handle, 12, 16)
    assert core.match([1] * 17).num_cached_tokens == 12
    assert core.pinned(core.pin([1] * 16)).num_blocks == 3


def test_the_blocks_of_all_groups_show_the_level_of_their_node() -> None:
    made = build(FULL, SlidingWindow(5), STATE)
    made.serve(SYSTEM, 12)
    core = made.manager.core
    assert core.retain_prefix(SYSTEM, priority=Priority.HIGH) == 3
    found = core.blocks()
    idle = found.state == BlockState.IDLE
    assert sorted(found.group[idle].tolist()) == [0, 0, 0, 1, 2]
    assert set(found.priority[idle].tolist()) == {Priority.HIGH}


@pytest.mark.parametrize("expects", [True, False])
def test_a_conversation_that_is_expected_to_go_on_keeps_its_end(expects: bool) -> None:
    made = build(FULL, SlidingWindow(5), STATE)
    core = made.manager.core
    handle = made.manager.admit([1] * 12)
    made.compute(handle, 8, 12)
    core.free(handle, expect_reuse=expects)
    del made.manager.seqs[handle]
    made.serve([2] * 12, 8, 12)
    crowd(made, 10, 4)
    assert core.match([1] * 13).num_cached_tokens == (12 if expects else 0)


def test_time_ends_what_is_retained() -> None:
    made = build(FULL, SlidingWindow(5))
    made.serve(SYSTEM)
    core = made.manager.core
    core.retain_prefix(SYSTEM, priority=Priority.HIGH, ttl=5.0)
    core.set_time(5.0)
    assert core.stats().expired_blocks == 3
    crowd(made, 10)
    assert core.match([*SYSTEM, 3]).num_cached_tokens == 0


@pytest.mark.parametrize("eviction", ["lru", "arc"])
def test_no_engine_reads_anything_wrong_with_levels(eviction: str) -> None:
    options = {"retention": True, "eviction": eviction}
    layouts = [WITH_FULL[seed % len(WITH_FULL)] for seed in range(40)]
    runs = [play(seed, layout, options=options) for seed, layout in enumerate(layouts)]
    assert sum(run.world.found for run in runs) > 40
