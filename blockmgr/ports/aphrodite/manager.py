"""The block space manager that schedulers of this lineage call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import real, whole
from blockmgr.changes import at_once
from blockmgr.errors import SequenceStateError
from blockmgr.ports.aphrodite.computed import ComputedBlocksTracker
from blockmgr.ports.aphrodite.device import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.groups import (
    distinct_sequences,
    extra_hash_of,
    id_of,
    refuse_encoder,
    tokens_of,
)
from blockmgr.ports.aphrodite.growth import blocks_needed, blocks_needed_unshared
from blockmgr.ports.aphrodite.interfaces import AllocStatus, Device
from blockmgr.ports.aphrodite.table import BlockTable
from blockmgr.ports.aphrodite.tables import GroupTables, check_on_device
from blockmgr.ports.locking import exclusive, new_mutex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.changes import Change
    from blockmgr.ports.aphrodite.blocks import Run
    from blockmgr.ports.aphrodite.groups import GroupLike, SequenceLike

__all__ = ["BlockSpaceManager"]


class BlockSpaceManager:
    """Keeps a block table for every sequence, on the device or swapped to the host.

    A ``can_`` call uses the same plan as the call itself. Calls of several threads wait for one
    another; between a ``can_`` call and the call itself, another thread may change the answer.

    Args:
        block_size: Tokens per block.
        num_gpu_blocks: Blocks of the device.
        num_cpu_blocks: Blocks of the host; 0 without swapping.
        watermark: Fraction of the device's blocks held back from new work, in ``[0, 1)``.
        sliding_window: Tokens that attention reaches back; None for all.
        enable_caching: Whether full blocks can be found by their prefix.

    Raises:
        ValueError: A value is out of its bounds; a window together with caching.
        TypeError: A value is of the wrong type.
    """

    __slots__ = (
        "_computed",
        "_mutex",
        "_tables",
        "block_allocator",
        "block_size",
        "watermark_blocks",
    )

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
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self._tables = GroupTables(self.block_allocator, sliding_window)
        self._computed = ComputedBlocksTracker.with_tables(self.block_allocator, self.block_tables)
        self._mutex = new_mutex()

    @property
    def block_tables(self) -> dict[int, BlockTable]:
        """The table of each sequence that has blocks, by sequence id."""
        return self._tables.by_name

    # Allocation.

    @exclusive
    def can_allocate(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether the prompt of a group can get its blocks.

        ``OK``: ``allocate`` will succeed, then ``append_slots`` of each sequence with this many
        look-ahead slots, without going below the watermark. Cached blocks in use cost nothing.

        Raises:
            EncoderDecoderError: The group has an encoder.
            SequenceStateError: No sequence of the group waits for blocks.
            ValueError: The prompt is empty, or has a token out of bounds; a negative number of
                slots.
        """
        refuse_encoder(seq_group)
        waiting = self._tables.waiting(seq_group)
        tokens = tuple(tokens_of(waiting[0]))
        if not tokens:
            raise ValueError("seq_group must have a prompt of at least one token")
        required = BlockTable.get_num_required_blocks
        num_held = required(tokens, self.block_size)
        beyond = required(tokens, self.block_size, num_lookahead_slots) - num_held
        beyond *= len(waiting)
        gpu = self.block_allocator.pool_of(Device.GPU)
        taken = gpu.plans.num_taken_by(tokens, extra_hash_of(waiting[0]))
        return self._status(num_held + beyond, taken + beyond)

    @exclusive
    def allocate(self, seq_group: GroupLike) -> None:
        """Allocates the blocks of a group: for the first sequence; the others fork it.

        Raises:
            EncoderDecoderError: The group has an encoder.
            NoFreeBlocksError: Too few blocks are available; none is allocated.
            SequenceStateError: No sequence of the group waits for blocks.
            ValueError: The prompt is empty, or has a token out of bounds.
        """
        refuse_encoder(seq_group)
        first, *others = self._tables.waiting(seq_group)
        table = self._tables.new()

        def publish(run: Run) -> list[Change]:
            known, changes = {first.seq_id: table}, []
            for seq in others:
                known[seq.seq_id], forked = table.plan_fork(run)
                changes += forked
            return [*changes, (self.block_tables.update, known)]

        table.allocate_and(tokens_of(first), Device.GPU, extra_hash_of(first), publish)

    @exclusive
    def can_append_slots(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> bool:
        """Whether ``append_slots`` will succeed for every sequence of a group in turn.

        Blocks that become free meanwhile, because a full block is cached already, do not count.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            SequenceStateError: A sequence has lost tokens since they were given slots.
            ValueError: The group is on the host; a negative number of slots.
        """
        running = self._tables.running(seq_group)
        growths = self._tables.next_growths(running, num_lookahead_slots)
        gpu = self.block_allocator.pool_of(Device.GPU)
        for _, table in running:
            check_on_device(table)
        return blocks_needed(gpu.pool, growths) <= gpu.get_num_free_blocks()

    @exclusive
    def append_slots(
        self, seq: SequenceLike, num_lookahead_slots: int = 0
    ) -> list[tuple[int, int]]:
        """Takes slots for a sequence's tokens since the last call, and look-ahead slots.

        New tokens mean that all earlier tokens are computed.

        Returns:
            (source, destination) of the block copies to run before the next forward.

        Raises:
            NoFreeBlocksError: Too few blocks are available; nothing is appended.
            UnknownSequenceError: The sequence has no blocks.
            SequenceStateError: It has lost tokens since they were given slots.
            ValueError: It is on the host; a negative number of slots.

        If an exception from outside interrupts the call after it has appended tokens, the next call
        for any sequence returns the copies.
        """
        table, extra = self._tables.of(seq), extra_hash_of(seq)
        check_on_device(table)
        unseen = table.get_unseen_token_ids(tokens_of(seq))
        if unseen:
            table.append_sampled(unseen, num_lookahead_slots, extra)
        else:
            table.ensure_num_empty_slots(num_lookahead_slots, extra)
        return self.block_allocator.clear_copy_on_writes()

    @exclusive
    def fork(self, parent_seq: SequenceLike, child_seq: SequenceLike) -> None:
        """Makes a sequence share every block of another one.

        Raises:
            UnknownSequenceError: The parent has no blocks.
            SequenceStateError: The child has blocks already.
        """
        table = self._tables.of(parent_seq)
        child = id_of(child_seq)
        if child in self.block_tables:
            raise SequenceStateError(f"sequence {child} has blocks already")
        fork, changes = table.plan_fork(table.run)
        at_once([*changes, (self.block_tables.__setitem__, child, fork)], None)

    @exclusive
    def free(self, seq: SequenceLike) -> None:
        """Releases the blocks of a sequence on either device; without blocks it does nothing.

        Schedulers also free sequences that they never scheduled or have freed already.
        """
        name = id_of(seq)
        forget = self._computed.plan_removal(name)
        table = self.block_tables.get(name)
        if table is None:
            at_once([forget], None)
            return
        at_once([*table.plan_free(), (self.block_tables.pop, name), forget], None)

    def free_cross(self, seq_group: GroupLike) -> None:
        """Does nothing: a group with an encoder never gets blocks here.

        Raises:
            TypeError: Not a group.
        """
        distinct_sequences(seq_group)

    def get_cross_block_table(self, seq_group: GroupLike) -> list[int]:
        """Always raises: no group has blocks for cross-attention here.

        Raises:
            EncoderDecoderError: The group has an encoder.
            SequenceStateError: It has none.
            TypeError: Not a group.
        """
        distinct_sequences(seq_group)
        refuse_encoder(seq_group)
        raise SequenceStateError("the group has no encoder, so no block table of one")

    @exclusive
    def get_block_table(self, seq: SequenceLike) -> list[int]:
        """The physical blocks of a sequence.

        Raises:
            UnknownSequenceError: It has none.
        """
        return self._tables.of(seq).physical_block_ids

    @exclusive
    def get_common_computed_block_ids(self, seqs: Iterable[SequenceLike]) -> list[int]:
        """The leading blocks that none of these sequences needs to compute.

        Raises:
            UnknownSequenceError: A sequence has no blocks.
        """
        ids = [self._tables.of(seq).physical_block_ids for seq in seqs]
        return self.block_allocator.get_common_computed_block_ids(ids)

    @exclusive
    def get_num_cached_tokens(self, seq: SequenceLike) -> int:
        """Leading tokens of a sequence, scheduled or not, that need no computation.

        The number is a multiple of the block size, and less than all: the block of the last token
        is left to compute. While the sequence's ``is_prefill()`` is true, the answer does not
        change until ``remove_seq_from_computed_blocks_tracker`` or ``free``.

        Raises:
            ValueError: A token out of ``[0, 2**32)``.
            TypeError: Not a sequence, or a token that is not an int.
        """
        return self._computed.get_num_cached_tokens(seq)

    @exclusive
    def remove_seq_from_computed_blocks_tracker(self, seq: SequenceLike) -> None:
        """Makes ``get_num_cached_tokens`` look again, if the sequence was not scheduled."""
        self._computed.remove_seq(id_of(seq))

    @exclusive
    def mark_blocks_as_computed(
        self, seq_group: GroupLike, token_chunk_size: int | None = None
    ) -> None:
        """Declares which tokens the next forward writes.

        Args:
            seq_group: The scheduled group.
            token_chunk_size: Tokens of each of its sequences, after those of earlier calls, that
                the forward computes or finds computed; None for all tokens with slots. Later tokens
                are not shared as computed, and no other sequence drops its own K/V for them.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            ValueError: A negative ``token_chunk_size``; the group is on the host.
            TypeError: ``token_chunk_size`` is not an int.
        """
        if token_chunk_size is not None:
            token_chunk_size = whole("token_chunk_size", token_chunk_size, 0)
        changes: list[Change] = []
        for _, table in self._tables.running(seq_group):
            check_on_device(table)
            changes += table.plan_progress(token_chunk_size)
        at_once(changes, None)

    @exclusive
    def access_all_blocks_in_seq(self, seq: SequenceLike, now: float = 0.0) -> None:
        """Does nothing: blocks become the most recent ones when they are released.

        Raises:
            UnknownSequenceError: The sequence has no blocks.
        """
        self._tables.of(seq)

    # Swaps.

    @exclusive
    def can_swap_out(self, seq_group: GroupLike) -> bool:
        """Whether ``swap_out`` will succeed: the host has blocks for a group on the device.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            BlockStateError: A block waits for a copy; ``append_slots`` hands those out.
            ValueError: The group is on the host already.
        """
        running = self._tables.running(seq_group)
        if not self.block_allocator.get_num_total_blocks(Device.CPU):
            return False
        move = self._tables.plan_move(running, Device.GPU, Device.CPU)
        return move.num_taken <= self.block_allocator.get_num_free_blocks(Device.CPU)

    @exclusive
    def can_swap_in(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether the device has blocks for a group on the host and for its next step.

        ``OK``: ``swap_in`` will succeed, then ``append_slots`` of each sequence, without going
        below the watermark. The watermark protects running work: if no block is in use, it
        holds nothing back.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            SequenceStateError: A sequence has lost tokens since they were given slots.
            ValueError: The group is on the device already; a negative number of slots.
        """
        running = self._tables.running(seq_group)
        growths = self._tables.next_growths(running, num_lookahead_slots)
        if not self.block_allocator.get_num_total_blocks(Device.CPU):
            raise ValueError("seq_group must be on the host, which has no blocks")
        move = self._tables.plan_move(running, Device.CPU, Device.GPU)
        beyond = blocks_needed_unshared(growths)
        return self._status(move.num_held + beyond, move.num_taken + beyond, spares_idle=True)

    @exclusive
    def swap_out(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group to the host.

        Returns:
            (device block, host block) of the copies to run, as indices within each pool.

        Raises:
            NoFreeBlocksError: The host has too few blocks; nothing is moved.
            UnknownSequenceError: No sequence of the group has blocks.
            BlockStateError: A block waits for a copy; ``append_slots`` hands those out.
            ValueError: The group is on the host already, or the host has no blocks.
        """
        move = self._tables.plan_move(self._tables.running(seq_group), Device.GPU, Device.CPU)
        return move.carry_out(lambda copies: copies)

    @exclusive
    def swap_in(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group back to the device.

        Returns:
            (host block, device block) of the copies to run, as indices within each pool.

        Raises:
            NoFreeBlocksError: The device has too few blocks; nothing is moved.
            UnknownSequenceError: No sequence of the group has blocks.
            ValueError: The group is on the device already, or the host has no blocks.
        """
        move = self._tables.plan_move(self._tables.running(seq_group), Device.CPU, Device.GPU)
        return move.carry_out(lambda copies: copies)

    # Counts.

    def get_num_free_gpu_blocks(self) -> int:
        """Blocks of the device that can be handed out."""
        return self.block_allocator.get_num_free_blocks(Device.GPU)

    def get_num_free_cpu_blocks(self) -> int:
        """Blocks of the host that can be handed out."""
        return self.block_allocator.get_num_free_blocks(Device.CPU)

    @exclusive
    def get_prefix_cache_hit_rate(self, device: Device = Device.GPU) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.block_allocator.get_prefix_cache_hit_rate(device)

    @exclusive
    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forgets cached blocks and the hit rate of one device or all, if no block is in use."""
        return self.block_allocator.reset_prefix_cache(device)

    def _status(self, num_held: int, num_taken: int, *, spares_idle: bool = False) -> AllocStatus:
        """The answer for work that takes this many of the free blocks, and holds this many then.

        For work that ``spares_idle``, the watermark holds nothing back if no block is in use.
        """
        usable = self.block_allocator.get_num_usable_blocks(Device.GPU)
        free = self.block_allocator.get_num_free_blocks(Device.GPU)
        if num_held > usable - (0 if spares_idle else self.watermark_blocks):
            return AllocStatus.NEVER
        held_back = 0 if spares_idle and free == usable else self.watermark_blocks
        return AllocStatus.OK if num_taken <= free - held_back else AllocStatus.LATER
