"""Retention keeps the boundary at the end of a prefix: state and windows, not only blocks."""

from __future__ import annotations

import pytest

from tests.groups.world import FULL, STATE, World
from tests.specification import layers as kinds
from tests.specification.layers import ChunkedAttention, SlidingWindow

SYSTEM = [1] * 12


def crowd(world: World, first: int, count: int = 8) -> None:
    """Serves other prompts, which take all available blocks."""
    for token in range(first, first + count):
        handle = world.manager.admit([token] * 13)
        world.compute(handle, *sorted(world.manager.seqs[handle].stops), 13)
        world.manager.free(handle)


def answer(world: World, question: list[int], level: int | None) -> None:
    """Serves a system prompt and a question; retains the system prompt on admission."""
    manager = world.manager
    handle = manager.admit(SYSTEM + question)
    if level is not None:
        manager.retain_tokens(handle, 0, len(SYSTEM), level)
    length = len(SYSTEM + question)
    stops = sorted(stop for stop in manager.seqs[handle].stops if stop < length)
    world.compute(handle, *stops, length)
    manager.free(handle)


ENDS = [(FULL, SlidingWindow(5)), (FULL, ChunkedAttention(8)), (FULL, STATE)]
ENDS += [(SlidingWindow(6), FULL, STATE)]


@pytest.mark.parametrize("groups", ENDS, ids=lambda groups: " and ".join(map(str, groups)))
def test_a_prompt_finds_what_is_retained_for_it(groups: tuple[kinds.Kind, ...]) -> None:
    for level, found in ((2, 12), (None, 0)):
        world = World(24, 4, *groups, retention=True)
        answer(world, [2] * 6, level)
        crowd(world, 10)
        assert world.manager.match([*SYSTEM, 3]) == found
        answer(world, [3] * 6, level)
        crowd(world, 20)
        assert world.manager.match([*SYSTEM, 3]) == found


@pytest.mark.parametrize("groups", ENDS, ids=lambda groups: " and ".join(map(str, groups)))
def test_so_does_one_that_is_retained_later(groups: tuple[kinds.Kind, ...]) -> None:
    world = World(24, 4, *groups, retention=True)
    world.serve(SYSTEM, 12)
    assert world.manager.retain(SYSTEM, 2) == 3
    crowd(world, 10)
    assert world.manager.match([*SYSTEM, 3]) == 12


def test_the_end_of_what_is_retained_later_is_more_than_passed() -> None:
    for retained in (True, False):
        world = World(24, 4, FULL, SlidingWindow(5), retention=True)
        world.serve([*SYSTEM, 2, 2, 2, 2, 2])
        if retained:
            assert world.manager.retain(SYSTEM, 2) == 3
        crowd(world, 10)
        assert (world.manager.match([*SYSTEM, 3]) == 12) is retained


def test_a_forward_should_stop_at_the_end_of_what_is_retained() -> None:
    world = World(24, 4, FULL, STATE, retention=True)
    manager = world.manager
    handle = manager.admit(SYSTEM + [2] * 6)
    assert manager.seqs[handle].stops == {16}
    manager.retain_tokens(handle, 0, 13, 1)
    assert manager.seqs[handle].stops == {12, 16}  # no state within a unit
    manager.retain_tokens(handle, 12, 18, -1)  # a low level needs no boundary
    assert manager.seqs[handle].stops == {12, 16}


def test_it_may_end_within_a_unit() -> None:
    world = World(24, 4, FULL, STATE, min_partial_tokens=1, retention=True)
    manager = world.manager
    system = [1] * 10
    handle = manager.admit(system + [2] * 8)
    manager.retain_tokens(handle, 0, 10, 2)
    assert 10 in manager.seqs[handle].stops
    world.compute(handle, 10, 16, 18)
    manager.free(handle)
    crowd(world, 10)
    assert manager.match([*system, 3]) == 10


def test_of_a_retained_prefix_windows_are_kept_at_its_end_alone() -> None:
    world = World(24, 4, FULL, SlidingWindow(5), retention=True)
    answer(world, [2] * 6, 2)
    crowd(world, 10)
    assert world.manager.match([*SYSTEM, 3]) == 12
    assert world.manager.match([1] * 4 + [3]) == 0  # only passed, whatever the level


def test_a_lower_level_goes_first() -> None:
    for level in (-1, 1):
        world = World(12, 4, FULL, SlidingWindow(5), retention=True)
        for token in (1, 2):
            world.serve([token] * 9)
        assert world.manager.retain([1 if level > 0 else 2] * 8, level) == 2
        world.serve([3] * 13)
        assert world.manager.match([1] * 9) == 8
        assert world.manager.match([2] * 9) == 0


def test_a_level_goes_before_what_running_sequences_have_left_behind() -> None:
    """The sequence's state at 8 has the normal level, the retained prefix a higher one."""
    world = World(8, 4, FULL, STATE, retention=True)
    manager = world.manager
    world.serve([1] * 4, 4)
    assert manager.retain([1] * 4, 2) == 1
    running = manager.admit([2] * 9)  # three units, and a state
    manager.retain_tokens(running, 0, 4, 0)
    world.compute(running, 8)
    world.forward(running, 8)  # applies the copy behind the state that was kept at 8
    manager.commit(running, 8)
    assert manager.match([2] * 8 + [3]) == 8
    manager.append(running, [2] * 8)  # takes the remaining blocks, and one more
    world.forward(running, 17)  # advances its state, so that its end is not kept
    manager.free(running)
    assert manager.match([1] * 5) == 4
    assert manager.match([2] * 8 + [3]) == 0
