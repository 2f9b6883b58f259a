"""The blocks of a sequence: as columns, and as callers see them, positions in a ``BlockList``.

So a fork of ten thousand blocks copies columns instead of creating ten thousand objects, and chains
of blocks need no recursion.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, overload

import numpy as np
import xxhash

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError, OutOfBlocksError
from blockmgr.ports.aphrodite.interfaces import (
    NoFreeBlocksError,
    checked_extra,
    extra_bytes,
    whole_tokens,
)

if TYPE_CHECKING:
    from blockmgr.pool import BlockPool

__all__ = [
    "CACHED",
    "FREED",
    "WAITING",
    "Allocator",
    "Block",
    "BlockList",
    "BlockView",
    "NaiveBlock",
    "NullBlock",
    "PrefixCachingBlock",
]

FREED = -1
"""The entry of a list in place of a freed block."""

CACHED, WAITING = 1, 2
"""States of a block: found by its prefix; full, and not cached yet."""

_DIGEST_BYTES = 16


class Allocator(Protocol):
    """The parts of a ``BlockAllocator`` that its blocks and tables use."""

    block_class: type[Block]
    block_size: int
    caches: ClassVar[bool]
    pool: BlockPool
    waiting: dict[BlockList, None]

    def physical_id(self, block: int) -> int:
        """The caller's id of a block of the pool."""

    def physical_ids(self, blocks: list[int]) -> list[int]:
        """The callers' ids of blocks of the pool."""

    def is_computed(self, block: int) -> bool:
        """Whether a block is cached and its K/V was marked as computed."""

    def progress(self, done: list[int], rest: list[int]) -> None:
        """Records the blocks that the next forward writes."""

    def promote(self, blocks: BlockList, index: int) -> None:
        """Caches a full block, or makes it wait."""

    def cached_prefix(
        self, tokens: tuple[int, ...], parent: int | None, extra: int | None
    ) -> list[int]:
        """The leading blocks among these tokens that are cached."""

    def cache_prompt(
        self, blocks: BlockList, start: int, parent: int | None, tokens: tuple[int, ...], found: int
    ) -> None:
        """Caches the full blocks that a list got from ``start`` on."""


class BlockList:
    """Consecutive blocks of one sequence.

    Attributes:
        allocator: Allocator of the blocks.
        prev_block: The block before the first one.
        blocks: Blocks of the pool; ``FREED`` in place of freed ones.
        tokens: The tokens of each block.
        states: ``CACHED``, ``WAITING`` or 0 for each block that is not freed.
        extras: The extra keys, by index; few blocks have one.
        hashes: ``content_hash`` by index, for blocks whose hash a caller has read.
    """

    __slots__ = (
        "_views", "allocator", "blocks", "extras", "hashes", "prev_block", "states", "tokens",
    )  # fmt: skip

    def __init__(self, allocator: Allocator, prev_block: Block | None = None) -> None:
        self.allocator = allocator
        self.prev_block = prev_block
        self.blocks: list[int] = []
        self.tokens: list[tuple[int, ...]] = []
        self.states = bytearray()
        self.extras: dict[int, int] = {}
        self.hashes: dict[int, int] = {}
        self._views: dict[int, weakref.ref[Block]] = {}

    def before(self, index: int) -> tuple[BlockList, int] | None:
        """The position of the previous block; None at the start of a sequence."""
        if index:
            return self, index - 1
        return None if self.prev_block is None else self.prev_block.position

    def parent(self, index: int) -> int | None:
        """The cached block before a position; -1 at the start; None if it is not cached."""
        if (position := self.before(index)) is None:
            return -1
        blocks, at = position
        block = blocks.blocks[at]
        return block if blocks.states[at] == CACHED and block != FREED else None

    def view(self, index: int) -> Block:
        """The block at this position."""
        block = self._views[index]() if index in self._views else None
        if block is None:
            block = self.allocator.block_class(self, index)
            self._views[index] = weakref.ref(block)
        return block

    def extend(self, tokens: tuple[int, ...], extra_hash: int | None) -> None:
        """Adds blocks with these tokens at the end; full ones that are cached are shared."""
        checked_extra(extra_hash)
        allocator, size, start = self.allocator, self.allocator.block_size, len(self.blocks)
        parent = self.parent(start)
        if parent is None and tokens and (position := self.before(start)):
            blocks, at = position
            if num_empty := size - len(blocks.tokens[at]):
                raise BlockStateError(blocks.blocks[at], f"prev_block has {num_empty} empty slots")
        found = allocator.cached_prefix(tokens, parent, extra_hash)
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
        self._add(found + pool.take(num_fresh).tolist() if num_fresh else found, chunks, extra_hash)
        if allocator.caches and len(tokens) >= size:
            allocator.cache_prompt(self, start, parent, tokens, len(found))

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
        self.states += bytes(len(blocks))
        if extra is not None:
            self.extras.update(dict.fromkeys(range(start, start + len(blocks)), extra))

    def fill(self, index: int, tokens: tuple[int, ...]) -> None:
        """Puts tokens into the next empty slots of a block, which has that many."""
        self.make_writable(index)
        self.tokens[index] += tokens
        if self.allocator.caches and len(self.tokens[index]) == self.allocator.block_size:
            self.allocator.promote(self, index)

    def make_writable(self, index: int) -> None:
        """Moves a block to a copy of its own if it is shared."""
        pool, block = self.allocator.pool, self.blocks[index]
        try:
            self.blocks[index] = pool.make_writable(block, len(self.tokens[index]))
        except OutOfBlocksError as error:
            raise NoFreeBlocksError(error.needed, error.available) from None

    @staticmethod
    def fork(parts: list[tuple[BlockList, int]]) -> BlockList:
        """A list that shares the first blocks of each part; freed blocks stay freed."""
        allocator = parts[0][0].allocator
        copy = BlockList(allocator)
        for part, count in parts:
            start = len(copy.blocks)
            copy.blocks += part.blocks[:count]
            copy.tokens += part.tokens[:count]
            copy.states += part.states[:count]
            copy.extras.update((start + i, x) for i, x in part.extras.items() if i < count)
            copy.hashes.update((start + i, x) for i, x in part.hashes.items() if i < count)
        allocator.pool.acquire(_not_freed(copy.blocks), found=False)
        if WAITING in copy.states:
            allocator.waiting[copy] = None
        return copy

    def free(self, start: int, stop: int) -> None:
        """Frees the blocks of a part that are not freed yet, the last first."""
        part = self.blocks[start:stop]
        # Forgotten first: a release that was interrupted must not be repeated, because other
        # sequences may share the blocks.
        self.blocks[start:stop] = [FREED] * len(part)
        try:
            self.allocator.pool.release(_not_freed(part)[::-1])
        except BlockStateError:  # their references were dropped by ``RefCounter.decr``
            self.blocks[start:stop] = part
            raise


def _not_freed(blocks: list[int]) -> list[int]:
    return [block for block in blocks if block != FREED] if FREED in blocks else blocks


class Block(ABC):
    """One block of a sequence, and the tokens in it. Only allocators make blocks.

    It is created when a caller reads it, and stays the same object while a caller keeps it.
    """

    __slots__ = ("__weakref__", "_blocks", "_index")

    def __init__(self, blocks: BlockList, index: int) -> None:
        self._blocks = blocks
        self._index = index

    def __repr__(self) -> str:
        tokens = f"{len(self._tokens)} of {self.block_size} tokens"
        return f"<{type(self).__name__} {self.block_id}: {tokens}>"

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Puts tokens into the next empty slots: at least one, at most ``num_empty_slots``.

        A shared block is moved to a copy first, for ``clear_copy_on_writes``. When a block of a
        prefix caching allocator becomes full, it becomes findable, and its ``block_id`` may change
        to that of an equal cached block.

        Raises:
            NoFreeBlocksError: The block is shared, and none is free to copy it to.
            BlockStateError: The block was freed.
            ValueError: No tokens, too many, or one out of ``[0, 2**32)``.
            TypeError: A token that is not an int.
        """
        tokens, empty = whole_tokens(token_ids), self.num_empty_slots
        if not 0 < len(tokens) <= empty:
            raise ValueError(f"token_ids must have 1 to {empty} tokens, got {len(tokens)}")
        self.in_pool()  # raises if the block was freed
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
        return block != FREED and self._blocks.allocator.is_computed(block)

    @property
    def position(self) -> tuple[BlockList, int]:
        """The list and the index in it."""
        return self._blocks, self._index

    def in_pool(self) -> int:
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


class NaiveBlock(Block):
    """A block that is not shared by content."""

    __slots__ = ()

    @property
    def content_hash(self) -> int | None:
        """None: such blocks cannot be found by content."""
        return None


class NullBlock(NaiveBlock):
    """Replaces a block that is outside the window; never written or freed, so it stays empty."""

    __slots__ = ()

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Always raises: the null block is never written."""
        raise BlockStateError(self.in_pool(), "the null block is never written")


class PrefixCachingBlock(Block):
    """A block that can be found by its prefix once it is full."""

    __slots__ = ()

    @property
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None before it is full.

        It does not decide sharing: all tokens are compared first. The first call takes O(blocks).
        """
        before: int | None = None
        for blocks, count in self.parts():
            for i in range(count):
                if i not in blocks.hashes:
                    tokens = blocks.tokens[i]
                    if len(tokens) < self.block_size:
                        return None
                    blocks.hashes[i] = self.hash_block_tokens(
                        before is None, before, tokens, blocks.extras.get(i)
                    )
                before = blocks.hashes[i]
        return before

    @staticmethod
    def hash_block_tokens(
        is_first_block: bool,
        prev_block_hash: int | None,
        cur_block_token_ids: Sequence[int],
        extra_hash: int | None = None,
    ) -> int:
        """The ``content_hash`` of a block: xxh3_128 in the layout of ``blockmgr.digest``.

        The same in every process and on every machine.

        Args:
            is_first_block: Whether the block begins a sequence.
            prev_block_hash: ``content_hash`` of the previous block; None only for the first block.
            cur_block_token_ids: The tokens of the block, each in ``[0, 2**32)``.
            extra_hash: Extra key of the block.

        Raises:
            ValueError: A previous hash for a first block, or none for a later one; a token out of
                bounds.
            TypeError: A token, a hash or an extra hash that is not an int.
        """
        if (prev_block_hash is None) is not is_first_block:
            raise ValueError(
                "prev_block_hash must be None for a first block and for no other, got "
                f"{prev_block_hash} with is_first_block={is_first_block}"
            )
        key = extra_bytes(checked_extra(extra_hash))
        tokens = np.array(whole_tokens(cur_block_token_ids), "<u4").tobytes()
        before = 0
        if prev_block_hash is not None:
            before = whole("prev_block_hash", prev_block_hash, 0, 2 ** (8 * _DIGEST_BYTES) - 1)
        message = before.to_bytes(_DIGEST_BYTES, "little") + key + tokens
        return int.from_bytes(xxhash.xxh3_128_digest(message), "little")


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
        at = self._range[index]
        return [*map(self._blocks.view, at)] if isinstance(at, range) else self._blocks.view(at)

    def __repr__(self) -> str:
        return f"<{len(self)} blocks: {[block.block_id for block in self]}>"
