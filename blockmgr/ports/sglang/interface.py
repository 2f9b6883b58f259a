"""The parts of SGLang 0.5.23's interface that blockmgr replaces or relies on.

``python -m blockmgr.ports.sglang.interface`` compares it with the SGLang that is installed.
"""

from __future__ import annotations

import sys

from blockmgr.ports.drift import Interface
from blockmgr.ports.sglang.cache import PrefixCache

__all__ = ["ATTRIBUTES", "CALLERS", "ELSEWHERE", "INTERFACE", "METHODS", "PLACES"]

BASE = "sglang.srt.mem_cache.base_prefix_cache"
CACHE = f"{BASE}:BasePrefixCache"
ALLOCATOR = "sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator"

METHODS: dict[str, tuple[str, ...]] = {
    f"{CACHE}.reset": (),
    f"{CACHE}.match_prefix": ("params",),
    f"{CACHE}.supports_prefix_sharing": (),
    f"{CACHE}.supports_fast_match_prefix": (),
    f"{CACHE}.touch_prefix": ("key",),
    f"{CACHE}.dfs_weight_order": ("node_handles",),
    f"{CACHE}.root_node_handle": ("extra_key",),
    f"{CACHE}.checkpoint": ("req", "up_to", "kwargs"),
    f"{CACHE}.free_kv_row": ("kv", "ranges"),
    f"{CACHE}.evict": ("params",),
    f"{CACHE}.evict_for_alloc": ("params", "allocation_reclaim_satisfied"),
    f"{CACHE}.inc_lock_ref": ("node",),
    f"{CACHE}.dec_lock_ref": ("node", "params"),
    f"{CACHE}.lock": ("node",),
    f"{CACHE}.unlock": ("lock",),
    f"{CACHE}.path_device_indices": ("node",),
    f"{CACHE}.prefix_device_indices": ("req",),
    f"{CACHE}.on_release": ("req", "checkpointed"),
    f"{CACHE}.evictable_size": (),
    f"{CACHE}.full_evictable_size": (),
    f"{CACHE}.protected_size": (),
    f"{CACHE}.full_protected_size": (),
    f"{CACHE}.total_size": (),
    f"{CACHE}.pretty_print": (),
    f"{ALLOCATOR}.free_segment": ("free_index", "start_pos"),
    "sglang.srt.mem_cache.registry:register_radix_cache_backend": ("name", "factory"),
    "sglang.srt.mem_cache.common:release_kv_cache": ("req", "tree_cache", "checkpoint"),
}

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    f"{BASE}:MatchPrefixParams": ("key", "req"),
    f"{BASE}:MatchResult": (
        "device_prefix_len",
        "last_device_node",
        "last_host_node",
        "best_match_node",
    ),
    f"{BASE}:InsertParams": ("key", "value"),
    f"{BASE}:InsertResult": ("prefix_len", "last_device_node"),
    f"{BASE}:EvictParams": ("num_tokens",),
    f"{BASE}:EvictResult": ("num_tokens_evicted",),
    f"{BASE}:TreeLock": ("node", "receipt"),
    CACHE: ("init_metrics_collector", "update_eviction_metrics", "metrics_collector"),
    ALLOCATOR: ("size", "page_size", "device"),
    "sglang.srt.mem_cache.radix_cache:RadixKey": (
        "token_ids",
        "extra_key",
        "cache_salt",
        "is_bigram",
        "limit",
        "raw_token_ids",
    ),
    "sglang.srt.mem_cache.cache_init_params:CacheInitParams": (
        "disable",
        "req_to_token_pool",
        "token_to_kv_pool_allocator",
        "page_size",
        "is_eagle",
        "eviction_policy",
        "enable_metrics",
        "enable_kv_cache_events",
        "enable_session_radix_cache",
        "sliding_window_size",
        "component_registry_override",
    ),
    "sglang.srt.mem_cache.registry:TreeCacheBuildContext": (
        "params",
        "is_hybrid_swa",
        "is_hybrid_ssm",
        "enable_hierarchical_cache",
    ),
    "sglang.srt.managers.schedule_batch:Req": (
        "full_untruncated_fill_ids",
        "extra_key",
        "cache_salt",
        "lock",
        "last_node",
        "finished",
        "kv_hints",
        "session_id",
    ),
    "sglang.srt.managers.schedule_batch:ReqKvInfo": (
        "req_pool_idx",
        "cache_protected_len",
        "cache_inserted_len",
    ),
}

PLACES: tuple[tuple[str, str], ...] = (
    ("sglang.srt.mem_cache.registry", "get_radix_cache_factory"),
    ("sglang.srt.runtime_context", "get_memory"),
    ("sglang.srt.runtime_context", "get_disagg"),
)

CALLERS = (
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.schedule_policy",
    "sglang.srt.managers.scheduler_components.batch_result_processor",
    "sglang.srt.managers.scheduler_components.invariant_checker",
    "sglang.srt.managers.scheduler_components.pool_stats_observer",
    "sglang.srt.mem_cache.allocation",
    "sglang.srt.mem_cache.allocator.base",
    "sglang.srt.mem_cache.common",
    "sglang.srt.mem_cache.prefill_budget",
)
"""Modules that use a tree cache; all attributes that they read must be known."""

ELSEWHERE = frozenset(
    {
        "all_mamba_values_flatten",
        "dec_host_lock_ref",
        "inc_host_lock_ref",
        "linker",
        "mamba_evictable_size",
        "mamba_protected_size",
        "release_swa_prefix_lock",
        "tree_core",
    }
)
"""Read of caches with windows, states or a second tier, which are refused at start-up."""


MADE = ("page_size", "req_to_token_pool", "sliding_window_size", "token_to_kv_pool_allocator")
"""Attributes that the cache's constructor creates."""

INTERFACE = Interface(
    engine="SGLang",
    module="sglang.version",
    tried=("0.5.23",),  # it renames whole interfaces between releases
    methods=METHODS,
    attributes=ATTRIBUTES,
    places=PLACES,
    callers=CALLERS,
    names=("tree_cache",),
    known={*dir(PrefixCache), *MADE, *ELSEWHERE},
)

if __name__ == "__main__":
    sys.exit(INTERFACE.main())
