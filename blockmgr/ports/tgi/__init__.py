"""Text Generation Inference's ``BlockAllocator``, for many asyncio tasks at a time.

``allocate`` reserves the whole future of a request at once and answers a ``BlockAllocation``, which
gives its blocks back when it is closed, when its ``async with`` ends, or when it is no longer
referenced. What the original gets wrong is different here:

- prefixes are found token by token at any block size, not only 1; what ends within a block is
  brought by a copy, which ``copies`` hands to the engine;
- K/V is found only once it has been computed: after ``commit``, by running requests too, or after
  a regular end. An allocation that is merely dropped vouches for nothing;
- what an allocation uses is never evicted, and an allocation that fails evicts nothing;
- one token of a prompt is always left to compute, so that no request writes to a slot that others
  read;
- wrong calls raise and change nothing, where the original's background task died of them.
"""

from __future__ import annotations

from blockmgr.ports.tgi.allocation import BlockAllocation
from blockmgr.ports.tgi.allocator import BlockAllocator

__all__ = ["BlockAllocation", "BlockAllocator"]
