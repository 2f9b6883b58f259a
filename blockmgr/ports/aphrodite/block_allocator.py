"""The blocks of sequences, and the allocators of one pool that hand them out.

A ``BlockList`` keeps the blocks of a sequence as columns; callers see positions in it. So a fork of
ten thousand blocks copies columns instead of creating ten thousand objects, and chains of blocks
need no recursion.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from typing import TYPE_CHECKING, ClassVar, overload

import numpy as np
import xxhash

from blockmgr.arguments import integer, whole
from blockmgr.errors import BlockStateError, OutOfBlocksError
from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite.interfaces import (
    NoFreeBlocksError,
    checked_extra,
    extra_bytes,
    whole_tokens,
)

if TYPE_CHECKING:
    from blockmgr.policy import PolicyFactory

__all__ = [
    "CACHED",
    "FREED",
    "Block",
    "BlockAllocator",
    "BlockList",
    "BlockView",
    "NaiveBlock",
    "NaiveBlockAllocator",
    "PrefixCachingBlock",
    "PrefixCachingBlockAllocator",
]

FREED = -1
"""The entry of a list in place of a freed block."""

CACHED, WAITING = 1, 2
"""States of a block: found by its prefix; full, and not cached yet."""

_DIGEST_BYTES = 16


class BlockList:
    """Consecutive blocks of one sequence.

    Attributes:
        allocator: Allocator of the blocks.
        prev_block: The block before the first one.
        blocks: Blocks of the pool; ``FREED`` in place of freed ones.
        tokens: The tokens of each block.
        states: ``CACHED``, ``WAITING`` or 0 for each block that is not freed.
        extras: The extra keys, by index; few blocks have one.
    """

    __slots__ = (
        "_views", "allocator", "blocks", "extras", "prev_block", "states", "tokens",
    )  # fmt: skip

    def __init__(self, allocator: BlockAllocator, prev_block: Block | None = None) -> None:
        self.allocator = allocator
        self.prev_block = prev_block
        self.blocks: list[int] = []
        self.tokens: list[tuple[int, ...]] = []
        self.states = bytearray()
        self.extras: dict[int, int] = {}
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
        allocator.pool.acquire(not_freed(copy.blocks), found=False)
        if WAITING in copy.states:
            allocator.waiting[copy] = None
        return copy

    def free(self, start: int, stop: int) -> None:
        """Frees the blocks of a part that are not freed yet, the last first."""
        part = self.blocks[start:stop]
        # Forgotten first: a release that was interrupted must not be repeated, because other
        # sequences may share the blocks.
        self.blocks[start:stop] = [FREED] * len(part)
        self.allocator.pool.release(not_freed(part)[::-1])


def not_freed(blocks: list[int]) -> list[int]:
    """The blocks of a list that are not freed."""
    return [block for block in blocks if block != FREED] if FREED in blocks else blocks


class Block:
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
        return None if block == FREED else self._blocks.allocator.physical_ids([block])[0]

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
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None if it has none."""
        return None

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
    """A block that is not shared by content; its ``content_hash`` is None."""

    __slots__ = ()


class PrefixCachingBlock(Block):
    """A block that can be found by its prefix once it is full."""

    __slots__ = ()

    @property
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None before it is full.

        It does not decide sharing: all tokens are compared first.

        Cost: O(blocks of the prefix), with one digest for each.
        """
        before: int | None = None
        for blocks, count in self.parts():
            for i, tokens in enumerate(blocks.tokens[:count]):
                if len(tokens) < self.block_size:
                    return None
                extra = blocks.extras.get(i)
                before = self.hash_block_tokens(before is None, before, tokens, extra)
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


class BlockAllocator:
    """Hands out blocks of one pool and takes them back; the base of both allocators.

    A block of another kind, or a value of the wrong type, raises ``TypeError``; a block of another
    allocator, or a value out of its bounds, ``ValueError``.
    Without prefix caching no block is ever cached, so nothing is found or computed.

    A full block is cached immediately, unless it waits for a copy or follows a block that waits:
    then it is cached when the copies are taken.

    Attributes:
        block_class: Class of its blocks.
        caches: Whether blocks can be found by their prefix.
        block_size: Tokens per block.
        pool: The core, whose own block ids begin at 0.
        num_queries: Full blocks looked up by ``allocate_immutable_*``.
        num_hits: Those of them that were found.
        waiting: Lists with full blocks that wait to be cached, as the keys.
    """

    NoFreeBlocksError: ClassVar[type[NoFreeBlocksError]] = NoFreeBlocksError
    block_class: type[Block]
    caches: ClassVar[bool] = False

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None = None,
        *,
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size, prefix_caching=self.caches, eviction=eviction)
        self.block_size = self.pool.block_size
        self._ids = _checked_ids(block_ids, self.pool.num_blocks)
        self._blocks = {block_id: block for block, block_id in enumerate(self._ids)}
        self.num_queries = self.num_hits = 0
        self.waiting: dict[BlockList, None] = {}
        self._uncomputed: set[int] = set()  # cached blocks whose K/V was not marked computed
        # Of those, blocks that no forward has reached yet, by generation.
        self._unwritten: dict[int, int] = {}

    # Allocation.

    def allocate_mutable_block(
        self, prev_block: Block | None = None, extra_hash: int | None = None
    ) -> Block:
        """An empty block after ``prev_block``; evicts a cached block if necessary.

        Raises:
            NoFreeBlocksError: None is available.
        """
        blocks = self._list_after(prev_block)
        blocks.add_empty(1, extra_hash)
        return blocks.view(len(blocks.blocks) - 1)

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        extra_hash: int | None = None,
    ) -> BlockView:
        """A chain of blocks with these tokens; cached ones are shared.

        Args:
            prev_block: The full block they follow; None at the start of a sequence.
            block_token_ids: The tokens of each block: ``block_size`` tokens, or fewer for the last
                block of a ``NaiveBlockAllocator``.
            extra_hash: Extra key of the blocks.

        Returns:
            The blocks in order, created when they are read.

        Raises:
            NoFreeBlocksError: Too few are available; nothing is allocated.
            BlockStateError: ``prev_block`` is not full.
            ValueError: Blocks without the right number of tokens, or a token out of ``[0, 2**32)``.
        """
        self._check_sizes(block_token_ids)
        blocks = self._list_after(prev_block)
        start = len(blocks.blocks)
        blocks.extend(tuple(chain.from_iterable(block_token_ids)), extra_hash)
        return BlockView(blocks, start)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], extra_hash: int | None = None
    ) -> Block:
        """``allocate_immutable_blocks`` for one block."""
        tokens = tuple(token_ids)
        self._check_sizes((tokens,))
        blocks = self._list_after(prev_block)
        blocks.extend(tokens, extra_hash)
        return blocks.view(len(blocks.blocks) - 1)

    # Their earlier names.
    allocate_mutable = allocate_mutable_block
    allocate_immutable = allocate_immutable_block

    def _check_sizes(self, block_token_ids: Sequence[Sequence[int]]) -> None:
        """Refuses blocks that are not full, except for the last one without caching."""
        last = len(block_token_ids) - 1
        for i, chunk in enumerate(block_token_ids):
            least = 1 if i == last and not self.caches else self.block_size
            if not least <= len(chunk) <= self.block_size:
                raise ValueError(
                    f"block_token_ids must have {least} to {self.block_size} tokens a block, got "
                    f"{len(chunk)} in block {i}"
                )

    def _list_after(self, prev_block: Block | None) -> BlockList:
        """The list to add blocks to: that of ``prev_block`` if it ends there, else a new one."""
        if prev_block is None:
            return BlockList(self)
        self._mine(prev_block).in_pool()  # raises if it was freed: nothing can follow it
        blocks, index = prev_block.position
        return blocks if index + 1 == len(blocks.blocks) else BlockList(self, prev_block)

    def _mine(self, block: Block) -> Block:
        if not isinstance(block, self.block_class):
            kind = type(block).__name__
            raise TypeError(f"block must be a {self.block_class.__name__}, got {kind}")
        if block._blocks.allocator is not self:
            raise ValueError("block belongs to another allocator")
        return block

    # Copy-on-write.

    def is_appendable(self, block: Block) -> bool:
        """Whether tokens can be added to the block without moving it."""
        mine = self._mine(block)
        return not mine.is_full and self.pool.ref_count(mine.in_pool()) == 1

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """Moves a shared block to a copy of its own, as appending to it would.

        Returns:
            The physical block to write to; None if the block was freed. A full block takes no
            more tokens, so it stays where it is.

        Raises:
            NoFreeBlocksError: None is available; the block keeps its content.
        """
        mine = self._mine(block)
        blocks, index = mine.position
        if blocks.blocks[index] != FREED and not mine.is_full:
            blocks.make_writable(index)
        return mine.block_id

    def clear_copy_on_writes(self) -> dict[int, list[int]]:
        """The copies to run before the next forward; they count as run after this call.

        Blocks that became full while they waited for their copy are cached then.

        Returns:
            Destinations by source, physical blocks. Safe in any order.
        """
        plan = self.pool.take_copies()
        self.pool.copies_applied(plan.ticket)
        copies: dict[int, list[int]] = {}
        for source, destination, _ in plan:
            copies.setdefault(self._ids[source], []).append(self._ids[destination])
        waiting, self.waiting = self.waiting, {}
        for blocks in waiting:
            for index, block in enumerate(blocks.blocks):
                if block != FREED and blocks.states[index] == WAITING:
                    self.promote(blocks, index)
        return copies

    # The prefix cache.

    def cached_prefix(
        self, tokens: tuple[int, ...], parent: int | None, extra: int | None
    ) -> list[int]:
        """The leading blocks among these tokens that are cached after ``parent``, if it is."""
        # The look-up checks the tokens, so it is made even if it cannot find any block.
        found: list[int] = self.pool.find(
            tokens,
            parent=-1 if parent is None else parent,
            extras=_extras(len(tokens) // self.block_size, extra),
        ).tolist()
        return found if parent is not None else []

    def num_taken_by(self, tokens: tuple[int, ...], extra: int | None) -> int:
        """Number of available blocks that a sequence of these tokens takes."""
        found = self.cached_prefix(tokens, -1, extra)
        num_blocks = -(-len(tokens) // self.block_size)
        return num_blocks - len(found) + int(self.pool.is_idle(found).sum())

    def cache_prompt(
        self, blocks: BlockList, start: int, parent: int | None, tokens: tuple[int, ...], found: int
    ) -> None:
        """Caches the full blocks that a list got from ``start`` on, after their cached parent.

        The first ``found`` are cached already. If the parent is not cached, all wait.
        """
        size, num_full = self.block_size, len(tokens) // self.block_size
        self.num_queries += num_full
        self.num_hits += found
        state = b"%c" % (WAITING if parent is None else CACHED)
        if parent is None:
            self.waiting[blocks] = None
        elif fresh := blocks.blocks[start + found : start + num_full]:
            self.pool.promote(
                fresh,
                tokens[found * size : num_full * size],
                parent=blocks.blocks[start + found - 1] if found else parent,
                extras=_extras(len(fresh), blocks.extras.get(start)),
            )
            self._uncomputed.update(fresh)
        blocks.states[start : start + num_full] = state * num_full

    def promote(self, blocks: BlockList, index: int) -> None:
        """Caches a full block, or makes it wait.

        It is not replaced by an equal block whose K/V is not written: its own K/V is, except for
        the last token.
        """
        block, tokens = blocks.blocks[index], blocks.tokens[index]
        parent, extra = blocks.parent(index), blocks.extras.get(index)
        if (
            parent is None
            or self.pool.waits_for_copy(block)
            or (
                self._unwritten
                and any(map(self._is_unwritten, self.cached_prefix(tokens, parent, extra)))
            )
        ):
            blocks.states[index] = WAITING
            self.waiting[blocks] = None
            return
        kept = self.pool.promote(block, tokens, parent=parent, extras=extra_bytes(extra))
        if kept == block:
            self._uncomputed.add(block)
        blocks.blocks[index] = kept
        blocks.states[index] = CACHED

    def _is_unwritten(self, block: int) -> bool:
        known = self._unwritten.get(block)
        return known == self.pool.generation(block) and block in self._uncomputed

    def promote_to_immutable_block(self, block: Block) -> int:
        """Makes a full block findable, which happens anyway when it becomes full.

        Returns:
            The physical block to use for its content: its own, or an equal one that was cached
            before. A block that waits for a copy is cached when ``clear_copy_on_writes`` is called.

        Raises:
            BlockStateError: The block was freed, or is not full.
        """
        mine = self._mine(block)
        in_pool = mine.in_pool()
        if not mine.is_full:
            raise BlockStateError(in_pool, f"it has {mine.num_empty_slots} empty slots")
        blocks, index = mine.position
        if self.caches and blocks.states[index] != CACHED:
            self.promote(blocks, index)
        return self._ids[mine.in_pool()]

    def is_computed(self, block: int) -> bool:
        """Whether a block of the pool is cached and its K/V was marked as computed."""
        return self.pool.is_cached(block) and block not in self._uncomputed

    def mark_blocks_as_computed(self, block_ids: Iterable[int] | None = None) -> None:
        """Marks the K/V of cached blocks as written.

        Args:
            block_ids: Physical blocks; None for all cached ones. Blocks that are not cached are
                skipped.
        """
        if block_ids is None:
            self._uncomputed.clear()
        else:
            self._mark_computed([self.get_physical_block_id(each) for each in block_ids])

    def _mark_computed(self, blocks: list[int]) -> None:
        self._uncomputed.difference_update([b for b in blocks if self.pool.is_cached(b)])

    def progress(self, done: list[int], rest: list[int]) -> None:
        """Records that the next forward writes the first blocks and not the rest."""
        self._mark_computed(not_freed(done))
        late = [b for b in rest if b in self._uncomputed and self.pool.is_cached(b)]
        if late:
            self._unwritten.update((block, self.pool.generation(block)) for block in late)
        elif not any(map(self._is_unwritten, self._unwritten)):
            self._unwritten.clear()

    def arrive(self, computed: list[int], late: list[int]) -> None:
        """Records cached blocks whose content, computed or not, is copied here by a swap."""
        self._uncomputed.difference_update(computed)
        self._uncomputed.update(late)
        self._unwritten.update((block, self.pool.generation(block)) for block in late)

    def get_common_computed_block_ids(self, seq_block_ids: Sequence[Sequence[int]]) -> list[int]:
        """The leading blocks that none of these sequences needs to compute.

        The last block of each is left out, so that something is left to compute.

        Args:
            seq_block_ids: The physical blocks of each sequence, in order.
        """
        sequences = [[self.get_physical_block_id(each) for each in ids] for ids in seq_block_ids]
        computed = [list(takewhile(self.is_computed, blocks[:-1])) for blocks in sequences]
        same = takewhile(lambda column: len(set(column)) == 1, zip(*computed, strict=False))
        return [self._ids[column[0]] for column in same]

    def mark_blocks_as_accessed(self, block_ids: Iterable[int], now: float = 0.0) -> None:
        """Moves idle blocks to the end of the eviction order; the order of calls replaces ``now``.

        Raises:
            BlockStateError: A block is not in use, and it is not cached.
        """
        self.pool.touch([self.get_physical_block_id(each) for each in block_ids])

    def get_prefix_cache_hit_rate(self) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``; 0 without any."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0

    def reset_prefix_cache(self) -> bool:
        """Forgets cached blocks and the hit rate if no block is in use; returns whether it did."""
        if self.pool.num_used:
            return False
        self.pool.reset()
        for known in (self._uncomputed, self._unwritten, self.waiting):
            known.clear()
        self.num_queries = self.num_hits = 0
        return True

    # Sharing and release.

    def fork(self, last_block: Block) -> BlockView:
        """A new chain of blocks that shares the memory of a sequence, given its last block.

        Cost: O(blocks), without recursion.

        Raises:
            BlockStateError: A block of the sequence was freed.
        """
        parts = self._mine(last_block).parts()
        if any(FREED in blocks.blocks[:count] for blocks, count in parts):
            raise BlockStateError(FREED, "a block of the sequence was freed")
        return BlockView(BlockList.fork(parts))

    def free(self, block: Block) -> None:
        """Frees a block. If it is cached, it stays findable until it is evicted.

        Raises:
            BlockStateError: The block was freed before.
        """
        self._mine(block).in_pool()  # raises if it was freed
        block._blocks.free(block._index, block._index + 1)

    # Names and numbers.

    def get_num_free_blocks(self) -> int:
        """Blocks that can be handed out, including cached blocks not in use."""
        return self.pool.num_available

    def get_num_total_blocks(self) -> int:
        """All blocks of the pool."""
        return self.pool.num_blocks

    @property
    def all_block_ids(self) -> frozenset[int]:
        """The ids of all blocks of the pool."""
        return frozenset(self._ids)

    def physical_ids(self, blocks: list[int]) -> list[int]:
        """The callers' ids of blocks of the pool, as a new list."""
        ids = self._ids
        return blocks.copy() if ids == range(len(ids)) else [ids[block] for block in blocks]

    def get_physical_block_id(self, block_id: int) -> int:
        """The index in the pool of the block with this id."""
        block = self._blocks.get(integer("block_id", block_id))
        if block is None:
            raise ValueError(f"block_id {block_id} is no block of this allocator")
        return block


def _extras(num_blocks: int, extra: int | None) -> dict[int, bytes] | None:
    return None if extra is None else dict.fromkeys(range(num_blocks), extra_bytes(extra))


def _checked_ids(block_ids: Iterable[int] | None, num_blocks: int) -> Sequence[int]:
    if block_ids is None:
        return range(num_blocks)
    ids = tuple(integer("block_ids", block_id) for block_id in block_ids)
    if len(ids) != num_blocks or len(set(ids)) != num_blocks or min(ids) < 0:
        raise ValueError(
            f"block_ids must be {num_blocks} distinct ids of 0 or more, got {len(ids)} of which "
            f"{len(set(ids))} are distinct, the smallest {min(ids, default=None)}"
        )
    return range(num_blocks) if ids == tuple(range(num_blocks)) else ids


class NaiveBlockAllocator(BlockAllocator):
    """An allocator of blocks that only forks share. For one thread at a time.

    Args:
        create_block: The kind of block, ``NaiveBlock`` or a subclass of it.
        num_blocks: Blocks of the pool.
        block_size: Tokens per block.
        block_ids: The ids of the blocks, distinct and not negative; ``0 … num_blocks - 1`` if not
            given.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    def __init__(
        self,
        create_block: type[NaiveBlock],
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None = None,
    ) -> None:
        if not (isinstance(create_block, type) and issubclass(create_block, NaiveBlock)):
            raise TypeError(f"create_block must be NaiveBlock or a subclass, got {create_block!r}")
        self.block_class = create_block
        super().__init__(num_blocks, block_size, block_ids)


class PrefixCachingBlockAllocator(BlockAllocator):
    """An allocator of blocks that can be found by their prefix as soon as they are full.

    For one thread at a time. Args and errors are those of ``NaiveBlockAllocator``, without
    ``create_block``, and ``eviction`` as in ``ManagerConfig``.

    >>> allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
    >>> first = allocator.allocate_immutable(None, [1, 2])
    >>> again = allocator.allocate_immutable(None, [1, 2])
    >>> first.block_id == again.block_id, allocator.get_num_free_blocks()
    (True, 3)

    Source: the block allocators of vLLM 0.4 to 0.7 and Aphrodite 0.5.3 to 0.9.
    """

    block_class = PrefixCachingBlock
    caches: ClassVar[bool] = True
