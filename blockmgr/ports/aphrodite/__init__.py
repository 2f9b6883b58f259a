"""The block allocators of Aphrodite and of vLLM before its V1 core, on blockmgr's core.

The calls and meanings are those of ``aphrodite.processing.block`` and ``vllm.core.block``:
allocators hand out ``Block`` objects, singly or as chains; a ``BlockTable`` keeps the blocks of one
sequence, and ``BlockSpaceManager`` those of all. Blocks are shared only after a comparison of
tokens, and cached blocks are evicted in the order of the core.
"""

from blockmgr.ports.aphrodite.allocators import NaiveBlockAllocator, PrefixCachingBlockAllocator
from blockmgr.ports.aphrodite.blocks import NaiveBlock, PrefixCachingBlock
from blockmgr.ports.aphrodite.computed import ComputedBlocksTracker
from blockmgr.ports.aphrodite.device import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.groups import EncoderDecoderError
from blockmgr.ports.aphrodite.interfaces import (
    AllocStatus,
    Block,
    BlockAllocator,
    Device,
    NoFreeBlocksError,
)
from blockmgr.ports.aphrodite.manager import BlockSpaceManager
from blockmgr.ports.aphrodite.null_block import NullBlock
from blockmgr.ports.aphrodite.table import BlockTable
from blockmgr.ports.aphrodite.tracking import (
    CopyOnWriteTracker,
    HitCounter,
    ReadOnlyRefCounter,
    RefCounter,
)

__all__ = [
    "AllocStatus",
    "Block",
    "BlockAllocator",
    "BlockSpaceManager",
    "BlockTable",
    "ComputedBlocksTracker",
    "CopyOnWriteTracker",
    "CpuGpuBlockAllocator",
    "Device",
    "EncoderDecoderError",
    "HitCounter",
    "NaiveBlock",
    "NaiveBlockAllocator",
    "NoFreeBlocksError",
    "NullBlock",
    "PrefixCachingBlock",
    "PrefixCachingBlockAllocator",
    "ReadOnlyRefCounter",
    "RefCounter",
]
