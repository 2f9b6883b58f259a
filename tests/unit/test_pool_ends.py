"""Ends in a pool: blocks that are not full, which the caller finds again by their ids."""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockmgr import BlockStateError
from blockmgr.pool import BlockPool


def pool_with_end(**options: Any) -> tuple[BlockPool, int, int]:
    """A pool with a whole block and the end behind it, both idle."""
    pool = BlockPool(8, 4, **options)
    first, end = pool.take(2).tolist()
    pool.promote(first, [1, 2, 3, 4])
    pool.promote_end(end, [5, 6], parent=first)
    pool.release([end, first])
    return pool, first, end


def test_an_end_is_cached_behind_its_parent_and_not_found_as_a_block() -> None:
    pool, first, end = pool_with_end()
    assert pool.find([1, 2, 3, 4, 5, 6, 7, 8]).tolist() == [first]
    assert (pool.num_cached, pool.children(first).tolist(), pool.parent(end)) == (2, [end], first)
    assert (pool.tokens(end).tolist(), pool.tokens(first).tolist()) == ([5, 6], [1, 2, 3, 4])
    assert pool.idle_front(8).block_ids.tolist() == [end]
    assert pool.prefix_of(end).tokens.tolist() == [1, 2, 3, 4, 5, 6]
    pool.check_invariants()


def test_an_end_keeps_what_it_continues_and_is_evicted_before_it() -> None:
    pool, first, end = pool_with_end()
    pool.acquire([end])
    assert pool.num_idle == 0
    pool.release([end])
    assert pool.evict(1).tolist() == [end]
    assert pool.is_cached(first)
    pool.check_invariants()


def test_an_end_goes_with_what_it_continues() -> None:
    pool, first, end = pool_with_end()
    before = pool.contents_of([first, end]).tolist()
    assert -1 not in before
    assert pool.forget_blocks([first]) == 2
    assert pool.contents_of([first, end]).tolist() == [-1, -1]
    assert pool.num_free == 8


def test_no_event_tells_of_an_end() -> None:
    pool, _, _ = pool_with_end(events=True)
    assert sum(len(each.digests) for each in pool.take_events()) == 1
    pool.evict(1)
    assert len(pool.take_events()) == 0
    pool.check_invariants()


def test_ends_begin_prompts_in_namespaces_and_have_extra_keys() -> None:
    pool = BlockPool(8, 4)
    [end] = pool.take(1).tolist()
    pool.promote_end(end, [1], namespace=b"tenant", extras=b"image")
    prefix = pool.prefix_of(end)
    assert (prefix.namespace, prefix.extras, prefix.tokens.tolist()) == (
        b"tenant",
        {0: b"image"},
        [1],
    )
    pool.release([end])
    pool.forget_blocks([end])
    pool.check_invariants()  # and the namespace is gone


def test_what_is_no_end_is_refused_and_changes_nothing() -> None:
    pool, first, end = pool_with_end()
    [held] = pool.take(1).tolist()
    for tokens in ([], [1, 2, 3, 4]):
        with pytest.raises(ValueError, match="tokens must be fewer than fill a block"):
            pool.promote_end(held, tokens, parent=first)
    with pytest.raises(BlockStateError, match="a shorter end"):
        pool.promote_end(held, [5, 6, 7], parent=end)
    with pytest.raises(BlockStateError, match="it is an end"):
        pool.promote(held, [5, 6, 7, 8], parent=end)
    with pytest.raises(BlockStateError, match="not held"):
        pool.promote_end(end, [5], parent=first)
    with pytest.raises(ValueError, match="namespace must be empty"):
        pool.promote_end(held, [5], parent=first, namespace=b"tenant")
    pool.promote_end(held, [5, 6], parent=end)  # a further end of the same tokens
    with pytest.raises(BlockStateError, match="cached already"):
        pool.promote_end(held, [5, 6], parent=end)
    assert pool.num_cached == 3
    pool.check_invariants()


def test_without_prefix_caching_an_end_stays_private() -> None:
    pool = BlockPool(4, 4, prefix_caching=False)
    [block] = pool.take(1).tolist()
    pool.promote_end(block, [1])
    assert pool.num_cached == 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eviction", ["lru", "s3fifo", "arc", "lfuda"])
def test_random_plays_with_ends_keep_the_invariants(seed: int, eviction: str) -> None:
    draw = random.Random(seed)
    pool = BlockPool(24, 4, eviction=eviction, events=True, retention=True)
    for _ in range(300):
        whole = [b for b in range(24) if pool.is_cached(b) and len(pool.tokens(b)) == 4]
        ends = [b for b in range(24) if pool.is_cached(b) and len(pool.tokens(b)) < 4]
        what = draw.random()
        if what < 0.7 and pool.num_available:
            parent = draw.choice([-1, *whole, *ends])
            [block] = pool.take(1).tolist()
            if parent >= 0 and not pool.is_cached(parent):  # it was taken
                pool.release([block])
                continue
            most = len(pool.tokens(parent)) if parent >= 0 else 4
            tokens = [draw.randrange(2) for _ in range(draw.randrange(1, most + 1))]
            if len(tokens) == 4:
                block = pool.promote(block, tokens, parent=parent)
            else:
                pool.promote_end(block, tokens, parent=parent)
            pool.release([block])
        elif what < 0.8 and pool.num_idle:
            pool.forget(1)
        elif what < 0.9 and ends:
            pool.touch([draw.choice(ends)])
        elif whole:
            pool.forget_blocks([draw.choice(whole)])
        pool.check_invariants()
