"""Ports that cache prefixes take any eviction policy, by name or written in Python."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr.config import EVICTION_POLICIES
from blockmgr.ports import aphrodite, nano_vllm, radix, tgi
from tests.reference_policies import Lru


@pytest.mark.parametrize("eviction", [*EVICTION_POLICIES, Lru])
def test_a_radix_cache_evicts_by_any_policy(eviction: Any) -> None:
    cache = radix.CacheManager(None, 4, eviction=eviction)
    for first in range(1, 9):
        prompt = [first % 3, first]
        root = radix.RadixCacheHandle(0, cache.manager.root_node)
        cache.free_and_cache_finished_req(root, prompt, cache.allocate(2))
    cache.manager.pool.check_invariants()


@pytest.mark.parametrize("eviction", [*EVICTION_POLICIES, Lru])
def test_an_allocator_of_blocks_evicts_by_any_policy(eviction: Any) -> None:
    allocator = aphrodite.PrefixCachingBlockAllocator(4, 2, eviction=eviction)
    for first in range(1, 9):
        allocator.free(allocator.allocate_immutable(None, [first, first % 3]))
    allocator.pool.check_invariants()


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
