"""Worlds for the rules of rings, G15 to G18 of the second design of groups, and its attack 14."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import BlockManager, MissReason
from blockmgr.blocks import Admission
from blockmgr.errors import NeverFitsError, OutOfBlocksError, StepError
from blockmgr.events import Encoder
from blockmgr.groups import ChunkedAttention, FullAttention, RecurrentState, Ring, SlidingWindow
from tests.groups.world import FULL, STATE, World
from tests.specification import layers as kinds

RING = kinds.Ring(8, restart=4)
PROMPT = list(range(1, 25))


def ring_of(world: World, handle: int, group: int = 1) -> int:
    [block] = world.manager.tables(handle)[group]
    return int(block)


# G16: one block from admission to end, never found, never shared, emptied when taken


def test_a_sequence_has_one_ring_from_its_admission_to_its_end() -> None:
    world = World(20, 4, FULL, RING)
    handle = world.manager.admit(PROMPT)
    ring = ring_of(world, handle)
    for stop in (3, 8, 24):
        world.compute(handle, stop)
        assert ring_of(world, handle) == ring
    world.manager.append(handle, [1] * 9)
    world.compute(handle, 33)
    assert ring_of(world, handle) == ring
    before = world.manager.available()
    world.manager.free(handle)
    assert world.manager.available() == before + 10  # nine blocks of attention, and the ring


def test_a_ring_is_empty_when_it_is_taken_whatever_was_in_the_block() -> None:
    world = World(8, 4, FULL, RING)
    first = world.manager.admit([1] * 20)
    world.compute(first, 20)
    ring = ring_of(world, first)
    world.manager.free(first)
    second = world.manager.admit([2] * 28)  # all blocks but one
    assert ring in {block for table in world.manager.tables(second) for block in table}
    world.compute(second, 28)  # the memory refuses a ring that is not empty
    assert world.manager.zeros == [ring_of(world, second)]


def test_the_plan_of_the_step_names_the_rings_to_empty_once() -> None:
    world = World(20, 4, FULL, RING, kinds.Ring(3, restart=2))
    handles = [world.manager.admit([number] * 6) for number in (1, 2)]
    rings = {ring_of(world, handle, group) for handle in handles for group in (1, 2)}
    assert world.manager.take_copies() == []
    assert set(world.manager.zeros) == rings
    world.manager.copies_applied()
    world.manager.take_copies()
    assert world.manager.zeros == []


def test_a_ring_of_a_sequence_that_has_gone_is_not_emptied() -> None:
    world = World(20, 4, FULL, RING)
    kept, gone = (world.manager.admit([number] * 6) for number in (1, 2))
    world.manager.free(gone)
    world.manager.take_copies()
    assert world.manager.zeros == [ring_of(world, kept)]


def test_after_an_abort_the_ring_is_to_be_emptied_again() -> None:
    world = World(20, 4, FULL, RING)
    handle = world.manager.admit(PROMPT)
    world.manager.take_copies()
    world.manager.copies_aborted()
    world.compute(handle, 24)
    assert not world.manager.violations()


def test_a_fork_has_a_copy_of_the_whole_ring_which_is_not_emptied() -> None:
    world = World(20, 4, FULL, RING)
    parent = world.manager.admit(PROMPT)
    world.compute(parent, 24)
    [child] = world.manager.fork(parent)
    assert ring_of(world, child) != ring_of(world, parent)
    for number, handle in enumerate((parent, child)):
        world.manager.append(handle, [number] * 3)
    pairs = [(c.source, c.destination) for c in world.manager.pending if c.group == 1]
    assert pairs == [(ring_of(world, parent), ring_of(world, child))]
    world.compute(child, 27)
    assert world.manager.zeros == []
    world.compute(parent, 27)


def test_a_fork_of_a_ring_that_is_to_be_emptied_begins_empty_too() -> None:
    world = World(20, 4, FULL, RING)
    parent = world.manager.admit(PROMPT)
    children = world.manager.fork(parent, 2)
    world.manager.free(parent)
    assert world.manager.take_copies() == []
    assert set(world.manager.zeros) == {ring_of(world, child) for child in children}


def test_it_does_if_the_plan_that_emptied_its_parents_ring_is_aborted() -> None:
    world = World(40, 4, FULL, kinds.Ring(5, restart=4))
    parent = world.manager.admit(PROMPT)
    world.compute(parent, 24)
    assert world.manager.truncate(parent, 16) == 16  # nothing is left to compute
    world.manager.take_copies()
    [child] = world.manager.fork(parent)
    world.manager.copies_aborted()
    world.manager.free(parent)
    assert world.manager.take_copies() == []
    assert world.manager.zeros == [ring_of(world, child)]
    assert not world.manager.violations()


def test_a_ring_that_is_emptied_while_a_copy_into_it_is_launched_is_empty_after_an_abort() -> None:
    world = World(40, 4, FULL, kinds.Ring(5, restart=4))
    parent = world.manager.admit(PROMPT)
    world.compute(parent, 24)
    [child] = world.manager.fork(parent)
    [copy] = [c for c in world.manager.take_copies() if c.group == 1]
    assert world.manager.truncate(child, 16) == 16
    assert copy.destination == ring_of(world, child)
    world.manager.copies_aborted()
    assert not world.manager.violations()
    assert [c for c in world.manager.take_copies() if c.group == 1] == []
    assert world.manager.zeros == [ring_of(world, child)]


def test_a_sequence_that_takes_the_place_of_another_has_its_ring() -> None:
    world = World(30, 4, FULL, RING)
    handles = [world.manager.admit([number] * 10) for number in (1, 2)]
    for handle in handles:
        world.compute(handle, 10)
    world.manager.reparent(handles, [1, 0])
    for handle in handles:
        world.manager.append(handle, [5])
        world.compute(handle, 11)


def test_no_fork_of_a_ring_that_a_launched_forward_may_have_turned() -> None:
    world = World(20, 4, FULL, RING)
    handle = world.manager.admit(PROMPT)
    world.forward(handle, 24)
    with pytest.raises(StepError):
        world.manager.fork(handle)
    world.manager.commit(handle, 24)
    world.manager.fork(handle)


def test_a_preempted_sequence_loses_its_ring_and_resumes_where_an_empty_one_is_right() -> None:
    world = World(20, 4, FULL, RING, min_partial_tokens=1)
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 23)
    available = world.manager.available()
    world.manager.preempt(handle)
    assert world.manager.available() == available + 7
    world.manager.resume(handle)
    assert world.manager.seqs[handle].computed == 20
    world.compute(handle, 24)
    assert not world.manager.violations()


# G17: hits and boundaries at multiples of the restart


@pytest.mark.parametrize(
    ("restart", "found"), [(1, 23), (2, 22), (4, 20), (3, 21), (5, 20), (8, 16)]
)
def test_a_hit_lies_at_a_multiple_of_the_restart(restart: int, found: int) -> None:
    world = World(40, 4, FULL, kinds.Ring(9, restart=restart), min_partial_tokens=1)
    world.serve(PROMPT[:23])
    handle = world.manager.admit(PROMPT)
    assert world.manager.seqs[handle].cached == found
    world.compute(handle, 24)


def test_where_prompts_differ_between_restarts_the_part_before_is_found() -> None:
    world = World(40, 8, FULL, kinds.Ring(4, restart=3), min_partial_tokens=1)
    world.serve(PROMPT)
    assert world.serve([*PROMPT[:11], 99, 98]) == 9
    assert world.serve([*PROMPT[:8], 99, 98]) == 6


def test_all_rings_restart_together() -> None:
    world = World(40, 4, FULL, kinds.Ring(8, restart=4), kinds.Ring(9, restart=3))
    world.serve(PROMPT)
    assert world.serve(PROMPT) == 12


def test_attack_14_no_window_is_kept_where_no_prompt_can_begin() -> None:
    """Ends of nodes at 8, 16, 24, 32 and rings that restart at 16."""
    world = World(60, 8, FULL, kinds.SlidingWindow(3), kinds.Ring(16, restart=16))
    tokens = list(range(1, 42))
    world.serve(tokens, 8, 16, 24, 32)
    if world.manager.is_specification:
        assert {len(prefix[1]) for prefix in world.manager.stamps} == {16, 32}
    # Of full attention four blocks, and of the window those before 16 and 32.
    assert world.manager.stats().cached_blocks == 6
    assert world.serve(tokens) == 32
    assert world.serve([*tokens[:31], 99, 99]) == 16


def test_a_state_is_kept_where_the_ring_restarts() -> None:
    world = World(60, 4, FULL, STATE, kinds.Ring(12, restart=12))
    handle = world.manager.admit(PROMPT + PROMPT)
    assert world.manager.seqs[handle].stops == {36}
    world.compute(handle, 36, 48)
    world.manager.free(handle)
    assert world.manager.match(PROMPT + PROMPT) == 36


def test_no_prompt_can_continue_from_a_state_where_the_ring_does_not_restart() -> None:
    world = World(60, 4, FULL, STATE, kinds.Ring(12, restart=12))
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 8)
    assert not world.manager.cache_state(handle)
    assert not world.manager.violations()


def test_explain_names_the_ring_that_does_not_restart_there() -> None:
    manager = BlockManager(
        40, 4, groups=[FullAttention(), SlidingWindow(3), Ring(16, restart=16)], null_block=True
    )
    handle = manager.admit(range(30))
    manager.commit(handle, 30)
    explained = manager.explain([*range(24), 99])
    assert explained.num_cached_tokens == 16
    assert [m.group for m in explained.misses if m.reason is MissReason.GROUP] == [2]


# G18: rings count


def test_rings_count_in_what_a_prompt_needs() -> None:
    """Ten blocks; a prompt of eight with three rings is never admitted, with two it is."""
    prompt = list(range(32))
    for rings, answer in ((2, Admission.NOW), (3, Admission.NEVER)):
        world = World(10, 4, FULL, *[RING] * rings)
        assert world.manager.can_admit(prompt) is answer
    with pytest.raises(NeverFitsError):
        world.manager.admit(prompt)


def test_rings_count_in_what_a_prompt_needs_after_its_first_chunk() -> None:
    world = World(10, 4, FULL, RING, RING, RING)
    assert world.manager.can_admit(list(range(28)), num_slots=4) is Admission.NOW
    assert world.manager.can_admit(list(range(32)), num_slots=4) is Admission.NEVER


def test_rings_count_in_what_is_available_now() -> None:
    world = World(10, 4, FULL, RING, RING)
    world.manager.admit([1] * 12)
    assert world.manager.can_admit([2] * 16) is Admission.LATER
    with pytest.raises(OutOfBlocksError):
        world.manager.admit([2] * 16)
    world.manager.admit([2] * 12)
    assert world.manager.available() == 0


def test_rings_count_in_quotas() -> None:
    world = World(20, 4, FULL, RING, quotas={b"tenant": 5})
    assert world.manager.can_admit([1] * 20, namespace=b"tenant") is Admission.NEVER
    handle = world.manager.admit([1] * 16, b"tenant")
    assert world.manager.available(b"tenant") == 0
    assert world.manager.available() == 15
    with pytest.raises(OutOfBlocksError):
        world.manager.fork(handle)


# G15: going back


def test_drafts_are_taken_back_while_the_ring_has_what_is_read() -> None:
    world = World(40, 4, FULL, kinds.Ring(8, restart=4))
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 20)
    world.forward(handle, 24)  # four drafts
    world.manager.commit(handle, 22)
    assert world.manager.truncate(handle, 22) == 22
    world.manager.append(handle, [9, 9, 9])
    world.compute(handle, 25)


def test_a_launched_forward_has_turned_the_ring_whatever_is_committed() -> None:
    world = World(40, 4, FULL, kinds.Ring(4, restart=4))
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 20)
    world.forward(handle, 24)
    assert world.manager.truncate(handle, 19) == 16


def test_beyond_that_the_sequence_falls_to_a_restart_with_an_empty_ring() -> None:
    world = World(40, 4, FULL, kinds.Ring(5, restart=4))
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 24)
    assert world.manager.truncate(handle, 18) == 16
    world.compute(handle, 18)
    assert world.manager.zeros == [ring_of(world, handle)]


def test_where_the_window_has_gone_it_falls_to_a_place_that_all_groups_serve() -> None:
    """A window of 32, from 96 to 40, and a ring of 136 that restarts at 128."""
    world = World(99, 8, FULL, kinds.SlidingWindow(32), kinds.Ring(136, restart=128))
    handle = world.manager.admit(list(range(100)))
    world.compute(handle, 96)
    assert world.manager.truncate(handle, 40) == 0
    world.manager.reserve(handle, 40)
    world.compute(handle, 40)


def test_a_child_gets_the_ring_before_its_parent_empties_it() -> None:
    world = World(40, 4, FULL, kinds.Ring(5, restart=4))
    parent = world.manager.admit(PROMPT[:22])
    world.compute(parent, 22)
    [child] = world.manager.fork(parent)
    assert world.manager.truncate(parent, 9) == 8
    for handle in (parent, child):
        world.manager.append(handle, [7, 7])
    world.compute(child, 24)
    world.compute(parent, 11)
    assert not world.manager.violations()


# Loads, and what is refused


def test_behind_a_load_the_first_forward_begins_where_the_ring_restarts() -> None:
    manager = BlockManager(40, 4, groups=[FullAttention(), Ring(8, 4)], null_block=True)
    handle = manager.admit(range(24), num_loaded_tokens=22)
    manager.commit(handle, 20)
    assert manager.sequence(handle).num_computed_tokens == 20


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ring(3, 4), "restart must be at most the width, 3"),
        (lambda: Ring(0), "width must be"),
        (lambda: Ring(4, 0), "restart must be"),
        (
            lambda: BlockManager(
                40,
                4,
                groups=[FullAttention(), Ring(8, 4)],
                null_block=True,
                max_rollback_tokens=5,
            ),
            r"at least restart \+ max_rollback_tokens, 9",
        ),
        (
            lambda: BlockManager(
                40,
                4,
                groups=[FullAttention(), Ring(2**31 - 1, 2**31 - 1), Ring(2, 2)],
                null_block=True,
            ),
            "common multiple below 2",
        ),
        (lambda: BlockManager(40, 4, groups=[Ring(8)], null_block=True), "one that is no ring"),
    ],
)
def test_what_rings_cannot_mean_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_ring_has_no_slots() -> None:
    manager = BlockManager(40, 4, groups=[FullAttention(), Ring(8, 4)], null_block=True)
    handle = manager.admit(range(10))
    with pytest.raises(ValueError, match="one of attention"):
        manager.slot_mapping(handle, 0, 4, group=1)
    assert manager.group_table(1).shape == (manager.config.max_seqs, 1)


def test_what_one_takes_over_leaves_those_that_resume_with_it_what_they_found() -> None:
    """Its end needs the first block of the window for the margin only; the other one reads it."""
    groups = [FullAttention(), SlidingWindow(6), Ring(5, restart=3)]
    options: dict[str, Any] = {"min_partial_tokens": 1, "stop_margin_tokens": 4, "debug": 2}
    manager = BlockManager(60, 4, groups=groups, null_block=True, **options)
    for length in (6, 9):
        handle = manager.admit(PROMPT[:length], read_cache=False)
        manager.copies_applied(manager.take_copies().ticket)
        manager.commit(handle, length)
        manager.free(handle)
    prompts = [PROMPT[:10], PROMPT[:7]]
    handles = [manager.admit(prompt) for prompt in prompts]
    for handle in handles:
        manager.preempt(handle)
    found = [manager.match(prompt).num_cached_tokens for prompt in prompts]
    manager.resume_together(handles)
    assert [manager.sequence(handle).num_cached_tokens for handle in handles] == found == [9, 6]
    plan = manager.take_copies()
    tables = [manager.group_table(group)[manager.row(handles[1])] for group in (0, 1)]
    read = [(copy.destination, copy.num_tokens) for copy in plan if copy.source != copy.destination]
    assert read == [(table[1], 2) for table in tables]
    assert tables[1][0]


def test_a_ring_lacks_what_a_forward_ahead_has_overwritten() -> None:
    """The token at position 9 lies where the one at 4 was, which the query at 6 would read."""
    for ahead, num_slots, left in ((False, None, 7), (True, 9, 7), (True, 10, 4), (True, None, 4)):
        groups = [FullAttention(), Ring(5, restart=4)]
        manager = BlockManager(40, 4, groups=groups, null_block=True, steps_in_flight=3)
        handle = manager.admit(range(9))
        manager.copies_applied(manager.take_copies().ticket)
        manager.commit(handle, 9)
        manager.reserve(handle, 10)
        manager.copies_applied(manager.take_copies().ticket)
        if ahead:
            manager.mark_state_moved(handle, num_slots=num_slots)
        with pytest.raises(ValueError, match="num_slots"):
            manager.mark_state_moved(handle, num_slots=13)
        assert manager.truncate(handle, 7) == left
        assert len(manager.take_copies().zeros) == (left < 7)


def test_events_say_nothing_of_rings() -> None:
    groups = [FullAttention(), ChunkedAttention(8), RecurrentState(), Ring(8, 4)]
    manager = BlockManager(40, 4, groups=groups, null_block=True, events=True)
    handle = manager.admit(range(20))
    manager.commit(handle, 16)
    manager.take_copies()
    manager.free(handle)
    events = manager.take_events()
    assert 3 not in events.group.tolist()
    assert list(Encoder(4, groups=manager.config.groups).batches(events, 0.0))
