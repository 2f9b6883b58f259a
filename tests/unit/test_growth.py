"""Append, reserve, commit, truncate and decode on one sequence."""

from __future__ import annotations

import numpy as np
import pytest

from blockmgr import BlockManager, NeverFitsError, OutOfBlocksError, SequenceStateError
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve, step
from tests.unit.snapshot import refused


def test_append_takes_a_block_only_when_the_last_one_is_full(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = manager.sequence(manager.admit([1]))
    seq.append([2])
    assert seq.num_blocks == 1
    seq.append([3])
    assert seq.num_blocks == 2
    assert seq.tokens.tolist() == [1, 2, 3]


def test_a_strict_decode_refuses_a_chunk_that_no_forward_computed(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 2, strict_decode=True)
    whole = serve(manager, [1] * 3)
    parts = manager.sequence(manager.admit([2] * 5, num_slots=2))
    step(manager, parts.handle)
    parts.reserve(5)
    with refused(manager, SequenceStateError, "3 tokens to compute"):
        manager.decode([whole.handle, parts.handle], [7, 8])
    parts.commit(4)  # one is left, as after a decode
    manager.decode([whole.handle, parts.handle], [7, 8])
    assert (whole.num_computed_tokens, parts.num_computed_tokens) == (3, 5)
    manager.decode([whole.handle, parts.handle], [7, 8])
    lax = make_manager(8, 2)
    handle = lax.admit([2] * 5)
    lax.decode([handle], [8])  # takes them all as computed
    assert lax.sequence(handle).num_computed_tokens == 5


def test_append_gives_slots_to_pending_tokens_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = manager.sequence(manager.admit([1] * 7, num_slots=2))
    seq.append([2])
    assert seq.num_slots == 8
    assert seq.tokens.tolist() == [1] * 7 + [2]


def test_append_to_a_private_tail_copies_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    seq = serve(manager, [1] * 6)
    before = ids(seq)
    seq.append([1])
    assert ids(seq) == before
    assert len(manager.take_copies()) == 0


def test_append_into_a_cached_block_copies_what_is_kept_of_it(make_manager: MakeManager) -> None:
    """Truncation can end inside a cached block, which later prompts may find."""
    manager = make_manager(8, 4)
    seq = serve(manager, [1] * 8)
    before = ids(seq)
    seq.truncate(7)
    seq.append([2])
    assert ids(seq)[0] == before[0]
    assert ids(seq)[1] != before[1]
    assert step(manager) == [(before[1], ids(seq)[1], 3)]
    assert manager.match([1] * 9).num_cached_tokens == 8
    assert manager.match([1] * 7 + [2, 2]).num_cached_tokens == 8


def test_nothing_is_copied_where_nothing_is_computed(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = manager.sequence(manager.admit([1] * 6))
    manager.commit(parent.handle, 4)
    [child] = parent.fork()
    child.append([2])
    assert ids(child)[1] != ids(parent)[1]
    assert len(manager.take_copies()) == 0


def test_only_computed_tokens_are_copied(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = manager.sequence(manager.admit([1] * 7))
    manager.commit(parent.handle, 5)
    [child] = parent.fork()
    child.append([2])
    assert [copy.num_tokens for copy in manager.take_copies()] == [1]


def test_append_says_how_many_blocks_were_missing(make_manager: MakeManager) -> None:
    manager = make_manager(3, 2)
    handle = manager.admit([1] * 4)
    manager.admit([2])
    with refused(manager, OutOfBlocksError) as caught:
        manager.append(handle, [1, 2])
    assert (caught.value.needed, caught.value.available) == (1, 0)


def test_a_copy_counts_as_a_block_needed(make_manager: MakeManager) -> None:
    manager = make_manager(2, 4)
    parent = serve(manager, [1] * 3)
    [child] = parent.fork()
    manager.admit([2])
    with refused(manager, OutOfBlocksError):
        child.append([2])
    with refused(manager, OutOfBlocksError):
        child.reserve(4)


def test_append_beyond_the_pool_never_fits(make_manager: MakeManager) -> None:
    manager = make_manager(2, 2)
    handle = manager.admit([1] * 4)
    with refused(manager, NeverFitsError):
        manager.append(handle, [1])


def test_reserve_adds_look_ahead_and_never_takes_it_back(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = manager.sequence(manager.admit([1]))
    seq.reserve(5)
    assert (seq.num_slots, seq.num_tokens) == (6, 1)
    seq.reserve(1)
    assert seq.num_slots == 6
    seq.append([2, 3])
    assert seq.num_slots == 6


def test_reserve_makes_the_block_of_the_next_token_private(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 6)
    [child] = parent.fork()
    child.reserve(6)
    assert ids(child) == ids(parent)
    child.reserve(7)
    assert ids(child)[1] != ids(parent)[1]
    assert [copy.num_tokens for copy in manager.take_copies()] == [2]


def test_commit_makes_full_blocks_findable_and_leaves_the_tail(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = manager.sequence(manager.admit([1] * 5))
    seq.commit(3)
    assert manager.match([1] * 6).num_cached_tokens == 2
    seq.commit(5)
    assert manager.match([1] * 6).num_cached_tokens == 4
    assert manager.stats().promoted_blocks == 2


def test_commit_may_repeat_itself(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = serve(manager, [1] * 5)
    seq.commit(5)
    assert manager.stats().promoted_blocks == 2


@pytest.mark.parametrize("n", [2, 6, -1])
def test_commit_outside_its_range_is_refused(make_manager: MakeManager, n: int) -> None:
    manager = make_manager(8, 2)
    handle = manager.admit([1] * 5)
    manager.commit(handle, 3)
    with refused(manager, ValueError, "num_computed_tokens"):
        manager.commit(handle, n)


def test_tokens_without_slots_cannot_be_computed(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    handle = manager.admit([1] * 5, num_slots=2)
    with refused(manager, ValueError, "num_computed_tokens"):
        manager.commit(handle, 3)


def test_truncate_releases_what_is_beyond_it(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = serve(manager, [1] * 6)
    seq.reserve(10)
    seq.truncate(3)
    assert (seq.num_tokens, seq.num_computed_tokens, seq.num_blocks) == (3, 3, 2)
    assert seq.tokens.tolist() == [1] * 3
    assert manager.num_available == 6


def test_truncate_drops_pending_tokens_first(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = manager.sequence(manager.admit(list(range(7)), num_slots=2))
    seq.truncate(5)
    assert (seq.tokens.tolist(), seq.num_slots) == (list(range(5)), 2)
    seq.truncate(1)
    seq.reserve(4)
    assert seq.tokens.tolist() == [0]


@pytest.mark.parametrize("n", [0, -1, 6])
def test_truncate_outside_its_range_is_refused(make_manager: MakeManager, n: int) -> None:
    manager = make_manager(8, 2)
    handle = manager.admit([1] * 5)
    with refused(manager, ValueError, "num_tokens"):
        manager.truncate(handle, n)


def test_rejected_drafts_leave_no_trace_in_the_cache(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = serve(manager, [1] * 3)
    seq.append([7, 7, 7])  # draft tokens; the forward computes all, one is accepted
    seq.truncate(4)
    seq.commit(4)
    seq.append([2])
    step(manager)
    assert manager.match([1, 1, 1, 7, 2, 2]).num_cached_tokens == 4
    assert manager.match([1, 1, 1, 7, 7, 7, 7]).num_cached_tokens == 4


def test_decode_commits_and_appends_for_a_whole_batch(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    first, second = (serve(manager, [t] * 3) for t in (1, 2))
    slots = manager.decode([first.handle, second.handle], [8, 9])
    assert slots.dtype == np.int64
    for seq, token, slot in zip((first, second), (8, 9), slots, strict=True):
        assert seq.tokens[-1] == token
        assert (seq.num_tokens, seq.num_computed_tokens) == (4, 3)
        assert seq.slot_mapping(3, 4)[0] == slot


def test_decode_promotes_the_block_it_has_filled(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = serve(manager, [1] * 3)
    manager.decode([seq.handle], [1])
    assert manager.match([1] * 5).num_cached_tokens == 2
    manager.decode([seq.handle], [1])
    assert manager.match([1] * 5).num_cached_tokens == 4


def test_of_the_sharers_of_a_tail_in_a_batch_the_last_writes_in_place(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 6)
    family = [parent, *parent.fork(2)]
    tail = ids(parent)[1]
    manager.decode([seq.handle for seq in family], [1, 2, 3])
    assert [ids(seq)[1] == tail for seq in family] == [False, False, True]
    assert [(c.source, c.num_tokens) for c in manager.take_copies()] == [(tail, 2), (tail, 2)]


def test_decode_is_all_or_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(3, 2)
    first, second = (serve(manager, [t] * 2) for t in (1, 2))
    with refused(manager, OutOfBlocksError) as caught:
        manager.decode([first.handle, second.handle], [1, 2])
    assert (caught.value.needed, caught.value.available) == (2, 1)
    manager.decode([first.handle], [1])


def test_decode_needs_slots_for_every_present_token(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    ready = serve(manager, [2] * 2)
    handle = manager.admit([1] * 5, num_slots=2)
    with refused(manager, SequenceStateError, "slots"):
        manager.decode([ready.handle, handle], [1, 1])


def test_decode_writes_into_look_ahead_slots(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    seq = serve(manager, [1] * 2)
    seq.reserve(4)
    block = ids(seq)[1]
    assert manager.decode([seq.handle], [1]).tolist() == [block * 2]


def test_an_empty_batch_is_fine(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    assert manager.decode([], []).tolist() == []
    manager.reparent([], [])


def test_slots_follow_the_block_table(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    cache(manager, [5] * 4)
    seq = manager.sequence(manager.admit([1] * 10, num_slots=12))
    expected = [ids(seq)[p // 4] * 4 + p % 4 for p in range(12)]
    assert seq.slot_mapping(0, 12).tolist() == expected
    assert seq.slot_mapping(3, 9).tolist() == expected[3:9]
    assert seq.slot_mapping(5, 5).tolist() == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 9)])
def test_slots_outside_the_sequence_are_refused(
    make_manager: MakeManager, start: int, stop: int
) -> None:
    manager = make_manager(8, 4)
    handle = manager.admit([1] * 6)
    with refused(manager, ValueError, "start"):
        manager.slot_mapping(handle, start, stop)


def test_the_table_array_shows_every_row_without_a_copy(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, max_seqs=3)
    tables, lengths = manager.block_tables, manager.seq_lens
    assert (tables.shape, tables.dtype) == ((3, 8), np.int32)
    seq = manager.sequence(manager.admit([1] * 6))
    assert tables[seq.row, :2].tolist() == ids(seq)
    assert not tables[seq.row, 2:].any()
    assert lengths[seq.row] == 6
    seq.preempt()
    assert not tables[seq.row].any()
    assert lengths[seq.row] == 0
    assert manager.block_tables is tables


def test_the_table_array_cannot_be_written_to(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, max_seqs=3)
    with pytest.raises(ValueError, match="read-only"):
        manager.block_tables[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        manager.seq_lens[0] = 1


def test_the_table_array_outlives_its_manager() -> None:
    manager = BlockManager(8, 4)
    seq = manager.sequence(manager.admit([1] * 6))
    tables, row, expected = manager.block_tables, seq.row, ids(seq)
    del manager, seq
    assert tables[row, :2].tolist() == expected


def test_the_table_array_has_the_columns_asked_for(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2, max_blocks_per_seq=6)
    assert manager.block_tables.shape[1] == 6
    handle = manager.admit([1] * 8)
    with refused(manager, NeverFitsError):
        manager.append(handle, [1])


def test_decode_of_a_full_row_never_fits(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, max_blocks_per_seq=2)
    seq = serve(manager, [1, 2, 3, 4])
    other = serve(manager, [5])
    with refused(manager, NeverFitsError, "a block table row holds 2"):
        manager.decode([other.handle, seq.handle], [9, 9])


def test_decode_of_a_long_batch_serves_each_its_own(make_manager: MakeManager) -> None:
    manager = make_manager(64, 2)
    sequences = [serve(manager, [t, t, t][: 1 + t % 3]) for t in range(20)]
    slots = manager.decode([s.handle for s in sequences], range(100, 120))
    assert len(set(slots.tolist())) == 20
    for i, seq in enumerate(sequences):
        assert seq.tokens.tolist()[-1] == 100 + i
        assert slots[i] == seq.slot_mapping(seq.num_tokens - 1, seq.num_tokens)[0]
