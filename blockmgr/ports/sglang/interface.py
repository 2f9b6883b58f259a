"""What SGLang's scheduler and allocators call, as blockmgr knows it.

``python -m blockmgr.ports.sglang.interface`` compares it with the SGLang that is installed.
"""

from __future__ import annotations

import importlib
import sys

from blockmgr.ports import drift
from blockmgr.ports.sglang.cache import PrefixCache
from blockmgr.ports.sglang.expected import ATTRIBUTES, CALLERS, ELSEWHERE, METHODS, PLACES

__all__ = ["TRIED", "differences", "is_tried", "report", "version"]

TRIED = ("0.5.23",)
"""Versions that everything here was tried with. SGLang renames whole interfaces between two."""

MADE = ("page_size", "req_to_token_pool", "sliding_window_size", "token_to_kv_pool_allocator")
"""Attributes that the cache's constructor makes."""


def version() -> str:
    """Of the SGLang that is installed."""
    return str(importlib.import_module("sglang.version").__version__)


def is_tried() -> bool:
    """Whether it is one of those that were tried."""
    return version() in TRIED


def differences() -> list[drift.Difference]:
    """Everything of the installed SGLang that is not as it was in the versions that were tried."""
    known = {*dir(PrefixCache), *MADE, *ELSEWHERE}
    found = [
        *drift.methods(METHODS),
        *drift.attributes(ATTRIBUTES),
        *drift.places(PLACES),
        *drift.asked(CALLERS, ("tree_cache",), known),
    ]
    return sorted(found, key=lambda difference: not difference.is_fatal)


def report() -> str:
    """All that was compared, and what differs, for people."""
    tried = "tried" if is_tried() else f"not tried, as {', '.join(TRIED)} was"
    looked_at = len(METHODS) + sum(map(len, ATTRIBUTES.values())) + len(PLACES)
    return drift.report(f"SGLang {version()}", tried, looked_at, differences())


if __name__ == "__main__":
    print(report())
    sys.exit(any(d.is_fatal for d in differences()))
