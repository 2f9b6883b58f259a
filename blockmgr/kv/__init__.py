"""K/V tensors of any layout: registers them as segments and copies their blocks.

::

    segments_from ──► KVBlocks ──► copy(plan), copy_blocks, zero, copy_to
    ModelShape ──► PagedKVCache: tensors of its own, write, gather, swap_out, swap_in
    HybridShape ──► GroupedKVCache: the same for groups of layers, with recurrent states

Needs torch. The triton backend also needs triton, which CUDA builds of torch include.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    from blockmgr.errors import MissingExtraError

    raise MissingExtraError("torch", "blockmgr.kv") from error

from blockmgr.kv.cache import PagedKVCache, num_blocks_for
from blockmgr.kv.copy import KVBlocks
from blockmgr.kv.grouped import GroupedKVCache
from blockmgr.kv.layout import PRESETS, Segment, segments_from
from blockmgr.kv.pairs import PairBuffer
from blockmgr.shapes.hybrid import HybridShape
from blockmgr.shapes.layer import LayerShape, StateTensor
from blockmgr.shapes.model import ModelShape

__all__ = [
    "PRESETS",
    "GroupedKVCache",
    "HybridShape",
    "KVBlocks",
    "LayerShape",
    "ModelShape",
    "PagedKVCache",
    "PairBuffer",
    "Segment",
    "StateTensor",
    "num_blocks_for",
    "segments_from",
]
