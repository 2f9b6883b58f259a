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


def test_a_given_block_of_any_share_is_cached_under_a_namespace_of_its_share() -> None:
    pool = BlockPool(8, 2, quotas={b"tenant": 3}, eviction="arc", ghost_blocks=4)
    pool.take_blocks([0, 7])
    pool.promote(0, [1, 2], namespace=b"tenant")
    pool.promote(7, [1, 2])
    pool.release([0, 7])
    assert pool.find([1, 2], namespace=b"tenant").tolist() == [0]
    assert pool.find([1, 2]).tolist() == [7]
    pool.check_invariants()


def test_blocks_may_come_as_any_integers(make_pool: MakePool) -> None:
    pool = make_pool()
    blocks = pool.take(3)
    for same in (blocks, blocks.astype(np.int64), tuple(blocks.tolist()), blocks.tolist()):
        pool.acquire(same)
    assert pool.ref_count(blocks).tolist() == [5] * 3
    for _ in range(5):
        pool.release(blocks)


# ---- finding and promoting --------------------------------------------------------------


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
