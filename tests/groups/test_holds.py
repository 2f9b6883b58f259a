"""Calls by block id with groups: holds, touches and forgetting."""

from __future__ import annotations

import contextlib

import pytest

import blockmgr
from blockmgr import BlockManager, BlockStateError
from tests.groups.test_retention import crowd
from tests.groups.world import FULL, STATE, World
from tests.specification.layers import SlidingWindow

WINDOW = SlidingWindow(5)


def tables(world: World, handle: int) -> list[list[int]]:
    return [[block for block in table if block] for table in world.manager.tables(handle)]


@pytest.mark.parametrize("group", range(3))
def test_a_held_block_is_handed_out_to_nobody(group: int) -> None:
    world = World(24, 4, FULL, WINDOW, STATE)
    manager = world.manager
    handle = manager.admit([1] * 8)
    world.compute(handle, 4, 8)
    held = tables(world, handle)[group][-1]
    manager.acquire([held])
    manager.free(handle)
    for token in range(10, 16):
        handle = manager.admit([token] * 36)
        world.compute(handle, 32, 36)
        assert not any(held in table for table in tables(world, handle))
        manager.free(handle)
    assert not manager.violations()
    before = manager.available()
    manager.release([held])
    assert manager.available() == 24 > before
    assert not manager.violations()


def test_a_hold_keeps_no_boundary() -> None:
    """A held block of a window alone is useless to a prompt."""
    world = World(16, 4, FULL, WINDOW)
    manager = world.manager
    handle = manager.admit([1] * 8)
    world.compute(handle, 8)
    manager.acquire([tables(world, handle)[1][-1]])
    manager.free(handle)
    crowd(world, 10)
    assert manager.match([1] * 9) == 0


def test_a_waiting_prompt_goes_last() -> None:
    world = World(12, 4, FULL, WINDOW)
    manager = world.manager
    for token in (1, 2):
        world.serve([token] * 9)
    manager.touch([1] * 9)
    world.serve([3] * 13)
    assert (manager.match([1] * 9), manager.match([2] * 9)) == (8, 0)


def test_a_touch_keeps_the_window_where_the_prompt_goes_on() -> None:
    """The boundary at 8 was only passed, but the waiting prompt continues there."""
    for touched in (True, False):
        world = World(22, 4, FULL, WINDOW)
        manager = world.manager
        handle = manager.admit([1] * 17)
        world.compute(handle, 17)
        manager.free(handle)
        if touched:
            manager.touch([1] * 8 + [2])
        manager.free(manager.admit([3] * 32))
        assert (manager.match([1] * 8 + [2]) == 8) is touched


@pytest.mark.parametrize("group", range(3))
def test_what_continues_a_forgotten_block_is_not_found(group: int) -> None:
    world = World(40, 4, FULL, WINDOW, STATE)
    manager = world.manager
    world.serve([1] * 4 + [5] * 5, 4, 8)  # diverges at 4
    handle = manager.admit([1] * 13)
    world.compute(handle, 4, 8, 12, 13)
    assert manager.match([1] * 13) == 12
    wrong = {0: tables(world, handle)[0][1], 1: tables(world, handle)[1][-2]}
    if group == 2:  # the state of a running sequence: everything it computes from now on is wrong
        manager.forget([tables(world, handle)[2][0]])
        assert manager.match([1] * 13) == 12
    else:
        manager.forget([wrong[group]])
        assert manager.match([1] * 13) == 4
    assert manager.match([1] * 4 + [5] * 5) == 8
    manager.append(handle, [1] * 8)
    world.compute(handle, 16, 21)
    manager.free(handle)
    assert manager.match([1] * 21) == (12 if group == 2 else 4)
    assert world.serve([1] * 21, 8, 12, 16, 20) == (12 if group == 2 else 4)
    assert manager.match([1] * 22) >= 16
    assert not manager.violations()


def test_a_forgotten_state_takes_its_path_with_it() -> None:
    world = World(40, 4, FULL, STATE)
    manager = world.manager
    world.serve([1] * 13, 12)
    handle = manager.admit([1] * 13)
    [source] = [copy.source for copy in manager.pending if copy.group == 1]
    manager.free(handle)
    assert manager.match([1] * 13) == 12
    manager.forget([getattr(source, "id", source)])
    assert manager.match([1] * 13) == 0
    assert manager.stats().free_blocks == 40
    assert not manager.violations()


def test_a_sequence_with_forgotten_blocks_goes_back_to_no_state_of_others() -> None:
    """The state of the same tokens is right, but the sequence would mix it with its own blocks."""
    world = World(40, 4, FULL, STATE)
    manager = world.manager
    handle = manager.admit(list(range(9)))
    world.compute(handle, 8, 9)
    manager.forget([manager.tables(handle)[0][0]])
    assert world.serve(range(9), 8) == 0
    assert manager.match(list(range(9))) == 8
    assert manager.truncate(handle, 8) == 0


@pytest.mark.parametrize("block", range(1, 31))
def test_a_reset_leaves_nothing_beside_a_hold(block: int) -> None:
    """A node that only a held one pins goes with it; what is before that node goes as well."""
    manager = BlockManager(
        31, 1, null_block=True, groups=(blockmgr.FullAttention(), blockmgr.ChunkedAttention(16))
    )
    prompts = {(1, 0): 2, (1, 1, 0, 1): 4, (1, 0, 1, 1, 1): 2, (0, 0, 0, 0, 1, 1, 1, 1): 7}
    for prompt, computed in prompts.items():
        handle = manager.admit(prompt)
        manager.copies_applied(manager.take_copies().ticket)
        manager.commit(handle, computed)
        if len(prompt) == computed == 4:
            manager.free(handle)
    with contextlib.suppress(BlockStateError):
        manager.acquire([block])
    manager.reset_prefix_cache()
    assert manager.stats().cached_blocks == 0
    assert manager.match([1, 1, 0, 1, 0]).num_cached_tokens == 0
    manager.check_invariants()
