"""Rules of tiers, each in a world in which the obvious way fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    ForkError,
    ManagerConfig,
    NeverFitsError,
    OutOfBlocksError,
    Priority,
    Prompt,
    StaleMatchError,
    StepError,
    TicketError,
)
from blockmgr.tiers import DEVICE, Slab, TierConfig, TieredManager, key_bytes
from blockmgr.tiers.layout import Pieces
from blockmgr.tiers.paths import parts_of_key
from tests.tiers.support import (
    PROMPT,
    compute,
    evict,
    in_tier,
    loading,
    managed,
    store,
    stored,
    tier,
)

LAYOUT: dict[str, str | int] = {"model": "tiny"}


def slab_at(folder: Path, num_blocks: int = 16) -> Slab:
    return Slab(
        folder / "kv.slab", LAYOUT, num_blocks=num_blocks, block_bytes=8, key_bytes=key_bytes(2)
    )


def write(manager: TieredManager, slab: Slab) -> None:
    """Stores what is to be stored, in a slab."""
    for each in manager.take_stores():
        proofs = each.target_proofs
        assert proofs is not None
        for block, serial, key in zip(each.target_blocks, proofs.serials, proofs.keys, strict=True):
            slab.write(int(block), key, bytes(8), serial=int(serial))
        manager.stores_done(each.ticket, len(each))


# What is found.


def test_a_prefix_comes_back_from_a_tier_after_its_eviction() -> None:
    manager = managed()
    stored(manager)
    assert manager.match(PROMPT).num_cached_tokens == 0
    handle, load = loading(manager)
    assert (load.source, load.target, len(load)) == (0, DEVICE, 4)
    assert load.target_blocks.tolist() == manager.block_ids(handle)[:4]
    assert manager.loads_done(load.ticket, 4) == 8
    assert manager.match(PROMPT).num_cached_tokens == 8


@pytest.mark.parametrize("has_prompt", [False, True])
def test_a_session_is_named_beside_a_load(has_prompt: bool) -> None:
    manager = managed(retention=True)
    stored(manager)
    if has_prompt:
        handle = manager.admit(Prompt(PROMPT, session=b"talk"), load=True)
    else:
        handle = manager.admit(PROMPT, session=b"talk", load=True)
    assert manager.is_loading(handle)
    assert manager.end_session(b"talk") is not None
    with pytest.raises(ValueError, match="session must be left out"):
        manager.admit(Prompt(PROMPT, session=b"talk"), session=b"talk", load=True)
    with pytest.raises(TypeError, match="session must be bytes"):
        manager.admit(PROMPT, session=5, load=True)  # type: ignore[arg-type]


def test_the_last_token_is_never_loaded() -> None:
    manager = managed()
    stored(manager)
    _, load = loading(manager, PROMPT[:8])
    assert len(load) == 3


def test_a_tier_finds_a_prefix_in_its_namespace_with_its_extra_keys_only() -> None:
    manager = managed()
    stored(manager, namespace=b"tenant", extras={1: b"image"})
    assert in_tier(manager) == (0,)
    assert in_tier(manager, namespace=b"tenant") == (2,)
    assert in_tier(manager, namespace=b"tenant", extras={1: b"image"}) == (8,)


def test_names_are_known_to_tiers_by_their_sha_256_only() -> None:
    manager = managed()
    compute(manager, PROMPT, namespace=b"tenant", extras={0: b"image"})
    [each] = manager.take_stores()
    proofs = each.target_proofs
    assert proofs is not None
    assert not any(b"tenant" in key or b"image" in key for key in proofs.keys)
    parts = parts_of_key(proofs.keys[0])
    assert (len(parts.namespace), len(parts.extras)) == (32, 32)


def test_a_key_names_the_serial_of_the_block_before() -> None:
    manager = managed()
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    proofs = each.target_proofs
    assert proofs is not None
    parts = [parts_of_key(key) for key in proofs.keys]
    assert [part.parent for part in parts] == [0, *proofs.serials[:-1].tolist()]
    assert [part.tokens.tolist() for part in parts] == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_a_load_asks_for_the_proofs_that_its_store_wrote() -> None:
    manager = managed()
    compute(manager, PROMPT[:5])
    [first] = store(manager)
    compute(manager, PROMPT)
    [second] = store(manager)
    evict(manager)
    _, load = loading(manager)
    assert first.target_proofs
    assert second.target_proofs
    assert load.source_proofs
    assert load.source_proofs.keys == first.target_proofs.keys + second.target_proofs.keys
    serials = [*first.target_proofs.serials, *second.target_proofs.serials]
    assert load.source_proofs.serials.tolist() == serials


def test_a_part_that_a_faster_tier_has_comes_from_there() -> None:
    manager = managed(tier(3, ahead=999), tier(16, ahead=999))
    compute(manager, PROMPT)
    store(manager)  # three blocks fit the first tier
    store(manager)  # and go on to the second one
    evict(manager)
    handle = manager.admit(PROMPT, load=True)
    [load] = manager.take_loads()
    assert (load.source, len(load)) == (0, 3)
    assert manager.is_loading(handle)


def test_what_both_tiers_have_is_two_loads_that_commit_in_order() -> None:
    manager = managed(tier(2), tier(16))
    stored(manager, PROMPT[:9])
    # The second tier gets the rest of the path by hand, as if the first had evicted it.
    slow = manager._tiers[1]
    path = manager._loads.match(Prompt(PROMPT), None)[1]
    have = slow.find(path)[:, 0].tolist()
    rest = Pieces(slow.layout.needed(8, len(have)))
    blocks = slow.pool.take(len(rest)).tolist()
    slow.promote(path, have, rest, blocks, slow.take_serials(len(blocks)))
    slow.pool.release(blocks[::-1])
    handle = manager.admit(PROMPT, load=True)
    fast, late = manager.take_loads()
    assert (fast.source, late.source, len(fast), len(late)) == (0, 1, 2, 2)
    assert manager.loads_done(late.ticket, 2) == 0
    assert manager.match(PROMPT).num_cached_tokens == 0
    assert manager.is_loading(handle)
    assert manager.loads_done(fast.ticket, 2) == 8
    assert not manager.is_loading(handle)


# What is under way.


def test_nobody_finds_what_is_being_loaded_and_others_see_it_computed() -> None:
    manager = managed()
    stored(manager)
    loading(manager)
    found = manager.match(PROMPT)
    assert (found.num_cached_tokens, found.num_computing_tokens) == (0, 8)


CALLS: dict[str, Any] = {
    "append": lambda m, h: m.append(h, [1]),
    "decode": lambda m, h: m.decode([h], [1]),
    "reserve": lambda m, h: m.reserve(h, 12),
    "commit": lambda m, h: m.commit(h, 9),
    "truncate": lambda m, h: m.truncate(h, 3),
    "fork": lambda m, h: m.fork(h),
    "fork of a view": lambda m, h: m.sequence(h).fork(),
    "commit of a view": lambda m, h: m.sequence(h).commit(9),
    "reparent": lambda m, h: m.reparent([h], [0]),
    "cache_state": lambda m, h: m.cache_state(h),
    "mark_state_moved": lambda m, h: m.mark_state_moved(h),
    "place_state": lambda m, h: m.place_state(h, 0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_loading_sequence_refuses_every_call_but_its_end(call: Any) -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager)
    with pytest.raises(StepError, match="waits for a load"):
        call(manager, handle)
    manager.loads_done(load.ticket, 4)
    manager.commit(handle, 9)


def test_a_loading_sequence_can_be_retained() -> None:
    manager = managed(retention=True)
    stored(manager)
    handle, load = loading(manager)
    assert manager.retain(handle, 0, 8, priority=Priority.HIGH) == 4
    assert manager.loads_done(load.ticket, 4) == 8


@pytest.mark.parametrize("end", ["free", "preempt"])
def test_blocks_stay_with_the_ticket_when_their_sequence_ends(end: str) -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager)
    getattr(manager, end)(handle)
    assert manager.num_available == 4
    with pytest.raises(OutOfBlocksError):
        manager.admit([5] * 12)
    assert manager.loads_done(load.ticket, 4) == 0
    assert manager.num_available == 8
    assert manager.match(PROMPT).num_cached_tokens == 0


def test_a_load_that_no_mover_took_ends_with_its_sequence() -> None:
    manager = managed()
    stored(manager)
    manager.free(manager.admit(PROMPT, load=True))
    assert (manager.num_available, len(manager.take_loads())) == (8, 0)


def test_only_the_leading_run_of_what_arrived_counts() -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager)
    assert manager.loads_done(load.ticket, 1) == 2
    assert manager.sequence(handle).num_computed_tokens == 2
    assert manager.match(PROMPT).num_cached_tokens == 2


def test_a_failed_load_leaves_no_part_of_a_later_one_findable() -> None:
    manager = managed(tier(2), tier(16))
    stored(manager, PROMPT)
    path = manager._loads.match(Prompt(PROMPT), None)[1]
    slow = manager._tiers[1]
    have = slow.find(path)[:, 0].tolist()
    rest = Pieces(slow.layout.needed(8, len(have)))
    blocks = slow.pool.take(len(rest)).tolist()
    slow.promote(path, have, rest, blocks, slow.take_serials(len(blocks)))
    slow.pool.release(blocks[::-1])
    handle = manager.admit(PROMPT, load=True)
    fast, late = manager.take_loads()
    manager.loads_done(late.ticket, 2)
    assert manager.loads_done(fast.ticket, 1) == 2
    assert manager.sequence(handle).num_computed_tokens == 2


def test_a_refused_block_is_forgotten_and_stored_again() -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager)
    manager.loads_done(load.ticket, 1)
    assert in_tier(manager) == (2,)
    manager.commit(handle, 9)
    manager.free(handle)
    assert [len(each) for each in store(manager)] == [3]
    assert manager.tier_stats()[0].refused == 1


def test_a_block_that_could_not_be_read_stays() -> None:
    manager = managed()
    stored(manager)
    _, load = loading(manager)
    manager.loads_done(load.ticket, 0, refused=False)
    assert in_tier(manager) == (8,)
    assert manager.tier_stats()[0].refused == 0


def test_a_tier_never_evicts_what_a_load_reads() -> None:
    manager = managed(tier(4), num_blocks=12)
    stored(manager)
    _, load = loading(manager)
    compute(manager, [9, 9, 9])
    assert len(manager.take_stores()) == 0  # there is no room
    manager.loads_done(load.ticket, 4)
    assert len(manager.take_stores()) == 1


def test_a_late_load_shows_once_its_deadline_has_passed() -> None:
    manager = managed()
    stored(manager)
    handle = manager.admit(PROMPT, load=True)
    [load] = manager.take_loads(deadline=10.0)
    assert (manager.loads_late(10.0), manager.loads_late(10.1)) == ([], [handle])
    manager.preempt(handle)
    assert manager.loads_late(11.0) == []
    manager.loads_done(load.ticket, 4)
    manager.resume(handle)
    assert manager.sequence(handle).num_computed_tokens == 0


def test_a_ticket_is_resolved_once_and_by_the_call_of_its_kind() -> None:
    manager = managed()
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    with pytest.raises(TicketError, match="stores_done"):
        manager.loads_done(each.ticket, 0)
    with pytest.raises(ValueError, match="n must be in"):
        manager.stores_done(each.ticket, 5)
    assert manager.stores_done(each.ticket, 4) == 4
    for call in (manager.stores_done, manager.loads_done):
        with pytest.raises(TicketError, match="is resolved"):
            call(each.ticket, 0)
    with pytest.raises(TicketError, match="is resolved"):
        manager.abandon(each.ticket)


def test_an_abandoned_transfer_leaves_nothing() -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager)
    manager.abandon(load.ticket)
    assert (manager.is_loading(handle), in_tier(manager)) == (False, (8,))
    manager.free(handle)
    compute(manager, [3, 3, 3])
    [each] = manager.take_stores()
    manager.abandon(each.ticket)
    assert in_tier(manager, [3, 3, 3]) == (0,)


# Room.


def test_a_load_takes_slots_up_to_its_end() -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager, num_slots=2)
    assert (len(load), manager.sequence(handle).num_slots) == (4, 8)


def test_a_load_that_does_not_fit_is_shorter() -> None:
    manager = managed()
    stored(manager)
    other = manager.admit([9] * 10)
    _, load = loading(manager, num_slots=2)
    assert len(load) == 2
    manager.free(other)


def test_an_admission_without_room_for_a_load_is_an_ordinary_one() -> None:
    manager = managed()
    stored(manager)
    manager.admit([9] * 14)
    handle = manager.admit(PROMPT, num_slots=2, load=True)
    assert [len(load) for load in manager.take_loads()] == [1]
    assert manager.sequence(handle).num_slots == 2
    with pytest.raises(OutOfBlocksError):
        manager.admit(PROMPT, num_slots=2, load=True)
    with pytest.raises(NeverFitsError):
        manager.admit([*PROMPT, *[5] * 30], load=True)


def test_only_so_many_blocks_wait_for_bytes() -> None:
    manager = managed(max_loading=3)
    stored(manager)
    _, load = loading(manager)
    assert len(load) == 3
    manager.admit(PROMPT, num_slots=1, load=True)
    assert len(manager.take_loads()) == 0


def test_only_so_many_blocks_are_written_at_a_time() -> None:
    manager = managed(max_storing=3)
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    assert (len(each), len(manager.take_stores())) == (3, 0)
    manager.stores_done(each.ticket, 3)
    assert [len(rest) for rest in store(manager)] == [1]


def test_a_match_that_is_passed_back_is_loaded_or_refused() -> None:
    manager = managed()
    stored(manager)
    found = manager.match_tiers(PROMPT)
    assert (found.num_cached_tokens, found.num_loadable_tokens) == (8, 8)
    manager.free(manager.admit(PROMPT, load=found))
    _, load = loading(manager)
    manager.loads_done(load.ticket, 2)
    manager.free(load.handle)
    evict(manager)
    before = manager.stats()
    with pytest.raises(StaleMatchError):
        manager.admit(PROMPT, load=found)
    assert manager.stats() == before


# Stores.


def test_what_is_evicted_next_is_stored_first() -> None:
    manager = managed(tier(16, ahead=2))
    compute(manager, [1, 1, 1])
    compute(manager, [2, 2, 2])
    compute(manager, [3, 3, 3])
    store(manager)
    assert [in_tier(manager, [i] * 3) for i in (1, 2, 3)] == [(2,), (2,), (0,)]


def test_a_store_takes_no_block_from_the_device_nor_changes_its_order() -> None:
    manager = managed(num_blocks=4)
    compute(manager, [1, 1, 1])
    compute(manager, [2, 2, 2])
    stores = list(manager.take_stores())
    assert manager.num_available == 4
    for each in stores:
        manager.stores_done(each.ticket, len(each))
    manager.free(manager.admit([9] * 6))
    assert [manager.match([i] * 3).num_cached_tokens for i in (1, 2)] == [0, 2]


def test_a_store_whose_source_is_evicted_meanwhile_has_failed() -> None:
    manager = managed()
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    manager.free(manager.admit([9] * 12))  # takes the last two blocks of the prompt
    assert manager.stores_done(each.ticket, 4) == 2
    assert in_tier(manager) == (4,)
    assert manager.tier_stats()[0].failed == 2


def test_a_source_may_be_evicted_once_it_was_read() -> None:
    manager = managed()
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    assert manager.stores_read(each.ticket, 4) == 4
    evict(manager)
    assert manager.stores_done(each.ticket, 4) == 4


def test_what_was_evicted_before_it_was_read_does_not_count() -> None:
    manager = managed()
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    manager.free(manager.admit([9] * 12))
    assert manager.stores_read(each.ticket, 4) == 2
    assert manager.stores_done(each.ticket, 4) == 2


def test_a_reset_voids_what_was_read_before_it() -> None:
    manager = managed()
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    manager.stores_read(each.ticket, 4)
    manager.reset_prefix_cache()
    assert manager.stores_done(each.ticket, 4) == 0


def test_a_source_that_holds_something_else_by_now_has_changed() -> None:
    manager = managed(num_blocks=2)
    compute(manager, PROMPT[:3])
    [each] = manager.take_stores()
    compute(manager, [9] * 4)
    assert manager.prefix_of(int(each.source_blocks[0])).tokens.tolist()[:2] == [9, 9]
    assert manager.stores_done(each.ticket, 1) == 0


def test_only_what_was_written_is_findable() -> None:
    manager = managed()
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    assert in_tier(manager) == (0,)
    assert manager.stores_done(each.ticket, 3) == 3
    assert in_tier(manager) == (6,)


def test_what_continues_a_block_that_was_refused_meanwhile_is_not_findable() -> None:
    manager = managed(num_blocks=12)
    stored(manager, PROMPT[:5])
    _, load = loading(manager, PROMPT[:5])
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    manager.loads_done(load.ticket, 0)
    assert manager.stores_done(each.ticket, len(each)) == 0
    assert in_tier(manager) == (0,)


def test_a_path_is_stored_by_one_transfer_at_a_time() -> None:
    manager = managed()
    compute(manager, PROMPT[:5])
    [each] = manager.take_stores()
    compute(manager, PROMPT)
    assert len(manager.take_stores()) == 0
    manager.stores_done(each.ticket, 2)
    assert [len(rest) for rest in store(manager)] == [2]


def test_what_a_small_tier_evicts_is_not_written_to_it_again_and_again() -> None:
    manager = managed(tier(1))
    compute(manager, [1, 1, 1])
    compute(manager, [2, 2, 2])
    assert len(store(manager)) == 1
    assert len(store(manager)) == 1
    assert len(store(manager)) == 0


def test_a_path_that_is_there_is_touched() -> None:
    manager = managed(tier(2))
    compute(manager, [1, 1, 1])
    compute(manager, [2, 2, 2])
    store(manager)
    compute(manager, [1, 1, 1])  # used again, and idle again
    store(manager)
    manager.admit([1, 1, 1])
    store(manager)
    manager.free(manager.handles()[0])
    store(manager)
    compute(manager, [3, 3, 3])
    store(manager)
    assert [in_tier(manager, [i] * 3) for i in (1, 2, 3)] == [(2,), (0,), (2,)]


def test_a_tier_passes_on_what_it_evicts_next() -> None:
    manager = managed(tier(16), tier(32))
    compute(manager, PROMPT)
    [first] = store(manager)
    [second] = store(manager)
    assert (first.source, first.target, second.source, second.target) == (DEVICE, 0, 0, 1)
    assert second.source_proofs
    assert first.target_proofs
    assert second.source_proofs.keys == first.target_proofs.keys
    assert in_tier(manager) == (8, 8)


def test_a_block_that_a_tier_cannot_prove_is_not_passed_on() -> None:
    manager = managed(tier(16), tier(32))
    compute(manager, PROMPT)
    store(manager)
    [each] = manager.take_stores()
    assert manager.stores_done(each.ticket, 1, refused=True) == 1
    assert in_tier(manager) == (2, 2)


def test_a_prefetch_copies_from_a_slower_tier_without_the_device() -> None:
    manager = managed(tier(8), tier(32), num_blocks=12)
    stored(manager)
    stored(manager, [5] * 17)
    assert in_tier(manager) == (0, 8)
    manager.prefetch(PROMPT)
    [each] = [t for t in manager.take_stores() if t.source == 1]
    assert (each.target, len(each)) == (0, 4)
    assert manager.num_available == 12
    manager.stores_done(each.ticket, 4)
    assert in_tier(manager) == (8, 8)
    assert manager.tier_stats()[1].promoted == 4


def test_a_prefetch_that_has_no_room_yet_goes_on_with_the_next_stores() -> None:
    manager = managed(tier(4), tier(16), num_blocks=12, max_storing=3)
    stored(manager)
    stored(manager, [7] * 9)
    assert in_tier(manager) == (0, 8)
    manager.prefetch(PROMPT)
    counts = [[len(each) for each in store(manager)] for _ in range(3)]
    assert counts == [[3], [1], []]
    assert in_tier(manager) == (8, 8)


# The whole.


def test_a_reset_is_of_all_tiers_and_of_what_is_under_way() -> None:
    manager = managed(num_blocks=16)
    stored(manager)
    handle, load = loading(manager)
    compute(manager, [3, 3, 3])
    [each] = manager.take_stores()
    manager.reset_prefix_cache()
    assert in_tier(manager) == (0,)
    assert manager.stores_done(each.ticket, len(each)) == 0
    assert manager.loads_done(load.ticket, 4) == 0
    assert manager.sequence(handle).num_computed_tokens == 0
    assert in_tier(manager, [3, 3, 3]) == (0,)


def test_a_device_that_lost_its_memory_leaves_tiers_as_they_are() -> None:
    manager = managed()
    stored(manager)
    compute(manager, [3, 3, 3])
    [each] = manager.take_stores()
    manager.reset_prefix_cache(tiers=False)
    assert in_tier(manager) == (8,)
    assert manager.stores_done(each.ticket, len(each)) == 0


def test_a_retired_namespace_goes_from_tiers_too() -> None:
    manager = managed(num_blocks=16)
    stored(manager, namespace=b"a")
    stored(manager, namespace=b"b")
    compute(manager, [3, 3, 3], namespace=b"a")
    [each] = manager.take_stores()
    manager.retire(b"a")
    assert (in_tier(manager, namespace=b"a"), in_tier(manager, namespace=b"b")) == ((0,), (8,))
    assert manager.stores_done(each.ticket, len(each)) == 0


def test_what_was_read_before_its_namespace_was_retired_is_not_stored() -> None:
    manager = managed()
    compute(manager, [3, 3, 3], namespace=b"a")
    [each] = manager.take_stores()
    assert manager.stores_read(each.ticket, len(each)) == 1
    manager.retire(b"a")
    assert manager.stores_done(each.ticket, len(each)) == 0
    assert in_tier(manager, [3, 3, 3], namespace=b"a") == (0,)


def test_a_block_that_turns_out_wrong_is_forgotten_in_tiers_too() -> None:
    manager = managed()
    compute(manager, PROMPT)
    store(manager)
    block = int(manager.match(PROMPT).block_ids[2])
    assert manager.forget([block]) == 2
    assert in_tier(manager) == (4,)


def test_tiers_have_the_quotas_of_the_device_in_proportion() -> None:
    manager = managed(tier(8), num_blocks=16, quotas={b"a": 4})
    names = [(1, b"b"), (1, b"a"), (2, b"a"), *((i, b"b") for i in range(2, 12))]
    for i, namespace in names:
        compute(manager, [i] * 3, namespace=namespace)
        store(manager)
    assert [in_tier(manager, [i] * 3, namespace=b"a") for i in (1, 2)] == [(2,), (2,)]


def is_refused(call: Any) -> bool:
    try:
        call()
    except BaseException as error:
        return isinstance(error, ForkError)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")
def test_a_forked_child_refuses_every_call_that_concerns_tiers() -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager)
    child = os.fork()
    if not child:
        calls = [
            lambda: manager.match_tiers(PROMPT),
            lambda: manager.admit(PROMPT),
            manager.take_loads,
            lambda: manager.loads_done(load.ticket, 4),
            manager.take_stores,
            manager.reset_prefix_cache,
            lambda: manager.free(handle),
            lambda: manager.prefetch(PROMPT),
            manager.close,
        ]
        os._exit(0 if all(map(is_refused, calls)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert manager.loads_done(load.ticket, 4) == 8


# A slab.


def test_a_slab_is_found_after_a_restart(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT, namespace=b"a", extras={1: b"image"})
    write(manager, slab)
    slab.close()
    slab = slab_at(tmp_path)
    again = managed(TierConfig(slab=slab, ahead=99))
    assert in_tier(again, namespace=b"a", extras={1: b"image"}) == (8,)
    assert again.tier_stats()[0].restored == 4
    slab.close()


def test_a_block_whose_parent_is_gone_is_not_restored(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    proofs = each.target_proofs
    assert proofs is not None
    for i in (0, 2, 3):  # the second one was lost
        slab.write(
            int(each.target_blocks[i]), proofs.keys[i], bytes(8), serial=int(proofs.serials[i])
        )
    slab.close()
    slab = slab_at(tmp_path)
    again = managed(TierConfig(slab=slab, ahead=99))
    assert (in_tier(again), in_tier(again, [5, 6, 7, 8, 9])) == ((2,), (0,))
    assert (again._tiers[0].pool.num_used, again.tier_stats()[0].restored) == (0, 1)
    slab.close()


@pytest.mark.parametrize("call", ["reset_prefix_cache", "retire"])
def test_what_was_reset_or_retired_does_not_come_back(tmp_path: Path, call: str) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    write(manager, slab)
    compute(manager, [3, 3, 3])
    [each] = manager.take_stores()
    getattr(manager, call)()
    proofs = each.target_proofs
    assert proofs is not None
    slab.write(int(each.target_blocks[0]), proofs.keys[0], bytes(8), serial=int(proofs.serials[0]))
    manager.stores_done(each.ticket, 1)
    slab.close()
    slab = slab_at(tmp_path)
    again = managed(TierConfig(slab=slab, ahead=99))
    assert (in_tier(again), in_tier(again, [3, 3, 3])) == ((0,), (0,))
    slab.close()


@pytest.mark.parametrize("at", [0, 2])
def test_a_block_that_turned_out_wrong_does_not_come_back(tmp_path: Path, at: int) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    write(manager, slab)
    manager.forget([int(manager.match(PROMPT).block_ids[at])])
    slab.close()
    slab = slab_at(tmp_path)
    again = managed(TierConfig(slab=slab, ahead=99))
    assert in_tier(again) == (2 * at,)
    slab.close()


@pytest.mark.parametrize("call", ["retire", "forget"])
@pytest.mark.parametrize("num_written", [None, 0, 1], ids=["under way", "failed", "lies"])
def test_what_was_evicted_for_a_store_that_wrote_nothing_does_not_come_back(
    tmp_path: Path, call: str, num_written: int | None
) -> None:
    """Its header is still there: nothing has written over it."""
    slab = slab_at(tmp_path, num_blocks=1)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, [1, 2, 3], namespace=b"tenant")
    write(manager, slab)
    compute(manager, [5, 6, 7])
    [other] = manager.take_stores()
    if num_written is not None:
        manager.stores_done(other.ticket, num_written)
    if call == "retire":
        manager.retire(b"tenant")
    else:
        manager.forget(manager.match([1, 2, 3], namespace=b"tenant").block_ids)
    slab.close()
    slab = slab_at(tmp_path, num_blocks=1)
    again = managed(TierConfig(slab=slab, ahead=99))
    assert in_tier(again, [1, 2, 3], namespace=b"tenant") == (0,)
    slab.close()


def test_what_a_store_wrote_and_did_not_report_does_not_come_back(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT, namespace=b"tenant")
    [each] = manager.take_stores()
    proofs = each.target_proofs
    assert proofs is not None
    for block, serial, key in zip(each.target_blocks, proofs.serials, proofs.keys, strict=True):
        slab.write(int(block), key, bytes(8), serial=int(serial))
    assert manager.stores_done(each.ticket, 0) == 0
    manager.retire(b"tenant")
    slab.close()
    slab = slab_at(tmp_path)
    assert not slab.found.size
    slab.close()


@pytest.mark.parametrize("call", ["retire", "forget"])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_written_as_it_is_forgotten_does_not_come_back_after_a_crash(
    tmp_path: Path, call: str, is_first: bool
) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    proofs = each.target_proofs
    assert proofs is not None
    count = manager.stores_read(each.ticket, 4)
    options = {"serials": proofs.serials.tolist()}
    writes = slab.write_blocks(each.target_blocks.tolist(), proofs.keys, [bytes(8)] * 4, **options)
    for _ in range(3 * is_first):
        next(writes)
    if call == "retire":
        manager.retire()
    else:
        manager.forget(manager.match(PROMPT).block_ids)
    assert (count, len(list(writes))) == (4, 4 - 3 * is_first)
    slab.close()
    slab = slab_at(tmp_path)
    assert not slab.found.size
    slab.close()


def test_a_namespace_that_is_retired_twice_is_stored_again(tmp_path: Path) -> None:
    """Also behind a store of before, which ends late, and after a disk that failed."""
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    manager.stores_read(each.ticket, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slab, "erase", failing)
        with pytest.raises(RuntimeError, match="in the middle"):
            manager.retire()
    assert not slab._revoked
    manager.retire()
    manager.retire()
    assert len(slab._revoked) == 4
    assert manager.stores_done(each.ticket, 4) == 0
    assert not slab._revoked
    compute(manager, PROMPT)
    write(manager, slab)
    slab.close()
    slab = slab_at(tmp_path)
    assert in_tier(managed(TierConfig(slab=slab, ahead=99))) == (8,)
    slab.close()


def test_what_others_are_writing_stays_when_something_is_forgotten(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    proofs = each.target_proofs
    assert proofs is not None
    for block, serial, key in zip(each.target_blocks, proofs.serials, proofs.keys, strict=True):
        slab.write(int(block), key, bytes(8), serial=int(serial))
    manager.retire(b"tenant")
    assert manager.stores_done(each.ticket, 4) == 4
    slab.close()
    slab = slab_at(tmp_path)
    assert in_tier(managed(TierConfig(slab=slab, ahead=99))) == (8,)
    slab.close()


def test_a_forget_that_a_slab_refuses_changes_nothing(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(tier(16), TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    store(manager)
    write(manager, slab)
    slab.close()
    first = manager.match(PROMPT).block_ids[:1]
    with pytest.raises(ValueError, match="closed"):
        manager.forget(first)
    assert manager.match(PROMPT).num_cached_tokens == 8
    assert in_tier(manager) == (8, 8)
    for wrong in ([8], [-1], [int(first[0]), 99]):
        with pytest.raises(ValueError, match="blocks must be in"):
            manager.forget(wrong)
    assert in_tier(manager) == (8, 8)


def test_what_was_read_before_it_turned_out_wrong_is_not_stored() -> None:
    manager = managed(num_blocks=16)
    compute(manager, PROMPT)
    compute(manager, [9, 9, 9])
    first, other = manager.take_stores()
    for each in (first, other):
        assert manager.stores_read(each.ticket, len(each)) == len(each)
    manager.forget([int(manager.match(PROMPT).block_ids[1])])
    assert manager.stores_done(first.ticket, len(first)) == 0
    assert manager.stores_done(other.ticket, len(other)) == 1


def test_a_load_of_what_turned_out_wrong_brings_nothing() -> None:
    manager = managed(num_blocks=16)
    stored(manager)
    compute(manager, PROMPT[:3])
    handle, load = loading(manager)
    manager.forget(manager.match(PROMPT).block_ids)
    assert manager.loads_done(load.ticket, len(load)) == 2
    assert in_tier(manager) == (0,)
    manager.free(handle)


def test_what_was_read_too_late_does_not_come_back_after_a_restart(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    manager.free(manager.admit([9] * 12))  # takes the last two blocks of the prompt
    proofs = each.target_proofs
    assert proofs is not None
    for block, serial, key in zip(each.target_blocks, proofs.serials, proofs.keys, strict=True):
        slab.write(int(block), key, bytes(8), serial=int(serial))
    assert manager.stores_done(each.ticket, 4) == 0
    slab.close()
    slab = slab_at(tmp_path)
    assert in_tier(managed(TierConfig(slab=slab, ahead=99))) == (0,)
    slab.close()


def test_a_restart_evicts_in_the_order_of_uses_after_a_clean_end(tmp_path: Path) -> None:
    for end, last in (("close", 1), ("crash", 3)):
        folder = tmp_path / end
        folder.mkdir()
        slab = slab_at(folder, 3)
        manager = managed(TierConfig(slab=slab, ahead=99), num_blocks=16)
        for number in (1, 2, 3):
            compute(manager, [number] * 3)
            write(manager, slab)
        evict(manager)
        _, load = loading(manager, [1, 1, 1])  # the first one is used again
        manager.loads_done(load.ticket, 1)
        manager.close() if end == "close" else slab.close()
        slab = slab_at(folder, 3)
        again = managed(TierConfig(slab=slab, ahead=99), num_blocks=16)
        for number in (4, 5):
            compute(again, [number] * 3)
            write(again, slab)
        found = [i for i in (1, 2, 3) if in_tier(again, [i] * 3)[0]]
        assert found == [last], end
        again.close()
        again.close()


def test_a_manager_is_closed_after_its_transfers(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    with pytest.raises(StepError, match="close must come after the end of all transfers"):
        manager.close()
    assert manager.stores_done(each.ticket, 4) == 4
    manager.close()
    compute(manager, [9, 9, 9])
    with pytest.raises(ValueError, match="is closed"):
        manager.take_stores()


def test_a_checksum_goes_along_and_is_not_made_anew(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    key, into = bytes(key_bytes(2)), bytearray(8)
    serial = slab.write(0, key, b"8 bytes.")
    digest = slab.read_digest(0, key, serial, into)
    assert digest is not None
    flipped = slab.write(1, key, b"8 bytes!", digest=digest)
    assert not slab.read(1, key, flipped, into)
    slab.close()


# Arguments.


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tiers": []}, ValueError, "tiers must have at least one"),
        ({"tiers": None}, TypeError, "tiers must be a list or tuple"),
        ({"tiers": [8]}, TypeError, "tiers must have TierConfig only"),
        ({"max_loading": -1}, ValueError, "max_loading must be at least 0"),
        ({"max_storing": 1.5}, TypeError, "max_storing must be an int"),
        ({"prefix_caching": False}, ValueError, "prefix_caching must be True"),
        ({"early_commit": True}, ValueError, "early_commit must be False"),
    ],
)
def test_a_wrong_option_is_named(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TieredManager(8, 2, **{"tiers": [tier(4)], **options})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ValueError, "num_blocks must be given"),
        ({"num_blocks": 0}, ValueError, "num_blocks must be in"),
        ({"num_blocks": 4, "ahead": 0}, ValueError, "ahead must be at least 1"),
        ({"slab": "kv.slab"}, TypeError, "slab must be a Slab"),
    ],
)
def test_a_wrong_tier_is_refused(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TierConfig(**options)


def test_a_slab_with_other_keys_is_refused(tmp_path: Path) -> None:
    slab = Slab(tmp_path / "kv.slab", LAYOUT, num_blocks=4, block_bytes=8, key_bytes=4)
    with pytest.raises(ValueError, match="slab must have keys of 84 bytes"):
        managed(TierConfig(slab=slab))
    with pytest.raises(ValueError, match="num_blocks must be those of the slab"):
        TierConfig(slab=slab, num_blocks=8)
    slab.close()


def test_a_slab_of_two_tiers_or_a_closed_one_is_refused(tmp_path: Path) -> None:
    slab = Slab(tmp_path / "kv.slab", LAYOUT, num_blocks=4, block_bytes=8, key_bytes=key_bytes(2))
    with pytest.raises(ValueError, match="tiers must have another slab each"):
        managed(TierConfig(slab=slab), TierConfig(slab=slab))
    slab.close()
    with pytest.raises(ValueError, match=r"kv\.slab is closed"):
        managed(TierConfig(slab=slab))


def test_a_config_makes_a_manager_with_tiers_only() -> None:
    config = ManagerConfig(num_blocks=8, block_size=2)
    assert isinstance(TieredManager.from_config(config, tiers=[tier(4)]), TieredManager)
    with pytest.raises(ValueError, match="tiers must have at least one"):
        TieredManager.from_config(config)


# Failures in the middle.


def state_of(manager: TieredManager) -> object:
    pools = [(b.pool.num_used, b.pool.num_cached, b.storing.copy()) for b in manager._tiers]
    return manager.stats(), manager.tier_stats(), pools, list(manager._tickets.open)


def failing(*_: Any, **__: Any) -> Any:
    raise RuntimeError("in the middle")


def test_an_admission_that_fails_in_the_middle_leaves_no_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = managed()
    stored(manager)
    used, pools = manager.stats().used_blocks, state_of(manager)[1:]
    with monkeypatch.context() as patch:
        patch.setattr(BlockManager, "acquire", failing)
        with pytest.raises(RuntimeError, match="in the middle"):
            manager.admit(PROMPT, load=True)
    assert (manager.stats().used_blocks, state_of(manager)[1:]) == (used, pools)
    assert (manager.handles(), manager._loads.waiting) == ([], {})
    loading(manager)


def test_a_load_whose_commit_is_refused_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager)
    before = state_of(manager)
    with monkeypatch.context() as patch:
        patch.setattr(BlockManager, "commit", failing)
        with pytest.raises(RuntimeError, match="in the middle"):
            manager.loads_done(load.ticket, 4)
    assert (state_of(manager), manager.is_loading(handle)) == (before, True)
    assert manager.loads_done(load.ticket, 4) == 8


def test_stores_of_which_one_cannot_be_planned_are_not_planned(tmp_path: Path) -> None:
    slab = slab_at(tmp_path)
    manager = managed(tier(16), TierConfig(slab=slab, ahead=99))
    compute(manager, [1, 1, 1])
    store(manager)
    compute(manager, PROMPT)
    slab.close()
    before = state_of(manager)
    with pytest.raises(ValueError, match="is closed"):
        manager.take_stores()
    assert state_of(manager) == before
    manager.check_invariants()


@pytest.mark.parametrize("call", ["reset_prefix_cache", "stores_done"])
def test_a_slab_that_fails_leaves_everything_as_it_was(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the disk failed")

    slab = slab_at(tmp_path)
    manager = managed(TierConfig(slab=slab, ahead=99))
    compute(manager, [1, 1, 1])
    write(manager, slab)
    compute(manager, PROMPT)
    [each] = manager.take_stores()
    if call == "stores_done":
        manager.reset_prefix_cache()
    before = state_of(manager)
    with monkeypatch.context() as patch:
        patch.setattr(slab, "reset", broken)
        patch.setattr(slab, "erase", broken)
        with pytest.raises(OSError, match="the disk failed"):
            manager.reset_prefix_cache() if call != "stores_done" else manager.stores_done(
                each.ticket, 1
            )
    assert state_of(manager) == before
    manager.stores_done(each.ticket, 0)
    slab.close()


BAD_CALLS: list[tuple[Any, type[Exception], str]] = [
    (lambda m: m.admit(PROMPT, load=1), TypeError, "load must be a bool"),
    (lambda m: m.admit(PROMPT, load=True, match=m.match(PROMPT)), ValueError, "match must be None"),
    (lambda m: m.admit(PROMPT, load=True, num_slots=0), ValueError, "num_slots must be"),
    (lambda m: m.admit(PROMPT, load=True, num_slots="8"), TypeError, "num_slots must be"),
    (lambda m: m.admit([], load=True), ValueError, "tokens"),
    (lambda m: m.admit("text", load=True), TypeError, "tokens"),
    (lambda m: m.admit([-1], load=True), ValueError, "token"),
    (lambda m: m.admit(PROMPT, load=True, extras={0: b""}), ValueError, "extras"),
    (lambda m: m.admit(PROMPT, load=True, namespace="a"), TypeError, "namespace"),
    (lambda m: m.admit(PROMPT, load=True, max_cached_tokens=-1), ValueError, "max_cached_tokens"),
    (lambda m: m.admit(Prompt(PROMPT), load=True, namespace=b"a"), ValueError, "namespace"),
    (lambda m: m.match_tiers(None), TypeError, "tokens"),
    (lambda m: m.prefetch(PROMPT, extras=[1]), TypeError, "extras"),
    (lambda m: m.take_loads(deadline="soon"), TypeError, "deadline must be a number"),
    (lambda m: m.take_stores(-1), ValueError, "most_blocks must be at least 0"),
    (lambda m: m.take_stores(True), TypeError, "most_blocks must be an int"),
    (lambda m: m.loads_done(99, 0), TicketError, "ticket 99"),
    (lambda m: m.loads_done("1", 0), TypeError, "ticket must be an int"),
    (lambda m: m.loads_done(2**80, 0), ValueError, "ticket must be in"),
    (lambda m: m.stores_done(None, 0), TypeError, "ticket must be an int"),
    (lambda m: m.abandon([]), TypeError, "ticket must be an int"),
    (lambda m: m.loads_late(None), TypeError, "now must be a number"),
    (lambda m: m.reset_prefix_cache(tiers=1), TypeError, "tiers must be a bool"),
    (lambda m: m.reset_prefix_cache(reset_hit_rate=1), TypeError, "reset_hit_rate must be a bool"),
    (lambda m: m.forget([99]), ValueError, "blocks must be in"),
    (lambda m: m.forget("ab"), TypeError, "blocks must be"),
    (lambda m: m.retire("a"), TypeError, "namespace"),
    (lambda m: m.append([], [1]), TypeError, "handle must be an int"),
    (lambda m: m.decode("ab", [1]), TypeError, "handles must be"),
    (lambda m: m.free(None), TypeError, "handle must be an int"),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_CALLS, ids=map(str, range(len(BAD_CALLS))))
def test_a_wrong_argument_is_named_and_changes_nothing(
    call: Any, error: type[Exception], words: str
) -> None:
    manager = managed(num_blocks=16)
    stored(manager)
    loading(manager)
    compute(manager, [3, 3, 3])

    def state() -> object:
        pools = [(b.pool.num_used, b.pool.num_cached, b.stats) for b in manager._tiers]
        return manager.stats(), pools, len(manager._tickets.open), dict(manager._loads.waiting)

    before = state()
    with pytest.raises(error, match=words):
        call(manager)
    assert state() == before
    manager.check_invariants()
