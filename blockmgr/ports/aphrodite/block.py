"""The blocks of a sequence: as columns, and as callers see them, positions in a ``BlockList``.

So a fork of ten thousand blocks copies columns instead of creating ten thousand objects, and chains
of blocks need no recursion.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, overload

from blockmgr.errors import BlockStateError, OutOfBlocksError
from blockmgr.ports.aphrodite.caching import FREED
from blockmgr.ports.aphrodite.interfaces import NoFreeBlocksError
from blockmgr.ports.aphrodite.tokens import checked_extra, whole_tokens

if TYPE_CHECKING:
    from blockmgr.pool import BlockPool
    from blockmgr.ports.aphrodite.caching import HitCounter, PrefixCache

__all__ = ["Allocator", "Block", "BlockList", "BlockView", "NullBlock"]


class Allocator(Protocol):
    """What blocks use of their allocator."""

    block_class: type[Block]
    block_size: int
    pool: BlockPool
    hits: HitCounter
    prefix_cache: PrefixCache

    @property
    def caches(self) -> bool:
        """Whether blocks can be found by their prefix."""

    def physical_id(self, block: int) -> int:
        """The caller's id of a block of the pool."""

    def physical_ids(self, blocks: list[int]) -> list[int]:
        """The callers' ids of blocks of the pool, as a new list."""


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

    def __init__(self, allocator: Allocator, prev_block: Block | None = None) -> None:
        self.allocator = allocator
        self.prev_block = prev_block
        self.blocks: list[int] = []
        self.tokens: list[tuple[int, ...]] = []
        self.cached = bytearray()
        self.extras: dict[int, int] = {}
        self.hashes: dict[int, int] = {}
        self._views: dict[int, weakref.ref[Block]] = {}

    def place_before(self, index: int) -> tuple[BlockList, int] | None:
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


class Block(ABC):
    """One block of a sequence, and the tokens in it. Only allocators make blocks.

    It is created when a caller reads it, and stays the same object while a caller holds it.
    """

    __slots__ = ("__weakref__", "_blocks", "_index")

    def __init__(self, blocks: BlockList, index: int) -> None:
        self._blocks = blocks
        self._index = index

    def __repr__(self) -> str:
        tokens = f"{len(self._tokens)} of {self.block_size} tokens"
        return f"<{type(self).__name__} {self.block_id}: {tokens}>"

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Puts tokens into the next empty slots.

        A shared block is moved to a copy first. When a block of a prefix caching allocator becomes
        full, it becomes findable, and its ``block_id`` may change to that of an equal cached block.

        Args:
            token_ids: At least one, and no more than ``num_empty_slots``.

        Raises:
            NoFreeBlocksError: The block is shared, and none is free to copy it to.
            BlockStateError: The block was freed.
            ValueError: No tokens, too many, or one out of ``[0, 2**32)``.
            TypeError: A token that is not an int.

        Leaves:
            A copy, for ``clear_copy_on_writes``.
        """
        tokens, empty = whole_tokens(token_ids), self.num_empty_slots
        if not 0 < len(tokens) <= empty:
            raise ValueError(f"token_ids must have 1 to {empty} tokens, got {len(tokens)}")
        self.held()  # raises if the block was freed
        self._blocks.fill(self._index, tokens)

    @property
    def block_id(self) -> int | None:
        """The physical block; None once freed."""
        block = self._blocks.blocks[self._index]
        return None if block == FREED else self._blocks.allocator.physical_id(block)

    @property
    def _tokens(self) -> tuple[int, ...]:
        return self._blocks.tokens[self._index]

    @property
    def token_ids(self) -> list[int]:
        """The tokens in the block, a copy."""
        return list(self._tokens)

    @property
    def num_tokens_total(self) -> int:
        """Tokens in the block and in all before it."""
        return sum(len(t) for blocks, count in self.parts() for t in blocks.tokens[:count])

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self._blocks.allocator.block_size

    @property
    def num_empty_slots(self) -> int:
        """Slots without a token."""
        return self.block_size - len(self._tokens)

    @property
    def is_full(self) -> bool:
        """Whether every slot has a token."""
        return self.num_empty_slots == 0

    @property
    def prev_block(self) -> Block | None:
        """The block before this one in its sequence."""
        return self._blocks.view(self._index - 1) if self._index else self._blocks.prev_block

    @property
    def extra_hash(self) -> int | None:
        """Extra key of the block, besides its tokens: an adapter, an image."""
        return self._blocks.extras.get(self._index)

    @property
    @abstractmethod
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None before it is full."""

    @property
    def computed(self) -> bool:
        """Whether the block is cached and its K/V was marked as computed."""
        block = self._blocks.blocks[self._index]
        return block != FREED and self._blocks.allocator.prefix_cache.is_computed(block)

    @property
    def place(self) -> tuple[BlockList, int]:
        """The list and the index in it."""
        return self._blocks, self._index

    def held(self) -> int:
        """The pool's block; raises if the block was freed."""
        block = self._blocks.blocks[self._index]
        if block == FREED:
            raise BlockStateError(FREED, "the block was freed, and holds nothing")
        return block

    def parts(self) -> list[tuple[BlockList, int]]:
        """The lists of the sequence up to this block, with the number of blocks of each."""
        found: list[tuple[BlockList, int]] = []
        block: Block | None = self
        while block is not None:
            found.append((block._blocks, block._index + 1))
            block = block._blocks.prev_block
        return found[::-1]


class NullBlock(Block):
    """Replaces a block that is outside the window; never written or freed, so it stays empty."""

    __slots__ = ()

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Always raises: the null block is never written."""
        raise BlockStateError(self.held(), "the null block is never written")

    @property
    def content_hash(self) -> int | None:
        """None."""
        return None


class BlockView(Sequence[Block]):
    """Consecutive blocks of one sequence, made as they are read; otherwise like a tuple."""

    __slots__ = ("_blocks", "_range")

    def __init__(self, blocks: BlockList, start: int = 0) -> None:
        self._blocks = blocks
        self._range = range(start, len(blocks.blocks))

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        places = self._range[index]
        if isinstance(places, range):
            return [self._blocks.view(place) for place in places]
        return self._blocks.view(places)

    def __iter__(self) -> Iterator[Block]:
        return map(self._blocks.view, self._range)

    def __repr__(self) -> str:
        return f"<{len(self)} blocks: {[block.block_id for block in self]}>"
