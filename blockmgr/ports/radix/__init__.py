"""A radix cache of token slots with mini-sglang's interfaces.

``RadixCacheManager`` keeps finished prefixes and finds them again; ``CacheManager`` combines it
with slot allocation for requests. These have the interface of January 2026. ``RadixPrefixCache``
and ``PagedCacheManager``, which writes slots into a page table, have the later one. The tree is the
core's own prefix index: a node is a page.

Tokens and slots may be lists, NumPy arrays or torch tensors. Results are NumPy arrays, or, with a
``device``, torch tensors on it; torch is imported only then.
"""

from blockmgr.ports.radix.base import (
    InsertResult,
    MatchResult,
    PrefixMatch,
    RadixCacheHandle,
    RadixNode,
    Request,
    SizeInfo,
)
from blockmgr.ports.radix.manager import CacheManager, PagedCacheManager, PagedRequest
from blockmgr.ports.radix.printing import format_tree, print_tree
from blockmgr.ports.radix.sizing import (
    create_page_table,
    get_mha_cache_per_page,
    get_num_pages_for_kv_cache,
)
from blockmgr.ports.radix.tree import RadixCacheManager, RadixPrefixCache

__all__ = [
    "CacheManager",
    "InsertResult",
    "MatchResult",
    "PagedCacheManager",
    "PagedRequest",
    "PrefixMatch",
    "RadixCacheHandle",
    "RadixCacheManager",
    "RadixNode",
    "RadixPrefixCache",
    "Request",
    "SizeInfo",
    "create_page_table",
    "format_tree",
    "get_mha_cache_per_page",
    "get_num_pages_for_kv_cache",
    "print_tree",
]
