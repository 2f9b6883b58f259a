"""Worlds of steps: what may be planned while one is closed, launched, aborted or in flight."""

from __future__ import annotations

import pytest

from tests.groups.kinds import SlidingWindow
from tests.groups.model_pool import OutOfBlocks
from tests.groups.world import FULL, STATE, World

# Copies


def test_prompts_of_one_step_find_the_same_state() -> None:
    """A kept state is copied as often as it is found."""
    world = World(30, 4, FULL, STATE)
    world.serve([1] * 9, 8)
    handles = [world.manager.admit([1] * 9) for _ in range(3)]
    assert [world.manager.seqs[handle].cached for handle in handles] == [8, 8, 8]
    for handle in handles:
        world.compute(handle, 9)


def test_a_kept_state_is_found_once_its_copy_is_applied() -> None:
    world = World(30, 4, FULL, STATE)
    handle = world.manager.admit([1] * 9)
    world.compute(handle, 8)
    assert world.manager.match([1] * 9) == 0
    world.manager.take_copies()
    assert world.manager.match([1] * 9) == 0
    world.manager.copies_applied()
    assert world.manager.match([1] * 9) == 8


def test_a_copy_of_a_copy_that_was_aborted_is_one_of_its_source() -> None:
    """While a step is closed, more is planned; its copies may run in one plan with the others."""
    world = World(30, 4, FULL)
    manager = world.manager
    first = manager.admit([1] * 6)
    world.compute(first, 5)
    [second] = manager.fork(first)
    manager.append(second, [2])
    manager.take_copies()
    [third] = manager.fork(second)
    manager.append(third, [3])
    manager.copies_aborted()
    assert not manager.violations()
    for handle in (first, second, third):
        world.compute(handle, 6)


# Fences


def test_a_block_of_a_launched_step_is_not_handed_out() -> None:
    world = World(3, 4, FULL, SlidingWindow(4))
    manager = world.manager
    manager.steps_in_flight = 1
    handle = manager.admit([1] * 4)
    world.forward(handle, 4)
    manager.free(handle)
    assert manager.available() == 1
    with pytest.raises(OutOfBlocks):
        manager.admit([2] * 4)
    manager.complete()
    assert manager.available() == 3
    manager.admit([2] * 4)


def test_a_fenced_state_is_found_and_not_taken_over() -> None:
    world = World(5, 4, FULL, STATE)
    manager = world.manager
    manager.steps_in_flight = 1
    handle = manager.admit([1] * 5)
    world.forward(handle, 4)
    manager.complete()
    manager.commit(handle, 4)
    world.forward(handle, 4)
    manager.free(handle)
    assert len(manager.idle_blocks()) == 2  # the unit, and its state
    assert manager.match([1] * 5) == 0  # its state would have to be taken over
    manager.complete()
    assert manager.match([1] * 5) == 4


def test_an_aborted_step_fences_nothing() -> None:
    world = World(3, 4, FULL)
    manager = world.manager
    manager.steps_in_flight = 2
    handle = manager.admit([1] * 9)
    world.forward(handle, 4)
    manager.take_copies()
    manager.free(handle)
    manager.copies_aborted()
    assert manager.available() == 0  # the step before is in flight
    manager.complete()
    assert manager.available() == 3
