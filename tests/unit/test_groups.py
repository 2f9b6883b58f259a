"""Groups of layers from an engine's view: options, tables, slots, stops, copies, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    BlockState,
    BlockStateError,
    ChunkedAttention,
    FullAttention,
    ManagerConfig,
    OutOfBlocksError,
    RecurrentState,
    Ring,
    SlidingWindow,
    StepError,
)
from tests.unit.hybrid import CHUNK, FULL, GROUPS, PROMPT, STATE, WINDOW, hybrid, step


def test_each_group_has_a_table() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    row = manager.row(handle)
    tables = [manager.group_table(group)[row] for group in range(4)]
    held = [int(block) for table in tables for block in table if block]
    assert len(held) == len(set(held)) == 3 + 3 + 1 + 3
    assert (tables[FULL] == manager.block_tables[row]).all()
    assert manager.group_table(STATE).shape == (4, 1)
    assert {int(manager.blocks().group[block]) for block in held} == {0, 1, 2, 3}


def test_a_table_has_the_null_block_where_its_group_holds_nothing() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    row = manager.row(handle)
    step(manager, handle, 8)
    step(manager, handle, 11)
    # The next query is at 11: the window reads from 7 on, the chunk from 8 on.
    assert [bool(block) for block in manager.group_table(WINDOW)[row, :4]] == [0, 1, 1, 0]
    assert [bool(block) for block in manager.group_table(CHUNK)[row, :4]] == [0, 0, 1, 0]
    assert [bool(block) for block in manager.group_table(FULL)[row, :4]] == [1, 1, 1, 0]
    manager.free(handle)
    assert not manager.group_table(WINDOW).any()
    assert not manager.group_table(STATE).any()


def test_what_a_window_gives_back_is_cached_as_long_as_a_boundary_needs_it() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    row = manager.row(handle)
    before = int(manager.group_table(WINDOW)[row, 0])
    step(manager, handle, 8)
    step(manager, handle, 11)
    state = manager.blocks().state
    assert state[before] == BlockState.FREE  # a prompt of 4 tokens would need a state as well
    manager.free(handle)
    assert manager.match(PROMPT).num_cached_tokens == 8
    again = manager.admit(PROMPT)
    assert manager.sequence(again).num_cached_tokens == 8


def test_the_picture_of_the_guide() -> None:
    manager = BlockManager(
        64, 16, null_block=True, groups=[FullAttention(), SlidingWindow(20), RecurrentState()]
    )
    handle = manager.admit(range(80))
    window = manager.group_table(1)[manager.row(handle), :5].tolist()
    state = int(manager.group_table(2)[manager.row(handle), 0])
    step(manager, handle, 64)
    manager.copies_applied(manager.take_copies().ticket)
    manager.commit(handle, 80)
    free, idle, cached = BlockState.FREE, BlockState.IDLE, BlockState.CACHED
    states = manager.blocks().state
    assert states[window].tolist() == [free, free, idle, cached, cached]
    assert states[state] == idle
    assert manager.group_table(1)[manager.row(handle), :5].tolist() == [0, 0, 0, *window[3:]]


def test_tables_are_read_only() -> None:
    manager = hybrid()
    for group in range(4):
        with pytest.raises(ValueError, match="read-only"):
            manager.group_table(group)[0, 0] = 1


def test_a_cached_state_is_copied_whole() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    row = manager.row(handle)
    plan = manager.take_copies()
    assert plan.groups is not None
    assert plan.groups.tolist() == [STATE]
    [copy] = plan
    assert copy.destination == manager.group_table(STATE)[row, 0]
    assert copy.num_tokens == 4
    assert BlockManager(4, 4).take_copies().groups is None


def test_a_fork_of_what_a_forward_may_have_moved_is_refused() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    manager.copies_applied(manager.take_copies().ticket)
    before = manager.stats()
    with pytest.raises(StepError, match="commit"):
        manager.fork(handle)
    assert manager.stats() == before
    manager.commit(handle, 11)
    manager.fork(handle)


def test_truncate_returns_where_the_sequence_goes_on() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    step(manager, handle, 11)
    assert manager.truncate(handle, 10) == 8  # there is no state after 10 tokens
    assert manager.truncate(handle, 7) == 0
    alone = BlockManager(16, 4)
    handle = alone.admit(PROMPT)
    alone.commit(handle, 9)
    assert alone.truncate(handle, 10) == 9
    assert alone.sequence(handle).truncate(6) == 6


@pytest.mark.parametrize("options", [{}, {"quotas": {b"": 4}}], ids=["alone", "quotas"])
@pytest.mark.parametrize("group", [0, 1])
def test_decode_does_not_count_on_blocks_that_a_caller_holds(
    group: int, options: dict[str, Any]
) -> None:
    """The sequence moves to available cached blocks and leaves one that stays held."""
    manager = hybrid(1 + 4, groups=[FullAttention(), SlidingWindow(9)], **options)
    cached = manager.admit(range(4))
    step(manager, cached, 4)
    manager.free(cached)
    handle = manager.admit(range(3))
    step(manager, handle, 3)
    manager.decode([handle], [3])
    held = [int(manager.group_table(group)[manager.row(handle), 0])]
    manager.acquire(held)
    assert manager.num_available == 2
    with pytest.raises(OutOfBlocksError):
        manager.decode([handle], [4])
    manager.check_invariants()
    manager.release(held)
    assert manager.decode([handle], [4]).shape == (1,)
    assert manager.stats().deduplicated_blocks == 1
    manager.check_invariants()


@pytest.mark.parametrize("options", [{}, {"quotas": {b"": 7}}], ids=["alone", "quotas"])
def test_decode_takes_what_its_windows_give_back(options: dict[str, Any]) -> None:
    """One block is available, and two are needed: the window leaves tokens 8 to 11."""
    manager = hybrid(1 + 7, groups=[FullAttention(), SlidingWindow(5)], **options)
    handle = manager.admit(range(12))
    step(manager, handle, 12)
    for token in range(4):
        manager.decode([handle], [token])
    assert manager.num_available == 1
    manager.decode([handle], [4])
    assert manager.num_available == 0
    manager.check_invariants()


@pytest.mark.parametrize("holds", [False, True])
def test_decode_takes_blocks_before_it_leaves_some_to_a_step_in_flight(holds: bool) -> None:
    """Two cached blocks are available. It evicts and writes them instead of sharing them."""
    groups = [FullAttention(), SlidingWindow(9)]
    manager = hybrid(1 + 4, groups=groups, steps_in_flight=1)
    cached = manager.admit(range(4))
    step(manager, cached, 4)
    manager.free(cached)
    manager.complete(1)
    handle = manager.admit(range(3))
    step(manager, handle, 3)
    manager.complete(2)
    manager.decode([handle], [3])
    manager.copies_applied(manager.take_copies().ticket)
    if holds:
        manager.acquire([int(manager.block_tables[manager.row(handle), 0])])
    assert manager.num_available == 2
    manager.decode([handle], [4])
    assert manager.stats().deduplicated_blocks == 0
    manager.complete(3)
    manager.check_invariants()


def test_one_group_of_full_attention_is_as_none() -> None:
    manager = hybrid(groups=[FullAttention()])
    handle = manager.admit(PROMPT)
    manager.commit(handle, 11)
    manager.free(handle)
    assert manager.match(PROMPT).num_cached_tokens == 8
    assert manager.group_table(0) is manager.block_tables
    assert manager.stops(manager.admit(PROMPT)) == ()


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("width must be in", lambda: SlidingWindow(0)),
    ("width must be in", lambda: ChunkedAttention(2**31)),
    ("groups must have one that is no ring", lambda: hybrid(groups=[Ring(4)])),
    ("groups must be at most 64", lambda: hybrid(groups=[FullAttention()] * 65)),
    ("null_block must be True", lambda: hybrid(null_block=False)),
    ("ghost_blocks must be 0", lambda: hybrid(ghost_blocks=4)),
    ("prefix_caching must be True", lambda: hybrid(prefix_caching=False)),
    ("max_rollback_tokens must be 0", lambda: BlockManager(8, 4, max_rollback_tokens=1)),
    ("max_rollback_tokens must be", lambda: hybrid(max_rollback_tokens=-1)),
    ("halfway_stop_tokens must be", lambda: hybrid(halfway_stop_tokens=-1)),
    ("stop_margin_tokens must be", lambda: hybrid(stop_margin_tokens=-1)),
    ("prompt_end_stop must be", lambda: hybrid(min_partial_tokens=1, prompt_end_stop=-1)),
    ("prompt_end_stop must be None without", lambda: BlockManager(8, 4, prompt_end_stop=0)),
    ("prompt_end_stop needs min_partial_tokens", lambda: hybrid(prompt_end_stop=0)),
    ("group must be in", lambda: hybrid().group_table(4)),
    ("group must be in", lambda: hybrid().group_table(-1)),
    ("group must be in", lambda: BlockManager(8, 4).group_table(1)),
]


def missed(manager: BlockManager, prompt: list[int]) -> list[tuple[str, int | None, int, int]]:
    found = manager.explain(prompt)
    assert found.num_cached_tokens == manager.match(prompt).num_cached_tokens
    assert [miss.start for miss in found.misses[1:]] == [miss.stop for miss in found.misses[:-1]]
    return [(miss.reason.name, miss.group, miss.start, miss.stop) for miss in found.misses]


def test_the_blocks_of_other_groups_name_the_block_that_they_are_found_with() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    row = manager.row(handle)
    parent = manager.blocks().parent
    full = manager.block_tables[row].tolist()
    for group in (WINDOW, CHUNK):
        for unit, block in enumerate(manager.group_table(group)[row, :2].tolist()):
            assert not block or parent[block] == full[unit]
    manager.copies_applied(manager.take_copies().ticket)
    manager.free(handle)
    found = manager.blocks()
    [state] = np.flatnonzero((found.group == STATE) & (found.state == BlockState.IDLE.value))
    assert found.parent[state] == full[1]


def test_a_miss_names_the_group_that_refused() -> None:
    manager = hybrid()
    assert missed(manager, PROMPT)[0] == ("NEVER_SEEN", None, 0, 8)
    handle = manager.admit(PROMPT)
    step(manager, handle, 11)  # its window is gone at 4, and no forward stopped at 8
    assert missed(manager, PROMPT) == [
        ("GROUP", WINDOW, 0, 4),
        ("GROUP", STATE, 4, 8),
        ("PARTIAL_BLOCK", None, 8, 11),
    ]
    manager.free(handle)
    handle = manager.admit([*range(20, 36)])
    step(manager, handle, 12)
    step(manager, handle, 16)
    # The boundary at 12 keeps the window from 8 on.
    assert missed(manager, [*range(20, 32), 0]) == [("LAST_TOKEN", None, 12, 13)]
    assert missed(manager, [*range(20, 28), 0]) == [
        ("GROUP", WINDOW, 0, 8),
        ("LAST_TOKEN", None, 8, 9),
    ]
    assert "but group 0 has no block there" in str(manager.explain([*range(20, 28), 0]))


def test_a_miss_counts_groups_as_the_engine_does() -> None:
    manager = hybrid(groups=[FullAttention(), SlidingWindow(5), RecurrentState()])
    handle = manager.admit(PROMPT)
    step(manager, handle, 11)
    assert missed(manager, PROMPT)[:2] == [("GROUP", 1, 0, 4), ("GROUP", 2, 4, 8)]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=range(len(REFUSED)))
def test_groups_that_cannot_be_are_refused_by_name(
    message: str, call: Callable[[], object]
) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_no_group_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="at position 1"):
        hybrid(groups=[FullAttention(), "window"])
    with pytest.raises(TypeError, match="width"):
        SlidingWindow(2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="group"):
        hybrid().group_table("0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="groups"):
        hybrid(groups=FullAttention())


def test_slots_that_a_group_has_not_are_refused() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    step(manager, handle, 11)
    with pytest.raises(ValueError, match="start must be at least 4"):
        manager.slot_mapping(handle, 0, 11, group=WINDOW)
    with pytest.raises(ValueError, match="states"):
        manager.slot_mapping(handle, 0, 1, group=STATE)
    with pytest.raises(ValueError, match="group must be in"):
        manager.slot_mapping(handle, 0, 1, group=7)


def test_calls_by_block_id_know_the_blocks_of_all_groups() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    for stop in (8, 11):
        step(manager, handle, stop)
    row = manager.row(handle)
    blocks = [int(manager.group_table(group)[row].max()) for group in range(4)]
    manager.acquire(blocks)
    assert [manager.ref_count(block) for block in blocks] == [2] * 4
    manager.free(handle)
    assert manager.num_available == 63 - 4
    manager.touch_blocks(blocks)
    manager.release(blocks)
    assert manager.num_available == 63
    assert manager.touch([*PROMPT, 1]) == manager.match([*PROMPT, 1]).num_cached_tokens // 4
    assert manager.forget(blocks) >= 0
    with pytest.raises(BlockStateError):
        manager.release(blocks)


def test_options_are_kept_as_they_were_given() -> None:
    config = ManagerConfig(num_blocks=8, block_size=4, groups=iter(GROUPS), null_block=True)
    assert config.groups == tuple(GROUPS)


def test_a_fork_knows_its_state_in_the_row_of_a_sequence_that_did_not() -> None:
    """Two steps were launched for the row's previous sequence, one for the fork."""
    manager = hybrid(groups=[FullAttention(), RecurrentState()], steps_in_flight=4)
    parent = manager.admit([1] * 9)
    step(manager, parent, 9)
    before = manager.admit([2] * 9)
    row = manager.row(before)
    for _ in range(2):
        manager.copies_applied(manager.take_copies().ticket)
    manager.free(before)
    [child] = manager.fork(parent)
    assert manager.row(child) == row
    manager.append(child, [3])
    step(manager, child, 10)
    assert len(manager.fork(child)) == 1
    manager.check_invariants()


@pytest.mark.parametrize("spare", [0, 1])
def test_decode_does_not_count_on_a_block_that_the_batch_moves_to(spare: int) -> None:
    """One sequence leaves a block in its window; another moves to it from one that a copy keeps."""
    groups = [FullAttention(), SlidingWindow(4)]
    manager = BlockManager(21 + spare, 4, max_seqs=16, groups=groups, null_block=True, debug=2)
    reader = manager.admit(range(8))
    step(manager, reader, 8)
    writer = manager.admit(range(7))
    step(manager, writer, 7)
    for token in (50, 51, 52):
        manager.decode([reader], [token])
    [child] = manager.fork(writer)
    manager.append(child, [90])  # a copy of the block of the fork's parent is pending
    manager.decode([writer], [7])
    while manager.num_available >= 2:
        manager.admit([100])
    available = manager.num_available
    if available == 1:
        with pytest.raises(OutOfBlocksError):
            manager.decode([writer, reader], [8, 53])
    else:
        assert not available
        with pytest.raises(OutOfBlocksError):
            manager.decode([writer], [8])
    manager.check_invariants()


@pytest.mark.parametrize("spare", [-1, 0])
def test_decode_counts_what_sharers_move_to_once(spare: int) -> None:
    """Two sequences leave a block that a copy keeps; each group has one cached block for both."""
    groups = [FullAttention(), SlidingWindow(4)]
    manager = BlockManager(62 + spare, 4, max_seqs=8, groups=groups, null_block=True, debug=2)
    cached = manager.admit(range(9))
    step(manager, cached, 8)
    manager.free(cached)
    writer = manager.admit(range(7))
    step(manager, writer, 7)
    [child] = manager.fork(writer)
    manager.append(child, [90])
    manager.decode([writer], [7])
    [sharer] = manager.fork(writer)
    left = 2 * 2 + 2 + spare  # a block of each sequence in each group, and the cached ones
    manager.admit([100] * 2 * (manager.num_available - left))
    assert manager.num_available == left
    if spare < 0:
        with pytest.raises(OutOfBlocksError):
            manager.decode([writer, sharer], [8, 8])
    else:
        manager.decode([writer, sharer], [8, 8])
        assert manager.num_available == 0
    manager.check_invariants()
