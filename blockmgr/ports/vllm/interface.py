"""What vLLM's scheduler, engine core and connectors call, as blockmgr knows it.

``python -m blockmgr.ports.vllm.interface`` compares it with the vLLM that is installed.
"""

from __future__ import annotations

import importlib
import sys

from blockmgr.ports import drift
from blockmgr.ports.vllm.expected import ATTRIBUTES, METHODS, OURS, PLACES

__all__ = ["TRIED", "differences", "is_tried", "report", "version"]

TRIED = ("0.32",)
"""Versions that everything here was tried with, up to their last number."""

CALLERS = (
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.engine.core",
)


def version() -> str:
    """Of the vLLM that is installed."""
    return str(importlib.import_module("vllm").__version__)


def is_tried() -> bool:
    """Whether it is one of those that were tried."""
    return any(version() == tried or version().startswith(f"{tried}.") for tried in TRIED)


def differences() -> list[drift.Difference]:
    """Everything of the installed vLLM that is not as it was in the versions that were tried."""
    known = {name for names in OURS.values() for name in names}
    found = [
        *drift.methods(METHODS),
        *drift.attributes(ATTRIBUTES),
        *drift.places(PLACES),
        *drift.asked(CALLERS, ("kv_cache_manager", "cache_manager"), known),
    ]
    return sorted(found, key=lambda difference: not difference.is_fatal)


def report() -> str:
    """All that was compared, and what differs, for people."""
    tried = "tried" if is_tried() else f"not tried, as {', '.join(TRIED)} was"
    looked_at = len(METHODS) + sum(map(len, ATTRIBUTES.values())) + len(PLACES)
    return drift.report(f"vLLM {version()}", tried, looked_at, differences())


if __name__ == "__main__":
    print(report())
    sys.exit(any(d.is_fatal for d in differences()))
