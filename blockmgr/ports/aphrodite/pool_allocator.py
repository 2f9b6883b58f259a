"""The base of both allocators, on a ``BlockPool``."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from blockmgr.arguments import integer
from blockmgr.changes import at_once
from blockmgr.errors import BlockStateError, OutOfBlocksError
from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite.block_ids import BlockIds
from blockmgr.ports.aphrodite.blocks import FREED, BlockView, PoolBlock, Run, freed_after, segments
from blockmgr.ports.aphrodite.caching import PrefixCache
from blockmgr.ports.aphrodite.interfaces import Block, BlockAllocator, NoFreeBlocksError
from blockmgr.ports.aphrodite.run_plans import RunPlans, carry_out
from blockmgr.ports.aphrodite.tokens import check_sizes, checked_extra, whole_tokens
from blockmgr.ports.aphrodite.tracking import CopyOnWriteTracker, HitCounter, RefCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.policy import PolicyFactory

__all__ = ["PoolAllocator"]

T = TypeVar("T")

_item = np.ndarray.item


class PoolAllocator(BlockAllocator):
    """The base of both allocators, which implements all their calls on a ``BlockPool``.

    Attributes:
        block_class: Class of its blocks.
        caches: Whether blocks can be found by their prefix.
        pool: The core, whose own block ids begin at 0.
        ids: The callers' ids of those blocks.
        refcounter: References to each physical block.
        cow_tracker: The copies to run before the next forward.
        hits: Full blocks looked up and found by ``allocate_immutable_*``.
        prefix_cache: Tracks cached and computed blocks.
        plans: Plans changes of runs.
    """

    block_class: type[PoolBlock]
    caches: ClassVar[bool]

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
        self.ids = BlockIds(block_ids, self.pool.num_blocks)
        self.refcounter = RefCounter(self)
        self.cow_tracker = CopyOnWriteTracker(self)
        self.hits = HitCounter()
        self.prefix_cache = PrefixCache(self.pool)
        self.plans = RunPlans(self.pool, self.prefix_cache, self.hits, caches=self.caches)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {self.get_num_free_blocks()} of {self.pool.num_blocks} free>"
        )

    # Allocation.

    def allocate_mutable_block(
        self, prev_block: Block | None = None, extra_hash: int | None = None
    ) -> PoolBlock:
        """An empty block after ``prev_block``; evicts a cached block if necessary.

        Raises:
            NoFreeBlocksError: None is available.
            TypeError: ``prev_block`` is not a block of this kind.
            ValueError: It belongs to another allocator.
        """
        run = self._run_after(prev_block)
        checked_extra(extra_hash)
        if run.blocks:
            return carry_out(self.plans.add_empty(run, 1, extra_hash), run.view(len(run.blocks)))
        # No caller has the run yet, so there is only one change, made as in ``at_once``.
        run.tokens.append(())
        run.promoted.append(0)
        if extra_hash is not None:
            run.extras[0] = extra_hash
        first = run.view(0)
        taken = map(_item, map(self.pool.compiled.take, (1,)))
        try:
            return ([*map(run.blocks.extend, (taken,))], first)[1]
        except OutOfBlocksError as error:
            raise NoFreeBlocksError(error.needed, error.available) from None

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
        tokens = tuple(chain.from_iterable(block_token_ids))
        run = self._run_after(prev_block)
        return self.plans.extend(run, tokens, extra_hash, lambda view: ([], view))

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], extra_hash: int | None = None
    ) -> PoolBlock:
        """``allocate_immutable_blocks`` for one block."""
        tokens = tuple(token_ids)
        if self.caches and len(tokens) == self.block_size and extra_hash is None:
            run = self._run_after(prev_block)
            if changes := self.plans.add_cached(run, tokens):
                return at_once(changes, run.view(0))
        check_sizes((tokens,), self.block_size, all_full=self.caches)
        run = self._run_after(prev_block)
        return self.plans.extend(run, tokens, extra_hash, lambda v: ([], v.run.view(v.start)))

    def allocate_mutable(self, prev_block: Block | None = None) -> PoolBlock:
        """``allocate_mutable_block`` by its earlier name."""
        return self.allocate_mutable_block(prev_block)

    def allocate_immutable(self, prev_block: Block | None, token_ids: Sequence[int]) -> PoolBlock:
        """``allocate_immutable_block`` by its earlier name."""
        return self.allocate_immutable_block(prev_block, token_ids)

    # Writing.

    def append(self, run: Run, index: int, token_ids: Sequence[int]) -> None:
        """Implements ``Block.append_token_ids``."""
        tokens = whole_tokens(token_ids)
        present = run.tokens[index]
        empty = self.block_size - len(present)
        count = len(tokens)
        if not 0 < count <= empty:
            raise ValueError(f"token_ids must have 1 to {empty} tokens, got {count}")
        block = run.blocks[index]
        if block == FREED:
            run.view(index).held()  # raises
        if count < empty and self.pool.ref_count(block) == 1:
            run.tokens[index] = present + tokens
            return
        before = self.prefix_cache.node(run.place_before(index))
        steps, _ = self.plans.fill(run, index, present + tokens, before is not None, None)
        carry_out(steps, None)

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
            TypeError: Not a block of this kind.
            ValueError: It belongs to another allocator.

        Leaves:
            A copy, for ``clear_copy_on_writes``.
        """
        mine = self._mine(block)
        run, index = mine.place
        if run.blocks[index] == FREED or mine.is_full:
            return mine.block_id
        steps, _ = self.plans.make_writable(run, index)
        carry_out(steps, None)
        return mine.block_id

    def clear_copy_on_writes(self) -> dict[int, list[int]]:
        """The copies to run before the next forward; they count as run after this call.

        Returns:
            Destinations by source, physical blocks. Safe in any order.

        Leaves:
            Blocks that became full while they waited for their copy are cached.
        """
        return self.cow_tracker.clear_cows()

    # The prefix cache.

    def promote_to_immutable_block(self, block: Block) -> int:
        """Makes a full block findable, which happens anyway when it becomes full.

        Returns:
            The physical block to use for its content: its own, or an equal one that was cached
            before. A block that waits for a copy is cached when ``clear_copy_on_writes`` is called.

        Raises:
            BlockStateError: The block was freed, or is not full.
            TypeError: Not a block of this kind.
            ValueError: It belongs to another allocator.
        """
        mine = self._mine(block)
        held = mine.held()
        if not mine.is_full:
            raise BlockStateError(held, f"it has {mine.num_empty_slots} empty slots")
        run, index = mine.place
        if self.caches and not run.promoted[index]:
            before = self.prefix_cache.node(run.place_before(index))
            is_next = before is not None and not self.pool.waits_for_copy(held)
            extra = run.extras.get(index)
            at_once(self.prefix_cache.promote(run, index, run.tokens[index], extra, is_next), None)
        return self.ids.of(mine.held())

    def mark_blocks_as_computed(self, block_ids: Iterable[int] | None = None) -> None:
        """Marks the K/V of cached blocks as written.

        Args:
            block_ids: Physical blocks; None for all cached ones. Blocks that are not cached are
                skipped.

        Raises:
            ValueError: Not a block of this allocator.
        """
        self.prefix_cache.mark_computed(
            None if block_ids is None else [self.ids.block(name) for name in block_ids]
        )

    def get_common_computed_block_ids(self, seq_block_ids: Sequence[Sequence[int]]) -> list[int]:
        """The leading blocks that none of these sequences needs to compute.

        The last block of each is left out, so that something is left to compute.

        Args:
            seq_block_ids: The physical blocks of each sequence, in order.

        Raises:
            ValueError: Not a block of this allocator.
        """
        places = [[self.ids.block(name) for name in names] for names in seq_block_ids]
        computed = [
            list(takewhile(self.prefix_cache.is_computed, blocks[:-1])) for blocks in places
        ]
        same = takewhile(lambda column: len(set(column)) == 1, zip(*computed, strict=False))
        return [self.ids.of(column[0]) for column in same]

    def mark_blocks_as_accessed(self, block_ids: Iterable[int], now: float = 0.0) -> None:
        """Moves idle blocks to the end of the eviction order; the order of calls replaces ``now``.

        Raises:
            BlockStateError: A block is not held, and it is not cached.
            ValueError: Not a block of this allocator.
        """
        self.pool.touch([self.ids.block(name) for name in block_ids])

    def find_cached_blocks_prefix(self, block_hashes: Sequence[int]) -> list[int]:
        """The leading hashes of which each names a computed block after the previous one.

        Args:
            block_hashes: ``content_hash`` of each block of a sequence. Blocks with an extra hash
                cannot be found this way; ``ComputedBlocksTracker`` uses tokens, and finds them.

        Raises:
            TypeError: A hash that is not an int.

        Cost: O(blocks that continue the ones found), with one digest for each.
        """
        return self.prefix_cache.named([integer("block_hashes", each) for each in block_hashes])

    def get_prefix_cache_hit_rate(self) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.hits.hit_rate

    def reset_prefix_cache(self) -> bool:
        """Forgets cached blocks and the hit rate if no block is in use; returns whether it did."""
        return self.prefix_cache.reset(self.hits.restart())

    # Sharing and release.

    def fork(self, last_block: Block) -> BlockView:
        """A new chain of blocks that shares the memory of a sequence, given its last block.

        Returns:
            The blocks, first to last, created when they are read.

        Raises:
            BlockStateError: A block of the sequence was freed.
            TypeError: Not a block of this kind.
            ValueError: It belongs to another allocator.

        Cost: O(blocks), without recursion and without an object per block.
        """
        parts = segments(self._mine(last_block))
        if any(run.may_have_freed and FREED in run.blocks[:stop] for run, stop in parts):
            raise BlockStateError(FREED, "cannot fork: a block of the sequence was freed")
        run, steps = self.plans.fork(parts)
        return at_once(steps, BlockView(run, 0, len(run.blocks)))

    def free(self, block: Block) -> None:
        """Frees a block. If it is cached, it stays findable until it is evicted.

        Raises:
            BlockStateError: The block was freed before.
            TypeError: Not a block of this kind.
            ValueError: It belongs to another allocator.
        """
        mine = self._mine(block)
        run, index = mine._run, mine._index
        run.may_have_freed = True
        # The assignment runs the release, so both happen in one instruction.
        released = map(self.pool.compiled.release, ((mine.held(),),))
        run.blocks[index : index + 1] = map(freed_after, released)

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
        return self.ids.every()

    def is_computed(self, block: int) -> bool:
        """Whether a block of the pool is cached and its K/V was marked as computed."""
        return self.prefix_cache.is_computed(block)

    def physical_ids(self, blocks: list[int]) -> list[int]:
        """The callers' ids of blocks of the pool."""
        return self.ids.of_all(blocks)

    def physical_id(self, block: int) -> int:
        """The caller's id of a block of the pool.

        Raises:
            ValueError: The pool has no such block.
        """
        return self.ids.of(block)

    def pool_block(self, block_id: int) -> int:
        """The block of the pool with this id; also ``get_physical_block_id``.

        Raises:
            ValueError: Not a block of this allocator.
            TypeError: Not an int.
        """
        return self.ids.block(block_id)

    get_physical_block_id = pool_block

    def _mine(self, block: Block) -> PoolBlock:
        if not isinstance(block, self.block_class):
            raise TypeError(
                f"block must be a {self.block_class.__name__}, got {type(block).__name__}"
            )
        if block._run.allocator is not self:
            raise ValueError("block belongs to another allocator")
        return block

    def _run_after(self, prev_block: Block | None) -> Run:
        """The run to add blocks to: that of ``prev_block`` if it ends there, else a new one."""
        if prev_block is None:
            return Run(self)
        previous = self._mine(prev_block)
        previous.held()  # raises if it was freed: nothing can follow a freed block
        run, index = previous.place
        return run if index + 1 == len(run.blocks) else Run(self, previous)
