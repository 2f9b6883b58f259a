"""The block table of one sequence."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError, SequenceStateError
from blockmgr.ports.aphrodite.block_allocator import FREED
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
    from blockmgr.ports.aphrodite.block_allocator import Block, BlockAllocator

__all__ = ["BlockTable", "Growth", "blocks_needed"]


class Growth(NamedTuple):
    """The blocks that a table takes and frees for its next slots."""

    num_new: int
    """Blocks added at the end."""
    written: list[int]
    """Partly filled blocks that get tokens; shared ones are moved."""


def blocks_needed(pool: BlockPool, growths: Iterable[Growth]) -> int:
    """The blocks that these growths, in order, take from a pool."""
    left: Counter[int] = Counter()
    needed = 0
    for growth in growths:
        for block in growth.written:
            # The last sharer that writes to a block keeps it.
            if block != FREED and pool.ref_count(block) - left[block] > 1:
                left[block] += 1
                needed += 1
        needed += growth.num_new
    return needed


class BlockTable:
    """The blocks of a sequence, which grow with its tokens; for one thread at a time.

    Calls that need blocks raise ``SequenceStateError`` if the table has none, and
    ``NoFreeBlocksError``, with nothing changed, if too few are available. A token or a number that
    is not an int raises ``TypeError``, and one out of its bounds ``ValueError``.

    Args:
        block_size: Tokens per block.
        block_allocator: Allocator of the blocks.

    Raises:
        ValueError: ``block_size`` is not the allocator's.
        TypeError: A value is of the wrong type.

    Attributes:
        num_computed_slots: Leading slots whose K/V is known to be written; ``BlockSpaceManager``
            keeps count.
    """

    def __init__(self, block_size: int, block_allocator: CpuGpuBlockAllocator) -> None:
        if not isinstance(block_allocator, CpuGpuBlockAllocator):
            kind = type(block_allocator).__name__
            raise TypeError(f"block_allocator must be a CpuGpuBlockAllocator, got {kind}")
        if block_size != block_allocator.block_size:
            raise ValueError(
                f"block_size must be the allocator's, {block_allocator.block_size}, got "
                f"{block_size}"
            )
        self.block_size = block_size
        self._allocator = block_allocator
        self._blocks: list[Block] = []
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
        if self._blocks:
            raise SequenceStateError("the block table is allocated already")
        if not len(token_ids):
            raise ValueError("token_ids must not be empty")
        allocator = self._allocator.pool_of(device)
        self._blocks = allocator.allocate_prompt(None, tuple(token_ids), extra_hash)
        self.num_computed_slots = 0

    def append_token_ids(
        self,
        token_ids: Sequence[int],
        num_lookahead_slots: int = 0,
        extra_hash: int | None = None,
    ) -> None:
        """Appends tokens, and makes sure of empty slots after them.

        If blocks to be written are shared, it leaves copies for ``clear_copy_on_writes``.

        Args:
            token_ids: At least one.
            num_lookahead_slots: Empty slots after the tokens.
            extra_hash: Extra key of added blocks.
        """
        if not (tokens := whole_tokens(token_ids)):
            raise ValueError("token_ids must not be empty")
        start = self.num_full_slots
        lookahead = whole("num_lookahead_slots", num_lookahead_slots, 0)
        self._grow(len(tokens) + lookahead, len(tokens), extra_hash)
        for block in self._blocks[start // self.block_size :]:
            empty = block.num_empty_slots
            if tokens:
                block.fill(tokens[:empty])
            tokens = tokens[empty:]

    def ensure_num_empty_slots(self, num_empty_slots: int, extra_hash: int | None = None) -> None:
        """Makes sure that there are this many empty slots after the tokens."""
        self._grow(whole("num_empty_slots", num_empty_slots, 0), 0, extra_hash)

    def _grow(self, num_slots: int, num_written: int, extra: int | None) -> None:
        allocator = self.allocator()
        checked_extra(extra)
        growth, last = self.growth(num_slots, num_written), self._blocks[-1]
        if FREED in growth.written or (growth.num_new and last.in_pool == FREED):
            raise BlockStateError(FREED, "nothing can follow a block that was freed")
        # All counting before any change: blocks to add, and shared ones that must be moved.
        needed = blocks_needed(allocator.pool, [growth])
        if needed > allocator.pool.num_available:
            raise NoFreeBlocksError(needed, allocator.pool.num_available)
        self._blocks += allocator.allocate_empty(last, growth.num_new, extra)

    def growth(self, num_slots: int, num_written: int) -> Growth:
        """The growth that the table needs for its next slots.

        Args:
            num_slots: Slots after the current tokens.
            num_written: Of those, the ones that get tokens.
        """
        size, start = self.block_size, self.num_full_slots
        num_new = max(-(-(start + num_slots) // size) - len(self._blocks), 0)
        end = -(-(start + num_written) // size) if num_written else 0
        return Growth(num_new, [block.in_pool for block in self._blocks[start // size : end]])

    def mark_computed(self, start: int, stop: int, num_full: int) -> None:
        """Records that the next forward computes these slots, of ``num_full`` with tokens."""
        allocator, size = self.allocator(), self.block_size
        done = self._blocks[start // size : stop // size]
        allocator.progress(done, self._blocks[stop // size : num_full // size])
        self.num_computed_slots = stop

    def fork(self) -> BlockTable:
        """A table for another sequence that shares every block of this one."""
        child = BlockTable(self.block_size, self._allocator)
        child._blocks = self.allocator().fork_all(self._blocks)
        child.num_computed_slots = self.num_computed_slots
        return child

    def free(self) -> None:
        """Frees all blocks, the last first. Cached ones stay findable."""
        self.allocator().free_all(self._blocks)
        self._blocks = []

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
    def blocks(self) -> list[Block]:
        """The blocks in order, in a new list; freed ones have no ``block_id``."""
        return self._blocks.copy()

    @property
    def physical_block_ids(self) -> list[int]:
        """The physical block of each block."""
        return self.allocator().physical_ids(block.in_pool for block in self._blocks)

    @property
    def num_full_slots(self) -> int:
        """Slots with a token; 0 without blocks."""
        full = len(self._blocks)
        while full and not self._blocks[full - 1].is_full:
            full -= 1  # only over look-ahead blocks, which are few
        rest = len(self._blocks[full].tokens) if full < len(self._blocks) else 0
        return full * self.block_size + rest

    @property
    def device(self) -> Device:
        """The device of the blocks."""
        return self._allocator.device_of(self.allocator())

    def allocator(self) -> BlockAllocator:
        """The allocator of the blocks, of which there must be some."""
        if not self._blocks:
            raise SequenceStateError("the block table has no blocks; allocate them first")
        return self._blocks[0].allocator
