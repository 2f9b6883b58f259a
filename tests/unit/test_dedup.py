"""Deduplication: two sequences that fill identical blocks."""

from __future__ import annotations

import pytest

from blockmgr import Remap
from tests.conftest import MakeManager
from tests.unit.engine import ids, serve, step


def test_remap_points_the_sequence_at_the_cached_twin_in_use(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, dedup="remap")
    first, second = (manager.sequence(manager.admit([1] * 5)) for _ in range(2))
    before = ids(second)
    step(manager)
    assert ids(second)[:2] == ids(first)[:2]
    assert manager.take_remaps() == [
        Remap(second.handle, 0, before[0], ids(first)[0]),
        Remap(second.handle, 1, before[1], ids(first)[1]),
    ]
    assert manager.take_remaps() == []
    assert manager.stats().deduplicated_blocks == 2
    assert manager.num_available == 8 - 4


def test_remap_finds_a_twin_that_is_idle(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, dedup="remap")
    first, second = (manager.sequence(manager.admit([1] * 5)) for _ in range(2))
    manager.commit(first.handle, 5)
    blocks = ids(first)
    first.free()
    manager.commit(second.handle, 5)
    assert ids(second)[:2] == blocks[:2]
    assert (manager.stats().used_blocks, manager.stats().idle_blocks) == (3, 0)


@pytest.mark.parametrize("idle", [False, True])
def test_append_only_never_changes_a_table(make_manager: MakeManager, idle: bool) -> None:
    manager = make_manager(8, 2, dedup="append_only")
    first, second = (manager.sequence(manager.admit([1] * 5)) for _ in range(2))
    manager.commit(first.handle, 5)
    cached = ids(first)[:2]
    if idle:
        first.free()
    before = ids(second)
    manager.commit(second.handle, 5)
    assert ids(second) == before
    assert manager.take_remaps() == []
    assert manager.match([1] * 5).block_ids.tolist() == cached
    assert manager.stats().deduplicated_blocks == 2


def test_a_private_twin_is_freed_not_cached(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, dedup="append_only")
    first, second = (manager.sequence(manager.admit([1] * 5)) for _ in range(2))
    step(manager)
    first.free()
    second.free()
    stats = manager.stats()
    assert (stats.cached_blocks, stats.idle_blocks, stats.free_blocks) == (2, 2, 6)


def test_the_chain_goes_on_below_the_cached_twin(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, dedup="append_only")
    first, second = (manager.sequence(manager.admit([1] * 3)) for _ in range(2))
    step(manager)
    second.append([1, 2])
    step(manager)
    match = manager.match([1] * 4 + [2])
    assert match.block_ids.tolist() == [ids(first)[0], ids(second)[1]]


def test_a_private_twin_keeps_the_cached_one(make_manager: MakeManager) -> None:
    """The chain stands on it, so it is in use although no table names it."""
    manager = make_manager(8, 2, dedup="append_only")
    first, second = (manager.sequence(manager.admit([1] * 3)) for _ in range(2))
    step(manager)
    first.free()
    assert (manager.stats().idle_blocks, manager.stats().used_blocks) == (0, 3)
    second.free()
    assert (manager.stats().idle_blocks, manager.stats().used_blocks) == (1, 0)


def test_a_twin_that_is_written_lets_its_cached_one_go(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, dedup="append_only")
    first, second = (manager.sequence(manager.admit([1] * 3)) for _ in range(2))
    step(manager)
    first.free()
    second.truncate(1)
    second.append([9])
    assert manager.stats().idle_blocks == 1
    step(manager)
    assert manager.match([1, 9, 9]).num_cached_tokens == 2
    assert manager.match([1, 1, 1]).num_cached_tokens == 2


def test_a_twin_beyond_the_first_children_can_become_a_tail(make_manager: MakeManager) -> None:
    """More children than are looked at: the tail is cached although its twin covers it."""
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


def test_a_block_a_fork_has_promoted_is_not_a_twin_of_itself(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    parent = manager.sequence(manager.admit([1] * 3))
    [child] = parent.fork()
    step(manager)
    assert manager.stats().deduplicated_blocks == 0
    assert ids(parent)[0] == ids(child)[0]


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_forks_of_a_twin_agree_about_it(make_manager: MakeManager, dedup: str) -> None:
    manager = make_manager(8, 2, dedup=dedup)
    manager.admit([1] * 3)
    second = manager.sequence(manager.admit([1] * 3))
    second.fork(2)
    step(manager)
    for handle in manager.handles():
        manager.free(handle)
    assert manager.stats().cached_blocks == 1


def test_decode_merges_what_it_fills(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    first, second = (serve(manager, [1]) for _ in range(2))
    manager.decode([first.handle, second.handle], [1, 1])
    manager.decode([first.handle, second.handle], [1, 1])
    assert ids(first)[0] == ids(second)[0]
    assert [remap.handle for remap in manager.take_remaps()] == [second.handle]


def test_a_remap_log_nobody_reads_is_bounded_and_starts_afresh(
    make_manager: MakeManager,
) -> None:
    """Entries had to be dropped, so what is told is every entry a remap can have changed."""
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
