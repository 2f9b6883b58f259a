"""Blocks, and the allocators of one pool that hand them out."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import TYPE_CHECKING, ClassVar

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
    from collections.abc import Iterable, Sequence

    from blockmgr.policy import PolicyFactory

__all__ = [
    "FREED",
    "Block",
    "BlockAllocator",
    "NaiveBlock",
    "NaiveBlockAllocator",
    "PrefixCachingBlock",
    "PrefixCachingBlockAllocator",
]

FREED = -1
"""In place of the pool's block once a block is freed."""

_DIGEST_BYTES = 16


class Block:
    """One block of a sequence, and the tokens in it. Only allocators make blocks.

    Attributes:
        prev_block: The block before this one in its sequence; None for the first.
        extra_hash: Extra key of the block, besides its tokens: an adapter, an image.
    """

    # For allocators and tables: the pool's own block, ``FREED`` once freed; the tokens in it;
    # whether it can be found by its prefix.
    __slots__ = ("allocator", "extra_hash", "in_pool", "is_cached", "prev_block", "tokens")

    def __init__(
        self,
        allocator: BlockAllocator,
        prev_block: Block | None,
        in_pool: int,
        tokens: tuple[int, ...],
        extra_hash: int | None,
    ) -> None:
        self.allocator = allocator
        self.prev_block = prev_block
        self.in_pool = in_pool
        self.tokens = tokens
        self.extra_hash = extra_hash
        self.is_cached = False

    def __repr__(self) -> str:
        tokens = f"{len(self.tokens)} of {self.block_size} tokens"
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
        self.check_held()
        self.fill(tokens)

    @property
    def block_id(self) -> int | None:
        """The physical block; None once freed."""
        return None if self.in_pool == FREED else self.allocator.physical_ids([self.in_pool])[0]

    @property
    def token_ids(self) -> list[int]:
        """The tokens in the block, a copy."""
        return list(self.tokens)

    @property
    def num_tokens_total(self) -> int:
        """Tokens in the block and in all before it."""
        return sum(len(block.tokens) for block in self.sequence())

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self.allocator.block_size

    @property
    def num_empty_slots(self) -> int:
        """Slots without a token."""
        return self.block_size - len(self.tokens)

    @property
    def is_full(self) -> bool:
        """Whether every slot has a token."""
        return self.num_empty_slots == 0

    @property
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None if it has none."""
        return None

    @property
    def computed(self) -> bool:
        """Whether the block is cached and its K/V was marked as computed."""
        return self.in_pool != FREED and self.allocator.is_computed(self.in_pool)

    # For allocators and tables.

    def sequence(self) -> list[Block]:
        """The blocks of the sequence up to this one."""
        found: list[Block] = []
        block: Block | None = self
        while block is not None:
            found.append(block)
            block = block.prev_block
        return found[::-1]

    def parent(self) -> int | None:
        """The pool's block before this one; -1 for the first block; None if it is not cached."""
        prev = self.prev_block
        if prev is None:
            return -1
        return prev.in_pool if prev.is_cached and prev.allocator is self.allocator else None

    def check_held(self) -> None:
        """Raises if the block was freed."""
        if self.in_pool == FREED:
            raise BlockStateError(FREED, "the block was freed, and holds nothing")

    def fill(self, tokens: tuple[int, ...]) -> None:
        """Puts tokens into the next empty slots, which must be enough."""
        self.make_writable()
        self.tokens += tokens
        if self.allocator.caches and self.is_full:
            self.allocator.promote(self)

    def make_writable(self) -> None:
        """Moves a shared block to a copy of its own."""
        try:
            self.in_pool = self.allocator.pool.make_writable(self.in_pool, len(self.tokens))
        except OutOfBlocksError as error:
            raise NoFreeBlocksError(error.needed, error.available) from None


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
        for block in self.sequence():
            if not block.is_full:
                return None
            before = self.hash_block_tokens(before is None, before, block.tokens, block.extra_hash)
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
        waiting: Full blocks that wait to be cached, in order, as the keys.
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
        self.waiting: dict[Block, None] = {}
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
        return self.allocate_empty(prev_block, 1, extra_hash)[0]

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        extra_hash: int | None = None,
    ) -> list[Block]:
        """A chain of blocks with these tokens; cached ones are shared.

        Args:
            prev_block: The full block they follow; None at the start of a sequence.
            block_token_ids: The tokens of each block: ``block_size`` tokens, or fewer for the last
                block of a ``NaiveBlockAllocator``.
            extra_hash: Extra key of the blocks.

        Raises:
            NoFreeBlocksError: Too few are available; nothing is allocated.
            BlockStateError: ``prev_block`` is not full.
            ValueError: Blocks without the right number of tokens, or a token out of ``[0, 2**32)``.
        """
        last = len(block_token_ids) - 1
        for i, chunk in enumerate(block_token_ids):
            least = 1 if i == last and not self.caches else self.block_size
            if not least <= len(chunk) <= self.block_size:
                raise ValueError(
                    f"block_token_ids must have {least} to {self.block_size} tokens a block, got "
                    f"{len(chunk)} in block {i}"
                )
        tokens = tuple(chain.from_iterable(block_token_ids))
        return self.allocate_prompt(prev_block, tokens, extra_hash)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], extra_hash: int | None = None
    ) -> Block:
        """``allocate_immutable_blocks`` for one block."""
        return self.allocate_immutable_blocks(prev_block, (tuple(token_ids),), extra_hash)[0]

    # Their earlier names.
    allocate_mutable = allocate_mutable_block
    allocate_immutable = allocate_immutable_block

    def allocate_empty(
        self, prev_block: Block | None, n: int, extra_hash: int | None
    ) -> list[Block]:
        """A chain of empty blocks after ``prev_block``."""
        self._check_prev(prev_block)
        checked_extra(extra_hash)
        try:
            fresh = self.pool.take(n).tolist()
        except OutOfBlocksError as error:
            raise NoFreeBlocksError(error.needed, error.available) from None
        return self._chain(prev_block, fresh, [()] * n, extra_hash)

    def allocate_prompt(
        self, prev_block: Block | None, tokens: tuple[int, ...], extra_hash: int | None
    ) -> list[Block]:
        """A chain of blocks for these tokens, which may leave the last one partly filled."""
        self._check_prev(prev_block)
        checked_extra(extra_hash)
        parent: int | None = -1
        if prev_block is not None:
            if num_empty := prev_block.num_empty_slots:
                raise BlockStateError(prev_block.in_pool, f"prev_block has {num_empty} empty slots")
            parent = prev_block.in_pool if prev_block.is_cached else None
        size, num_full = self.block_size, len(tokens) // self.block_size
        found = self.cached_prefix(tokens, parent, extra_hash)
        chunks = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        # All counting before any change: idle blocks that are found are no longer available.
        needed, available = len(chunks), self.pool.num_available
        if needed > available and (needed := self._num_taken(needed, found)) > available:
            raise NoFreeBlocksError(needed, available)
        self.pool.acquire(found)  # first, so that no found block is evicted to make room
        in_pool = found + self.pool.take(len(chunks) - len(found)).tolist()
        blocks = self._chain(prev_block, in_pool, chunks, extra_hash)
        if not self.caches or not num_full:
            return blocks
        self.num_queries += num_full
        self.num_hits += len(found)
        if parent is None:
            self.waiting.update(dict.fromkeys(blocks[:num_full]))
            return blocks
        if fresh := in_pool[len(found) : num_full]:
            self.pool.promote(
                fresh,
                tokens[len(found) * size : num_full * size],
                parent=found[-1] if found else parent,
                extras=_extras(len(fresh), extra_hash),
            )
            self._uncomputed.update(fresh)
        for block in blocks[:num_full]:
            block.is_cached = True
        return blocks

    def _chain(
        self,
        prev_block: Block | None,
        in_pool: list[int],
        tokens: list[tuple[int, ...]],
        extra_hash: int | None,
    ) -> list[Block]:
        made: list[Block] = []
        for block, chunk in zip(in_pool, tokens, strict=True):
            prev_block = self.block_class(self, prev_block, block, chunk, extra_hash)
            made.append(prev_block)
        return made

    def _check_prev(self, prev_block: Block | None) -> None:
        if prev_block is not None:
            self._mine(prev_block).check_held()  # nothing can follow a block that was freed

    def _mine(self, block: Block) -> Block:
        if not isinstance(block, self.block_class):
            kind = type(block).__name__
            raise TypeError(f"block must be a {self.block_class.__name__}, got {kind}")
        if block.allocator is not self:
            raise ValueError("block belongs to another allocator")
        return block

    # Copy-on-write.

    def is_appendable(self, block: Block) -> bool:
        """Whether tokens can be added to the block without moving it."""
        self._mine(block).check_held()
        return not block.is_full and self.pool.ref_count(block.in_pool) == 1

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """Moves a shared block to a copy of its own, as appending to it would.

        Returns:
            The physical block to write to; None if the block was freed. A full block takes no
            more tokens, so it stays where it is.

        Raises:
            NoFreeBlocksError: None is available; the block keeps its content.
        """
        if self._mine(block).in_pool != FREED and not block.is_full:
            block.make_writable()
        return block.block_id

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
        for block in waiting:
            self.promote(block)
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
        num_blocks = -(-len(tokens) // self.block_size)
        return self._num_taken(num_blocks, self.cached_prefix(tokens, -1, extra))

    def _num_taken(self, num_blocks: int, found: list[int]) -> int:
        return num_blocks - len(found) + int(self.pool.is_idle(found).sum())

    def promote(self, block: Block) -> None:
        """Caches a full block, or makes it wait.

        It is not replaced by an equal block whose K/V is not written: its own K/V is, except for
        the last token.
        """
        parent = block.parent()
        if (
            parent is None
            or self.pool.waits_for_copy(block.in_pool)
            or any(
                map(self._is_unwritten, self.cached_prefix(block.tokens, parent, block.extra_hash))
            )
        ):
            self.waiting[block] = None
            return
        extras = extra_bytes(block.extra_hash)
        kept = self.pool.promote(block.in_pool, block.tokens, parent=parent, extras=extras)
        if kept == block.in_pool:
            self._uncomputed.add(kept)
        block.in_pool, block.is_cached = kept, True

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
        self._mine(block).check_held()
        if not block.is_full:
            raise BlockStateError(block.in_pool, f"it has {block.num_empty_slots} empty slots")
        if self.caches and not block.is_cached:
            self.promote(block)
        return self._ids[block.in_pool]

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

    def progress(self, done: Iterable[Block], rest: Iterable[Block]) -> None:
        """Records that the next forward writes the first blocks and not the rest."""
        self._mark_computed([block.in_pool for block in done if block.in_pool != FREED])
        late = [block.in_pool for block in rest if block.is_cached]
        late = [block for block in late if block in self._uncomputed]
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
        self._uncomputed.clear()
        self._unwritten.clear()
        self.num_queries = self.num_hits = 0
        return True

    # Sharing and release.

    def fork(self, last_block: Block) -> list[Block]:
        """A new chain of blocks that shares the memory of a sequence, given its last block.

        Cost: O(blocks), without recursion.

        Raises:
            BlockStateError: A block of the sequence was freed.
        """
        blocks = self._mine(last_block).sequence()
        for block in blocks:
            block.check_held()
        return self.fork_all(blocks)

    def fork_all(self, blocks: list[Block]) -> list[Block]:
        """A chain that shares the blocks of a sequence; freed blocks stay freed."""
        self.pool.acquire([b.in_pool for b in blocks if b.in_pool != FREED], found=False)
        forked: list[Block] = []
        prev: Block | None = None
        for block in blocks:
            prev = self.block_class(self, prev, block.in_pool, block.tokens, block.extra_hash)
            prev.is_cached = block.is_cached
            if self.waiting and block in self.waiting:
                self.waiting[prev] = None
            forked.append(prev)
        return forked

    def free(self, block: Block) -> None:
        """Frees a block. If it is cached, it stays findable until it is evicted.

        Raises:
            BlockStateError: The block was freed before.
        """
        self._mine(block).check_held()
        self.free_all([block])

    def free_all(self, blocks: list[Block]) -> None:
        """Frees those of these blocks that are not freed yet, the last first."""
        held = [block for block in reversed(blocks) if block.in_pool != FREED]
        in_pool = [block.in_pool for block in held]
        # Forgotten first: a release that was interrupted must not be repeated, because other
        # sequences may share the blocks.
        for block in held:
            block.in_pool, block.is_cached = FREED, False
            if self.waiting:
                self.waiting.pop(block, None)
        self.pool.release(in_pool)

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

    def physical_ids(self, in_pool: Iterable[int]) -> list[int]:
        """The callers' ids of blocks of the pool; ``FREED`` for freed ones."""
        return [FREED if block == FREED else self._ids[block] for block in in_pool]

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
