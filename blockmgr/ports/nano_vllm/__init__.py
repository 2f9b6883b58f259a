"""nano-vllm's ``BlockManager``, in both generations of its interface.

Its scheduler runs unmodified on either class: it asks ``can_allocate`` and ``can_append``, then
calls ``allocate``, ``may_append`` and ``deallocate``, and reads ``block_table`` and
``num_cached_tokens`` off the sequence. What the original gets wrong is different here:

- a hit is proved, not trusted to a 64-bit hash, and found only once its K/V has been computed;
- one token of a prompt is always left to compute, so nothing is scheduled with zero tokens;
- of two sequences that fill equal blocks, both end with the same block;
- wrong calls raise, whether or not Python runs with ``-O``, and change nothing.

There is no ``blocks`` and no ``hash_to_block_id``, which its scheduler does not touch:
``manager.blocks()`` shows every block.
"""

from __future__ import annotations

from blockmgr.ports.nano_vllm.manager import BlockManager, LegacyBlockManager
from blockmgr.ports.nano_vllm.tables import ChunkedSequence, NanoSequence

__all__ = ["BlockManager", "ChunkedSequence", "LegacyBlockManager", "NanoSequence"]
