"""Which full blocks are cached, which of those are computed, and which wait to be cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from blockmgr.ports.aphrodite.tokens import extra_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.pool import BlockPool
    from blockmgr.ports.aphrodite.blocks import Run

__all__ = ["PrefixCache"]

Place: TypeAlias = tuple["Run", int]


class PrefixCache:
    """What one allocator knows of the prefixes in its pool.

    A full block is cached at once, unless it waits for a copy, or follows a block that waits: then
    it is cached when the copies are taken.
    """

    __slots__ = ("_pool", "_uncomputed", "_waiting")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._uncomputed: set[int] = set()  # cached blocks whose K/V was not marked computed
        self._waiting: dict[tuple[Run, int], int] = {}  # and the block that stood there

    def node(self, place: Place | None) -> int | None:
        """The cached block at a place; -1 in front of a sequence; None if it is not cached."""
        if place is None:
            return -1
        run, index = place
        return run.blocks[index] if run.promoted[index] else None

    def promote(self, run: Run, index: int) -> None:
        """Caches a full block, or makes it wait."""
        if run.promoted[index]:
            return
        parent = self.node(run.place_before(index))
        own = run.blocks[index]
        if parent is None or self._pool.waits_for_copy(own):
            self._waiting[run, index] = own
            return
        extras = extra_bytes(run.extras.get(index))
        kept = self._pool.promote(own, run.tokens[index], parent=parent, extras=extras)
        run.blocks[index] = kept
        run.promoted[index] = 1
        if kept == own:
            self._uncomputed.add(own)

    def promote_waiting(self) -> None:
        """Tries again with what waits, in order. Blocks given back since wait no more."""
        waiting, self._waiting = self._waiting, {}
        for (run, index), block in waiting.items():
            if run.blocks[index] == block:
                self.promote(run, index)

    def fork(self, sources: list[tuple[Run, int]], copy: Run) -> None:
        """Lets what waits in these runs wait in a copy of them as well."""
        start = 0
        for run, stop in sources:
            for (waiting, index), block in list(self._waiting.items()):
                if waiting is run and index < stop:
                    self._waiting[copy, start + index] = block
            start += stop

    def leave(self, run: Run) -> None:
        """Takes note that the blocks of a run are not of this pool any more."""
        for place in [place for place in self._waiting if place[0] is run]:
            del self._waiting[place]

    def add(self, blocks: list[int]) -> None:
        """Takes note of blocks that have just been cached."""
        self._uncomputed.update(blocks)

    def is_computed(self, block: int) -> bool:
        """Whether a block is cached, and its K/V was marked computed."""
        return self._pool.is_cached(block) and block not in self._uncomputed

    def mark_computed(self, blocks: Iterable[int] | None) -> None:
        """Marks blocks computed, as far as they are cached; None: all of them."""
        if blocks is None:
            self._uncomputed.clear()
            return
        for block in blocks:
            if self._pool.is_cached(block):
                self._uncomputed.discard(block)

    def reset(self) -> bool:
        """Forgets everything cached, if no block is in use; says whether it did."""
        if self._pool.num_used:
            return False
        self._pool.reset()
        self._uncomputed.clear()
        self._waiting.clear()
        return True
