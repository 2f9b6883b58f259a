"""Deduplication: two sequences that fill identical blocks."""

from __future__ import annotations

import pytest

from blockmgr import Remap
from tests.conftest import MakeManager
from tests.unit.engine import ids, serve, step


def test_a_sequence_alone_in_the_pool_gets_all_of_it(make_manager: MakeManager) -> None:
    """Idle blocks whose only use is to stand for twins must not cause a shortage."""
    manager = make_manager(6, 2, dedup="append_only")
    first, second = manager.admit([1, 2, 3, 4]), manager.admit([1, 2, 3, 4, 5, 6])
    manager.commit(first, 4)
    manager.commit(second, 6)
    manager.free(first)
    for token in range(7, 13):
        manager.append(second, [token])
    view = manager.sequence(second)
    assert manager.match([1, 2, 3, 4, 5, 6, 7]).block_ids.tolist() == ids(view)[:3]
    assert manager.stats().used_blocks == view.num_blocks == 6


def test_a_batch_that_leaves_a_cached_block_writes_its_twin_in_place(
    make_manager: MakeManager,
) -> None:
    """The key of a cached block must not pass to a block that a batch writes in place.

    The first sequence moves away from the cached block. If its key passed to the second sequence's
    twin, the second would need a copy, and no block is left for it.
    """
    manager = make_manager(4, 4, dedup="append_only")
    first, second = (manager.sequence(manager.admit([1] * 4)) for _ in range(2))
    manager.commit(first.handle, 4)
    manager.commit(second.handle, 4)
    manager.admit([5])
    first.truncate(2)
    second.truncate(3)
    own = ids(second)
    assert manager.num_available == 1
    manager.decode([first.handle, second.handle], [7, 8])
    assert ids(second) == own
    assert manager.num_available == 0
    manager.check_invariants()


def test_a_twin_beyond_the_first_children_can_become_a_tail(make_manager: MakeManager) -> None:
    """With more children than are examined, the tail is cached although its twin covers it."""
    manager = make_manager(64, 2, dedup="append_only", min_partial_tokens=1, max_seqs=8)
    first, second = (manager.sequence(manager.admit([1, 1, 1])) for _ in range(2))
    step(manager)
    for token in range(10, 50):
        serve(manager, [token, token]).free()
    second.truncate(1)
    second.free()
    first.free()
    manager.check_invariants()
    assert manager.stats().used_blocks == 0


def test_a_remap_log_nobody_reads_is_bounded_and_starts_afresh(
    make_manager: MakeManager,
) -> None:
    """Entries were dropped, so the log reports every entry that a remap may have changed."""
    manager = make_manager(8, 1, dedup="remap")
    kept = serve(manager, [9, 9, 9])
    bytes_before = manager.memory_usage()
    for token in range(1, 1_500):
        pair = [manager.admit([token, 0]) for _ in range(2)]
        for handle in pair:
            manager.commit(handle, 1)
        for handle in pair:
            manager.free(handle)
    assert manager.memory_usage() <= bytes_before + 64 * 1024
    table = ids(kept)
    told = [remap for remap in manager.take_remaps() if remap.handle == kept.handle]
    assert told == [Remap(kept.handle, i, -1, table[i]) for i in range(3)]
    assert manager.take_remaps() == []


def test_one_call_may_log_more_than_the_bound(make_manager: MakeManager) -> None:
    manager = make_manager(5_000, 1, dedup="remap")
    first, second = (manager.sequence(manager.admit([1] * 2_000)) for _ in range(2))
    before = ids(second)
    step(manager)
    remaps = manager.take_remaps()
    assert [remap.old for remap in remaps] == before
    assert [remap.new for remap in remaps] == ids(first)


def test_what_is_merged_while_the_log_is_read_is_told(
    make_manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread, or a finalizer, may commit while the log is read."""
    manager = make_manager(8, 2, dedup="remap")
    first, second, third = (manager.sequence(manager.admit([1] * 3)) for _ in range(3))
    first.commit(3)
    second.commit(3)
    late = [third]

    def make(handle: int, index: int, old: int, new: int) -> Remap:
        while late:
            late.pop().commit(3)
        return Remap(handle, index, old, new)

    monkeypatch.setattr("blockmgr.manager.Remap", make)
    told = [remap.handle for remap in manager.take_remaps()]
    assert told == [second.handle, third.handle]
    assert manager.take_remaps() == []
