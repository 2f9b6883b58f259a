"""Moves sequences from one pool to another."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from blockmgr.errors import BlockStateError
from blockmgr.ports.aphrodite.caching import FREED
from blockmgr.ports.aphrodite.interfaces import NoFreeBlocksError
from blockmgr.ports.aphrodite.tokens import extra_bytes

if TYPE_CHECKING:
    from blockmgr.ports.aphrodite.block import BlockList
    from blockmgr.ports.aphrodite.block_allocator import BlockAllocator

__all__ = ["Swap"]


class _Sequence(NamedTuple):
    """A sequence to move."""

    lists: list[BlockList]
    olds: list[int]
    """Its blocks at the source."""
    num_cached: int
    """Number of leading blocks that are cached there."""
    found: list[int]
    """The blocks of its cached prefix that are cached at the destination already."""
    shared: list[int]
    """The blocks after these that an earlier sequence brings there."""

    @property
    def num_fresh(self) -> int:
        """Blocks taken for the other tokens."""
        num_held = len(self.olds) - self.olds.count(FREED)
        return num_held - len(self.found) - len(self.shared)


class Swap:
    """Counts what sequences need in the other pool; then moves them all, or none.

    Args:
        source: Their allocator.
        destination: Allocator to move them to.
        sequences: The lists of blocks of each sequence.

    Raises:
        BlockStateError: A block waits for a copy.
    """

    num_taken: int
    """Number of available blocks that it takes at the destination."""

    num_held: int
    """Number of different blocks that the sequences hold there afterwards."""

    def __init__(
        self, source: BlockAllocator, destination: BlockAllocator, sequences: list[list[BlockList]]
    ) -> None:
        self._source, self._destination = source, destination
        brought: set[int] = set()
        self._sequences = [self._counted(lists, brought) for lists in sequences]
        found = sorted({block for each in self._sequences for block in each.found})
        num_fresh = sum(each.num_fresh for each in self._sequences)
        self.num_taken = num_fresh + int(destination.pool.is_idle(found).sum())
        self.num_held = num_fresh + len(found)

    def _counted(self, lists: list[BlockList], brought: set[int]) -> _Sequence:
        olds = [block for blocks in lists for block in blocks.blocks]
        for block in olds:
            if block != FREED and self._source.pool.waits_for_copy(block):
                raise BlockStateError(block, "it waits for a copy; clear_copy_on_writes first")
        cached = [flag for blocks in lists for flag in blocks.cached]
        num_cached = sum(
            1 for _ in takewhile(all, zip(cached, (b != FREED for b in olds), strict=True))
        )
        tokens, keys = _contents(lists, 0, num_cached)
        found = self._destination.pool.find(tokens, extras=keys or None).tolist()
        # Blocks shared with an earlier sequence are cached and copied there by then.
        shared = list(takewhile(brought.__contains__, olds[len(found) : num_cached]))
        brought.update(olds[:num_cached])
        return _Sequence(lists, olds, num_cached, found, shared)

    def carry_out(self) -> list[tuple[int, int]]:
        """Moves the sequences; returns the copies to run, pairs of blocks of the two pools.

        Raises:
            NoFreeBlocksError: The destination has too few blocks available.
        """
        pool = self._destination.pool
        if self.num_taken > pool.num_available:
            raise NoFreeBlocksError(self.num_taken, pool.num_available)
        for each in self._sequences:  # first, so that no found block is evicted to make room
            pool.acquire(each.found)
        moved: dict[int, int] = {}
        return [pair for each in self._sequences for pair in self._move(each, moved)]

    def _move(self, seq: _Sequence, moved: dict[int, int]) -> list[tuple[int, int]]:
        source, destination = self._source, self._destination
        shared = [moved[old] for old in seq.shared]
        destination.pool.acquire(shared, found=False)
        ready = {*filter(destination.is_computed, seq.found), *shared}
        present = seq.found + shared
        fresh = destination.pool.take(seq.num_fresh).tolist()
        arrived = iter(present + fresh)
        news = [FREED if old == FREED else next(arrived) for old in seq.olds]
        if late := news[len(present) : seq.num_cached]:
            tokens, keys = _contents(seq.lists, len(present), seq.num_cached)
            parent = present[-1] if present else -1
            destination.pool.promote(late, tokens, parent=parent, extras=keys or None)
        cached = list(zip(seq.olds, news, strict=True))[: seq.num_cached]
        moved.update(cached)
        copied = [(old, new) for old, new in cached if new not in ready]
        destination.prefix_cache.arrive(
            [new for _, new in copied], {new for old, new in copied if source.is_computed(old)}
        )
        at = 0
        for blocks in seq.lists:
            count = len(blocks.blocks)
            source.prefix_cache.leave(blocks)
            blocks.allocator = destination
            blocks.blocks[:] = news[at : at + count]
            blocks.cached[:] = bytes(at + i < seq.num_cached for i in range(count))
            at += count
        source.pool.release([old for old in reversed(seq.olds) if old != FREED])
        return [
            (old, new)
            for old, new in zip(seq.olds, news, strict=True)
            if old != FREED and new not in ready
        ]


def _contents(lists: list[BlockList], start: int, stop: int) -> tuple[list[int], dict[int, bytes]]:
    """The tokens of some blocks of a sequence, and their extra keys by index from ``start``."""
    chunks = [chunk for blocks in lists for chunk in blocks.tokens][start:stop]
    extras = [blocks.extras.get(i) for blocks in lists for i in range(len(blocks.blocks))]
    keys = {i: extra_bytes(extra) for i, extra in enumerate(extras[start:stop])}
    tokens = [token for chunk in chunks for token in chunk]
    return tokens, {i: key for i, key in keys.items() if key}
