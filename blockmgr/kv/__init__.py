"""K/V tensors of any layout: registered as segments, copied by the plans of a manager.

::

    segments_from ──► KVBlocks ──► copy(plan), copy_blocks, zero, copy_to
    ModelShape ──► PagedKVCache: tensors of its own, write, gather, swap_out, swap_in

Needs torch; the triton backend needs triton besides, which CUDA builds of torch bring along.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    from blockmgr.errors import MissingExtraError

    raise MissingExtraError("torch", "blockmgr.kv") from error

from blockmgr.kv.cache import PagedKVCache
from blockmgr.kv.copy import KVBlocks
from blockmgr.kv.layout import PRESETS, Segment, segments_from
from blockmgr.kv.pairs import PairBuffer
from blockmgr.kv.shape import ModelShape, num_blocks_for

__all__ = [
    "PRESETS",
    "KVBlocks",
    "ModelShape",
    "PagedKVCache",
    "PairBuffer",
    "Segment",
    "num_blocks_for",
    "segments_from",
]
