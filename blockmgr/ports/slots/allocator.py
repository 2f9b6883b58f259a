"""Slots for whole sequences, with versions."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from blockmgr.arguments import whole
from blockmgr.config import MAX_BLOCKS
from blockmgr.errors import BlockStateError
from blockmgr.pool import BlockPool
from blockmgr.ports.locking import exclusive, new_mutex

__all__ = ["SlotAllocator"]


class _Cache(Protocol):
    """An object that is notified when slots lose their content."""

    def _shrink(self, slot: int, keep: int) -> None: ...


class SlotAllocator:
    """Hands out slots, each for one whole sequence. Calls of several threads wait for one another.

    Args:
        max_slots: Number of slots, at least 1.

    Raises:
        ValueError: ``max_slots`` out of its bounds.
        TypeError: ``max_slots`` is not an int.

    >>> slots = SlotAllocator(max_slots=2)
    >>> slots.alloc(), slots.alloc(), slots.alloc()
    (0, 1, -1)
    >>> slots.free(0)
    >>> slots.alloc(), slots.version(0)
    (0, 2)
    """

    __slots__ = ("_caches", "_mutex", "_occupied", "_pool", "_versions")

    def __init__(self, max_slots: int) -> None:
        count = whole("max_slots", max_slots, 1, MAX_BLOCKS)
        # A slot is a block, cached under its own number: so an unused slot keeps its content until
        # it is the next in the eviction order, and can be taken by its number.
        self._pool = BlockPool(count, 1)
        everything = self._pool.take(count)
        everything.sort()
        for slot in everything.tolist():
            self._pool.promote(slot, [slot])
        self._pool.release(everything)
        self._occupied: set[int] = set()
        self._versions = [0] * count
        self._caches: WeakSet[_Cache] = WeakSet()
        self._mutex = new_mutex()

    def __repr__(self) -> str:
        return f"<SlotAllocator: {len(self._versions)} slots, {self.free_count} free>"

    @exclusive
    def alloc(self) -> int:
        """Takes the slot that was freed the longest ago; its version grows by one.

        Returns:
            The slot; -1 if all are occupied or pinned.
        """
        # Every available slot is idle, and keeps the number that it is cached under.
        first = self._pool.idle_blocks(1).tolist()
        if not first:
            return -1
        slot: int = first[0]
        self._occupy(slot, 0)
        self._versions[slot] += 1
        return slot

    @exclusive
    def free(self, idx: int) -> None:
        """Frees a slot. Its content can be found until the slot is handed out again.

        Raises:
            BlockStateError: The slot is not occupied.
            ValueError: There is no such slot.
        """
        slot = self._checked("idx", idx)
        if slot not in self._occupied:
            raise BlockStateError(slot, "is not occupied; it was freed, or never allocated")
        self._pool.release([slot])
        self._occupied.remove(slot)

    @exclusive
    def occupy(self, idx: int, prefix_len: int = 0) -> None:
        """Takes this free slot for a sequence with the same prefix; keeps its version.

        Args:
            idx: A free slot.
            prefix_len: Leading tokens that will not be overwritten; caches attached to these slots
                still find them, but nothing beyond.

        Raises:
            BlockStateError: The slot is occupied, or pinned.
            ValueError: There is no such slot, or ``prefix_len`` below 0.
        """
        slot = self._checked("idx", idx)
        keep = whole("prefix_len", prefix_len, 0, MAX_BLOCKS)
        if not self.is_free(slot):
            raise BlockStateError(slot, "is not free; it is occupied, or pinned by a cache")
        self._occupy(slot, keep)

    @exclusive
    def is_free(self, idx: int) -> bool:
        """Whether the slot is neither occupied nor pinned.

        Raises:
            ValueError: There is no such slot.
        """
        return self._pool.ref_count(self._checked("idx", idx)) == 0

    @exclusive
    def version(self, idx: int) -> int:
        """How often ``alloc`` has handed out the slot.

        Raises:
            ValueError: There is no such slot.
        """
        return self._versions[self._checked("idx", idx)]

    @property
    def free_count(self) -> int:
        """Number of slots that are neither occupied nor pinned."""
        return self._pool.num_available

    @exclusive
    def check_invariants(self) -> None:
        """Recomputes and checks the state of the core.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
        """
        self._pool.check_invariants()

    def _occupy(self, slot: int, keep: int) -> None:
        """Takes an idle slot, and keeps this many leading tokens of its content."""
        for cache in self._caches:
            cache._shrink(slot, keep)
        self._pool.acquire([slot])
        self._occupied.add(slot)

    def _checked(self, name: str, slot: int) -> int:
        return whole(name, slot, 0, len(self._versions) - 1)
