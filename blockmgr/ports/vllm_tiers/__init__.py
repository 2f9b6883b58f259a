"""Tiers of vLLM's KV offloading: a slab, Mooncake Store, and eviction policies for host memory.

vLLM's ``OffloadingConnector`` copies blocks to host memory; from there, ``SlabTier`` writes them to
a slab and reads them back, each proved, also after a restart. One entry of
``secondary_tiers`` turns it on::

    {"type": "SlabTier", "module_path": "blockmgr.ports.vllm_tiers",
     "path": "/nvme/kv.slab", "bytes_to_use": 200000000000}

``MooncakeStoreTier`` does the same with a store that engines share::

    {"type": "MooncakeStoreTier", "module_path": "blockmgr.ports.vllm_tiers",
     "master": "127.0.0.1:50051", "lent_bytes": 4000000000}

``"eviction_policy": "S3FifoPolicy"`` with
``"cache_policy_module_path": "blockmgr.ports.vllm_tiers"`` selects an eviction policy for host
memory. All work with vLLM's block manager and, where all layers have full attention, with
``blockmgr.ports.vllm``. vLLM calls these interfaces experimental; they are compared with the
installed vLLM at start-up.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr.ports.vllm_tiers.mooncake_tier import MooncakeStoreTier
    from blockmgr.ports.vllm_tiers.policies import ArcPolicy, LfudaPolicy, S3FifoPolicy
    from blockmgr.ports.vllm_tiers.slab_tier import SlabTier

__all__ = ["ArcPolicy", "LfudaPolicy", "MooncakeStoreTier", "S3FifoPolicy", "SlabTier"]

_MODULES = {"MooncakeStoreTier": "mooncake_tier", "SlabTier": "slab_tier"}


def __getattr__(name: str) -> object:
    # These modules import vLLM, whose classes they extend.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "policies")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
