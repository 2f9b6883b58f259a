"""Worlds of steps: planning while a step is closed, launched, aborted or in flight."""

from __future__ import annotations

import pytest

from blockmgr.errors import OutOfBlocksError, StepError
from tests.groups.world import FULL, STATE, World
from tests.specification.layers import Kind, SlidingWindow

# Copies


def test_prompts_of_one_step_find_the_same_state() -> None:
    """A kept state is copied for each prompt that finds it."""
    world = World(30, 4, FULL, STATE)
    world.serve([1] * 9, 8)
    handles = [world.manager.admit([1] * 9) for _ in range(3)]
    assert [world.manager.seqs[handle].cached for handle in handles] == [8, 8, 8]
    for handle in handles:
        world.compute(handle, 9)


def test_an_aborted_step_says_nothing_of_the_one_before() -> None:
    """The first step advanced the state to 4 without a commit, so no fork may start at 0."""
    world = World(30, 4, FULL, STATE)
    manager = world.manager
    manager.steps_in_flight = 8
    handle = manager.admit([1] * 9)
    world.forward(handle, 4)
    manager.take_copies()
    manager.copies_aborted()
    with pytest.raises(StepError):
        manager.fork(handle)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_commit_of_nothing_new_may_be_about_a_step_before(is_complete: bool) -> None:
    """The second step moves the state to 5, whatever the commit says of the first one."""
    world = World(30, 4, FULL, STATE)
    manager = world.manager
    manager.steps_in_flight = 8
    handle = manager.admit([1] * 4)
    world.forward(handle, 4)
    manager.commit(handle, 4)
    manager.complete()
    manager.take_copies()  # for others: all that it has is computed
    manager.copies_applied()
    manager.append(handle, [2])
    world.forward(handle, 5)
    if is_complete:
        manager.complete()
    manager.commit(handle, 4)  # what the first of these steps computed
    with pytest.raises(StepError):
        manager.fork(handle)
    manager.commit(handle, 5)
    manager.fork(handle)


# Fences


def test_a_fenced_state_is_found_and_not_taken_over() -> None:
    world = World(5, 4, FULL, STATE)
    manager = world.manager
    manager.steps_in_flight = 8
    handle = manager.admit([1] * 5)
    world.forward(handle, 4)
    manager.complete()
    manager.commit(handle, 4)
    world.forward(handle, 4)
    manager.free(handle)
    assert manager.match([1] * 5) == 4
    with pytest.raises(OutOfBlocksError):  # its state would have to be taken over
        manager.admit([1] * 5)
    manager.complete()
    assert manager.match([1] * 5) == 4


def test_a_state_is_kept_before_its_step_is_complete() -> None:
    """The commit names the one step that was launched since the state was known (rule 10)."""
    world = World(20, 4, FULL, STATE)
    manager = world.manager
    manager.steps_in_flight = 8
    handle = manager.admit([1] * 6)
    world.forward(handle, 4)
    manager.commit(handle, 4)
    manager.complete()
    world.forward(handle, 6)
    manager.commit(handle, 6)
    manager.free(handle)
    assert manager.match([1] * 6) == 4


# Early commits


def early(num_blocks: int, block_size: int, *kinds: Kind, min_partial_tokens: int = 0) -> World:
    world = World(num_blocks, block_size, *kinds, min_partial_tokens=min_partial_tokens)
    world.manager.early = True
    return world


def test_an_early_commit_makes_no_state_findable() -> None:
    """It names where the forward will stop; the next commit confirms that it has."""
    world = early(30, 4, FULL, STATE)
    manager = world.manager
    prompt = [1] * 9
    handle = manager.admit(prompt)
    manager.commit(handle, 8)
    assert not manager.pending
    assert manager.match(prompt) == 0
    world.step()
    assert manager.match(prompt) == 0
    manager.commit(handle, 8)
    assert manager.match(prompt) == 0
    manager.commit(handle, 9)
    world.step()
    assert manager.match(prompt) == 8
    manager.free(handle)
    assert world.serve_early(prompt) == 8


def test_a_window_is_dropped_by_what_is_written() -> None:
    world = early(30, 4, FULL, SlidingWindow(4))
    manager = world.manager
    handle = manager.admit([1] * 16)
    manager.commit(handle, 8)
    world.step()
    manager.commit(handle, 16)  # the forward from 8 on reads 5, 6 and 7
    assert manager.tables(handle)[1][0] == 0
    assert all(manager.tables(handle)[1][1:])
    world.step()
    manager.commit(handle, 16)
    assert manager.tables(handle)[1][:3] == (0, 0, 0)


def test_what_is_promised_is_written_first() -> None:
    """No sequence may end, fork or copy before the forward that writes it."""
    world = early(30, 4, FULL, SlidingWindow(4))
    manager = world.manager
    handle, other = manager.admit([1] * 6), manager.admit([2])
    manager.commit(handle, 6)
    before = manager.fingerprint()
    for call in (
        lambda: manager.free(handle),
        lambda: manager.preempt(handle),
        lambda: manager.fork(handle),
        lambda: manager.truncate(handle, 5),
        lambda: manager.reparent([handle, other], [1, 1]),
        lambda: manager.reparent([handle, other], [0, 0]),
    ):
        with pytest.raises(StepError):
            call()
        assert manager.fingerprint() == before
    world.step()
    manager.free(handle)


def test_a_copy_of_what_another_one_promises_has_to_wait() -> None:
    """The second sequence found 8 tokens, keeps 6 of them and appends another one."""
    world = early(30, 4, FULL)
    manager = world.manager
    first = manager.admit([1] * 9)
    manager.commit(first, 4)
    world.step()
    manager.commit(first, 8)
    second = manager.admit([1] * 9)
    assert manager.truncate(second, 6) == 6
    with pytest.raises(StepError):
        manager.append(second, [2])
    world.step()
    manager.append(second, [2])
    manager.commit(second, 7)
    world.step()


# Merges


def tables_of(world: World, handle: int) -> tuple[tuple[int, ...], ...]:
    tables: tuple[tuple[int, ...], ...] = world.manager.tables(handle)
    return tables


def test_a_fork_keeps_its_slots_when_its_parent_merges() -> None:
    """The fork was told its slots before: its own commit moves it."""
    world = World(30, 3, FULL, SlidingWindow(2))
    cached, parent = (world.manager.admit([1, 2, 3, 4]) for _ in range(2))
    [fork] = world.manager.fork(parent)
    slots = tables_of(world, fork)
    world.compute(cached, 4)
    world.compute(parent, 3)
    assert tables_of(world, parent)[0][0] == tables_of(world, cached)[0][0]
    assert tables_of(world, fork) == slots
    other = world.manager.admit([7, 7, 7, 7])
    assert not {b for t in tables_of(world, other) for b in t} & {b for t in slots for b in t}
    world.compute(other, 4)
    world.compute(fork, 3)
    assert tables_of(world, fork)[0][0] == tables_of(world, cached)[0][0]


def test_a_shared_unit_waits_while_the_cached_one_lacks_the_block_of_a_window() -> None:
    """Its block cannot stand for the lacking one, as the fork keeps it; the window passes it."""
    world = World(60, 4, FULL, SlidingWindow(4), STATE)
    cached, parent = (world.manager.admit([1] * 13) for _ in range(2))
    [fork] = world.manager.fork(parent)
    world.compute(cached, 13)  # at no stop, so no boundary keeps the blocks of the window
    slots = tables_of(world, parent)
    world.compute(parent, 4)
    assert tables_of(world, parent)[0] == slots[0]
    world.compute(parent, 13)
    world.manager.commit(parent, 13)
    assert tables_of(world, parent)[0][:2] == tables_of(world, cached)[0][:2]
    assert tables_of(world, fork)[:2] == slots[:2]
    world.compute(fork, 13)
    world.manager.commit(fork, 13)
    assert tables_of(world, fork)[0][:2] == tables_of(world, cached)[0][:2]
    for handle in (cached, parent, fork):
        world.manager.free(handle)
    assert not world.manager.violations()


def test_a_unit_that_is_shared_no_more_merges_and_brings_its_block() -> None:
    """The cached unit has the block of the window afterwards."""
    world = World(60, 4, FULL, SlidingWindow(4), STATE)
    cached, parent = (world.manager.admit([1] * 13) for _ in range(2))
    [fork] = world.manager.fork(parent)
    world.compute(cached, 13)
    slots = tables_of(world, parent)
    world.compute(parent, 4)
    world.manager.free(fork)
    world.compute(parent, 5)
    after = tables_of(world, parent)
    assert after[0][0] == tables_of(world, cached)[0][0]
    assert after[1][0] == slots[1][0]
