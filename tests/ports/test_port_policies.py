"""Ports that cache prefixes take any eviction policy, by name or written in Python."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from blockmgr.config import EVICTION_POLICIES
from blockmgr.pool import BlockPool
from blockmgr.ports import aphrodite, nano_vllm, radix, tgi
from tests.reference_policies import Lru


class Told(Lru):
    """Records the blocks that it is notified of as hits."""

    hits: ClassVar[list[int]] = []

    def on_hit(self, block: int) -> None:
        self.hits.append(block)
        super().on_hit(block)


class Moody(Lru):
    """Names another victim each time it is asked."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.rng = random.Random(capacity)
        self.leaves: set[int] = set()

    def on_idle(self, block: int) -> None:
        super().on_idle(block)
        self.leaves.add(block)

    def on_used(self, block: int) -> None:
        super().on_used(block)
        self.leaves.discard(block)

    def on_uncached(self, block: int, evicted: bool) -> None:
        super().on_uncached(block, evicted)
        self.leaves.discard(block)

    def victim(self) -> int:
        return self.rng.choice(sorted(self.leaves))


@pytest.mark.parametrize("eviction", [*EVICTION_POLICIES, Lru, Moody])
def test_evicted_pages_are_the_callers_and_in_no_tree(eviction: Any) -> None:
    cache = radix.RadixCacheManager(None, num_pages=12, eviction=eviction)
    free = list(range(12))
    for first in (1, 2, 3, 1, 1, 4, 5, 2, 6, 7, 8, 2, 9):
        found, _ = cache.match_prefix([first])
        if found.cached_len:
            cache.lock_handle(found)
            cache.lock_handle(found, unlock=True)
            continue
        if len(free) < 6:
            free += cache.evict(2).tolist()
        assert not cache.pool.is_cached(free).any()
        assert cache.pool.ref_count(free).tolist() == [1] * len(free)
        cache.insert_prefix([first], [free.pop(0)])
        cache.check_integrity()
    assert sorted([*free, *np.flatnonzero(cache.pool.is_cached(range(12)))]) == list(range(12))


def test_a_match_that_is_locked_is_a_find_of_all_its_pages() -> None:
    cache = radix.CacheManager(None, 8, eviction=Told)
    Told.hits.clear()
    root = radix.RadixCacheHandle(0, cache.manager.root_node)
    cache.free_and_cache_finished_req(root, [1, 2, 3, 4], cache.allocate(4))
    assert Told.hits == []
    found, _ = cache.manager.match_prefix([1, 2, 3, 4, 5])
    cache.lock(found)
    assert len(Told.hits) == len(set(Told.hits)) == 4
    cache.lock(found)
    assert len(Told.hits) == 4


def test_what_a_request_has_computed_itself_is_no_find() -> None:
    cache = radix.PagedCacheManager(16, 1, np.zeros((2, 8), np.int32), eviction=Told)
    Told.hits.clear()
    request = SimpleNamespace(
        input_ids=[1, 3, 6, 7, 8, 9], table_idx=0, cached_len=0, device_len=2, input_len=6
    )
    request.cache_handle = cache.match_req(request).cuda_handle
    for end in (2, 4, 6):
        request.device_len = end
        cache.allocate_paged([request])
        request.cached_len = end
        cache.cache_req(request, finished=end == 6)
    assert Told.hits == []


def test_a_fork_is_no_find() -> None:
    allocator = aphrodite.PrefixCachingBlockAllocator(8, 2, eviction=Told)
    Told.hits.clear()
    blocks = allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    allocator.fork(list(blocks)[-1])
    assert Told.hits == []
    allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    assert len(Told.hits) == 2


def test_a_pool_gives_the_block_that_it_took() -> None:
    """The pool must use the first answer of the policy, which changes with every call."""
    for seed in range(8):
        pool = BlockPool(8 + seed, 2, eviction=Moody)
        ids = pool.take(pool.num_blocks).tolist()
        for block in ids:
            pool.promote(block, [block, block])
        pool.release(ids[1:])
        new = pool.make_writable(ids[0], 2)
        assert pool.ref_count(new) == 1
        assert not pool.is_cached(new)
        pool.release([new])
        pool.check_invariants()


MAKERS: dict[str, Any] = {
    "radix": lambda: radix.CacheManager(None, 4, eviction="fifo"),
    "aphrodite": lambda: aphrodite.PrefixCachingBlockAllocator(4, 2, eviction="fifo"),
    "nano_vllm": lambda: nano_vllm.BlockManager(4, 2, eviction="fifo"),
    "tgi": lambda: tgi.BlockAllocator(64, 4, eviction="fifo"),
}


@pytest.mark.parametrize("port", MAKERS)
def test_an_unknown_policy_is_refused_by_name(port: str) -> None:
    with pytest.raises(ValueError, match="eviction must be one of"):
        MAKERS[port]()
