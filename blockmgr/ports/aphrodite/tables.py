"""The block tables of a manager, and moving groups of them between the device and the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.arguments import whole
from blockmgr.errors import UnknownSequenceError
from blockmgr.ports.aphrodite.groups import distinct_sequences, id_of, tokens_of
from blockmgr.ports.aphrodite.interfaces import AllocStatus, Device
from blockmgr.ports.locking import exclusive

if TYPE_CHECKING:
    from blockmgr.ports.aphrodite.device import CpuGpuBlockAllocator
    from blockmgr.ports.aphrodite.groups import GroupLike, SequenceLike
    from blockmgr.ports.aphrodite.growth import Growth
    from blockmgr.ports.aphrodite.moves import Move
    from blockmgr.ports.aphrodite.table import BlockTable

__all__ = ["GroupTables"]


class GroupTables:
    """The half of ``BlockSpaceManager`` that knows where groups are; its attributes are there."""

    __slots__ = ("_mutex", "block_allocator", "block_tables", "watermark_blocks")

    _mutex: Any
    block_allocator: CpuGpuBlockAllocator
    block_tables: dict[int, BlockTable]
    watermark_blocks: int

    @exclusive
    def can_swap_out(self, seq_group: GroupLike) -> bool:
        """Whether ``swap_out`` succeeds: the host has blocks for a group on the device.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            BlockStateError: A block waits for a copy; ``append_slots`` hands those out.
            ValueError: The group is on the host already.
        """
        running = self._running(seq_group)
        if not self.block_allocator.get_num_total_blocks(Device.CPU):
            return False
        move = self._planned(running, Device.GPU, Device.CPU)
        return move.num_taken <= self.block_allocator.get_num_free_blocks(Device.CPU)

    @exclusive
    def can_swap_in(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether the device has blocks for a group on the host, and for its next step.

        ``OK``: ``swap_in`` succeeds, ``append_slots`` of each sequence after it, and the watermark
        is kept. The watermark is for running work: if no block is in use, it holds nothing back.

        Raises:
            UnknownSequenceError: No sequence of the group has blocks.
            SequenceStateError: A sequence has lost tokens since they were given slots.
            ValueError: The group is on the device already; a negative number of slots.
        """
        running = self._running(seq_group)
        growths = self._growths(running, num_lookahead_slots)
        if not self.block_allocator.get_num_total_blocks(Device.CPU):
            raise ValueError("seq_group must be on the host, which has no blocks")
        move = self._planned(running, Device.CPU, Device.GPU)
        # What is shared on the host or cached there has a block of its own to write to then.
        beyond = most = 0
        for growth in growths:
            beyond += growth.num_new - len(growth.stale)
            most = max(most, beyond)
        if move.num_held + most > self._usable(Device.GPU):
            return AllocStatus.NEVER
        return self._now_or_later(move.num_taken + most, Device.GPU, spares_idle=True)

    @exclusive
    def swap_out(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group to the host.

        Returns:
            (device block, host block) of the copies to run, counted from 0 on either side.

        Raises:
            NoFreeBlocksError: The host has too few blocks; nothing is moved.
            UnknownSequenceError: No sequence of the group has blocks.
            BlockStateError: A block waits for a copy; ``append_slots`` hands those out.
            ValueError: The group is on the host already, or the host has no blocks.
        """
        move = self._planned(self._running(seq_group), Device.GPU, Device.CPU)
        return move.carry_out(lambda copies: copies)

    @exclusive
    def swap_in(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group back to the device.

        Returns:
            (host block, device block) of the copies to run, counted from 0 on either side.

        Raises:
            NoFreeBlocksError: The device has too few blocks; nothing is moved.
            UnknownSequenceError: No sequence of the group has blocks.
            ValueError: The group is on the device already, or the host has no blocks.
        """
        move = self._planned(self._running(seq_group), Device.CPU, Device.GPU)
        return move.carry_out(lambda copies: copies)

    def _planned(
        self, running: list[tuple[SequenceLike, BlockTable]], source: Device, to: Device
    ) -> Move:
        blocks = [table.blocks for _, table in running]
        return self.block_allocator.plan_swap(blocks, source, to)

    def _growths(
        self, running: list[tuple[SequenceLike, BlockTable]], num_lookahead_slots: int
    ) -> list[Growth]:
        lookahead = whole("num_lookahead_slots", num_lookahead_slots, 0)
        return [
            table.next_growth(len(table.get_unseen_token_ids(tokens_of(seq))), lookahead)
            for seq, table in running
        ]

    def _usable(self, device: Device) -> int:
        return self.block_allocator.get_num_usable_blocks(device)

    def _now_or_later(
        self, needed: int, device: Device, *, spares_idle: bool = False
    ) -> AllocStatus:
        free = self.block_allocator.get_num_free_blocks(device)
        nobody_runs = free == self._usable(device)
        held_back = 0 if spares_idle and nobody_runs else self.watermark_blocks
        return AllocStatus.OK if needed <= free - held_back else AllocStatus.LATER

    def _check_on_device(self, table: BlockTable) -> None:
        if table.device is not Device.GPU:
            raise ValueError("seq must be on the device, it is on the host; swap it in")

    def _table(self, seq: SequenceLike) -> BlockTable:
        name = id_of(seq)
        try:
            return self.block_tables[name]
        except KeyError:
            raise UnknownSequenceError(name) from None

    def _running(self, seq_group: GroupLike) -> list[tuple[SequenceLike, BlockTable]]:
        known = self.block_tables
        sequences = distinct_sequences(seq_group)
        running = [(s, known[s.seq_id]) for s in sequences if s.seq_id in known]
        if not running:
            raise UnknownSequenceError(sequences[0].seq_id)
        return running
