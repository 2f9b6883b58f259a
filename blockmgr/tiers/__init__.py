"""KV blocks outside the device: in host memory, in a slab on disk, or in a store that others share.

``TieredManager`` is a ``BlockManager`` whose evicted prefixes go there and come back;
``blockmgr.tiers.movers`` moves their bytes. ``blockmgr.ports.vllm_tiers`` makes a slab a tier of
vLLM. Engines with books of their own use ``Slab`` directly, with a ``BlockPool`` whose blocks are
its blocks.
"""

from blockmgr.tiers.errors import (
    SharedStoreError,
    SlabError,
    SlabHeldError,
    SlabMismatchError,
    SlabSpaceError,
)
from blockmgr.tiers.kinds import DiskTier, HostTier, MooncakeTier
from blockmgr.tiers.manager import TieredManager
from blockmgr.tiers.paths import key_bytes, shared_key_bytes
from blockmgr.tiers.plans import (
    DEVICE,
    LookUp,
    Proofs,
    TierMatch,
    TierStats,
    Transfer,
    TransferPlan,
)
from blockmgr.tiers.shared import ObjectStore, SharedStats, SharedStorage
from blockmgr.tiers.slab import Slab
from blockmgr.tiers.tier import TierConfig

__all__ = [
    "DEVICE",
    "DiskTier",
    "HostTier",
    "LookUp",
    "MooncakeTier",
    "ObjectStore",
    "Proofs",
    "SharedStats",
    "SharedStorage",
    "SharedStoreError",
    "Slab",
    "SlabError",
    "SlabHeldError",
    "SlabMismatchError",
    "SlabSpaceError",
    "TierConfig",
    "TierMatch",
    "TierStats",
    "TieredManager",
    "Transfer",
    "TransferPlan",
    "key_bytes",
    "shared_key_bytes",
]
