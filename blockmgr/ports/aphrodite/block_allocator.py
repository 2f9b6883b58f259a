"""The allocators of one pool: of blocks that only forks share, and of blocks found by prefix."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import TYPE_CHECKING, ClassVar

from blockmgr.arguments import integer
from blockmgr.errors import BlockStateError
from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite.block import (
    CACHED,
    FREED,
    WAITING,
    Block,
    BlockList,
    BlockView,
    NaiveBlock,
    PrefixCachingBlock,
)
from blockmgr.ports.aphrodite.interfaces import NoFreeBlocksError, extra_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.policy import PolicyFactory

__all__ = [
    "BlockAllocator",
    "CopyOnWriteTracker",
    "HitCounter",
    "NaiveBlockAllocator",
    "PrefixCachingBlockAllocator",
    "ReadOnlyRefCounter",
    "RefCounter",
]


class HitCounter:
    """Counts full blocks looked up, and those of them that were cached."""

    __slots__ = ("num_hits", "num_queries")

    num_queries: int
    """Full blocks looked up."""

    num_hits: int
    """Number of those that were cached."""

    def __init__(self) -> None:
        self.num_queries = self.num_hits = 0

    @property
    def hit_rate(self) -> float:
        """Hits over queries, in ``0 … 1``; 0 without queries."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0


class BlockAllocator:
    """Hands out blocks of one pool and takes them back; the base of both allocators.

    A block of another kind raises ``TypeError``, and one of another allocator ``ValueError``.
    Without prefix caching no block is ever cached, so nothing is found or computed.

    A full block is cached immediately, unless it waits for a copy or follows a block that waits:
    then it is cached when the copies are taken.

    Attributes:
        block_class: Class of its blocks.
        caches: Whether blocks can be found by their prefix.
        block_size: Tokens per block.
        pool: The core, whose own block ids begin at 0.
        refcounter: References to each physical block.
        cow_tracker: The copies to run before the next forward.
        hits: Full blocks looked up and found by ``allocate_immutable_*``.
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
        self.refcounter = RefCounter(self)
        self.cow_tracker = CopyOnWriteTracker(self)
        self.hits = HitCounter()
        self.waiting: dict[BlockList, None] = {}
        self._uncomputed: set[int] = set()  # cached blocks whose K/V was not marked computed
        # Of those, blocks that no forward has reached yet, by generation.
        self._unwritten: dict[int, int] = {}

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
            TypeError: A token that is not an int.
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
        if last == 0 and len(block_token_ids[0]) == self.block_size:
            return  # the most frequent request
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
        try:
            copies: dict[int, list[int]] = {}
            for source, destination, _ in plan:
                copies.setdefault(self._ids[source], []).append(self._ids[destination])
        except BaseException:  # so that the next call returns them
            self.pool.copies_aborted(plan.ticket)
            raise
        self.pool.copies_applied(plan.ticket)
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
        """The leading blocks among these tokens that are cached after ``parent``, if it is.

        Raises:
            ValueError: A token out of bounds.
            TypeError: A token that is not an int.
        """
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
        size, num_full, hits = self.block_size, len(tokens) // self.block_size, self.hits
        hits.num_queries += num_full
        hits.num_hits += found
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

        Raises:
            ValueError: Not a block of this allocator.
        """
        if block_ids is None:
            self._uncomputed.clear()
        else:
            self._mark_computed([self.pool_block(each) for each in block_ids])

    def _mark_computed(self, blocks: list[int]) -> None:
        self._uncomputed.difference_update([b for b in blocks if self.pool.is_cached(b)])

    def progress(self, done: list[int], rest: list[int]) -> None:
        """Records that the next forward writes the first blocks and not the rest."""
        self._mark_computed([block for block in done if block != FREED])
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
            BlockStateError: A block is not in use, and it is not cached.
            ValueError: Not a block of this allocator.
        """
        self.pool.touch([self.pool_block(each) for each in block_ids])

    def find_cached_blocks_prefix(self, block_hashes: Sequence[int]) -> list[int]:
        """The leading hashes of which each names a computed block after the previous one.

        Args:
            block_hashes: ``content_hash`` of each block of a sequence. Blocks with an extra hash
                cannot be found this way; ``ComputedBlocksTracker`` uses tokens, and finds them.

        Raises:
            TypeError: A hash that is not an int.

        Cost: O(blocks that continue the ones found), with one digest for each.
        """
        hashes = [integer("block_hashes", each) for each in block_hashes]
        parent, before = -1, None
        for at, wanted in enumerate(hashes):
            for child in self.pool.children(parent).tolist():
                tokens = self.pool.tokens(child)
                name = PrefixCachingBlock.hash_block_tokens(not at, before, tokens.tolist())
                # Also found by its tokens, so it has no extra key, and the hash is no collision.
                found = name == wanted and self.pool.find(tokens, parent=parent).tolist()
                if found == [child] and self.is_computed(child):
                    parent, before = child, name
                    break
            else:
                return hashes[:at]
        return hashes

    def get_prefix_cache_hit_rate(self) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.hits.hit_rate

    def reset_prefix_cache(self) -> bool:
        """Forgets cached blocks and the hit rate if no block is in use; returns whether it did."""
        if self.pool.num_used:
            return False
        self.pool.reset()
        for known in (self._uncomputed, self._unwritten, self.waiting):
            known.clear()
        self.hits = HitCounter()
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

    For one thread at a time.

    Args:
        num_blocks: Blocks of the pool.
        block_size: Tokens per block.
        block_ids: As in ``NaiveBlockAllocator``.
        eviction: As in ``ManagerConfig``.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    >>> allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
    >>> first = allocator.allocate_immutable(None, [1, 2])
    >>> again = allocator.allocate_immutable(None, [1, 2])
    >>> first.block_id == again.block_id, allocator.get_num_free_blocks()
    (True, 3)

    Source: the block allocators of vLLM 0.4 to 0.7 and Aphrodite 0.5.3 to 0.9.
    """

    block_class = PrefixCachingBlock
    caches: ClassVar[bool] = True


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
    """A writable counter, for callers that use blocks without ``Block`` objects."""

    __slots__ = ()

    def incr(self, block_id: int) -> int:
        """Adds a reference to a used or cached block; returns the count.

        Raises:
            BlockStateError: The block is not in use, and it is not cached.
            ValueError: Not a block of this allocator.
        """
        self._allocator.pool.acquire([self._allocator.pool_block(block_id)], found=False)
        return self.get(block_id)

    def decr(self, block_id: int) -> int:
        """Drops a reference; returns the remaining count.

        Raises:
            BlockStateError: The block is not in use.
            ValueError: Not a block of this allocator.
        """
        self._allocator.pool.release([self._allocator.pool_block(block_id)])
        return self.get(block_id)

    def as_readonly(self) -> ReadOnlyRefCounter:
        """A read-only view of the counts."""
        return ReadOnlyRefCounter(self._allocator)


class CopyOnWriteTracker:
    """The copies to run before the next forward, by the calls of the same name of the allocator."""

    __slots__ = ("clear_cows", "cow_block_if_not_appendable", "is_appendable")

    def __init__(self, allocator: BlockAllocator) -> None:
        self.is_appendable = allocator.is_appendable
        self.cow_block_if_not_appendable = allocator.cow_block_if_not_appendable
        self.clear_cows = allocator.clear_copy_on_writes
