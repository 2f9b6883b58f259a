"""The block table of one sequence."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError, SequenceStateError
from blockmgr.ports.aphrodite.block_allocator import FREED, Block, BlockList, BlockView
from blockmgr.ports.aphrodite.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.interfaces import (
    Device,
    NoFreeBlocksError,
    checked_extra,
    whole_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.pool import BlockPool
    from blockmgr.ports.aphrodite.block_allocator import BlockAllocator

__all__ = ["BlockTable", "Growth", "blocks_needed", "blocks_needed_unshared"]


class Growth(NamedTuple):
    """The blocks that a table takes and frees for its next slots."""

    num_new: int
    """Blocks added at the end."""
    written: list[int]
    """Partly filled blocks that get tokens; shared ones are moved."""
    stale: list[int]
    """Blocks that leave the window."""


def blocks_needed(pool: BlockPool, growths: Iterable[Growth]) -> int:
    """The most blocks that these growths, in order, take from a pool at any time.

    Each frees the blocks that have left its window before it takes any.
    """
    dropped: Counter[int] = Counter()
    needed = most = 0
    # Pending copies may still read a freed block.
    can_reuse = not pool.num_pending_copies
    for growth in growths:
        for block in growth.stale:
            if block != FREED:
                dropped[block] += 1
                needed -= can_reuse and pool.ref_count(block) == dropped[block]
        for block in growth.written:
            # The last sharer that writes to a block keeps it.
            if block != FREED and pool.ref_count(block) - dropped[block] > 1:
                dropped[block] += 1
                needed += 1
        needed += growth.num_new
        most = max(most, needed)
    return most


def blocks_needed_unshared(growths: Iterable[Growth]) -> int:
    """The same if every table writes only to its own blocks, as after a swap."""
    return max(accumulate((each.num_new - len(each.stale) for each in growths), initial=0))


class BlockTable:
    """The blocks of a sequence, which grow with its tokens; for one thread at a time.

    Calls that need blocks raise ``SequenceStateError`` if the table has none, and
    ``NoFreeBlocksError``, with nothing changed, if too few are available. A token or a number that
    is not an int raises ``TypeError``, and one out of its bounds ``ValueError``.

    Args:
        block_size: Tokens per block.
        block_allocator: Allocator of the blocks.
        max_block_sliding_window: Blocks that attention reads, including the one being written;
            older blocks are freed and replaced by the null block. Only without prefix caching,
            because a cached block keeps the blocks that it continues.

    Raises:
        NoFreeBlocksError: No block is left for the null block of a window.
        ValueError: ``block_size`` is not the allocator's, the window is below 1, or there is a
            window with prefix caching.
        TypeError: A value is of the wrong type.
    """

    __slots__ = ("_allocator", "_blocks", "_dropped", "_window", "block_size", "num_computed_slots")

    block_size: int
    """Tokens per block."""

    num_computed_slots: int
    """Leading slots whose K/V is known to be written; ``BlockSpaceManager`` keeps count."""

    def __init__(
        self,
        block_size: int,
        block_allocator: CpuGpuBlockAllocator,
        *,
        max_block_sliding_window: int | None = None,
    ) -> None:
        if not isinstance(block_allocator, CpuGpuBlockAllocator):
            kind = type(block_allocator).__name__
            raise TypeError(f"block_allocator must be a CpuGpuBlockAllocator, got {kind}")
        if block_size != block_allocator.block_size:
            raise ValueError(
                f"block_size must be the allocator's, {block_allocator.block_size}, got "
                f"{block_size}"
            )
        if max_block_sliding_window is not None:
            whole("max_block_sliding_window", max_block_sliding_window, 1)
            if block_allocator.caches:
                raise ValueError(
                    "max_block_sliding_window needs the naive allocator: a cached block keeps "
                    "what it continues"
                )
            block_allocator.allocate_or_get_null_block()
        self.block_size = block_size
        self._allocator = block_allocator
        self._window = max_block_sliding_window
        self._blocks: BlockList | None = None
        self._dropped = 0  # leading blocks freed for the window
        self.num_computed_slots = 0

    @staticmethod
    def get_num_required_blocks(
        token_ids: Sequence[int], block_size: int, num_lookahead_slots: int = 0
    ) -> int:
        """Blocks for this many tokens and look-ahead slots, without sharing."""
        slots = whole("num_lookahead_slots", num_lookahead_slots, 0)
        return -(-(len(token_ids) + slots) // whole("block_size", block_size, 1))

    def allocate(
        self,
        token_ids: Sequence[int],
        device: Device = Device.GPU,
        extra_hash: int | None = None,
    ) -> None:
        """Allocates the first blocks of the sequence; full blocks that are cached are shared.

        Raises:
            SequenceStateError: The table has blocks already.
            ValueError: No tokens, or one out of ``[0, 2**32)``.
        """
        if self._blocks is not None:
            raise SequenceStateError("the block table is allocated already")
        if not len(token_ids):
            raise ValueError("token_ids must not be empty")
        blocks = BlockList(self._allocator.pool_of(device))
        blocks.extend(tuple(token_ids), extra_hash)
        self._blocks = blocks
        self._dropped = self.num_computed_slots = 0

    def append_token_ids(
        self,
        token_ids: Sequence[int],
        num_lookahead_slots: int = 0,
        num_computed_slots: int | None = None,
        extra_hash: int | None = None,
    ) -> None:
        """Appends tokens, and makes sure of empty slots after them.

        If blocks to be written are shared, it leaves copies for ``clear_copy_on_writes``.

        Args:
            token_ids: At least one.
            num_lookahead_slots: Empty slots after the tokens.
            num_computed_slots: Leading slots whose K/V is written, at most those with tokens;
                required with a sliding window, to free blocks.
            extra_hash: Extra key of added blocks.
        """
        if not (tokens := whole_tokens(token_ids)):
            raise ValueError("token_ids must not be empty")
        if self._window is not None and num_computed_slots is None:
            raise ValueError("num_computed_slots must be given for a sliding window")
        blocks, start = self._allocated(), self.num_full_slots
        computed = 0 if num_computed_slots is None else num_computed_slots
        whole("num_computed_slots", computed, 0, start)
        lookahead = whole("num_lookahead_slots", num_lookahead_slots, 0)
        self._grow(len(tokens) + lookahead, len(tokens), computed, extra_hash)
        at = start // self.block_size
        while tokens:
            empty = self.block_size - len(blocks.tokens[at])
            blocks.fill(at, tokens[:empty])
            tokens, at = tokens[empty:], at + 1

    def ensure_num_empty_slots(self, num_empty_slots: int, extra_hash: int | None = None) -> None:
        """Makes sure that there are this many empty slots after the tokens."""
        self._grow(whole("num_empty_slots", num_empty_slots, 0), 0, 0, extra_hash)

    def _grow(self, num_slots: int, num_written: int, computed: int, extra: int | None) -> None:
        blocks = self._allocated()
        checked_extra(extra)
        growth, pool = self.growth(num_slots, num_written, computed), blocks.allocator.pool
        if FREED in growth.written or (growth.num_new and blocks.blocks[-1] == FREED):
            raise BlockStateError(FREED, "nothing can follow a block that was freed")
        # All counting before any change: blocks to add, and shared ones that must be moved.
        needed = blocks_needed(pool, [growth])
        if needed > pool.num_available:
            raise NoFreeBlocksError(needed, pool.num_available)
        if growth.stale:
            blocks.free(self._dropped, self._dropped + len(growth.stale))
            self._dropped += len(growth.stale)
        if growth.num_new:
            blocks.add_empty(growth.num_new, extra)

    def growth(self, num_slots: int, num_written: int, num_computed: int) -> Growth:
        """The growth that the table needs for its next slots.

        Args:
            num_slots: Slots after the current tokens.
            num_written: Of those, the ones that get tokens.
            num_computed: Tokens whose K/V is written; blocks before their window are freed.
        """
        blocks, size, start = self._allocated().blocks, self.block_size, self.num_full_slots
        num_new = max(-(-(start + num_slots) // size) - len(blocks), 0)
        end = -(-(start + num_written) // size) if num_written else 0
        window_start = 0 if self._window is None else num_computed // size - self._window
        return Growth(
            num_new,
            written=blocks[start // size : end],
            stale=blocks[self._dropped : max(window_start, self._dropped)],
        )

    def mark_computed(self, start: int, stop: int, num_full: int) -> None:
        """Records that the next forward computes these slots, of ``num_full`` with tokens."""
        blocks, size = self._allocated(), self.block_size
        done, rest = slice(start // size, stop // size), slice(stop // size, num_full // size)
        blocks.allocator.progress(blocks.blocks[done], blocks.blocks[rest])
        self.num_computed_slots = stop

    def fork(self) -> BlockTable:
        """A table for another sequence that shares every block of this one.

        Cost: O(blocks), without recursion and without an object per block.
        """
        blocks = self._allocated()
        child = BlockTable(self.block_size, self._allocator, max_block_sliding_window=self._window)
        child._blocks = BlockList.fork([(blocks, len(blocks.blocks))])
        child._dropped = self._dropped
        child.num_computed_slots = self.num_computed_slots
        return child

    def free(self) -> None:
        """Frees all blocks, the last first. Cached ones stay findable."""
        blocks = self._allocated()
        blocks.free(0, len(blocks.blocks))
        self._blocks = None

    def get_unseen_token_ids(self, sequence_token_ids: Sequence[int]) -> list[int]:
        """The tokens of the sequence that the table does not have yet.

        Args:
            sequence_token_ids: All tokens of the sequence, those in the table first.

        Raises:
            SequenceStateError: They are fewer than the table has, which cannot drop tokens.
        """
        start = self.num_full_slots
        if len(sequence_token_ids) < start:
            raise SequenceStateError(
                f"the sequence has {len(sequence_token_ids)} tokens, its block table {start}; "
                "free it and allocate it again"
            )
        return list(sequence_token_ids[start:])

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks in order, created when they are read; freed ones have no ``block_id``."""
        return () if self._blocks is None else BlockView(self._blocks)

    @property
    def physical_block_ids(self) -> list[int]:
        """The physical block of each block; the null block outside the window."""
        blocks, dropped = self._allocated(), self._dropped
        ids = blocks.allocator.physical_ids(blocks.blocks[dropped:])
        return [self._allocator.null_block_id] * dropped + ids if dropped else ids

    @property
    def num_full_slots(self) -> int:
        """Slots with a token; 0 without blocks."""
        tokens = self._blocks.tokens if self._blocks else []
        full = len(tokens)
        while full and len(tokens[full - 1]) < self.block_size:
            full -= 1  # only over look-ahead blocks, which are few
        return full * self.block_size + (len(tokens[full]) if full < len(tokens) else 0)

    @property
    def device(self) -> Device:
        """The device of the blocks."""
        return self._allocator.device_of(self._allocated().allocator)

    def pool_blocks(self) -> tuple[BlockAllocator, list[int]]:
        """The allocator of the blocks, and the blocks of its pool."""
        blocks = self._allocated()
        return blocks.allocator, blocks.blocks

    def _allocated(self) -> BlockList:
        if self._blocks is None:
            raise SequenceStateError("the block table has no blocks; allocate them first")
        return self._blocks
