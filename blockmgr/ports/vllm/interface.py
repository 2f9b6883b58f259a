"""The interface between vLLM and blockmgr.

``python -m blockmgr.ports.vllm.interface`` compares it with the vLLM that is installed.
"""

from __future__ import annotations

import sys

from blockmgr.ports.drift import Interface
from blockmgr.ports.vllm.expected import (
    ATTRIBUTES,
    CHANGED,
    MANAGER,
    METHODS,
    PLACES,
    STRUCTURES,
    TRIED,
)

__all__ = ["INTERFACE"]

INTERFACE = Interface(
    engine="vLLM",
    module="vllm",
    tried=TRIED,
    methods=METHODS,
    attributes=ATTRIBUTES,
    places=PLACES,
    callers=(
        "vllm.v1.core.sched.scheduler",
        "vllm.v1.core.sched.async_scheduler",
        "vllm.v1.engine.core",
    ),
    names=("kv_cache_manager", "cache_manager"),
    structures=STRUCTURES,
    changed=CHANGED,
    known={path.removeprefix(f"{MANAGER}.") for path in METHODS} | set(ATTRIBUTES[MANAGER]),
)

if __name__ == "__main__":
    sys.exit(INTERFACE.main())
