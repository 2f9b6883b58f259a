"""``ports.radix``: finding and locking prefixes, allocating slots, a request's whole life."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Prompts
from benchmarks.ports.pair import Call, Pair
from blockmgr.pool import BlockPool
from blockmgr.ports.radix import CacheManager, RadixCacheHandle

NUM_SLOTS = 1 << 16

Prompt = npt.NDArray[np.uint32]


def root(cache: CacheManager) -> RadixCacheHandle:
    return RadixCacheHandle(0, cache.manager.root_node)


def filled(num_tokens: int, page_size: int) -> tuple[CacheManager, Prompt]:
    """A cache that holds one prompt."""
    cache, prompt = (
        CacheManager(None, NUM_SLOTS // page_size, page_size),
        Prompts().draw(num_tokens),
    )
    cache.free_and_cache_finished_req(root(cache), prompt, cache.allocate(num_tokens))
    return cache, prompt


def chained(num_tokens: int, page_size: int) -> tuple[BlockPool, Prompt]:
    """A pool with the same chain."""
    pool, prompt = BlockPool(NUM_SLOTS // page_size, page_size), Prompts().draw(num_tokens)
    blocks = pool.take(num_tokens // page_size)
    pool.promote(blocks, prompt)
    pool.release(blocks)
    return pool, prompt


Build = Callable[[], Call]


def match_of_port(n: int, page_size: int) -> Build:
    def build() -> Call:
        cache, prompt = filled(n, page_size)

        def call() -> None:
            assert cache.manager.match_prefix(prompt).handle.cached_len == n

        return call

    return build


def match_of_core(n: int, page_size: int) -> Build:
    def build() -> Call:
        pool, prompt = chained(n, page_size)
        return lambda: pool.find(prompt)

    return build


def lock_of_port(n: int, page_size: int) -> Build:
    def build() -> Call:
        cache, prompt = filled(n, page_size)
        handle = cache.manager.match_prefix(prompt).handle

        def call() -> None:
            cache.lock(handle)
            cache.unlock(handle)

        return call

    return build


def lock_of_core(n: int, page_size: int) -> Build:
    def build() -> Call:
        pool, prompt = chained(n, page_size)
        last = pool.find(prompt)[-1:].tolist()

        def call() -> None:
            pool.acquire(last)
            pool.release(last)

        return call

    return build


def slots_of_port(n: int, page_size: int) -> Build:
    def build() -> Call:
        cache = CacheManager(None, NUM_SLOTS // page_size, page_size)
        return lambda: cache.free(cache.allocate(n))

    return build


def slots_of_core(n: int, page_size: int) -> Build:
    def build() -> Call:
        pool = BlockPool(NUM_SLOTS // page_size, page_size)
        return lambda: pool.release(pool.take(n // page_size))

    return build


def life_of_port(n: int, page_size: int) -> Build:
    def build() -> Call:
        cache, prompt = CacheManager(None, NUM_SLOTS // page_size, page_size), Prompts().draw(n)

        def call() -> None:
            slots = cache.allocate(n)
            cache.free_and_cache_finished_req(root(cache), prompt, slots)
            assert cache.manager.size_info.evictable_size == n
            cache.reset()

        return call

    return build


def life_of_core(n: int, page_size: int) -> Build:
    def build() -> Call:
        pool, prompt = BlockPool(NUM_SLOTS // page_size, page_size), Prompts().draw(n)

        def call() -> None:
            blocks = pool.take(n // page_size)
            pool.find(prompt)
            pool.promote(blocks, prompt)
            pool.release(blocks)
            pool.forget(pool.num_idle)

        return call

    return build


PAIRS = []
for size in (1, 16):
    for n in (1_024, 32_768):
        where = f"{n} tokens, page {size}"
        PAIRS += [
            Pair(f"radix: match_prefix, {where}", match_of_port(n, size), match_of_core(n, size)),
            Pair(f"radix: lock, unlock, {where}", lock_of_port(n, size), lock_of_core(n, size)),
            Pair(f"radix: allocate, free, {where}", slots_of_port(n, size), slots_of_core(n, size)),
            Pair(f"radix: allocate, finish, {where}", life_of_port(n, size), life_of_core(n, size)),
        ]
