"""``BlockPool``: single blocks and chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from blockmgr import BlockStateError, OutOfBlocksError, StepError, TicketError
from blockmgr.pool import BlockPool
from tests.fingerprints import fingerprint
from tests.ports.pool_machine import PoolMachine
from tests.ports.pool_support import MakePool, cache, refused


def test_any_sequence_of_calls_does_what_the_model_does() -> None:
    # Steps are cheap here, and bugs between three sharers of a chain take many.
    run_state_machine_as_test(PoolMachine, settings=settings(stateful_step_count=50))  # type: ignore[no-untyped-call]


# ---- references -------------------------------------------------------------------------


def test_taken_blocks_are_distinct_and_held_once(make_pool: MakePool) -> None:
    pool = make_pool(8)
    blocks = pool.take(5)
    assert len(set(blocks.tolist())) == 5
    assert pool.ref_count(blocks).tolist() == [1] * 5
    assert (pool.num_free, pool.num_used, pool.num_available) == (3, 5, 3)


def test_a_block_is_free_when_its_last_reference_is_dropped(make_pool: MakePool) -> None:
    pool = make_pool(2)
    [block] = pool.take(1).tolist()
    pool.acquire([block, block])
    pool.release([block])
    pool.release([block])
    assert (pool.ref_count(block), pool.num_free) == (1, 1)
    pool.release([block])
    assert pool.num_free == 2


def test_a_list_may_release_every_reference_of_a_block_and_not_one_more(
    make_pool: MakePool,
) -> None:
    pool = make_pool()
    one, two = pool.take(2).tolist()
    pool.acquire([one])
    with refused(pool, BlockStateError, f"block {one}: it is released more often than it is held"):
        pool.release([one, two, one, one])
    pool.release([one, two, one])
    assert pool.num_free == 8


def test_the_last_freed_block_is_handed_out_first(make_pool: MakePool) -> None:
    """It is probably still in a CPU cache."""
    pool = make_pool()
    blocks = pool.take(3).tolist()
    pool.release(blocks)
    assert pool.take(3).tolist() == blocks[::-1]


def test_shortage_says_what_was_needed_and_changes_nothing(make_pool: MakePool) -> None:
    pool = make_pool(4)
    pool.take(1)
    with refused(pool, OutOfBlocksError) as caught:
        pool.take(4)
    assert (caught.value.needed, caught.value.available) == (4, 3)
    with refused(pool, OutOfBlocksError):
        pool.take(10**15)
    assert pool.take(3).size == 3
    with refused(pool, OutOfBlocksError):
        pool.take()


def test_given_blocks_are_taken_and_the_others_keep_their_order(make_pool: MakePool) -> None:
    pool = make_pool(6)
    before = pool.take(6).tolist()
    pool.release(before[::-1])
    pool.take_blocks([before[4], before[0], before[3]])
    assert pool.ref_count([before[0], before[3], before[4]]).tolist() == [1, 1, 1]
    assert pool.take(3).tolist() == [before[1], before[2], before[5]]


def test_a_given_block_of_any_share_is_cached_under_a_namespace_of_its_share() -> None:
    pool = BlockPool(8, 2, quotas={b"tenant": 3}, eviction="arc", ghost_blocks=4)
    pool.take_blocks([0, 7])
    pool.promote(0, [1, 2], namespace=b"tenant")
    pool.promote(7, [1, 2])
    pool.release([0, 7])
    assert pool.find([1, 2], namespace=b"tenant").tolist() == [0]
    assert pool.find([1, 2]).tolist() == [7]
    pool.check_invariants()


def test_forgotten_blocks_take_along_what_continues_them(make_pool: MakePool) -> None:
    pool = make_pool(8)
    chain = cache(pool, [1, 2, 3, 4, 5, 6])
    pool.release(chain)
    [fork] = pool.take(1).tolist()
    pool.promote(fork, [9, 9], parent=chain[1])
    assert pool.forget_blocks([chain[1]]) == 3
    assert pool.find([1, 2, 3, 4]).tolist() == [chain[0]]
    # The fork is in use, and becomes free with its last reference.
    assert (pool.num_used, pool.ref_count(fork), pool.num_cached) == (1, 1, 1)
    pool.release([fork])
    assert (pool.num_free, pool.num_idle) == (7, 1)


def test_a_block_that_was_forgotten_is_cached_again_when_it_is_computed_again(
    make_pool: MakePool,
) -> None:
    pool = make_pool(4)
    chain = cache(pool, [1, 2, 3, 4])
    pool.forget_blocks(chain)
    assert pool.promote(chain, [1, 2, 3, 4]).tolist() == chain
    assert pool.find([1, 2, 3, 4]).tolist() == chain


def test_the_null_block_is_never_handed_out(make_pool: MakePool) -> None:
    pool = make_pool(4, null_block=True)
    assert pool.capacity == 3
    assert sorted(pool.take(3).tolist()) == [1, 2, 3]
    with refused(pool, ValueError, r"blocks must be in \[1, 4\), got 0 at index 1"):
        pool.acquire([1, 0])


def test_blocks_may_come_as_any_integers(make_pool: MakePool) -> None:
    pool = make_pool()
    blocks = pool.take(3)
    for same in (blocks, blocks.astype(np.int64), tuple(blocks.tolist()), blocks.tolist()):
        pool.acquire(same)
    assert pool.ref_count(blocks).tolist() == [5] * 3
    for _ in range(5):
        pool.release(blocks)


# ---- finding and promoting --------------------------------------------------------------


def test_a_promoted_chain_is_found_up_to_where_tokens_differ(make_pool: MakePool) -> None:
    pool = make_pool()
    blocks = cache(pool, [1, 2, 3, 4, 5, 6])
    assert pool.find([1, 2, 3, 4, 5, 6]).tolist() == blocks  # all of it: no last-token rule
    assert pool.find([1, 2, 3, 4, 5]).tolist() == blocks[:2]
    assert pool.find([1, 2, 3, 9, 5, 6]).tolist() == blocks[:1]
    assert pool.find([3, 4]).tolist() == []
    assert pool.find([]).tolist() == []


def test_a_look_up_can_go_on_from_a_cached_block(make_pool: MakePool) -> None:
    pool = make_pool()
    blocks = cache(pool, [1, 2, 3, 4, 5, 6])
    assert pool.find([3, 4, 5, 6], parent=blocks[0]).tolist() == blocks[1:]
    assert pool.find([5, 6], parent=blocks[0]).tolist() == []


def test_a_look_up_changes_nothing_not_even_recency(make_pool: MakePool) -> None:
    pool = make_pool()
    first, second = cache(pool, [1, 2]), cache(pool, [3, 4])
    pool.release([*first, *second])
    before = fingerprint(pool)
    assert pool.find([1, 2]).tolist() == first
    assert fingerprint(pool) == before
    assert pool.idle_blocks().tolist() == [*first, *second]


def test_the_next_to_be_evicted_can_be_asked_for_alone(make_pool: MakePool) -> None:
    pool = make_pool()
    blocks = [*cache(pool, [1, 2]), *cache(pool, [3, 4]), *cache(pool, [5, 6])]
    pool.release(blocks)
    for most in (0, 1, 2, 3, 4, 2**70):
        assert pool.idle_blocks(most).tolist() == blocks[:most]
    assert pool.evict(2).tolist() == blocks[:2]


@pytest.mark.parametrize(("most", "error"), [(-1, ValueError), (True, TypeError), ("2", TypeError)])
def test_a_wrong_number_of_idle_blocks_is_refused_by_name(
    make_pool: MakePool, most: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="most"):
        make_pool().idle_blocks(most)


def test_blocks_are_promoted_one_at_a_time_as_well(make_pool: MakePool) -> None:
    pool = make_pool()
    one, two = pool.take(2).tolist()
    assert pool.promote(one, [1, 2]) == one
    assert pool.promote(two, [3, 4], parent=one) == two
    assert pool.find([1, 2, 3, 4]).tolist() == [one, two]
    assert (pool.parent(one), pool.parent(two)) == (-1, one)
    assert pool.tokens(two).tolist() == [3, 4]
    assert pool.children().tolist() == [one]
    assert pool.children(one).tolist() == [two]
    assert pool.num_cached == 2


def test_promotion_onto_a_live_twin_moves_the_reference(make_pool: MakePool) -> None:
    pool = make_pool()
    [twin] = cache(pool, [1, 2])
    [own] = pool.take(1).tolist()
    assert pool.promote(own, [1, 2]) == twin
    assert (pool.ref_count(twin), pool.ref_count(own)) == (2, 0)
    assert pool.num_free == 7


def test_promotion_onto_an_idle_twin_brings_it_back_to_use(make_pool: MakePool) -> None:
    pool = make_pool()
    [twin] = cache(pool, [1, 2])
    pool.release([twin])
    [own] = pool.take(1).tolist()
    assert pool.promote(own, [1, 2]) == twin
    assert (pool.ref_count(twin), pool.num_idle, pool.num_free) == (1, 0, 7)


def test_promotion_moves_only_the_callers_reference(make_pool: MakePool) -> None:
    """Another holder of the same private block keeps its reference."""
    pool = make_pool()
    [twin] = cache(pool, [1, 2])
    [own] = pool.take(1).tolist()
    pool.acquire([own])
    assert pool.promote(own, [1, 2]) == twin
    assert (pool.ref_count(own), pool.is_cached(own)) == (1, False)


def test_a_chain_continues_below_the_twin_of_its_beginning(make_pool: MakePool) -> None:
    pool = make_pool()
    cached = cache(pool, [1, 2, 3, 4])
    own = pool.take(3).tolist()
    result = pool.promote(own, [1, 2, 3, 4, 5, 6]).tolist()
    assert result == [*cached, own[2]]
    assert pool.parent(own[2]) == cached[1]
    assert pool.ref_count(own).tolist() == [0, 0, 1]


def test_promoting_again_changes_nothing(make_pool: MakePool) -> None:
    pool = make_pool()
    blocks = cache(pool, [1, 2, 3, 4])
    before = fingerprint(pool)
    assert pool.promote(blocks, [1, 2, 3, 4]).tolist() == blocks
    assert fingerprint(pool) == before


def test_a_parent_may_be_idle_and_comes_back_to_use_with_its_child(make_pool: MakePool) -> None:
    pool = make_pool()
    [parent] = cache(pool, [1, 2])
    pool.release([parent])
    [child] = pool.take(1).tolist()
    pool.promote(child, [3, 4], parent=parent)
    assert (pool.num_idle, pool.ref_count(parent), pool.num_used) == (0, 0, 2)
    pool.release([child])
    assert pool.idle_blocks().tolist() == [child, parent]


def test_namespaces_and_extras_are_part_of_what_a_block_stands_for(make_pool: MakePool) -> None:
    pool = make_pool()
    plain = cache(pool, [1, 2, 3, 4])
    tenant = cache(pool, [1, 2], namespace=b"tenant")
    image = cache(pool, [1, 2, 3, 4], extras={1: b"image"})
    assert image[0] == plain[0]
    assert len({*plain, *tenant, image[1]}) == 4
    assert pool.find([1, 2, 3, 4]).tolist() == plain
    assert pool.find([1, 2, 3, 4], namespace=b"tenant").tolist() == tenant
    assert pool.find([1, 2, 3, 4], extras={1: b"image"}).tolist() == image
    assert pool.find([1, 2], extras={0: b"unheard of"}).tolist() == []
    assert pool.find([1, 2], namespace=b"unheard of").tolist() == []
    assert pool.children(namespace=b"tenant").tolist() == tenant
    assert pool.children(namespace=b"unheard of").tolist() == []
    [own] = pool.take(1).tolist()
    assert pool.promote(own, [3, 4], parent=plain[0], extras=b"image") == image[1]


def test_a_block_that_waits_for_a_copy_is_not_promoted(make_pool: MakePool) -> None:
    pool = make_pool()
    [source] = pool.take(1).tolist()
    pool.acquire([source])
    own = pool.make_writable(source, 1)
    with refused(pool, BlockStateError, "waits for a copy"):
        pool.promote(own, [1, 2])
    plan = pool.take_copies()
    with refused(pool, BlockStateError, "waits for a copy"):
        pool.promote(own, [1, 2])
    pool.copies_applied(plan.ticket)
    assert pool.promote(own, [1, 2]) == own


def test_a_block_that_waits_for_a_copy_gives_way_to_its_twin(make_pool: MakePool) -> None:
    """The copy is then not needed."""
    pool = make_pool()
    [twin] = cache(pool, [1, 2])
    [source] = pool.take(1).tolist()
    pool.acquire([source])
    own = pool.make_writable(source, 1)
    assert pool.promote(own, [1, 2]) == twin
    assert len(pool.take_copies()) == 0
    assert pool.ref_count(own) == 0


def test_without_a_prefix_cache_nothing_is_found_or_kept(make_pool: MakePool) -> None:
    pool = make_pool(prefix_caching=False)
    blocks = pool.take(2).tolist()
    assert pool.promote(blocks, [1, 2, 3, 4]).tolist() == blocks
    assert pool.find([1, 2, 3, 4]).tolist() == []
    assert not pool.is_cached(blocks[0])
    pool.release(blocks)
    assert (pool.num_free, pool.num_idle) == (8, 0)


def test_ten_thousand_blocks_are_one_call_each(make_pool: MakePool) -> None:
    """Chains are walked in a loop: recursion would fail at about a thousand blocks."""
    pool = make_pool(10_001, 1)
    tokens = [i % 7 for i in range(10_000)]
    blocks = cache(pool, tokens)
    pool.release(blocks[:-1])
    assert pool.num_idle == 0  # the last block keeps its ancestors
    pool.release(blocks[-1:])
    assert pool.idle_blocks().tolist() == blocks[::-1]
    pool.acquire(blocks[-1:])
    assert pool.num_idle == 0
    assert pool.find(tokens).tolist() == blocks
    pool.release(blocks[-1:])


# ---- the order of eviction --------------------------------------------------------------


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
def test_no_order_of_releases_evicts_a_parent_before_its_child(
    make_pool: MakePool, order: list[int]
) -> None:
    pool = make_pool(3)
    blocks = cache(pool, [1, 2, 3, 4, 5, 6])
    pool.release([blocks[i] for i in order])
    assert pool.idle_blocks().tolist() == blocks[::-1]
    assert pool.take(1).tolist() == [blocks[2]]
    assert pool.find([1, 2, 3, 4, 5, 6]).tolist() == blocks[:2]


def test_the_least_recently_used_goes_first(make_pool: MakePool) -> None:
    pool = make_pool(3)
    chains = [cache(pool, [t, t]) for t in (1, 2, 3)]
    for blocks in chains:
        pool.release(blocks)
    pool.acquire(chains[0])
    pool.release(chains[0])
    assert pool.take(2).tolist() == [*chains[1], *chains[2]]


def test_touching_a_block_takes_what_it_continues_along(make_pool: MakePool) -> None:
    """Its ancestors must not be evicted before it."""
    pool = make_pool()
    blocks = cache(pool, [1, 2, 3, 4, 5, 6])
    other = cache(pool, [9, 9])
    pool.release([*blocks, *other])
    pool.touch([blocks[1]])
    assert pool.idle_blocks().tolist() == [blocks[2], *other, blocks[1], blocks[0]]


def test_touching_what_is_in_use_leaves_it_alone(make_pool: MakePool) -> None:
    pool = make_pool()
    blocks = [*cache(pool, [1, 2]), *pool.take(1).tolist()]
    before = fingerprint(pool)
    pool.touch(blocks)
    assert fingerprint(pool) == before


def test_evicting_takes_idle_blocks_though_others_are_free(make_pool: MakePool) -> None:
    pool = make_pool(8)
    blocks = cache(pool, [1, 2, 3, 4])
    pool.release(blocks)
    generation = pool.generation(blocks[1])
    assert pool.evict(1).tolist() == [blocks[1]]
    assert (pool.ref_count(blocks[1]), pool.num_free, pool.num_idle) == (1, 6, 1)
    assert pool.generation(blocks[1]) > generation
    with refused(pool, OutOfBlocksError) as caught:
        pool.evict(2)
    assert (caught.value.needed, caught.value.available) == (2, 1)


def test_forgotten_blocks_are_free(make_pool: MakePool) -> None:
    pool = make_pool(8)
    blocks = cache(pool, [1, 2, 3, 4])
    pool.release(blocks)
    assert pool.forget(1).tolist() == [blocks[1]]
    assert (pool.num_free, pool.num_idle, pool.num_cached) == (7, 1, 1)
    with refused(pool, OutOfBlocksError):
        pool.forget(2)


def test_a_reset_forgets_everything_once_nothing_is_in_use(make_pool: MakePool) -> None:
    pool = make_pool(8)
    blocks = cache(pool, [1, 2, 3, 4])
    with refused(pool, BlockStateError, f"block {min(blocks)}: cannot reset: it is in use"):
        pool.reset()
    pool.release(blocks)
    pool.reset()
    assert (pool.num_free, pool.num_cached) == (8, 0)
    assert pool.find([1, 2]).tolist() == []


# ---- copy-on-write ----------------------------------------------------------------------


def test_a_shared_block_is_copied_before_it_is_written(make_pool: MakePool) -> None:
    pool = make_pool(block_size=4)
    [block] = pool.take(1).tolist()
    assert pool.make_writable(block, 3) == block
    pool.acquire([block])
    fresh = pool.make_writable(block, 3)
    assert pool.ref_count([block, fresh]).tolist() == [1, 1]
    assert [tuple(copy) for copy in pool.take_copies()] == [(block, fresh, 3)]
    assert pool.make_writable(block, 3) == block  # the last sharer writes in place


def test_a_cached_block_is_copied_though_nobody_shares_it(make_pool: MakePool) -> None:
    pool = make_pool(block_size=4)
    [block] = cache(pool, [1, 2, 3, 4])
    fresh = pool.make_writable(block, 2)
    assert fresh != block
    assert pool.num_idle == 0  # kept until it is copied
    plan = pool.take_copies()
    pool.copies_applied(plan.ticket)
    assert pool.find([1, 2, 3, 4]).tolist() == [block]
    assert pool.num_idle == 1


def test_nothing_is_copied_where_nothing_is_written_yet(make_pool: MakePool) -> None:
    pool = make_pool()
    [block] = pool.take(1).tolist()
    pool.acquire([block])
    assert pool.make_writable(block, 0) != block
    assert len(pool.take_copies()) == 0


def test_a_copy_of_a_pending_copy_reads_the_root(make_pool: MakePool) -> None:
    pool = make_pool(block_size=4)
    [root] = pool.take(1).tolist()
    pool.acquire([root])
    child = pool.make_writable(root, 2)
    pool.acquire([child])
    grandchild = pool.make_writable(child, 3)
    assert [tuple(copy) for copy in pool.take_copies()] == [(root, child, 2), (root, grandchild, 2)]


def test_a_released_destination_takes_its_copy_with_it(make_pool: MakePool) -> None:
    pool = make_pool(2)
    [root] = pool.take(1).tolist()
    pool.acquire([root])
    child = pool.make_writable(root, 1)
    pool.release([root])
    assert pool.num_free == 0  # the copy still reads it
    pool.release([child])
    assert pool.num_free == 2
    assert len(pool.take_copies()) == 0


def test_copy_on_write_needs_a_block(make_pool: MakePool) -> None:
    pool = make_pool(1)
    [block] = pool.take(1).tolist()
    pool.acquire([block])
    with refused(pool, OutOfBlocksError) as caught:
        pool.make_writable(block, 1)
    assert (caught.value.needed, caught.value.available) == (1, 0)


def test_an_aborted_plan_is_planned_again(make_pool: MakePool) -> None:
    pool = make_pool()
    [root] = pool.take(1).tolist()
    pool.acquire([root])
    child = pool.make_writable(root, 1)
    first = pool.take_copies()
    with refused(pool, StepError, "ticket 1 is not resolved"):
        pool.take_copies()
    pool.copies_aborted(first.ticket)
    second = pool.take_copies()
    assert [tuple(copy) for copy in second] == [(root, child, 1)]
    with refused(pool, TicketError, "ticket 1 is resolved already"):
        pool.copies_applied(first.ticket)
    with refused(pool, TicketError, "ticket 3 was never taken"):
        pool.copies_aborted(3)
    pool.copies_applied(second.ticket)
