"""The interface between SGLang and blockmgr.

``python -m blockmgr.ports.sglang.interface`` compares it with the SGLang that is installed.
"""

from __future__ import annotations

import sys

from blockmgr.ports.drift import Interface
from blockmgr.ports.sglang.cache import PrefixCache
from blockmgr.ports.sglang.expected import ATTRIBUTES, CALLERS, ELSEWHERE, METHODS, PLACES

__all__ = ["INTERFACE"]

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
