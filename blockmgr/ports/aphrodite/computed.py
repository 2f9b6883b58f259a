"""Counts the computed and cached tokens of a sequence."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from blockmgr.arguments import whole
from blockmgr.ports.aphrodite.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.groups import extra_hash_of, id_of, tokens_of
from blockmgr.ports.aphrodite.interfaces import Device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blockmgr.ports.aphrodite.block_table import BlockTable
    from blockmgr.ports.aphrodite.groups import SequenceLike

__all__ = ["ComputedBlocksTracker"]


class ComputedBlocksTracker:
    """Counts the leading tokens of a sequence that need no computation.

    For one thread at a time, as its allocator is.

    Args:
        allocator: Allocator of the blocks.
        block_size: Tokens per block.
        enable_caching: If False, every answer is 0.

    Raises:
        ValueError: ``block_size`` is not the allocator's.
        TypeError: A value of the wrong type.

    While its ``is_prefill()`` is true, a sequence gets the same answer until ``remove_seq``,
    because the scheduler plans the rest of a prompt by the first answer.
    """

    __slots__ = ("_allocator", "_enable_caching", "_known", "_tables")

    def __init__(
        self, allocator: CpuGpuBlockAllocator, block_size: int, enable_caching: bool
    ) -> None:
        if not isinstance(allocator, CpuGpuBlockAllocator):
            kind = type(allocator).__name__
            raise TypeError(f"allocator must be a CpuGpuBlockAllocator, got {kind}")
        if not isinstance(enable_caching, bool):
            raise TypeError(f"enable_caching must be a bool, got {enable_caching!r}")
        size = allocator.block_size
        whole("block_size", block_size, size, size)
        self._allocator = allocator
        self._enable_caching = enable_caching and allocator.caches
        self._known: dict[int, int] = {}
        self._tables: Mapping[int, BlockTable] = {}

    @classmethod
    def with_tables(
        cls, allocator: CpuGpuBlockAllocator, tables: Mapping[int, BlockTable]
    ) -> ComputedBlocksTracker:
        """A tracker that uses the block tables of sequences that have one."""
        tracker = cls(allocator, allocator.block_size, allocator.caches)
        tracker._tables = tables
        return tracker

    def get_num_cached_tokens(self, seq: SequenceLike) -> int:
        """Tokens in the leading cached, computed blocks; a multiple of the block size.

        The block of the last token counts, too: the schedulers of this lineage leave one token to
        compute of a prompt that is cached whole. ``get_common_computed_block_ids`` leaves that
        block out, because a forward must not write to a block that others read.

        Raises:
            ValueError: A token out of ``[0, 2**32)``.
            TypeError: Not a sequence, or a token that is not an int.
        """
        name, tokens, extra = id_of(seq), tokens_of(seq), extra_hash_of(seq)
        if not self._enable_caching:
            return 0
        if getattr(seq, "is_prefill", bool)() and name in self._known:
            return self._known[name]
        size, cache = self._allocator.block_size, self._allocator.pool_of(Device.GPU).prefix_cache
        table = self._tables.get(name)
        if table is None:
            blocks = cache.find(tuple(tokens), -1, extra)
        else:
            cache, blocks = table.cached_blocks
        computed = sum(1 for _ in takewhile(cache.is_computed, blocks[: len(tokens) // size]))
        self._known[name] = computed * size
        return computed * size

    def remove_seq(self, seq_id: int) -> None:
        """Forgets the answer for a sequence, if there was one."""
        self._known.pop(seq_id, None)
