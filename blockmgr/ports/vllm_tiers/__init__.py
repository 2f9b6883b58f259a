"""Tiers of vLLM's KV offloading: a slab on disk, and eviction policies for its host memory.

vLLM's ``OffloadingConnector`` copies blocks to host memory; from there, ``SlabTier`` writes them to
a slab and reads them back, each proved, also after a restart. One entry of
``secondary_tiers`` turns it on::

    {"type": "SlabTier", "module_path": "blockmgr.ports.vllm_tiers",
     "path": "/nvme/kv.slab", "bytes_to_use": 200000000000}

``"eviction_policy": "S3FifoPolicy"`` with
``"cache_policy_module_path": "blockmgr.ports.vllm_tiers"`` selects an eviction policy for host
memory. Both work with vLLM's block manager and, where all layers have full attention, with
``blockmgr.ports.vllm``. vLLM calls both interfaces experimental; they are compared with the
installed vLLM at start-up.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr.ports.vllm_tiers.policies import ArcPolicy, LfudaPolicy, S3FifoPolicy
    from blockmgr.ports.vllm_tiers.slab_tier import SlabTier

__all__ = ["ArcPolicy", "LfudaPolicy", "S3FifoPolicy", "SlabTier"]


def __getattr__(name: str) -> object:
    # Both modules import vLLM, whose classes they extend.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "slab_tier" if name == "SlabTier" else "policies"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
