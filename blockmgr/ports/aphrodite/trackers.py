"""Reference counts, copy-on-write and hits as separate objects: views of an allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr.ports.aphrodite.block import Block
    from blockmgr.ports.aphrodite.block_allocator import BlockAllocator

__all__ = ["CopyOnWriteTracker", "HitCounter", "ReadOnlyRefCounter", "RefCounter"]


class ReadOnlyRefCounter:
    """The number of references to each physical block."""

    __slots__ = ("_allocator",)

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator

    def get(self, block_id: int) -> int:
        """References to a physical block.

        Raises:
            ValueError: Not a block of this allocator.
        """
        return self._allocator.pool.ref_count(self._allocator.pool_block(block_id))

    def incr(self, block_id: int) -> int:
        """Always raises: this counter is read-only."""
        raise TypeError(f"cannot add a reference to block {block_id}: this counter is read-only")

    def decr(self, block_id: int) -> int:
        """Always raises: this counter is read-only."""
        raise TypeError(f"cannot drop a reference to block {block_id}: this counter is read-only")


class RefCounter(ReadOnlyRefCounter):
    """A writable counter, for callers that hold blocks without ``Block`` objects."""

    __slots__ = ()

    def incr(self, block_id: int) -> int:
        """Adds a reference to a held or cached block; returns the count.

        Raises:
            BlockStateError: The block is not held, and it is not cached.
            ValueError: Not a block of this allocator.
        """
        self._allocator.pool.acquire([self._allocator.pool_block(block_id)], found=False)
        return self.get(block_id)

    def decr(self, block_id: int) -> int:
        """Drops a reference; returns the remaining count.

        Raises:
            BlockStateError: The block is not held.
            ValueError: Not a block of this allocator.
        """
        self._allocator.pool.release([self._allocator.pool_block(block_id)])
        return self.get(block_id)

    def as_readonly(self) -> ReadOnlyRefCounter:
        """A read-only view of the counts."""
        return ReadOnlyRefCounter(self._allocator)


class CopyOnWriteTracker:
    """Tracks the blocks to copy before the next forward."""

    __slots__ = ("_allocator",)

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator

    def is_appendable(self, block: Block) -> bool:
        """Whether tokens can be added to the block without moving it."""
        return self._allocator.is_appendable(block)

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """As in ``BlockAllocator.cow_block_if_not_appendable``."""
        return self._allocator.cow_block_if_not_appendable(block)

    def clear_cows(self) -> dict[int, list[int]]:
        """As in ``BlockAllocator.clear_copy_on_writes``."""
        return self._allocator.clear_copy_on_writes()


class HitCounter:
    """Counts full blocks looked up, and those of them that were cached."""

    __slots__ = ("num_hits", "num_queries")

    num_queries: int
    """Full blocks looked up."""

    num_hits: int
    """Number of those that were cached."""

    def __init__(self) -> None:
        self.restart()

    def count(self, num_queries: int, num_hits: int) -> None:
        """Adds a look-up of this many blocks."""
        self.num_queries += num_queries
        self.num_hits += num_hits

    def restart(self) -> None:
        """Resets the counts to 0."""
        self.num_queries = self.num_hits = 0

    @property
    def hit_rate(self) -> float:
        """Hits over queries since the last reset, in ``0 … 1``; 0 without queries."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0
