"""nano-vllm's ``BlockManager``, in both generations of its interface.

Its scheduler runs unmodified with either class: it checks ``can_allocate`` and ``can_append``, then
calls ``allocate``, ``may_append`` and ``deallocate``, and reads ``block_table`` and
``num_cached_tokens`` of the sequence. The port corrects these faults of the original:

- a comparison of tokens proves every hit, and only computed K/V can be found;
- one token of a prompt is always left to compute, so no sequence is scheduled with zero tokens;
- two sequences that fill equal blocks end up with the same block;
- wrong calls raise, whether or not Python runs with ``-O``, and change nothing.

There is no ``blocks`` and no ``hash_to_block_id``, which the scheduler does not use:
``manager.blocks()`` shows every block.
"""

from __future__ import annotations

from blockmgr.ports.nano_vllm.manager import BlockManager, LegacyBlockManager
from blockmgr.ports.nano_vllm.tables import ChunkedSequence, NanoSequence

__all__ = ["BlockManager", "ChunkedSequence", "LegacyBlockManager", "NanoSequence"]
