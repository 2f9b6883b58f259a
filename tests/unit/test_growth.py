"""Append, reserve, commit, truncate and decode on one sequence."""

from __future__ import annotations

import numpy as np

from blockmgr import BlockManager, NeverFitsError, SequenceStateError
from tests.conftest import MakeManager
from tests.unit.engine import ids, serve, step
from tests.unit.snapshot import refused


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


def test_an_empty_batch_is_fine(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    assert manager.decode([], []).tolist() == []
    manager.reparent([], [])


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
