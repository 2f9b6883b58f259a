"""Tiers keep the ends of sequences: the last block, which is not full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    Prompt,
    RecurrentState,
    SlidingWindow,
)
from blockmgr.event_columns import Tier
from blockmgr.groups import Group
from blockmgr.tiers import (
    SharedStorage,
    Slab,
    SlabMismatchError,
    TierConfig,
    TieredManager,
    Transfer,
    key_bytes,
    shared_key_bytes,
)
from blockmgr.tiers.paths import parts_of_key
from tests.tiers.fake_store import FakeStore
from tests.tiers.support import brought, compute, in_tier, loading, store, tier

SIZE = 4
STATES = (FullAttention(), RecurrentState())
WORDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]  # two whole blocks, and an end of two tokens
NEXT = [*WORDS, 50, 51, 52, 53, 54]
SHORT = [1, 2, 3]  # fewer than a block


def managed(*tiers: TierConfig, num_blocks: int = 16, **options: Any) -> TieredManager:
    """A manager that keeps ends, and stores all that is idle."""
    known = list(tiers or (tier(64),))
    return TieredManager(num_blocks, SIZE, tiers=known, min_partial_tokens=1, **options)


def grouped(
    *tiers: TierConfig, groups: tuple[Group, ...] = STATES, num_blocks: int = 64
) -> TieredManager:
    return managed(*tiers, groups=groups, num_blocks=num_blocks, null_block=True)


def stored(manager: TieredManager, tokens: list[int] = WORDS, **how: Any) -> list[Transfer]:
    """Has this conversation in the tiers only; the stores that brought it there."""
    stores = brought(manager, tokens, **how)
    assert all((each.source_blocks >= 0).all() for each in stores)
    return stores


def arrive(manager: TieredManager, tokens: list[int] = NEXT, **how: Any) -> int:
    """Loads a prompt, and returns the tokens that need no computation."""
    handle = manager.admit(tokens, load=True, **how)
    for load in manager.take_loads():
        manager.loads_done(load.ticket, len(load))
    count = manager.sequence(handle).num_computed_tokens
    manager.free(handle)
    manager.check_invariants()
    return count


def test_a_conversation_shorter_than_a_block_is_stored_and_comes_back() -> None:
    # T28: its only block is an end.
    manager = managed()
    [each] = stored(manager, SHORT)
    assert (len(each), each.num_tokens) == (1, 3)
    assert in_tier(manager, [*SHORT, 9]) == (3,)
    assert arrive(manager, [*SHORT, 9]) == 3


@pytest.mark.parametrize("groups", [(), STATES, (FullAttention(), SlidingWindow(8))], ids=str)
def test_the_end_of_a_conversation_comes_back_behind_its_whole_blocks(
    groups: tuple[Group, ...],
) -> None:
    manager = grouped(groups=groups) if groups else managed()
    assert sum(each.num_tokens for each in stored(manager)) >= 10
    assert in_tier(manager, NEXT) == (10,)
    handle, load = loading(manager, NEXT)
    assert load.num_tokens == 10
    table = manager.block_ids(handle)
    assert load.target_blocks[:3].tolist() == table[:3]
    assert manager.loads_done(load.ticket, len(load)) == 10
    manager.commit(handle, 15)
    manager.free(handle)
    manager.check_invariants()


def test_the_end_of_a_model_with_states_brings_the_state_that_stands_there() -> None:
    manager = grouped()
    stores = stored(manager)
    ends = [each for each in stores if each.num_tokens % SIZE]
    assert [each.groups.tolist() for each in ends if each.groups is not None] == [[0, 0, 0, 1]]
    _, load = loading(manager, NEXT)
    assert load.groups is not None
    assert load.groups.tolist() == [0, 0, 0, 1]
    assert load.source_proofs is not None
    keys = [parts_of_key(key) for key in load.source_proofs.keys]
    assert [len(key.tokens) for key in keys] == [4, 4, 2, 2]
    assert keys[3].parent == load.source_proofs.serials[2]


def test_a_state_that_is_gone_makes_no_end() -> None:
    manager = grouped()
    stored(manager)
    books = manager._tiers[0]
    _, load = loading(manager, NEXT)
    manager.loads_done(load.ticket, 3)  # the state is refused, and forgotten
    assert in_tier(manager, NEXT)[0] < 10
    assert books.pool.num_cached >= 3


def test_slices_of_an_end_are_those_that_have_tokens() -> None:
    manager = grouped(groups=(FullAttention(1), SlidingWindow(3, block_size=2)))
    stored(manager)
    assert in_tier(manager, NEXT) == (10,)
    _, load = loading(manager, NEXT)
    # Ten blocks of one token; the query at position 10 reads 8 and 9 through the window.
    assert load.groups is not None
    assert sorted(load.groups.tolist()) == [0] * 10 + [1]
    assert manager.loads_done(load.ticket, len(load)) == 10


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (NEXT, 10),
        (WORDS, 8),  # the last token is computed
        ([*WORDS[:8], 9, 11, 12], 8),  # another token within the end
        ([*WORDS[:8], 10, 9, 12], 8),  # in another order
        ([*WORDS[:9], 50, 51], 8),  # half of the end
        ([21, 22, 23, 24, *WORDS[4:], 50], 0),  # behind another beginning
        ([*WORDS[8:], 50, 51], 0),  # without a beginning
    ],
)
def test_an_end_is_found_by_its_exact_tokens_behind_what_it_continues(
    prompt: list[int], found: int
) -> None:
    manager = managed()
    stored(manager)
    assert in_tier(manager, prompt) == (found,)


def test_an_end_is_of_the_block_that_it_continues() -> None:
    manager = managed()
    stored(manager)
    stored(manager, [21, 22, 23, 24, 5, 6, 7, 8])  # the same block, and nothing behind it
    assert in_tier(manager, [21, 22, 23, 24, *NEXT[4:]]) == (8,)
    assert in_tier(manager, NEXT) == (10,)


def test_namespaces_and_extra_keys_have_ends_of_their_own() -> None:
    manager = managed()
    stored(manager, SHORT, namespace=b"tenant")
    stored(manager, namespace=b"tenant", extras={2: b"image"})
    prompt = [*SHORT, 9]
    assert in_tier(manager, prompt) == (0,)
    assert in_tier(manager, prompt, namespace=b"tenant") == (3,)
    assert in_tier(manager, NEXT, namespace=b"tenant") == (8,)
    assert in_tier(manager, NEXT, namespace=b"tenant", extras={2: b"image"}) == (10,)
    assert in_tier(manager, NEXT, namespace=b"tenant", extras={2: b"other"}) == (8,)
    manager.retire(b"tenant")
    assert in_tier(manager, prompt, namespace=b"tenant") == (0,)


def test_the_longest_end_wins() -> None:
    manager = managed(num_blocks=64)
    for tokens in (WORDS[:9], WORDS, [*WORDS, 50]):
        stored(manager, tokens)
    assert in_tier(manager, NEXT) == (11,)
    assert in_tier(manager, [*WORDS, 60, 61]) == (10,)
    assert arrive(manager) == 11


def test_a_block_with_other_content_now_is_found_as_that_only() -> None:
    manager = managed(tier(1))
    for other in ([7, 8], [5, 6, 7, 8]):  # an end, and a whole block
        stored(manager, SHORT)
        stored(manager, other)
        assert in_tier(manager, [*SHORT, 9]) == (0,)
        assert in_tier(manager, [*other, 9]) == (len(other),)


def test_a_taken_block_is_no_end_any_more() -> None:
    manager = managed(tier(3))
    stored(manager)
    stored(manager, [60 + token for token in range(12)])  # in the same three blocks
    assert in_tier(manager, NEXT) == (0,)
    assert in_tier(manager, [60 + token for token in range(13)]) == (12,)
    manager.check_invariants()


def test_a_refused_end_is_forgotten_alone_and_stored_again() -> None:
    manager = managed()
    stored(manager)
    handle, load = loading(manager, NEXT)
    assert manager.loads_done(load.ticket, 2) == 8
    manager.free(handle)
    assert in_tier(manager, NEXT) == (8,)
    compute(manager, WORDS)
    [again] = store(manager)
    assert (len(again), again.num_tokens) == (1, 2)
    assert in_tier(manager, NEXT) == (10,)


def test_an_end_that_was_continued_while_it_was_read_is_not_stored() -> None:
    manager = managed()
    compute(manager, WORDS)
    [each] = manager.take_stores()
    handle = manager.admit(NEXT)  # takes the end over, and writes behind it
    assert manager.sequence(handle).num_cached_tokens == 10
    assert manager.stores_done(each.ticket, len(each)) == 2
    assert in_tier(manager, NEXT) == (8,)


def test_an_end_is_stored_once() -> None:
    manager = managed()
    stored(manager)
    compute(manager, WORDS)
    assert store(manager) == []


def test_forgetting_the_last_block_of_a_sequence_forgets_its_end_in_tiers() -> None:
    manager = managed()
    handle = manager.admit(WORDS)
    manager.commit(handle, 10)
    end = manager.block_ids(handle)[2]
    manager.free(handle)
    store(manager)
    manager.forget([end])
    assert in_tier(manager, NEXT) == (8,)


def test_a_reset_voids_the_end_that_is_under_way() -> None:
    manager = managed()
    compute(manager, SHORT)
    [each] = manager.take_stores()
    manager.reset_prefix_cache()
    assert manager.stores_done(each.ticket, 1) == 0
    assert in_tier(manager, [*SHORT, 9]) == (0,)


def test_whole_blocks_come_from_the_faster_tier_and_the_end_from_the_slower_one() -> None:
    manager = managed(tier(64), tier(64))
    stored(manager)
    fast = manager._tiers[0]
    path = manager._loads.match(Prompt(NEXT), None)[1].first(10)
    fast.forget(int(fast.find(path)[-1, 0]))
    assert in_tier(manager, NEXT) == (8, 10)
    handle = manager.admit(NEXT, load=True)
    first, last = manager.take_loads()
    assert [(t.source, len(t), t.num_tokens) for t in (first, last)] == [(0, 2, 8), (1, 1, 2)]
    assert manager.loads_done(last.ticket, 1) == 0
    assert manager.loads_done(first.ticket, 2) == 10
    assert manager.sequence(handle).num_computed_tokens == 10


def test_a_load_goes_on_behind_an_end_only_in_whole_blocks() -> None:
    manager = managed(tier(64), tier(64))
    stored(manager)
    longer = [*WORDS, 50, 51]
    stored(manager, longer)
    fast = manager._tiers[0]
    path = manager._loads.match(Prompt([*longer, 9]), None)[1]
    fast.forget(int(fast.find(path)[-1, 0]))
    assert in_tier(manager, [*longer, 9]) == (10, 12)
    manager.admit([*longer, 9], load=True)
    first, last = manager.take_loads()
    assert [(t.source, t.num_tokens) for t in (first, last)] == [(0, 8), (1, 4)]


def test_prefetch_brings_an_end_to_the_faster_tier() -> None:
    for manager in (managed(tier(64), tier(64)), grouped(tier(64), tier(64))):
        stored(manager)
        manager._tiers[0].forget_all()
        manager.prefetch(NEXT)
        [each] = store(manager)
        assert (each.source, each.target, each.num_tokens) == (1, 0, 10)
        assert in_tier(manager, NEXT) == (10, 10)


def test_a_load_that_may_take_fewer_blocks_leaves_the_end_out() -> None:
    manager = managed(max_loading=2)
    stored(manager)
    assert in_tier(manager, NEXT) == (10,)
    with pytest.raises(OutOfBlocksError):
        manager.admit(NEXT, load=manager.match_tiers(NEXT))
    assert arrive(manager) == 8


def test_a_load_takes_slots_for_its_end() -> None:
    manager = managed()
    stored(manager)
    handle = manager.admit(NEXT, num_slots=1, load=True)
    assert len(manager.block_ids(handle)) == 3
    manager.free(handle)
    used = manager.admit([88] * 4 * 14)  # two blocks are left
    with pytest.raises((OutOfBlocksError, NeverFitsError)):
        manager.admit(NEXT, num_slots=1, load=manager.match_tiers(NEXT))
    assert manager.is_loading(manager.admit(NEXT, num_slots=1, load=True))
    [load] = manager.take_loads()
    assert manager.loads_done(load.ticket, len(load)) == load.num_tokens < 10
    manager.free(used)


def test_a_device_that_has_the_end_loads_nothing() -> None:
    manager = managed()
    compute(manager, WORDS)
    store(manager)
    assert in_tier(manager, NEXT) == (10,)
    handle = manager.admit(NEXT, load=True)
    assert not manager.is_loading(handle)
    assert manager.sequence(handle).num_cached_tokens == 10


def test_a_prompt_asks_for_no_more_than_it_may() -> None:
    manager = managed()
    stored(manager)
    assert in_tier(manager, NEXT, max_cached_tokens=9) == (8,)
    assert arrive(manager, max_cached_tokens=10) == 10


def test_without_partial_reuse_no_end_is_stored() -> None:
    manager = TieredManager(16, SIZE, tiers=[tier(64)])
    stored(manager)
    assert in_tier(manager, NEXT) == (8,)


def test_second_touch_stores_whole_blocks_only() -> None:
    manager = managed(tier(64, store="second_touch"))
    compute(manager, WORDS)
    assert store(manager) == []
    compute(manager, NEXT)
    [each] = store(manager)
    assert each.num_tokens == 8
    assert in_tier(manager, NEXT) == (8,)


def test_a_shared_store_gets_whole_blocks_only() -> None:
    shared = SharedStorage(
        FakeStore(), {"model": "tiny"}, block_bytes=8, key_bytes=shared_key_bytes(SIZE)
    )
    last = TierConfig(num_blocks=8, shared=shared, ahead=64)
    manager = managed(tier(64), last)
    stored(manager)
    assert in_tier(manager, NEXT) == (10, 8)
    shared.close()


def slab_at(folder: Path) -> Slab:
    layout: dict[str, str | int] = {"model": "tiny"}
    return Slab(folder / "kv.slab", layout, num_blocks=32, block_bytes=8, key_bytes=key_bytes(SIZE))


def write_all(manager: TieredManager, slab: Slab) -> None:
    """Stores all that is idle in the last tier, which is this slab."""
    while plan := list(manager.take_stores()):
        for each in plan:
            proofs = each.target_proofs
            assert proofs is not None
            for block, serial, key in zip(
                each.target_blocks, proofs.serials, proofs.keys, strict=True
            ):
                if each.target == len(manager._tiers) - 1:
                    slab.write(int(block), key, bytes(8), serial=int(serial))
            manager.stores_done(each.ticket, len(each))


@pytest.mark.parametrize("groups", [(), STATES], ids=str)
@pytest.mark.parametrize("has_host", [False, True])
def test_the_next_process_finds_ends_in_a_slab(
    groups: tuple[Group, ...], has_host: bool, tmp_path: Path
) -> None:
    def opened() -> tuple[Slab, TieredManager]:
        slab = slab_at(tmp_path)
        disk = TierConfig(slab=slab, ahead=999)
        tiers = (tier(64), disk) if has_host else (disk,)
        return slab, grouped(*tiers, groups=groups) if groups else managed(*tiers)

    slab, manager = opened()
    compute(manager, WORDS)
    compute(manager, SHORT, namespace=b"tenant", extras={0: b"image"})
    write_all(manager, slab)
    slab.close()
    slab, manager = opened()
    assert in_tier(manager, NEXT)[-1] == 10
    short = {"namespace": b"tenant", "extras": {0: b"image"}}
    assert in_tier(manager, [*SHORT, 9], **short)[-1] == 3
    assert in_tier(manager, [*SHORT, 9])[-1] == 0
    assert arrive(manager) == 10
    assert arrive(manager, [*SHORT, 9], **short) == 3
    manager.retire(b"tenant")
    slab.close()
    slab, manager = opened()
    assert in_tier(manager, [*SHORT, 9], **short)[-1] == 0
    slab.close()


@pytest.mark.parametrize("groups", [(), STATES], ids=str)
def test_a_manager_without_partial_reuse_loads_the_ends_of_an_earlier_process(
    groups: tuple[Group, ...], tmp_path: Path
) -> None:
    slab = slab_at(tmp_path)
    manager = grouped(TierConfig(slab=slab, ahead=999), groups=groups or (FullAttention(),))
    compute(manager, WORDS)
    write_all(manager, slab)
    slab.close()
    slab = slab_at(tmp_path)
    again = TieredManager(
        64,
        SIZE,
        tiers=[TierConfig(slab=slab, ahead=999)],
        groups=groups or (FullAttention(),),
        null_block=True,
    )
    assert arrive(again) == 10
    slab.close()


def test_a_slab_with_keys_that_say_no_number_of_tokens_is_refused(tmp_path: Path) -> None:
    layout: dict[str, str | int] = {"model": "tiny"}
    before = key_bytes(SIZE) - 4
    Slab(tmp_path / "kv.slab", layout, num_blocks=32, block_bytes=8, key_bytes=before).close()
    with pytest.raises(SlabMismatchError, match="key_bytes"):
        slab_at(tmp_path)


def test_events_of_a_tier_tell_of_whole_blocks_only() -> None:
    manager = managed(tier(8), events=True)
    stored(manager)
    events = [each for each in manager.take_events() if each.tier == Tier.HOST]
    assert sum(len(each.digests) for each in events) == 2
    for number in range(40):
        stored(manager, [1000 * number + 11, 2, 3])
    assert in_tier(manager, NEXT) == (0,)
    snapshot = [each for each in manager.take_snapshot() if each.tier == Tier.HOST]
    assert not sum(len(each.digests) for each in snapshot)


def test_the_calls_without_tiers_name_a_tail() -> None:
    manager = BlockManager(8, SIZE, min_partial_tokens=1)
    handle = manager.admit(WORDS)
    manager.commit(handle, 10)
    blocks = manager.block_ids(handle)
    manager.free(handle)
    [end] = manager.idle_front(8).block_ids.tolist()
    prefix = manager.prefix_of(end)
    assert (end, prefix.tokens.tolist()) == (blocks[2], WORDS)
    before = manager.contents_of([end]).tolist()
    assert manager.sequence(manager.admit(NEXT)).num_cached_tokens == 10
    assert manager.contents_of([end]).tolist() != before
