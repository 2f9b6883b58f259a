"""KV blocks outside the device: a slab, which is one file with a proof for each block.

``blockmgr.ports.vllm_tiers`` makes a slab a tier of vLLM. Engines with their own movers use
``Slab`` directly, with a ``BlockPool`` whose blocks are its blocks.
"""

from blockmgr.tiers.errors import SlabError, SlabHeldError, SlabMismatchError, SlabSpaceError
from blockmgr.tiers.slab import Slab

__all__ = ["Slab", "SlabError", "SlabHeldError", "SlabMismatchError", "SlabSpaceError"]
