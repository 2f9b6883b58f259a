"""The block allocators of Aphrodite and of vLLM before its V1 core, on blockmgr's core.

The calls and meanings are those of ``aphrodite.processing.block`` and ``vllm.core.block``:
allocators hand out ``Block`` objects, singly or as chains; a ``BlockTable`` keeps the blocks of one
sequence, and ``BlockSpaceManager`` those of all. Blocks are shared only after a comparison of
tokens, and cached blocks are evicted in the order of the core.
"""

from blockmgr.ports.aphrodite.block_allocator import (
    Block,
    BlockAllocator,
    NaiveBlock,
    NaiveBlockAllocator,
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
)
from blockmgr.ports.aphrodite.block_manager import BlockSpaceManager
from blockmgr.ports.aphrodite.block_table import BlockTable
from blockmgr.ports.aphrodite.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.interfaces import (
    AllocStatus,
    Device,
    EncoderDecoderError,
    NoFreeBlocksError,
)

__all__ = [
    "AllocStatus",
    "Block",
    "BlockAllocator",
    "BlockSpaceManager",
    "BlockTable",
    "CpuGpuBlockAllocator",
    "Device",
    "EncoderDecoderError",
    "NaiveBlock",
    "NaiveBlockAllocator",
    "NoFreeBlocksError",
    "PrefixCachingBlock",
    "PrefixCachingBlockAllocator",
]
