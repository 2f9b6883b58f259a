"""The blocks of a sequence as columns, and the changes that allocators and tables make to them.

So a fork of ten thousand blocks copies columns instead of creating ten thousand objects, and chains
of blocks need no recursion.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, TypeAlias

from blockmgr.errors import BlockStateError, OutOfBlocksError
from blockmgr.ports.aphrodite.interfaces import NoFreeBlocksError
from blockmgr.ports.aphrodite.tokens import checked_extra

if TYPE_CHECKING:
    from blockmgr.ports.aphrodite.block import Block
    from blockmgr.ports.aphrodite.block_allocator import BlockAllocator

__all__ = ["FREED", "BlockList", "Place"]

FREED = -1
"""The entry of a list in place of a freed block."""

Place: TypeAlias = tuple["BlockList", int]
"""A list and an index in it."""


class BlockList:
    """Consecutive blocks of one sequence.

    Attributes:
        allocator: Allocator of the blocks.
        prev_block: The block before the first one.
        blocks: Blocks of the pool; ``FREED`` in place of freed ones.
        tokens: The tokens of each block.
        cached: Whether each block, unless freed, is cached under this prefix; 0 or 1.
        extras: The extra keys, by index; few blocks have one.
        hashes: ``content_hash`` by index, for blocks whose hash a caller has read.
    """

    __slots__ = (
        "_views", "allocator", "blocks", "cached", "extras", "hashes", "prev_block", "tokens",
    )  # fmt: skip

    def __init__(self, allocator: BlockAllocator, prev_block: Block | None = None) -> None:
        self.allocator = allocator
        self.prev_block = prev_block
        self.blocks: list[int] = []
        self.tokens: list[tuple[int, ...]] = []
        self.cached = bytearray()
        self.extras: dict[int, int] = {}
        self.hashes: dict[int, int] = {}
        self._views: dict[int, weakref.ref[Block]] = {}

    def place_before(self, index: int) -> Place | None:
        """The position of the previous block; None at the start of a sequence."""
        if index:
            return self, index - 1
        return None if self.prev_block is None else self.prev_block.place

    def view(self, index: int) -> Block:
        """The block at this position."""
        views = self._views
        block = views[index]() if index in views else None
        if block is None:
            block = self.allocator.block_class(self, index)
            views[index] = weakref.ref(block)
        return block

    # Growth.

    def extend(self, tokens: tuple[int, ...], extra_hash: int | None) -> None:
        """Adds blocks with these tokens at the end; full ones that are cached are shared."""
        checked_extra(extra_hash)
        allocator, start = self.allocator, len(self.blocks)
        size, last = allocator.block_size, self.place_before(start)
        if last is not None and tokens:
            before, index = last
            if num_empty := size - len(before.tokens[index]):
                raise BlockStateError(
                    before.blocks[index], f"prev_block has {num_empty} empty slots"
                )
        parent = allocator.prefix_cache.node(last)
        found = allocator.prefix_cache.find(tokens, parent, extra_hash)
        chunks = [tokens]
        if len(tokens) != size:
            chunks = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        pool, num_fresh = allocator.pool, len(chunks) - len(found)
        # All counting before any change: idle blocks that are found are no longer available.
        if num_fresh and len(chunks) > pool.num_available:
            needed = num_fresh + int(pool.is_idle(found).sum())
            if needed > pool.num_available:
                raise NoFreeBlocksError(needed, pool.num_available)
        pool.acquire(found)  # first, so that no found block is evicted to make room
        blocks = found + pool.take(num_fresh).tolist() if num_fresh else found
        self._add(blocks, chunks, extra_hash)
        if allocator.caches and len(tokens) >= size:
            allocator.hits.count(len(tokens) // size, len(found))
            allocator.prefix_cache.chain(self, start, parent, tokens, len(found))

    def add_empty(self, n: int, extra_hash: int | None) -> None:
        """Adds empty blocks at the end."""
        checked_extra(extra_hash)
        try:
            fresh = self.allocator.pool.take(n).tolist()
        except OutOfBlocksError as error:
            raise NoFreeBlocksError(error.needed, error.available) from None
        self._add(fresh, [()] * n, extra_hash)

    def _add(self, blocks: list[int], tokens: list[tuple[int, ...]], extra: int | None) -> None:
        start = len(self.blocks)
        self.blocks += blocks
        self.tokens += tokens
        self.cached += bytes(len(blocks))
        if extra is not None:
            self.extras.update(dict.fromkeys(range(start, start + len(blocks)), extra))

    # Writing.

    def fill(self, index: int, tokens: tuple[int, ...]) -> None:
        """Puts tokens into the next empty slots of a block, which has that many."""
        allocator = self.allocator
        self.make_writable(index)
        self.tokens[index] += tokens
        if allocator.caches and len(self.tokens[index]) == allocator.block_size:
            allocator.prefix_cache.promote(self, index)

    def make_writable(self, index: int) -> None:
        """Moves a block to a copy of its own if it is shared."""
        pool, block = self.allocator.pool, self.blocks[index]
        try:
            self.blocks[index] = pool.make_writable(block, len(self.tokens[index]))
        except OutOfBlocksError as error:
            raise NoFreeBlocksError(error.needed, error.available) from None

    # Sharing and release.

    @staticmethod
    def fork(parts: list[tuple[BlockList, int]]) -> BlockList:
        """A list that shares the first blocks of each part; freed blocks stay freed."""
        allocator = parts[0][0].allocator
        copy = BlockList(allocator)
        for part, count in parts:
            start = len(copy.blocks)
            copy.blocks += part.blocks[:count]
            copy.tokens += part.tokens[:count]
            copy.cached += part.cached[:count]
            copy.extras.update((start + i, x) for i, x in part.extras.items() if i < count)
            copy.hashes.update((start + i, x) for i, x in part.hashes.items() if i < count)
        allocator.pool.acquire(_held(copy.blocks), found=False)
        allocator.prefix_cache.fork(parts, copy)
        return copy

    def free(self, start: int, stop: int) -> None:
        """Frees the blocks of a part that are not freed yet, the last first."""
        part = self.blocks[start:stop]
        held = _held(part)[::-1]
        # Forgotten first: a release that was interrupted must not be repeated, because other
        # sequences may share the blocks.
        self.blocks[start:stop] = [FREED] * len(part)
        try:
            self.allocator.pool.release(held)
        except BlockStateError:  # their references were dropped by ``RefCounter.decr``
            self.blocks[start:stop] = part
            raise


def _held(blocks: list[int]) -> list[int]:
    """Those of the blocks that are not freed."""
    return [block for block in blocks if block != FREED] if FREED in blocks else blocks
