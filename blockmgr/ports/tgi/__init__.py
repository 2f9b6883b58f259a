"""Text Generation Inference's ``BlockAllocator``, for many asyncio tasks.

``allocate`` reserves all slots of a request at once and returns a ``BlockAllocation``, which
releases its blocks when it is closed, when its ``async with`` ends, or when it is no longer
referenced. The port corrects these faults of the original:

- prefixes are found token by token at any block size, not only 1; a prefix that ends inside a block
  needs a copy, which ``copies`` passes to the engine;
- only computed K/V can be found: after ``commit``, even while the request runs, or after a regular
  end. Dropping an allocation does not publish anything;
- blocks in use are never evicted, and an allocation that fails evicts nothing;
- one token of a prompt is always left to compute, so no request writes to a slot that others read;
- wrong calls raise and change nothing; in the original they killed the background task.
"""

from __future__ import annotations

from blockmgr.ports.tgi.allocator import BlockAllocation, BlockAllocator

__all__ = ["BlockAllocation", "BlockAllocator"]
