"""The block tables of all sequences: what a scheduler of that lineage calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from blockmgr.arguments import real, whole
from blockmgr.errors import SequenceStateError, UnknownSequenceError
from blockmgr.ports.aphrodite.device import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.interfaces import AllocStatus, Device, NoFreeBlocksError
from blockmgr.ports.aphrodite.table import BlockTable
from blockmgr.ports.commits import at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.ports.aphrodite.blocks import Run
    from blockmgr.ports.commits import Step

__all__ = ["BlockSpaceManager", "GroupLike", "SequenceLike"]


class SequenceLike(Protocol):
    """What is read of a sequence."""

    @property
    def seq_id(self) -> int:
        """Its name, distinct among those alive."""

    def get_token_ids(self) -> Sequence[int]:
        """All its tokens, those not scheduled yet included."""


class GroupLike(Protocol):
    """What is read of a group: sequences that are scheduled and swapped together."""

    def get_seqs(self) -> Sequence[SequenceLike]:
        """Its sequences; at first all with the same tokens."""


class BlockSpaceManager:
    """Keeps a block table for every sequence, on the device or swapped to the host.

    Args:
        block_size: Tokens a block.
        num_gpu_blocks: Blocks of the device.
        num_cpu_blocks: Blocks of the host; 0 without swapping.
        watermark: Share of the device's blocks held back from new work, in ``[0, 1)``.
        sliding_window: Tokens that attention reaches back; None for all.
        enable_caching: Whether full blocks are found by the prefix they end.

    Raises:
        ValueError: A value is out of its bounds; a window together with caching.
        TypeError: A value is of the wrong type.
    """

    __slots__ = ("_window", "block_allocator", "block_size", "block_tables", "watermark_blocks")

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        *,
        watermark: float = 0.01,
        sliding_window: int | None = None,
        enable_caching: bool = False,
    ) -> None:
        if not 0 <= real("watermark", watermark) < 1:
            raise ValueError(f"watermark must be in [0, 1), got {watermark}")
        if not isinstance(enable_caching, bool):
            raise TypeError(f"enable_caching must be a bool, got {enable_caching!r}")
        if sliding_window is not None:
            sliding_window = whole("sliding_window", sliding_window, 1)
            if enable_caching:
                raise ValueError(
                    f"sliding_window must be without enable_caching, got {sliding_window}"
                )
        self.block_allocator = CpuGpuBlockAllocator.create(
            "prefix_caching" if enable_caching else "naive",
            num_gpu_blocks,
            num_cpu_blocks,
            block_size,
        )
        self.block_size = block_size
        self.block_tables: dict[int, BlockTable] = {}
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        # One more than the window covers, for it seldom begins with a block.
        self._window = None if sliding_window is None else -(-sliding_window // block_size) + 1

    def can_allocate(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether there are blocks for the prompt of a group.

        Raises:
            SequenceStateError: No sequence of the group waits for blocks.
            ValueError: The prompt is empty; a negative number of slots.
        """
        tokens = _tokens(self._waiting(seq_group)[0])
        if not len(tokens):
            raise ValueError("seq_group must have a prompt of at least one token")
        needed = BlockTable.get_num_required_blocks(tokens, self.block_size, num_lookahead_slots)
        return self._status(needed, Device.GPU)

    def allocate(self, seq_group: GroupLike) -> None:
        """Gives the sequences of a group their blocks: the first its own, the others forks of it.

        Raises:
            NoFreeBlocksError: Too few blocks are available; none is allocated.
            SequenceStateError: No sequence of the group waits for blocks.
            ValueError: The prompt is empty.
        """
        first, *others = self._waiting(seq_group)
        table = self._new_table()

        def publish(run: Run) -> list[Step]:
            known, steps = {first.seq_id: table}, []
            for seq in others:
                known[seq.seq_id], forked = table.plan_fork(run)
                steps += forked
            return [*steps, (self.block_tables.update, known)]

        table.allocate_and(_tokens(first), Device.GPU, None, publish)

    def can_append_slots(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> bool:
        """Whether ``append_slots`` of every sequence of a group is sure to succeed.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            SequenceStateError: A sequence has lost tokens since they were given slots.
            ValueError: A negative number of slots.
        """
        needed = sum(
            table.get_num_blocks_touched_by_append_slots(
                table.get_unseen_token_ids(_tokens(seq)), num_lookahead_slots
            )
            for seq, table in self._running(seq_group)
        )
        return needed <= self.block_allocator.get_num_free_blocks(Device.GPU)

    def append_slots(
        self, seq: SequenceLike, num_lookahead_slots: int = 0
    ) -> list[tuple[int, int]]:
        """Gives the tokens a sequence has got since the last call slots, and empty ones beyond.

        Returns:
            (source, destination) of the block copies to run before the next forward.

        Raises:
            NoFreeBlocksError: Too few blocks are available; nothing is appended.
            UnknownSequenceError: The sequence has no blocks.
            SequenceStateError: It has lost tokens since they were given slots.
            ValueError: A negative number of slots.

        Interrupted from outside after tokens were appended, the copies are still there for the next
        call, of whatever sequence.
        """
        table = self._table(seq)
        unseen = table.get_unseen_token_ids(_tokens(seq))
        if unseen:
            table.append_token_ids(
                unseen, num_lookahead_slots, num_computed_slots=table.num_full_slots
            )
        else:
            table.ensure_num_empty_slots(num_lookahead_slots)
        return self.block_allocator.clear_copy_on_writes()

    def fork(self, parent_seq: SequenceLike, child_seq: SequenceLike) -> None:
        """Lets a sequence share every block of another.

        Raises:
            UnknownSequenceError: The parent has no blocks.
            SequenceStateError: The child has blocks already.
        """
        table = self._table(parent_seq)
        child = _id(child_seq)
        if child in self.block_tables:
            raise SequenceStateError(f"sequence {child} has blocks already")
        fork, steps = table.plan_fork(table.run)
        at_once([*steps, (self.block_tables.__setitem__, child, fork)], None)

    def free(self, seq: SequenceLike) -> None:
        """Gives the blocks of a sequence back, wherever they are.

        Raises:
            UnknownSequenceError: It has none (freeing twice ends here).
        """
        steps = self._table(seq).plan_free()
        at_once([*steps, (self.block_tables.pop, seq.seq_id)], None)

    def get_block_table(self, seq: SequenceLike) -> list[int]:
        """The physical blocks of a sequence.

        Raises:
            UnknownSequenceError: It has none.
        """
        return self._table(seq).physical_block_ids

    def get_common_computed_block_ids(self, seqs: Iterable[SequenceLike]) -> list[int]:
        """The leading blocks that every one of these sequences need not compute.

        Raises:
            UnknownSequenceError: A sequence has no blocks.
        """
        ids = [self._table(seq).physical_block_ids for seq in seqs]
        return self.block_allocator.get_common_computed_block_ids(ids)

    def mark_blocks_as_computed(self, seq_group: GroupLike) -> None:
        """Declares the K/V of all tokens that a group has slots for written.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
        """
        tables = [table for _, table in self._running(seq_group)]
        self.block_allocator.mark_blocks_as_computed(
            block for table in tables for block in table.physical_block_ids
        )

    def access_all_blocks_in_seq(self, seq: SequenceLike, now: float = 0.0) -> None:
        """Nothing to do: blocks in use are the most recent ones when they are released.

        Raises:
            UnknownSequenceError: The sequence has no blocks.
        """
        self._table(seq)

    # Swapping.

    def can_swap_out(self, seq_group: GroupLike) -> bool:
        """Whether the host has blocks for a group on the device.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            ValueError: The group is on the host already.
        """
        return self._can_move(seq_group, Device.CPU, 0) is AllocStatus.OK

    def can_swap_in(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether the device has blocks for a group on the host, and for its next step.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            SequenceStateError: A sequence has lost tokens since they were given slots.
            ValueError: The group is on the device already; a negative number of slots.
        """
        return self._can_move(seq_group, Device.GPU, num_lookahead_slots)

    def swap_out(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group to the host.

        Returns:
            (device block, host block) of the copies to run, counted from 0 on either side.

        Raises:
            NoFreeBlocksError: The host has too few blocks; nothing is moved.
            UnknownSequenceError: No sequence of the group has blocks.
            BlockStateError: A block waits for a copy; ``append_slots`` hands those out.
        """
        return self._move(seq_group, Device.GPU, Device.CPU)

    def swap_in(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group back to the device.

        Returns:
            (host block, device block) of the copies to run, counted from 0 on either side.

        Raises:
            NoFreeBlocksError: The device has too few blocks; nothing is moved.
            UnknownSequenceError: No sequence of the group has blocks.
        """
        return self._move(seq_group, Device.CPU, Device.GPU)

    def _can_move(
        self, seq_group: GroupLike, device: Device, num_lookahead_slots: int
    ) -> AllocStatus:
        running = self._running(seq_group)
        num_lookahead_slots = whole("num_lookahead_slots", num_lookahead_slots, 0)
        if not self.block_allocator.get_num_total_blocks(device):
            return AllocStatus.NEVER
        needed = 0
        for seq, table in running:
            needed += self.block_allocator.get_num_full_blocks_touched(table.blocks, device)
            if device is Device.GPU:
                needed += table.get_num_blocks_touched_by_append_slots(
                    table.get_unseen_token_ids(_tokens(seq)), num_lookahead_slots
                )
        return self._status(needed, device)

    def _move(
        self, seq_group: GroupLike, src_device: Device, dst_device: Device
    ) -> list[tuple[int, int]]:
        allocator = self.block_allocator
        tables = [table for _, table in self._running(seq_group)]
        needed = sum(allocator.get_num_full_blocks_touched(t.blocks, dst_device) for t in tables)
        if needed > allocator.get_num_free_blocks(dst_device):
            raise NoFreeBlocksError(needed, allocator.get_num_free_blocks(dst_device))
        allocator.pool_of(src_device).refuse_waiting(
            [block for t in tables for block in t.run.blocks]
        )
        blocks = [table.blocks for table in tables]
        return allocator.swap_all(blocks, src_device, dst_device, lambda copies: copies)

    # Counts.

    def get_num_free_gpu_blocks(self) -> int:
        """Blocks of the device that could be handed out."""
        return self.block_allocator.get_num_free_blocks(Device.GPU)

    def get_num_free_cpu_blocks(self) -> int:
        """Blocks of the host that could be handed out."""
        return self.block_allocator.get_num_free_blocks(Device.CPU)

    def get_prefix_cache_hit_rate(self, device: Device = Device.GPU) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.block_allocator.get_prefix_cache_hit_rate(device)

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forgets what is cached on one device or on all, where no block is in use."""
        return self.block_allocator.reset_prefix_cache(device)

    def _status(self, needed: int, device: Device) -> AllocStatus:
        held_back = self.watermark_blocks if device is Device.GPU else 0
        if needed > self.block_allocator.get_num_total_blocks(device) - held_back:
            return AllocStatus.NEVER
        if needed > self.block_allocator.get_num_free_blocks(device) - held_back:
            return AllocStatus.LATER
        return AllocStatus.OK

    def _new_table(self) -> BlockTable:
        return BlockTable(
            self.block_size, self.block_allocator, max_block_sliding_window=self._window
        )

    def _table(self, seq: SequenceLike) -> BlockTable:
        name = _id(seq)
        try:
            return self.block_tables[name]
        except KeyError:
            raise UnknownSequenceError(name) from None

    def _waiting(self, seq_group: GroupLike) -> list[SequenceLike]:
        waiting = [s for s in _distinct(seq_group) if s.seq_id not in self.block_tables]
        if not waiting:
            raise SequenceStateError("every sequence of the group has blocks already")
        return waiting

    def _running(self, seq_group: GroupLike) -> list[tuple[SequenceLike, BlockTable]]:
        known = self.block_tables
        sequences = _distinct(seq_group)
        running = [(s, known[s.seq_id]) for s in sequences if s.seq_id in known]
        if not running:
            raise UnknownSequenceError(sequences[0].seq_id)
        return running


def _distinct(seq_group: GroupLike) -> list[SequenceLike]:
    if not hasattr(seq_group, "get_seqs"):
        raise TypeError(f"seq_group must have get_seqs, got {type(seq_group).__name__}")
    sequences = list(seq_group.get_seqs())
    if not sequences:
        raise ValueError("seq_group must have at least one sequence")
    if len(set(map(_id, sequences))) < len(sequences):
        raise ValueError("seq_group must not name a sequence twice")
    return sequences


def _id(seq: SequenceLike) -> int:
    try:
        return seq.seq_id
    except AttributeError:
        raise TypeError(f"seq must have a seq_id, got {type(seq).__name__}") from None


def _tokens(seq: SequenceLike) -> Sequence[int]:
    if not hasattr(seq, "get_token_ids"):
        raise TypeError(f"seq must have get_token_ids, got {type(seq).__name__}")
    return seq.get_token_ids()
