"""Reference counts and copy-on-write as separate objects: views of an allocator's pool."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, TypeVar

from blockmgr.changes import at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.blocks import CopyPlan
    from blockmgr.changes import Change
    from blockmgr.ports.aphrodite.interfaces import Block
    from blockmgr.ports.aphrodite.pool_allocator import PoolAllocator

__all__ = ["CopyOnWriteTracker", "HitCounter", "ReadOnlyRefCounter", "RefCounter"]

T = TypeVar("T")


class ReadOnlyRefCounter:
    """The number of references to each physical block."""

    __slots__ = ("_allocator",)

    def __init__(self, allocator: PoolAllocator) -> None:
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
        pool, block = self._allocator.pool, self._allocator.pool_block(block_id)
        count = pool.ref_count(block) + 1
        return at_once(((pool.compiled.acquire, (block,), False),), count)

    def decr(self, block_id: int) -> int:
        """Drops a reference; returns the remaining count.

        Raises:
            BlockStateError: The block is not held.
            ValueError: Not a block of this allocator.
        """
        pool, block = self._allocator.pool, self._allocator.pool_block(block_id)
        count = pool.ref_count(block) - 1
        return at_once(((pool.compiled.release, (block,)),), count)

    def as_readonly(self) -> ReadOnlyRefCounter:
        """A read-only view of the counts."""
        return ReadOnlyRefCounter(self._allocator)


class CopyOnWriteTracker:
    """Tracks the blocks to copy before the next forward."""

    __slots__ = ("_allocator",)

    def __init__(self, allocator: PoolAllocator) -> None:
        self._allocator = allocator

    def is_appendable(self, block: Block) -> bool:
        """Whether tokens can be added to the block without moving it."""
        return self._allocator.is_appendable(block)

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """As in ``BlockAllocator.cow_block_if_not_appendable``."""
        return self._allocator.cow_block_if_not_appendable(block)

    def clear_cows(self) -> dict[int, list[int]]:
        """As in ``BlockAllocator.clear_copy_on_writes``."""
        return self.hand_out(lambda copies: copies)

    def hand_out(self, form: Callable[[dict[int, list[int]]], T]) -> T:
        """``clear_cows``, in another form."""
        pool, name = self._allocator.pool, self._allocator.ids.of
        plans: list[CopyPlan] = []
        try:
            # Recorded in the same instruction.
            plans.extend(starmap(pool.compiled.take_copies, ((),)))
            copies: dict[int, list[int]] = {}
            for source, destination, _ in plans[0]:
                copies.setdefault(name(source), []).append(name(destination))
            # The plan includes all planned copies, so no block waits for a copy after it.
            applied = (pool.compiled.copies_applied, plans[0].ticket)
            promoted = self._allocator.prefix_cache.promote_waiting()
            return at_once([applied, *promoted, (plans.clear,)], form(copies))
        except BaseException:
            for plan in plans:
                pool.copies_aborted(plan.ticket)
            raise


class HitCounter:
    """Counts full blocks looked up, and those of them that were cached."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0, 0]

    @property
    def num_queries(self) -> int:
        """Full blocks looked up."""
        return self._counts[0]

    @property
    def num_hits(self) -> int:
        """Number of those that were cached."""
        return self._counts[1]

    def count(self, num_queries: int, num_hits: int) -> Change:
        """Adds a look-up of this many blocks."""
        counts = [self._counts[0] + num_queries, self._counts[1] + num_hits]
        return (self._counts.__setitem__, slice(None), counts)

    def restart(self) -> Change:
        """Resets the counts to 0."""
        return (self._counts.__setitem__, slice(None), [0, 0])

    @property
    def hit_rate(self) -> float:
        """Hits over queries since the last reset, in ``0 … 1``; 0 without queries."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0
