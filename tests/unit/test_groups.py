"""Groups of layers from an engine's view: options, tables, slots, stops, copies, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    Admission,
    BlockManager,
    BlockState,
    BlockStateError,
    ChunkedAttention,
    FullAttention,
    ManagerConfig,
    NeverFitsError,
    OutOfBlocksError,
    RecurrentState,
    SequenceStateError,
    SlidingWindow,
    StepError,
)

GROUPS = [SlidingWindow(5), FullAttention(), RecurrentState(), ChunkedAttention(8)]
WINDOW, FULL, STATE, CHUNK = range(4)
PROMPT = list(range(11))


def hybrid(num_blocks: int = 64, **options: Any) -> BlockManager:
    options = {"groups": GROUPS, "null_block": True, "debug": 2, **options}
    return BlockManager(num_blocks, 4, max_seqs=4, **options)


def step(manager: BlockManager, handle: int, computed: int) -> None:
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    manager.commit(handle, computed)


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


def test_slots_are_those_of_the_table() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    row = manager.row(handle)
    for group in (WINDOW, FULL, CHUNK):
        positions = np.arange(2, 11)
        due = manager.group_table(group)[row][positions // 4] * 4 + positions % 4
        assert (manager.slot_mapping(handle, 2, 11, group=group) == due).all()
    own = manager.slot_mapping(handle, 2, 11)
    assert (own == manager.slot_mapping(handle, 2, 11, group=FULL)).all()
    assert not len(manager.slot_mapping(handle, 3, 3, group=WINDOW))


def test_stops_are_where_a_state_is_worth_keeping() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    assert manager.stops(handle) == manager.sequence(handle).stops == (8,)
    step(manager, handle, 8)
    assert manager.stops(handle) == ()
    step(manager, handle, 11)
    manager.free(handle)
    parts = manager.admit([*PROMPT[:8], 50, 51, 52, 53, 54, 55])
    assert manager.sequence(parts).num_cached_tokens == 8
    assert manager.stops(parts) == (12,)


def test_a_long_prompt_stops_halfway() -> None:
    groups = [FullAttention(), RecurrentState()]
    manager = hybrid(4096, groups=groups, halfway_stop_tokens=40)
    prompt = list(range(45))
    assert manager.match(prompt).stops == (20, 44)
    assert manager.stops(manager.admit(prompt)) == (20, 44)
    assert manager.match(range(40)).stops == (36,)
    by_default = hybrid(4096, groups=groups)
    assert by_default.match(range(8192)).stops == (8188,)
    assert by_default.match(range(8193)).stops == (4096, 8192)


def test_a_match_names_the_stops_of_its_admission() -> None:
    manager = hybrid(min_partial_tokens=2)
    assert manager.match(PROMPT).stops == (8,)
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    step(manager, handle, 11)
    manager.free(handle)
    parts = [*PROMPT[:7], *range(50, 60)]
    found = manager.match(parts)
    assert (found.num_cached_tokens, found.stops) == (0, (7, 16))
    assert manager.stops(manager.admit(parts, match=found, num_slots=7)) == found.stops
    assert manager.match([*PROMPT, 60]).stops == ()  # the tail of the first one
    assert BlockManager(8, 4).match(PROMPT).stops == ()


def test_a_state_is_cached_where_nothing_stops_if_a_block_is_free() -> None:
    manager = hybrid()
    handle = manager.admit(range(30))
    assert manager.stops(handle) == (28,)
    step(manager, handle, 12)
    before = manager.group_table(STATE)[manager.row(handle), 0]
    assert manager.cache_state(handle)
    assert manager.group_table(STATE)[manager.row(handle), 0] != before
    assert not manager.cache_state(handle)  # it is cached
    assert manager.match(range(20)).num_cached_tokens == 0  # the copy has yet to run
    step(manager, handle, 14)
    assert manager.match(range(20)).num_cached_tokens == 12
    assert not manager.cache_state(handle)  # inside a block
    manager.free(handle)
    for _ in range(2):  # it goes before what a stop has kept, and is not worth an eviction
        handle = manager.admit(range(100, 160))
        step(manager, handle, 60)
        manager.free(handle)
    assert manager.match(range(20)).num_cached_tokens == 0


def test_a_state_that_is_at_no_stop_evicts_nothing() -> None:
    manager = BlockManager(
        10, 4, null_block=True, debug=2, groups=[FullAttention(), RecurrentState()]
    )
    first = manager.admit(range(9))
    step(manager, first, 8)
    step(manager, first, 9)
    manager.free(first)
    second = manager.admit(range(50, 62))
    step(manager, second, 12)
    assert manager.stats().free_blocks == 2
    third = manager.admit([90])
    assert manager.stats().free_blocks == 0
    assert not manager.cache_state(second)
    manager.free(third)
    assert manager.match(range(9)).num_cached_tokens == 8
    assert manager.cache_state(second)


def test_a_state_that_a_forward_may_have_moved_is_not_cached() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    manager.copies_applied(manager.take_copies().ticket)
    with pytest.raises(StepError, match="cannot cache the state of sequence"):
        manager.cache_state(handle)
    manager.commit(handle, 8)
    manager.preempt(handle)
    with pytest.raises(SequenceStateError):
        manager.cache_state(handle)
    alone = BlockManager(8, 4)
    handle = alone.admit(PROMPT)
    alone.commit(handle, 8)
    assert not alone.cache_state(handle)


@pytest.mark.parametrize("shared", [8, 10])
@pytest.mark.parametrize("limit", ["max_cached_tokens", "match"])
def test_a_limit_of_what_is_taken_does_not_hide_where_prompts_part(limit: str, shared: int) -> None:
    manager = hybrid(groups=[FullAttention(), RecurrentState()], min_partial_tokens=1)
    first = manager.admit([*range(shared), *[50] * 10])
    step(manager, first, shared + 10)
    manager.free(first)
    prompt = [*range(shared), *[51] * 10]
    found = manager.match(prompt)
    assert found.num_cached_tokens == 0
    options: dict[str, Any] = {"match": found, "max_cached_tokens": 0}
    handle = manager.admit(prompt, **{limit: options[limit]})
    assert shared in manager.stops(handle)


def test_a_tail_with_a_state_is_found_where_full_attention_has_more() -> None:
    manager = hybrid(groups=[FullAttention(), RecurrentState()], min_partial_tokens=1)
    for length in (12, 6):  # without a stop, so that only the ends have a state
        handle = manager.admit(range(length))
        step(manager, handle, length)
        manager.free(handle)
    assert manager.match(range(10)).num_cached_tokens == 6


def test_a_place_where_prompts_part_is_found_beside_any_number_of_them() -> None:
    """A look-up within a block examines 128 of the blocks that continue a prefix."""
    manager = hybrid(
        2000, groups=[FullAttention(), RecurrentState()], min_partial_tokens=1, debug=0
    )

    def serve(prompt: list[int]) -> int:
        handle = manager.admit(prompt)
        found = manager.sequence(handle).num_cached_tokens
        for stop in (*manager.stops(handle), len(prompt)):
            step(manager, handle, stop)
        manager.copies_applied(manager.take_copies().ticket)
        manager.free(handle)
        return found

    assert [serve([1, 1, last, last]) for last in (3, 4, 5)] == [0, 0, 2]
    assert [serve([2, 2, last, last]) for last in range(3, 200)] == [0, 0, *[2] * 195]
    # A look-up does not reach the first one among the others; the third one finds it again.
    assert [serve([1, 1, last, last]) for last in (6, 7, 8)] == [0, 0, 2]


def test_a_part_that_the_forward_has_yet_to_write_is_not_copied_from() -> None:
    """The node may be written long ago, while its chunk block was released and recomputed."""
    groups = [FullAttention(), ChunkedAttention(4)]
    manager = hybrid(groups=groups, early_commit=True, min_partial_tokens=1)
    first, second = (manager.admit([7, 7, 7, 7, 8]) for _ in range(2))
    for computed in (4, 5):
        manager.commit(first, computed)
        manager.copies_applied(manager.take_copies().ticket)
    assert manager.group_table(1)[manager.row(first), 0] == 0
    manager.commit(second, 4)  # ahead of the forward that writes it
    assert manager.match([7, 7, 7, 9]).num_cached_tokens == 0
    manager.copies_applied(manager.take_copies().ticket)
    assert manager.match([7, 7, 7, 9]).num_cached_tokens == 3


def test_what_a_sequence_takes_back_is_taken_back_in_all_groups() -> None:
    """A sequence may be withdrawn before the forward, unless another needs what it computes."""
    manager = hybrid(groups=[FullAttention(), ChunkedAttention(4)], early_commit=True)
    first, second, third = (manager.admit([7, 7, 7, 7, 8]) for _ in range(3))
    for computed in (4, 5):
        manager.commit(first, computed)
        manager.copies_applied(manager.take_copies().ticket)
    manager.commit(second, 4)
    manager.commit(third, 4)  # merges with the block that the second one writes
    with pytest.raises(StepError, match="shared"):
        manager.free(second, withdraw=True)
    manager.copies_applied(manager.take_copies().ticket)
    manager.free(second)
    manager.free(third)
    fourth = manager.admit([9, 9, 9, 9, 8])
    manager.commit(fourth, 4)
    manager.free(fourth, withdraw=True)
    assert manager.match([9, 9, 9, 9, 8]).num_cached_tokens == 0
    manager.free(first)
    assert manager.num_available == 63


def test_a_block_that_comes_back_to_a_node_is_withdrawn_alone() -> None:
    manager = hybrid(groups=[FullAttention(), ChunkedAttention(4)], early_commit=True)
    first, second = (manager.admit([7, 7, 7, 7, 8]) for _ in range(2))
    for computed in (4, 5):
        manager.commit(first, computed)
        manager.copies_applied(manager.take_copies().ticket)
    manager.commit(second, 4)
    manager.free(second, withdraw=True)
    assert manager.match([7, 7, 7, 7, 8]).num_cached_tokens == 4  # no later query reads the chunk


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


def test_a_fork_has_a_state_of_its_own() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    step(manager, handle, 11)
    [child] = manager.fork(handle)
    rows = [manager.row(handle), manager.row(child)]
    first, second = (int(manager.group_table(STATE)[row, 0]) for row in rows)
    assert first != second
    assert [(c.source, c.destination) for c in manager.take_copies()] == [(first, second)]


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


def test_drafts_keep_their_window() -> None:
    for rollback, left in ((0, 4), (5, 7)):
        manager = hybrid(
            groups=[FullAttention(), SlidingWindow(2)], max_rollback_tokens=rollback, debug=2
        )
        handle = manager.admit(range(12))
        step(manager, handle, 12)
        assert manager.truncate(handle, 7) == left


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


def test_decode_moves_all_groups() -> None:
    manager = hybrid()
    handles = [manager.admit(PROMPT), manager.admit(range(20, 28))]
    manager.copies_applied(manager.take_copies().ticket)
    slots = manager.decode(handles, [1, 2])
    assert slots.tolist() == [
        int(manager.slot_mapping(handle, position, position + 1)[0])
        for handle, position in zip(handles, (11, 8), strict=True)
    ]
    assert [manager.sequence(h).num_computed_tokens for h in handles] == [11, 8]
    row = manager.row(handles[1])
    assert manager.group_table(WINDOW)[row, :4].astype(bool).tolist() == [0, 1, 1, 0]  # 4 to 8
    assert manager.group_table(CHUNK)[row, :4].astype(bool).tolist() == [0, 0, 1, 0]


def test_a_batch_without_room_in_some_group_changes_nothing() -> None:
    manager = hybrid(num_blocks=1 + 2 * 4 + 2)
    handles = [manager.admit(range(4)), manager.admit(range(20, 24))]
    manager.copies_applied(manager.take_copies().ticket)
    before = manager.stats()
    with pytest.raises(OutOfBlocksError):
        manager.decode(handles, [1, 2])
    assert manager.stats() == before


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
    ("groups must have one of FullAttention", lambda: hybrid(groups=[SlidingWindow(4)])),
    ("groups must be at most 64", lambda: hybrid(groups=[FullAttention()] * 65)),
    ("null_block must be True", lambda: hybrid(null_block=False)),
    ("dedup must be 'remap'", lambda: hybrid(dedup="append_only")),
    ("ghost_blocks must be 0", lambda: hybrid(ghost_blocks=4)),
    ("prefix_caching must be True", lambda: hybrid(prefix_caching=False)),
    ("max_rollback_tokens must be 0", lambda: BlockManager(8, 4, max_rollback_tokens=1)),
    ("max_rollback_tokens must be", lambda: hybrid(max_rollback_tokens=-1)),
    ("halfway_stop_tokens must be", lambda: hybrid(halfway_stop_tokens=-1)),
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


def serve_to_its_end(manager: BlockManager, prompt: list[int]) -> None:
    handle = manager.admit(prompt)
    for stop in sorted({*manager.stops(handle), len(prompt)}):
        step(manager, handle, stop)
    manager.free(handle)


def test_a_tail_that_no_look_up_sees_is_not_kept() -> None:
    """A look-up within a block examines the last 128 children of a node."""
    groups = [FullAttention(), RecurrentState()]
    manager = hybrid(1000, groups=groups, min_partial_tokens=2, debug=0)
    prompts = [[1, 1, 100 + i] for i in range(300)]
    for prompt in prompts:
        serve_to_its_end(manager, prompt)
    found = [manager.match([*prompt, 7]).num_cached_tokens == 3 for prompt in prompts]
    assert found[-100:] == [True] * 100
    assert manager.match([1, 1, 5]).num_cached_tokens == 2
    # All that are kept are found, and the tail where they diverge.
    assert manager.stats().cached_blocks == len(groups) * (sum(found) + 1)
    manager.check_invariants()


def test_a_full_block_among_many_siblings_is_kept_beside_tails() -> None:
    manager = hybrid(2048, groups=[FullAttention(), SlidingWindow(8)], min_partial_tokens=1)
    head = [1, 2, 3, 4]
    prompts = [[*head, 10, 10, 10, 100 + i] for i in range(140)]
    for prompt in prompts:
        serve_to_its_end(manager, prompt)
    serve_to_its_end(manager, [*head, 7, 7])
    assert {manager.match([*prompt, 0]).num_cached_tokens for prompt in prompts} == {8}


def test_an_end_at_which_sequences_stop_again_is_seen_again() -> None:
    groups = [FullAttention(), RecurrentState()]
    manager = hybrid(1000, groups=groups, min_partial_tokens=2, debug=0)
    again = [1, 1, 99]
    for prompt in [again, *([1, 1, 100 + i] for i in range(100)), again]:
        serve_to_its_end(manager, prompt)
    for i in range(100):  # with the earlier ones, more than a look-up examines
        serve_to_its_end(manager, [1, 1, 300 + i])
    assert manager.match([*again, 7]).num_cached_tokens == 3
    assert manager.match([1, 1, 100, 7]).num_cached_tokens == 2
    manager.check_invariants()


def test_slots_behind_a_cached_prefix_fit_where_those_of_all_would_not() -> None:
    """Windows need no blocks for cached tokens before them."""
    manager = hybrid(1 + 32, groups=[FullAttention(), SlidingWindow(4)], debug=0)
    prompt = list(range(80))
    handle = manager.admit(prompt, num_slots=4)
    for stop in range(4, 81, 4):
        manager.reserve(handle, stop)
        step(manager, handle, stop)
    manager.free(handle)
    longer = [*prompt, *range(100, 116)]
    assert manager.can_admit([7] * 96, num_slots=96) is Admission.NEVER
    with pytest.raises(NeverFitsError):
        manager.admit([7] * 96, num_slots=96)
    found = manager.match(longer, num_slots=96)
    assert found.num_cached_tokens == 80
    assert manager.can_admit(longer, num_slots=96) is Admission.NOW
    handle = manager.admit(longer, num_slots=96)
    step(manager, handle, 96)
    manager.free(handle)
    manager.check_invariants()


def test_a_boundary_behind_a_gap_in_a_window_is_none() -> None:
    """A commit does not cache a block that waits for its copy, and the window moves on."""
    manager = hybrid(groups=[FullAttention(), SlidingWindow(9)])
    parent = manager.admit([1])
    step(manager, parent, 1)
    [child] = manager.fork(parent)
    manager.append(child, [1] * 11)
    plan = manager.take_copies()
    manager.commit(child, 12)
    manager.copies_applied(plan.ticket)
    assert manager.group_table(1)[manager.row(child), :3].tolist()[0] == 0
    manager.append(child, [1])
    step(manager, child, 13)
    # After 8 tokens the window starts in the released block; after 12 it does not.
    assert manager.match([1] * 9).num_cached_tokens == 0
    assert manager.match([1] * 14).num_cached_tokens == 12
    manager.check_invariants()


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
