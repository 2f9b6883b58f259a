"""The base of both allocators, on a ``BlockPool``."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import TYPE_CHECKING, ClassVar

from blockmgr.arguments import integer
from blockmgr.errors import BlockStateError
from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite.block import Block, BlockList, BlockView
from blockmgr.ports.aphrodite.caching import FREED, HitCounter, PrefixCache
from blockmgr.ports.aphrodite.interfaces import NoFreeBlocksError
from blockmgr.ports.aphrodite.tokens import check_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.policy import PolicyFactory

__all__ = ["BlockAllocator", "CopyOnWriteTracker", "ReadOnlyRefCounter", "RefCounter"]


class BlockAllocator:
    """Hands out blocks of one pool and takes them back; the base of both allocators.

    A block of another kind raises ``TypeError``, and one of another allocator ``ValueError``.

    Attributes:
        block_class: Class of its blocks.
        caches: Whether blocks can be found by their prefix.
        block_size: Tokens per block.
        pool: The core, whose own block ids begin at 0.
        refcounter: References to each physical block.
        cow_tracker: The copies to run before the next forward.
        hits: Full blocks looked up and found by ``allocate_immutable_*``.
        prefix_cache: Tracks cached and computed blocks.
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
        self.refcounter = RefCounter(self)
        self.cow_tracker = CopyOnWriteTracker(self)
        self.hits = HitCounter()
        self.prefix_cache = PrefixCache(self.pool)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {self.get_num_free_blocks()} of {self.pool.num_blocks} free>"
        )

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
            TypeError: ``prev_block`` is not a block of this kind, or a token is not an int.
            ValueError: It belongs to another allocator; or blocks without the right number of
                tokens; or a token out of ``[0, 2**32)``.
        """
        check_sizes(block_token_ids, self.block_size, all_full=self.caches)
        blocks = self._list_after(prev_block)
        start = len(blocks.blocks)
        blocks.extend(tuple(chain.from_iterable(block_token_ids)), extra_hash)
        return BlockView(blocks, start)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], extra_hash: int | None = None
    ) -> Block:
        """``allocate_immutable_blocks`` for one block."""
        tokens = tuple(token_ids)
        check_sizes((tokens,), self.block_size, all_full=self.caches)
        blocks = self._list_after(prev_block)
        blocks.extend(tokens, extra_hash)
        return blocks.view(len(blocks.blocks) - 1)

    # Their earlier names.
    allocate_mutable = allocate_mutable_block
    allocate_immutable = allocate_immutable_block

    # Copy-on-write.

    def is_appendable(self, block: Block) -> bool:
        """Whether tokens can be added to the block without moving it."""
        mine = self._mine(block)
        return not mine.is_full and self.pool.ref_count(mine.held()) == 1

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """Moves a shared block to a copy of its own, as appending to it would.

        Returns:
            The physical block to write to; None if the block was freed. A full block takes no
            more tokens, so it stays where it is.

        Raises:
            NoFreeBlocksError: None is available; the block keeps its content.

        Leaves:
            A copy, for ``clear_copy_on_writes``.
        """
        mine = self._mine(block)
        blocks, index = mine.place
        if blocks.blocks[index] != FREED and not mine.is_full:
            blocks.make_writable(index)
        return mine.block_id

    def clear_copy_on_writes(self) -> dict[int, list[int]]:
        """The copies to run before the next forward; they count as run after this call.

        Returns:
            Destinations by source, physical blocks. Safe in any order.

        Leaves:
            Blocks that became full while they waited for their copy are cached.
        """
        plan = self.pool.take_copies()
        try:
            copies: dict[int, list[int]] = {}
            for source, destination, _ in plan:
                copies.setdefault(self._ids[source], []).append(self._ids[destination])
        except BaseException:  # so that the next call returns them
            self.pool.copies_aborted(plan.ticket)
            raise
        self.pool.copies_applied(plan.ticket)
        self.prefix_cache.promote_waiting()
        return copies

    # The prefix cache.

    def promote_to_immutable_block(self, block: Block) -> int:
        """Makes a full block findable, which happens anyway when it becomes full.

        Returns:
            The physical block to use for its content: its own, or an equal one that was cached
            before. A block that waits for a copy is cached when ``clear_copy_on_writes`` is called.

        Raises:
            BlockStateError: The block was freed, or is not full.
        """
        mine = self._mine(block)
        held = mine.held()
        if not mine.is_full:
            raise BlockStateError(held, f"it has {mine.num_empty_slots} empty slots")
        blocks, index = mine.place
        if self.caches and not blocks.cached[index]:
            self.prefix_cache.promote(blocks, index)
        return self._ids[mine.held()]

    def mark_blocks_as_computed(self, block_ids: Iterable[int] | None = None) -> None:
        """Marks the K/V of cached blocks as written.

        Args:
            block_ids: Physical blocks; None for all cached ones. Blocks that are not cached are
                skipped.

        Raises:
            ValueError: Not a block of this allocator.
        """
        blocks = None if block_ids is None else [self.pool_block(each) for each in block_ids]
        self.prefix_cache.mark_computed(blocks)

    def get_common_computed_block_ids(self, seq_block_ids: Sequence[Sequence[int]]) -> list[int]:
        """The leading blocks that none of these sequences needs to compute.

        The last block of each is left out, so that something is left to compute.

        Args:
            seq_block_ids: The physical blocks of each sequence, in order.

        Raises:
            ValueError: Not a block of this allocator.
        """
        sequences = [[self.pool_block(each) for each in ids] for ids in seq_block_ids]
        computed = [list(takewhile(self.is_computed, blocks[:-1])) for blocks in sequences]
        same = takewhile(lambda column: len(set(column)) == 1, zip(*computed, strict=False))
        return [self._ids[column[0]] for column in same]

    def mark_blocks_as_accessed(self, block_ids: Iterable[int], now: float = 0.0) -> None:
        """Moves idle blocks to the end of the eviction order; the order of calls replaces ``now``.

        Raises:
            BlockStateError: A block is not held, and it is not cached.
            ValueError: Not a block of this allocator.
        """
        self.pool.touch([self.pool_block(each) for each in block_ids])

    def find_cached_blocks_prefix(self, block_hashes: Sequence[int]) -> list[int]:
        """The leading hashes that name computed blocks: none, without prefix caching.

        Raises:
            TypeError: A hash that is not an int.
        """
        for each in block_hashes:
            integer("block_hashes", each)
        return []

    def get_prefix_cache_hit_rate(self) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.hits.hit_rate

    def reset_prefix_cache(self) -> bool:
        """Forgets cached blocks and the hit rate if no block is in use; returns whether it did."""
        if self.pool.num_used:
            return False
        self.prefix_cache.reset()
        self.hits.restart()
        return True

    def is_computed(self, block: int) -> bool:
        """Whether a block of the pool is cached and its K/V was marked as computed."""
        return self.prefix_cache.is_computed(block)

    # Sharing and release.

    def fork(self, last_block: Block) -> BlockView:
        """A new chain of blocks that shares the memory of a sequence, given its last block.

        Returns:
            The blocks, first to last, created when they are read.

        Raises:
            BlockStateError: A block of the sequence was freed.

        Cost: O(blocks), without recursion and without an object per block.
        """
        parts = self._mine(last_block).parts()
        if any(FREED in blocks.blocks[:count] for blocks, count in parts):
            raise BlockStateError(FREED, "cannot fork: a block of the sequence was freed")
        return BlockView(BlockList.fork(parts))

    def free(self, block: Block) -> None:
        """Frees a block. If it is cached, it stays findable until it is evicted.

        Raises:
            BlockStateError: The block was freed before.
        """
        mine = self._mine(block)
        mine.held()  # raises if it was freed
        mine._blocks.free(mine._index, mine._index + 1)

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

    def physical_id(self, block: int) -> int:
        """The caller's id of a block of the pool.

        Raises:
            ValueError: The pool has no such block.
        """
        if not 0 <= block < len(self._ids):
            raise ValueError(f"block must be in [0, {len(self._ids) - 1}], got {block}")
        return self._ids[block]

    def physical_ids(self, blocks: list[int]) -> list[int]:
        """The callers' ids of blocks of the pool, as a new list."""
        ids = self._ids
        return blocks.copy() if ids == range(len(ids)) else [ids[block] for block in blocks]

    def pool_block(self, block_id: int) -> int:
        """The block of the pool with this id; also ``get_physical_block_id``.

        Raises:
            ValueError: Not a block of this allocator.
            TypeError: Not an int.
        """
        block = self._blocks.get(integer("block_id", block_id))
        if block is None:
            raise ValueError(f"block_id {block_id} is no block of this allocator")
        return block

    get_physical_block_id = pool_block

    def _mine(self, block: Block) -> Block:
        if not isinstance(block, self.block_class):
            raise TypeError(
                f"block must be a {self.block_class.__name__}, got {type(block).__name__}"
            )
        if block._blocks.allocator is not self:
            raise ValueError("block belongs to another allocator")
        return block

    def _list_after(self, prev_block: Block | None) -> BlockList:
        """The list to add blocks to: that of ``prev_block`` if it ends there, else a new one."""
        if prev_block is None:
            return BlockList(self)
        previous = self._mine(prev_block)
        previous.held()  # raises if it was freed: nothing can follow a freed block
        blocks, index = previous.place
        return blocks if index + 1 == len(blocks.blocks) else BlockList(self, previous)


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
