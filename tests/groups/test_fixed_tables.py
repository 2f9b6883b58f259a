"""Worlds of several groups whose tables never change: ``dedup="append_only"``."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    FullAttention,
    RecurrentState,
    SequenceStateError,
    SlidingWindow,
    UnknownSequenceError,
)
from tests.unit.snapshot import snapshot

WINDOW = (FullAttention(), SlidingWindow(5))
STATE = (FullAttention(), RecurrentState())
PROMPT = list(range(1, 18))


def manager_of(groups: Any, num_blocks: int = 99, **options: Any) -> BlockManager:
    return BlockManager(
        num_blocks, 4, groups=groups, null_block=True, dedup="append_only", debug=2, **options
    )


def tables(manager: BlockManager, handle: int) -> list[list[int]]:
    row, count = manager.row(handle), manager.sequence(handle).num_blocks
    return [manager.group_table(g)[row, :count].tolist() for g in range(2)]


def launch(manager: BlockManager) -> list[tuple[int, int]]:
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    return [(copy.source, copy.destination) for copy in plan]


def found(manager: BlockManager, tokens: list[int] = PROMPT) -> int:
    return manager.match(tokens).num_cached_tokens


def test_a_commit_moves_no_sequence_to_blocks_of_another_one() -> None:
    manager = manager_of(WINDOW)
    first = manager.admit(PROMPT)
    second = manager.admit(PROMPT, read_cache=False)
    manager.commit(first, 17)
    before = tables(manager, second)
    manager.commit(second, 17)
    after = tables(manager, second)
    assert manager.stats().deduplicated_blocks == 4
    assert after == [before[0], [0, 0, 0, *before[1][3:]]]  # passed by its window
    assert set(before[0]).isdisjoint(tables(manager, first)[0])


def test_a_sequence_that_writes_into_a_found_block_leaves_it_in_all_groups() -> None:
    """The key passes to the twin of another sequence, whose window has left the block."""
    manager = manager_of((FullAttention(), SlidingWindow(2)))
    writer = manager.admit(PROMPT[:8])
    other = manager.admit(PROMPT[:16], read_cache=False)
    manager.commit(writer, 8)
    manager.commit(other, 16)
    before = tables(manager, writer)
    assert manager.truncate(writer, 6) == 6
    manager.append(writer, [99])
    after = tables(manager, writer)
    assert after[0][0] == before[0][0]
    assert after[0][1] not in {before[0][1], 0}
    assert after[1][1] not in {before[1][1], 0}
    for handle in (writer, other):
        manager.free(handle)
    launch(manager)
    assert manager.stats().used_blocks == 0


def test_a_key_passes_to_the_twin_with_its_windows() -> None:
    manager = manager_of(WINDOW)
    first = manager.admit(PROMPT[:13])
    second = manager.admit(PROMPT[:13], read_cache=False)
    for handle in (first, second):
        manager.commit(handle, 12)
    kept = tables(manager, second)
    manager.free(first)
    match = manager.match(PROMPT[:13])
    assert match.block_ids.tolist() == kept[0][:3]
    third = manager.admit(PROMPT[:13])
    assert tables(manager, third)[1][2] == kept[1][2]
    manager.free(second)
    assert found(manager, PROMPT[:13]) == 12


def test_blocks_with_windows_are_found_in_place_of_those_that_have_lost_them() -> None:
    """A long answer goes on behind a prompt whose windows are evicted; another one repeats it."""
    manager = manager_of(WINDOW, 29)
    answer = manager.admit(PROMPT)
    manager.commit(answer, 16)
    for start in range(17, 29, 4):
        manager.append(answer, list(range(start, start + 4)))
        manager.commit(answer, start + 3)
    other = manager.admit(list(range(50, 50 + 4 * (manager.num_available // 2))))
    manager.free(other)
    held = tables(manager, answer)
    assert found(manager) == 0
    again = manager.admit(PROMPT, num_slots=17)
    own = tables(manager, again)
    manager.commit(again, 16)
    assert tables(manager, again)[0] == own[0]
    assert tables(manager, answer) == held
    match = manager.match(PROMPT)
    assert (match.num_cached_tokens, match.block_ids.tolist()) == (16, own[0][:4])


def test_a_state_is_kept_by_a_copy_of_it() -> None:
    manager = manager_of(STATE)
    handle = manager.admit(PROMPT)
    assert manager.stops(handle) == (16,)
    state = tables(manager, handle)[1][0]
    manager.commit(handle, 16)
    assert found(manager) == 0
    [(source, copy)] = launch(manager)
    assert source == state == tables(manager, handle)[1][0] != copy
    assert found(manager) == 16
    manager.commit(handle, 17)
    manager.free(handle)
    assert found(manager) == 16
    assert manager.num_available == manager.config.capacity


@pytest.mark.parametrize("end", [16, 15])
def test_what_ends_where_a_copy_was_to_be_kept_is_kept_itself(end: int) -> None:
    manager = manager_of(STATE, min_partial_tokens=1, prompt_end_stop=2)
    handle = manager.admit(PROMPT)
    assert end in manager.stops(handle)
    before = tables(manager, handle)
    manager.commit(handle, end)
    assert found(manager) < end
    manager.free(handle)
    assert found(manager) == end
    assert launch(manager) == []
    again = manager.admit([*PROMPT[:end], 90, 91])
    assert {source for source, _ in launch(manager)} <= {before[1][0], before[0][end // 4]}
    manager.free(again)
    assert manager.num_available == manager.config.capacity


def test_the_end_of_a_fork_does_not_take_the_copy_that_is_to_be_kept() -> None:
    manager = manager_of(STATE, min_partial_tokens=1, prompt_end_stop=2)
    parent = manager.admit(PROMPT)
    manager.commit(parent, 15)
    [child] = manager.fork(parent)
    manager.free(parent)
    launch(manager)
    assert found(manager) == 15
    manager.free(child)
    assert manager.num_available == manager.config.capacity


def test_a_prompt_that_stops_within_a_block_keeps_its_table() -> None:
    manager = manager_of(STATE, min_partial_tokens=1, prompt_end_stop=2)
    handle = manager.admit(PROMPT)
    before = tables(manager, handle)
    manager.commit(handle, 15)
    copies = launch(manager)
    assert tables(manager, handle) == before
    assert {source for source, _ in copies} == {before[0][3], before[1][0]}
    assert found(manager) == 15
    manager.commit(handle, 16)
    launch(manager)
    assert tables(manager, handle) == before
    assert found(manager) == 16


def test_what_a_reset_forgets_before_its_copy_is_free_again() -> None:
    manager = manager_of(STATE, min_partial_tokens=1, prompt_end_stop=2)
    handle = manager.admit(PROMPT)
    manager.commit(handle, 15)
    manager.reset_prefix_cache()
    manager.free(handle)
    assert found(manager) == 0
    assert manager.num_available == manager.config.capacity
    assert launch(manager) == []


@pytest.mark.parametrize("read", ["match", "can_admit", "explain"])
def test_a_read_changes_nothing_when_a_reset_has_forgotten_what_a_copy_was_to_keep(
    read: str,
) -> None:
    manager = manager_of(STATE, min_partial_tokens=1, prompt_end_stop=2)
    handle = manager.admit(PROMPT)
    manager.commit(handle, 15)
    used = manager.stats().used_blocks
    manager.reset_prefix_cache()
    before = snapshot(manager)
    getattr(manager, read)(PROMPT)
    assert snapshot(manager) == before
    assert manager.stats().used_blocks < used


def test_a_state_that_a_forward_ahead_moves_is_not_kept_where_the_commit_said() -> None:
    manager = manager_of(STATE)
    for moves, end in ((True, 4), (False, 8)):
        handle = manager.admit(PROMPT[:8])
        manager.commit(handle, 4)
        launch(manager)
        manager.commit(handle, 8)
        launch(manager)
        if moves:
            manager.mark_state_moved(handle)
        manager.free(handle)
        assert found(manager, [*PROMPT[:8], 90]) == end


def test_only_a_running_sequence_has_states_that_move() -> None:
    manager = manager_of(WINDOW)
    handle = manager.admit(PROMPT)
    manager.mark_state_moved(handle)  # there are none
    manager.preempt(handle)
    with pytest.raises(SequenceStateError, match="preempted"):
        manager.mark_state_moved(handle)
    manager.free(handle)
    with pytest.raises(UnknownSequenceError):
        manager.mark_state_moved(handle)
