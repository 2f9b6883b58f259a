"""Computes how many blocks fit into a memory budget."""

from __future__ import annotations

from blockmgr.arguments import whole
from blockmgr.shapes.hybrid import HybridShape
from blockmgr.shapes.model import ModelShape

__all__ = ["num_blocks_for"]


def num_blocks_for(num_bytes: int, shape: ModelShape | HybridShape, block_size: int) -> int:
    """The number of blocks that fit into a memory budget.

    Args:
        num_bytes: Bytes to fill with K/V.
        shape: The model. A block of a hybrid model is a page in each of ``group_size`` tensors,
            whichever group has it.
        block_size: Tokens per block, at least 1.

    Raises:
        ValueError: Not even one block fits.
        PageSizeError: Pages of a hybrid model cannot be made equal at this ``block_size``.
        TypeError: An argument is of the wrong type.

    >>> import torch
    >>> shape = ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    >>> num_blocks_for(10 * 2**30, shape, 16)
    5120
    """
    budget = whole("num_bytes", num_bytes, 1)
    if not isinstance(shape, ModelShape | HybridShape):
        raise TypeError(f"shape must be a ModelShape or a HybridShape, got {shape!r}")
    block = shape.bytes_per_block(block_size)
    if budget < block:
        raise ValueError(f"num_bytes must be at least {block}, the size of one block, got {budget}")
    return budget // block
