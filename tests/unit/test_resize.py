"""A live pool that gives memory back: ``shrink``, ``grow`` and ``leaving``."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import (
    Admission,
    BlockManager,
    FullAttention,
    OutOfBlocksError,
    RecurrentState,
    Ring,
    SlidingWindow,
)
from blockmgr.blocks import BlockState
from blockmgr.tiers import TierConfig, TieredManager
from tests.conftest import MakeManager
from tests.stress.mirror import Mirror
from tests.unit.engine import cache, ids, serve, step
from tests.unit.snapshot import refused

LONG = [1, 2, 3, 4, 5, 6, 7]


def capacity(manager: BlockManager) -> int:
    stats = manager.stats()
    usage = manager.quota_usage(b"of no quota")
    assert usage.limit == stats.capacity - sum(manager.config.quotas.values())
    parts = stats.free_blocks, stats.idle_blocks, stats.used_blocks, stats.fenced_blocks
    assert sum(parts) == stats.capacity
    return stats.capacity


def test_free_and_idle_blocks_leave_at_once_and_come_back(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    blocks = cache(manager, LONG)
    assert manager.shrink(2) == 0
    assert (manager.num_available, capacity(manager), manager.leaving()) == (2, 2, {})
    assert manager.match(LONG).block_ids.tolist() == [b for b in blocks[:3] if b < 2]
    assert manager.blocks().count(BlockState.OUT) == 6
    manager.grow(8)
    assert (manager.num_available, capacity(manager)) == (8, 8)
    assert len(set(ids(serve(manager, [9] * 16)))) == 8


def test_a_state_that_waits_to_be_kept_is_not_counted_when_it_leaves() -> None:
    groups = [FullAttention(), RecurrentState()]
    manager = BlockManager(24, 4, groups=groups, null_block=True, dedup="append_only")
    handle = manager.admit(range(9))
    manager.copies_applied(manager.take_copies().ticket)
    manager.commit(handle, 8)  # a stop: a copy of the state is planned
    assert manager.stats().pending_copies == 1
    [kept] = (b for b, source in enumerate(manager.blocks().copy_source) if source >= 0)
    assert manager.shrink(kept) == len(manager.leaving()) == 0


def test_a_block_in_use_leaves_when_its_last_table_drops_it(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    first, second = serve(manager, LONG), serve(manager, [8, 9, 10])
    [child] = first.fork()
    table = ids(first)
    assert manager.shrink(3) == 3
    assert manager.leaving() == {
        3: [first.handle, child.handle],
        4: [second.handle],
        5: [second.handle],
    }
    assert ids(first) == table, "tables do not change"
    assert (manager.num_available, capacity(manager)) == (0, 6)
    second.free()
    first.preempt()
    assert (manager.leaving(), capacity(manager)) == ({3: [child.handle]}, 4)
    child.preempt()
    assert (manager.leaving(), manager.shrink(3), capacity(manager)) == ({}, 0, 3)


def test_what_leaves_is_found_no_more_and_what_stays_is() -> None:
    manager = BlockManager(8, 2, events=True)
    mirror = Mirror()
    seq = serve(manager, LONG)
    mirror.follow(manager)
    assert manager.shrink(2) == 2
    mirror.follow(manager)
    assert (manager.match(LONG).num_cached_tokens, len(mirror.contents)) == (4, 2)
    seq.preempt()
    assert manager.match(LONG).num_cached_tokens == 4
    assert manager.stats().forgotten_blocks == 1


def test_what_fits_only_the_larger_pool_has_to_wait(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    handle = serve(manager, LONG).handle
    manager.shrink(2)
    manager.preempt(handle)
    assert manager.can_admit(LONG) is Admission.LATER
    assert manager.can_admit([1] * 17) is Admission.NEVER
    with refused(manager, OutOfBlocksError):
        manager.resume(handle)
    manager.grow(8)
    assert manager.can_admit([8, 9]) is Admission.NOW
    manager.resume(handle)


def test_quotas_stay_whole(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, quotas={b"tenant": 3}, null_block=True)
    seq = serve(manager, [1, 2, 3, 4, 5], namespace=b"tenant")
    assert manager.shrink(4) == 0
    assert capacity(manager) == 3
    assert manager.quota_usage(b"tenant").used_blocks == 3
    assert manager.can_admit([7], namespace=b"other") is Admission.LATER
    assert manager.stats().usage == 1.0
    seq.free()
    for wrong in (3, 0, -1, 5):
        with refused(manager, ValueError, match=r"num_blocks must be in \[4, 4\], got"):
            manager.shrink(wrong)


@pytest.mark.parametrize("call", ["shrink", "grow"])
def test_a_wrong_size_is_refused_by_name(make_manager: MakeManager, call: str) -> None:
    manager = make_manager(8, 2)
    manager.shrink(5)
    bounds = r"\[0, 5\]" if call == "shrink" else r"\[5, 8\]"
    for wrong in (-1, 9, 6 if call == "shrink" else 4):
        with refused(manager, ValueError, match=f"num_blocks must be in {bounds}, got {wrong}"):
            getattr(manager, call)(wrong)
    for odd in (True, 5.0, "5", None):
        with refused(manager, TypeError, match="num_blocks must be an int"):
            getattr(manager, call)(odd)


def test_a_pool_without_blocks_waits(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2)
    assert (manager.shrink(0), manager.num_available, manager.stats().usage) == (0, 0, 0.0)
    assert manager.can_admit([1]) is Admission.LATER
    manager.grow(1)
    assert manager.can_admit([1]) is Admission.NOW
    assert ids(serve(manager, [1])) == [0]


def test_holds_and_pins_do_not_stop_a_pool(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, retention=True, max_pinned_blocks=8)
    blocks = cache(manager, LONG)
    pin = manager.pin(LONG)
    manager.acquire(blocks[2:3])
    assert manager.shrink(blocks[1]) == 1, "a hold keeps its block, and not those before it"
    assert manager.leaving() == {blocks[2]: []}
    assert manager.pinned(pin).num_cached_blocks == 1
    manager.release(blocks[2:3])
    assert manager.shrink(blocks[1]) == 0
    manager.unpin(pin)


GROUPS: list[tuple[Any, ...]] = [
    (FullAttention(), SlidingWindow(4)),
    (FullAttention(), RecurrentState()),
    (FullAttention(), SlidingWindow(6), RecurrentState()),
    (FullAttention(), SlidingWindow(4, block_size=1)),
    (FullAttention(), Ring(8)),
    (FullAttention(), SlidingWindow(6), RecurrentState(extra_blocks=2)),
    (FullAttention(block_size=1), SlidingWindow(3, block_size=1)),
]


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_blocks_of_all_groups_leave(make_manager: MakeManager, groups: Any) -> None:
    manager = make_manager(40, 2, groups=groups, null_block=True)
    done, running = serve(manager, LONG), serve(manager, [9, *LONG])
    tables = [manager.group_table(g)[running.row].tolist() for g in range(1, len(groups))]
    done.free()
    own = {*ids(running), *(block for table in tables for block in table if block)}
    assert set(manager.leaving()) == set()
    left = manager.shrink(1)
    leaving = manager.leaving()
    assert left == len(leaving)
    assert set(leaving) | {0} >= own
    assert all(handles == [running.handle] for handles in leaving.values())
    running.preempt()
    assert (manager.leaving(), capacity(manager)) == ({}, 0)
    manager.grow(40)
    running.resume()
    step(manager)


def admitted_with(
    make_manager: MakeManager, groups: tuple[Any, ...]
) -> tuple[BlockManager, set[int]]:
    """A manager with a sequence that has computed nothing, and the blocks of its tables."""
    manager = make_manager(40, 2, groups=groups, null_block=True)
    row = manager.row(manager.admit(LONG))
    tables = (manager.group_table(g)[row].tolist() for g in range(len(groups)))
    return manager, {block for table in tables for block in table if block}


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_a_sequence_caches_nothing_beside_a_block_of_any_group_that_leaves(
    make_manager: MakeManager, groups: tuple[Any, ...]
) -> None:
    for block in admitted_with(make_manager, groups)[1]:
        manager, _ = admitted_with(make_manager, groups)
        manager.shrink(block)
        assert block in manager.leaving()
        step(manager)
        manager.check_invariants()


def test_a_window_that_leaves_makes_no_room_for_a_batch(make_manager: MakeManager) -> None:
    manager = make_manager(8, 1, groups=(FullAttention(), SlidingWindow(1)), null_block=True)
    other, ours = manager.admit([9]), manager.admit([1])
    manager.acquire(manager.block_ids(other))
    manager.free(other)
    [last] = manager.group_table(1)[manager.row(ours)][:1].tolist()
    assert (manager.shrink(last), manager.leaving()) == (1, {last: [ours]})
    assert manager.num_available == 1
    with refused(manager, OutOfBlocksError, match="need 2 blocks, 1 available"):
        manager.decode([ours], [2])


def test_a_load_keeps_its_blocks_until_it_is_done_and_a_store_does_not() -> None:
    manager = TieredManager(12, 2, tiers=[TierConfig(num_blocks=16, ahead=12)])
    handle = manager.admit(LONG)
    manager.commit(handle, 7)
    manager.free(handle)
    [store] = manager.take_stores()
    assert manager.stores_done(store.ticket, len(store)) == len(store)
    assert (manager.shrink(0), manager.leaving()) == (0, {})
    manager.grow(12)
    again = manager.admit(LONG, load=True)
    [load] = manager.take_loads()
    assert manager.shrink(0) == 4
    assert {again} == {handle for own in manager.leaving().values() for handle in own}
    assert manager.loads_done(load.ticket, len(load)) == 6
    manager.free(again)
    assert manager.shrink(0) == 0
    manager.grow(12)
    other = manager.admit([8, 9, 8, 9, 8])
    manager.commit(other, 5)
    manager.free(other)
    [store] = manager.take_stores()
    manager.shrink(0)
    assert manager.stores_done(store.ticket, len(store)) == 0, "its source is gone"
    manager.check_invariants()
    manager.close()
