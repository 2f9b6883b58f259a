"""Tiers of models with several groups of layers: windows, chunks, states, and unequal blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    ChunkedAttention,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    Priority,
    Prompt,
    RecurrentState,
    SlidingWindow,
    StepError,
)
from blockmgr.groups import Group
from blockmgr.tiers import (
    Slab,
    TierConfig,
    TieredManager,
    Transfer,
    key_bytes,
)
from blockmgr.tiers.paths import parts_of_key
from tests.tiers import support
from tests.tiers.support import compute, store, tier

WINDOW = (FullAttention(), SlidingWindow(5))  # behind n blocks of two tokens, it reads two
PROMPT = list(range(1, 18))  # eight whole blocks, and one token


def grouped(
    *tiers: TierConfig, groups: tuple[Group, ...] = WINDOW, num_blocks: int = 32, **options: Any
) -> TieredManager:
    """A manager of blocks of two tokens that stores all that is idle."""
    known = list(tiers or (tier(64),))
    return TieredManager(num_blocks, 2, tiers=known, groups=groups, null_block=True, **options)


def stored(manager: TieredManager, tokens: list[int] = PROMPT, **how: Any) -> list[Transfer]:
    """Has this prompt in the tiers only; the stores that brought it there."""
    return support.brought(manager, tokens, **how)


def loading(manager: TieredManager) -> tuple[int, Transfer]:
    """A sequence that loads the prompt, and its only load."""
    return support.loading(manager, PROMPT)


def in_tier(manager: TieredManager, tokens: list[int] = PROMPT, **how: Any) -> tuple[int, ...]:
    """Tokens that each tier has, up to where a prompt can continue."""
    return support.in_tier(manager, tokens, **how)


def test_a_store_has_a_path_and_what_is_read_behind_it_in_each_group() -> None:
    manager = grouped()
    [each] = stored(manager)
    assert each.groups is not None
    assert each.groups.tolist() == [0] * 8 + [1] * 2
    assert in_tier(manager) == (16,)
    handle, load = loading(manager)
    assert load.groups is not None
    assert load.groups.tolist() == [0] * 8 + [1] * 2
    row = manager.row(handle)
    full, window = (manager.group_table(group)[row] for group in (0, 1))
    assert load.target_blocks.tolist() == [*full[:8], *window[6:8]]
    assert load.source_blocks.tolist() == each.target_blocks.tolist()
    assert manager.loads_done(load.ticket, 10) == 16
    assert manager.match(PROMPT).num_cached_tokens == 16


@pytest.mark.parametrize(
    ("groups", "groups_of_pieces"),
    [
        ((FullAttention(), ChunkedAttention(6)), [0] * 8 + [1] * 2),
        ((SlidingWindow(1), FullAttention()), [1] * 8),
        ((FullAttention(1), SlidingWindow(4)), [0] * 8 + [1] * 2 + [0] * 8),
        ((SlidingWindow(4, block_size=1), FullAttention()), [1] * 8 + [0] * 3),
        ((FullAttention(), RecurrentState()), [0] * 8 + [1]),
    ],
)
def test_each_kind_of_group_stores_what_it_reads(
    groups: tuple[Group, ...], groups_of_pieces: list[int]
) -> None:
    manager = grouped(groups=groups, num_blocks=64, max_storing=64)
    [each] = stored(manager)
    assert each.groups is not None
    assert sorted(each.groups.tolist()) == sorted(groups_of_pieces)
    handle, load = loading(manager)
    assert len(set(load.target_blocks.tolist())) == len(load) == len(each)
    for block, group in zip(load.target_blocks, load.groups, strict=True):  # type: ignore[arg-type]
        assert block in manager.group_table(int(group))[manager.row(handle)]
    assert manager.loads_done(load.ticket, len(load)) == 16


def test_the_state_of_a_load_is_not_placed_elsewhere_before_it_arrives() -> None:
    manager = grouped(groups=(FullAttention(), RecurrentState(extra_blocks=1)))
    stored(manager)
    handle, load = loading(manager)
    with pytest.raises(StepError, match="waits for a load"):
        manager.place_state(handle, 1)
    assert manager.loads_done(load.ticket, len(load)) == 16
    manager.copies_applied(manager.take_copies().ticket)
    assert all(map(manager.is_cached, load.target_blocks.tolist()))


def test_a_load_makes_one_boundary_and_none_on_the_way() -> None:
    # T10: behind every block, a prompt could continue if it were computed.
    manager = grouped()
    stored(manager)
    _, load = loading(manager)
    manager.loads_done(load.ticket, len(load))
    assert [manager.match(PROMPT[:n]).num_cached_tokens for n in (17, 16, 15, 9)] == [16, 0, 0, 0]


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
@pytest.mark.parametrize("extra", [0, 1])
def test_a_state_that_was_loaded_is_findable(dedup: str, extra: int) -> None:
    manager = grouped(groups=(FullAttention(), RecurrentState(extra_blocks=extra)), dedup=dedup)
    stored(manager)
    _, load = loading(manager)
    assert manager.loads_done(load.ticket, len(load)) == 16
    manager.copies_applied(manager.take_copies().ticket)
    assert manager.match(PROMPT).num_cached_tokens == 16


@pytest.mark.parametrize("arrived", [0, 8, 9])
def test_a_load_that_does_not_arrive_whole_leaves_its_sequence_preempted(arrived: int) -> None:
    manager = grouped()
    stored(manager)
    handle, load = loading(manager)
    assert manager.loads_done(load.ticket, arrived, refused=False) == 0
    assert manager.sequence(handle).is_preempted
    assert not manager.is_loading(handle)
    assert manager.match(PROMPT).num_cached_tokens == 0
    manager.resume(handle)
    assert manager.sequence(handle).num_computed_tokens == 0
    manager.commit(handle, 17)
    manager.free(handle)
    assert manager.stats().used_blocks == 0
    assert manager.match(PROMPT).num_cached_tokens == 16


def test_a_load_that_was_voided_leaves_its_sequence_preempted() -> None:
    manager = grouped()
    stored(manager)
    handle, load = loading(manager)
    manager.reset_prefix_cache()
    assert manager.loads_done(load.ticket, len(load)) == 0
    assert manager.sequence(handle).is_preempted


def test_the_blocks_of_a_load_that_failed_are_kept_until_its_mover_reports() -> None:
    manager = grouped()
    stored(manager)
    handle, load = loading(manager)
    manager.preempt(handle)
    assert manager.stats().used_blocks == len(load)
    manager.loads_done(load.ticket, 0, refused=False)
    assert manager.stats().used_blocks == 0


def test_a_part_that_is_refused_is_forgotten_alone() -> None:
    manager = grouped()
    stored(manager)
    _, load = loading(manager)
    manager.loads_done(load.ticket, 9)  # the last block of the window
    assert in_tier(manager) == (0,)
    compute(manager, PROMPT)
    [again] = store(manager)
    assert again.groups is not None
    assert again.groups.tolist() == [1]
    assert in_tier(manager) == (16,)


def test_a_load_begins_where_a_group_first_lacks_something() -> None:
    # T11: a running sequence keeps full attention of the prompt, and the windows are gone. Behind
    # the load, the query reads none of the windows of the first six blocks.
    manager = grouped(num_blocks=40)
    compute(manager, PROMPT)
    store(manager)
    running = manager.admit([*PROMPT, *range(50, 62)])
    manager.commit(running, 29)
    manager.free(manager.admit([99] * 2 * (manager.num_available // 2)))
    assert manager.match(PROMPT).num_cached_tokens == 0
    handle, load = loading(manager)
    assert load.groups is not None
    assert load.groups.tolist() == [0, 0, 1, 1]
    table = manager.block_ids(handle)
    assert table[:6] == manager.block_ids(running)[:6]
    assert load.target_blocks[:2].tolist() == table[6:8]
    assert manager.loads_done(load.ticket, 4) == 16
    assert manager.block_ids(handle)[:8] == manager.block_ids(running)[:8]  # merged
    assert manager.match(PROMPT).num_cached_tokens == 16
    manager.check_invariants()


def test_parts_come_from_one_tier() -> None:
    manager = grouped(tier(64), tier(64), num_blocks=64)
    stored(manager, PROMPT[:9])
    stored(manager)
    fast = manager._tiers[0]
    path = manager._loads.match(Prompt(PROMPT), None)[1]
    fast.forget(int(fast.find(path)[-1, 1]))
    assert in_tier(manager) == (8, 16)
    _, load = loading(manager)
    assert (load.source, len(load)) == (1, 10)


def test_prefetch_brings_what_a_faster_tier_lacks() -> None:
    manager = grouped(tier(64), tier(64))
    stored(manager)
    manager._tiers[0].forget_all()
    manager.prefetch(PROMPT)
    [each] = store(manager)
    assert (each.source, each.target, len(each)) == (1, 0, 10)
    assert in_tier(manager) == (16, 16)


def test_a_place_where_prompts_diverge_is_stored_as_an_end_of_its_own() -> None:
    manager = grouped(num_blocks=64)
    compute(manager, PROMPT)
    compute(manager, [*PROMPT[:8], 50, 51, 52, 53, 54])
    compute(manager, [*PROMPT[:8], 60, 61, 62, 63, 64])  # the second to diverge there stops there
    while store(manager):
        pass
    manager.reset_prefix_cache(tiers=False)
    assert in_tier(manager, [*PROMPT[:8], 70, 71]) == (8,)
    assert in_tier(manager, [*PROMPT[:6], 70, 71]) == (0,)


def test_what_was_only_passed_is_not_stored() -> None:
    manager = grouped()
    [each] = stored(manager)
    assert len(each) == 10  # not the windows of each block
    assert in_tier(manager, PROMPT[:9]) == (0,)


def test_a_shorter_load_ends_at_a_boundary_or_there_is_none() -> None:
    manager = grouped(num_blocks=64, max_loading=9)
    stored(manager, PROMPT[:9])
    stored(manager)
    assert in_tier(manager) == (16,)
    _, load = loading(manager)
    assert len(load) == 6  # four blocks and two of the window, where ten would be too many
    manager = grouped(num_blocks=64, max_loading=9)
    stored(manager)
    handle = manager.admit(PROMPT, load=True)
    assert not manager.is_loading(handle)
    with pytest.raises(OutOfBlocksError):
        manager.admit(PROMPT, load=manager.match_tiers(PROMPT))


def test_a_load_takes_no_more_from_the_device_than_it_may() -> None:
    manager = grouped(num_blocks=32)
    stored(manager, PROMPT[:9])
    compute(manager, PROMPT)
    manager.free(manager.admit([99] * 20))  # evicts the windows of what was passed
    assert manager.match(PROMPT).num_cached_tokens == 16
    found = manager.match_tiers(PROMPT, max_cached_tokens=9)
    assert (found.device.num_cached_tokens, found.num_cached_tokens) == (2, 8)
    handle = manager.admit(PROMPT, load=True, max_cached_tokens=9)
    assert manager.sequence(handle).num_cached_tokens < 8
    [load] = manager.take_loads()
    assert manager.loads_done(load.ticket, len(load)) == 8


def test_a_load_for_which_there_is_no_room_is_left_out() -> None:
    manager = grouped(num_blocks=32)
    stored(manager)
    used = manager.admit([88] * 24)  # 24 of 31 blocks
    with pytest.raises((OutOfBlocksError, NeverFitsError)):
        manager.admit(PROMPT, load=manager.match_tiers(PROMPT))
    handle = manager.admit(PROMPT, num_slots=2, load=True)
    assert not manager.is_loading(handle)
    manager.free(used)


def test_a_sequence_that_loads_goes_on_with_nothing_else() -> None:
    manager = grouped()
    stored(manager)
    handle, _ = loading(manager)
    for call in (
        lambda: manager.commit(handle, 17),
        lambda: manager.append(handle, [1]),
        lambda: manager.fork(handle),
    ):
        with pytest.raises(StepError, match="waits for a load"):
            call()


def test_a_part_is_proved_by_its_node_and_its_place() -> None:
    manager = grouped()
    [each] = stored(manager, namespace=b"tenant", extras={7: b"image"})
    proofs = each.target_proofs
    assert proofs is not None
    said = [parts_of_key(key) for key in proofs.keys]
    serials = proofs.serials.tolist()
    assert [part.parent for part in said] == [0, *serials[:7], serials[6], serials[7]]
    assert said[9].tokens.tolist() == said[7].tokens.tolist() == [15, 16]
    assert said[8].extras == said[9].extras != said[7].extras
    assert len({part.namespace for part in said}) == 1
    assert len(set(proofs.keys)) == 10


def test_a_tier_evicts_and_forgets_parts_as_it_does_blocks() -> None:
    manager = grouped(tier(12))
    stored(manager)
    assert manager._tiers[0].pool.num_cached == 10
    stored(manager, [50 + token for token in PROMPT])  # two fit, then the oldest go
    assert in_tier(manager) == (0,)
    assert in_tier(manager, [50 + token for token in PROMPT]) == (16,)
    manager.check_invariants()


def test_a_block_that_was_a_part_and_is_another_now_is_none() -> None:
    manager = grouped(tier(12))
    stored(manager)
    stored(manager, [50 + token for token in PROMPT[:5]])  # in the blocks of the window, for two
    assert in_tier(manager) == (0,)
    assert len(manager._tiers[0].find(manager._loads.match(Prompt(PROMPT), None)[1])) == 8


def test_the_parts_that_a_store_builds_on_are_kept_as_long_as_those_that_it_writes() -> None:
    manager = grouped(tier(14), groups=(FullAttention(), SlidingWindow(9)), num_blocks=64)
    stored(manager, PROMPT[:9])  # four blocks, and as many of the window
    compute(manager, PROMPT[:11])
    [each] = manager.take_stores()  # one of each; three of the window stay
    assert len(each) == 2
    manager._tiers[0].pool.evict(1)  # of those that are idle, the one of the first window
    manager.stores_done(each.ticket, 2)
    assert in_tier(manager, PROMPT) == (10,)


def test_a_store_of_which_a_part_was_evicted_makes_no_boundary() -> None:
    manager = grouped(num_blocks=16)
    compute(manager, PROMPT[:9])
    [each] = manager.take_stores()
    compute(manager, [77] * 13)
    assert manager.stores_done(each.ticket, len(each)) < len(each)
    assert in_tier(manager, PROMPT[:9]) == (0,)


def test_one_part_is_stored_by_one_store_at_a_time() -> None:
    manager = grouped(num_blocks=64)
    stored(manager)
    books = manager._tiers[0]
    path = manager._loads.match(Prompt(PROMPT), None)[1]
    books.forget(int(books.find(path)[7, 1]))  # which both of these read at their ends
    one, other = [*PROMPT[:16], 50, 51, 52], [*PROMPT[:16], 60, 61, 62]
    compute(manager, one)
    compute(manager, other)
    [first] = manager.take_stores()
    assert len(first) == 3  # a block, and two of the window
    assert not len(manager.take_stores())
    manager.stores_done(first.ticket, 3)
    [rest] = manager.take_stores()
    assert len(rest) == 2
    manager.stores_done(rest.ticket, 2)
    assert in_tier(manager, one) == in_tier(manager, other) == (18,)


def test_a_path_that_is_stored_and_its_parts_are_touched() -> None:
    manager = grouped(tier(20), num_blocks=64)
    stored(manager)
    stored(manager, [50 + token for token in PROMPT])
    compute(manager, PROMPT)
    store(manager)  # nothing to write
    stored(manager, [30 + token for token in PROMPT[:5]])
    assert in_tier(manager) == (16,)
    assert in_tier(manager, [50 + token for token in PROMPT]) == (0,)


def test_forgetting_a_block_of_any_group_forgets_it_in_tiers() -> None:
    for group in (0, 1):
        manager = grouped()
        handle = manager.admit(PROMPT)
        manager.commit(handle, 17)
        block = int(manager.group_table(group)[manager.row(handle), 7])
        manager.free(handle)
        store(manager)
        manager.forget([block])
        assert in_tier(manager) == (0,)


def test_a_slab_has_all_groups_after_a_restart(tmp_path: Path) -> None:
    def opened(groups: tuple[Group, ...] = WINDOW) -> tuple[Slab, TieredManager]:
        layout: dict[str, str | int] = {"model": "tiny"}
        path, size = tmp_path / "kv.slab", key_bytes(2)
        slab = Slab(path, layout, num_blocks=32, block_bytes=8, key_bytes=size)
        return slab, grouped(TierConfig(slab=slab, ahead=999), groups=groups)

    slab, manager = opened()
    compute(manager, PROMPT)
    for each in manager.take_stores():
        proofs = each.target_proofs
        assert proofs is not None
        for block, serial, key in zip(each.target_blocks, proofs.serials, proofs.keys, strict=True):
            slab.write(int(block), key, bytes(8), serial=int(serial))
        manager.stores_done(each.ticket, len(each))
    slab.close()
    slab, manager = opened()
    assert manager.tier_stats()[0].restored == 10
    assert in_tier(manager) == (16,)
    _, load = loading(manager)
    assert load.source_proofs is not None
    assert load.source_proofs.keys == proofs.keys
    slab.close()
    slab, manager = opened((FullAttention(),))  # which has no such parts
    assert manager.tier_stats()[0].restored == 8
    assert in_tier(manager) == (16,)
    slab.close()


def test_a_retired_namespace_is_gone_from_all_groups(tmp_path: Path) -> None:
    manager = grouped()
    stored(manager, namespace=b"tenant")
    manager.retire(b"tenant")
    assert in_tier(manager, namespace=b"tenant") == (0,)
    assert manager._tiers[0].pool.num_cached == 0


def test_second_touch_stores_the_end_that_was_found_and_what_is_read_there() -> None:
    manager = grouped(tier(64, store="second_touch"), num_blocks=64)
    compute(manager, PROMPT[:9])
    assert store(manager) == []
    compute(manager, PROMPT)  # finds four blocks, and adds four
    assert [len(each) for each in store(manager)] == [6]
    assert in_tier(manager) == (8,)
    manager.reset_prefix_cache(tiers=False)
    compute(manager, PROMPT)
    assert [len(each) for each in store(manager)] == [6]
    assert in_tier(manager) == (16,)
    manager.check_invariants()


def test_second_touch_leaves_out_an_end_whose_state_is_gone() -> None:
    groups = (FullAttention(), RecurrentState())
    manager = grouped(tier(64, store="second_touch"), groups=groups, num_blocks=64)
    compute(manager, PROMPT[:9])
    store(manager)
    manager.reset_prefix_cache(tiers=False)
    compute(manager, PROMPT)  # which passes the end of before, and keeps no state there
    assert manager.match(PROMPT[:9]).num_cached_tokens == 0
    assert store(manager) == []
    assert in_tier(manager) == (0,)


@pytest.mark.parametrize(("way", "running"), [("commit", [6, 6]), ("release", [])])
def test_each_way_to_store_takes_what_is_read_at_the_end(way: str, running: list[int]) -> None:
    manager = grouped(TierConfig(num_blocks=64, store=way))  # type: ignore[arg-type]
    handle = manager.admit(PROMPT)
    sizes = []
    for stop in (9, 17):
        manager.commit(handle, stop)
        sizes += [len(each) for each in store(manager)]
    assert sizes == running
    manager.free(handle)
    assert [len(each) for each in store(manager)] == ([] if running else [10])
    assert in_tier(manager) == (16,)


def test_a_level_goes_along_to_the_parts_of_a_prefix() -> None:
    manager = grouped(retention=True)
    compute(manager, PROMPT)
    manager.retain_prefix(PROMPT, priority=Priority.HIGH)
    [each] = store(manager)
    last, pool = int(each.target_blocks[-1]), manager._tiers[0].pool  # a part of the last node
    assert pool.prefix_of(last).levels.tolist() == [Priority.HIGH] * 9
    manager.retain_prefix(PROMPT, priority=None)
    assert pool.prefix_of(last).levels.tolist() == [-1] * 9


def test_a_manager_with_one_group_by_name_has_transfers_with_groups() -> None:
    manager = grouped(groups=(FullAttention(),))
    [each] = stored(manager)
    assert each.groups is not None
    assert each.groups.tolist() == [0] * 8
    assert in_tier(manager, PROMPT[:9]) == (8,)
    assert np.array_equal(each.source_blocks, np.unique(each.source_blocks))
