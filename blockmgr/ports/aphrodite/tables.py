"""The block tables of all sequences, by id and by group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import whole
from blockmgr.errors import SequenceStateError, UnknownSequenceError
from blockmgr.ports.aphrodite.groups import distinct_sequences, id_of, tokens_of
from blockmgr.ports.aphrodite.interfaces import Device
from blockmgr.ports.aphrodite.table import BlockTable

if TYPE_CHECKING:
    from blockmgr.ports.aphrodite.device import CpuGpuBlockAllocator
    from blockmgr.ports.aphrodite.groups import GroupLike, SequenceLike
    from blockmgr.ports.aphrodite.growth import Growth
    from blockmgr.ports.aphrodite.moves import Move

__all__ = ["GroupTables", "check_on_device"]


def check_on_device(table: BlockTable) -> None:
    """Refuses a table whose blocks are on the host."""
    if table.device is not Device.GPU:
        raise ValueError("seq must be on the device, it is on the host; swap it in")


class GroupTables:
    """The block tables by sequence, and the sequences of a group with and without one.

    For one thread at a time.

    Args:
        allocator: Allocator of the blocks.
        sliding_window: Tokens that attention reaches back; None for all.

    Raises:
        NoFreeBlocksError: No block is left for the null block of a window.
    """

    __slots__ = ("_allocator", "_window", "by_name")

    by_name: dict[int, BlockTable]
    """The tables."""

    def __init__(self, allocator: CpuGpuBlockAllocator, sliding_window: int | None) -> None:
        self._allocator = allocator
        self._window: int | None = None
        self.by_name = {}
        if sliding_window is not None:
            # One more than the window covers, because it rarely begins at a block boundary.
            self._window = -(-sliding_window // allocator.block_size) + 1
            # Allocated here, so that later counts of free blocks are right.
            allocator.allocate_or_get_null_block()

    def new(self) -> BlockTable:
        """A table without blocks, not yet assigned to a sequence."""
        return BlockTable(
            self._allocator.block_size, self._allocator, max_block_sliding_window=self._window
        )

    def of(self, seq: SequenceLike) -> BlockTable:
        """The table of a sequence.

        Raises:
            UnknownSequenceError: It has none.
        """
        name = id_of(seq)
        try:
            return self.by_name[name]
        except KeyError:
            raise UnknownSequenceError(name) from None

    def running(self, seq_group: GroupLike) -> list[tuple[SequenceLike, BlockTable]]:
        """The sequences of a group that have a table, at least one, with their tables.

        Raises:
            UnknownSequenceError: None has.
        """
        known, sequences = self.by_name, distinct_sequences(seq_group)
        running = [(s, known[s.seq_id]) for s in sequences if s.seq_id in known]
        if not running:
            raise UnknownSequenceError(sequences[0].seq_id)
        return running

    def waiting(self, seq_group: GroupLike) -> list[SequenceLike]:
        """The unfinished sequences of a group that have no table, at least one.

        Raises:
            SequenceStateError: There is none.
        """
        waiting = [
            seq
            for seq in distinct_sequences(seq_group)
            if seq.seq_id not in self.by_name and not getattr(seq, "is_finished", bool)()
        ]
        if not waiting:
            raise SequenceStateError("every sequence of the group has blocks already, or has ended")
        return waiting

    def plan_move(
        self, running: list[tuple[SequenceLike, BlockTable]], source: Device, to: Device
    ) -> Move:
        """The plan to move these sequences to the other device; moves nothing yet."""
        return self._allocator.plan_swap([table.blocks for _, table in running], source, to)

    @staticmethod
    def next_growths(
        running: list[tuple[SequenceLike, BlockTable]], num_lookahead_slots: int
    ) -> list[Growth]:
        """The growth for ``append_slots`` of each of these sequences.

        Raises:
            SequenceStateError: A sequence has lost tokens since they were given slots.
            ValueError: A negative number of slots.
        """
        lookahead = whole("num_lookahead_slots", num_lookahead_slots, 0)
        return [
            table.next_growth(len(table.get_unseen_token_ids(tokens_of(seq))), lookahead)
            for seq, table in running
        ]
