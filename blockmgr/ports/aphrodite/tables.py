"""The block tables of all sequences, by sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import whole
from blockmgr.errors import SequenceStateError, UnknownSequenceError
from blockmgr.ports.aphrodite.groups import distinct_sequences, id_of, tokens_of
from blockmgr.ports.aphrodite.interfaces import Device

if TYPE_CHECKING:
    from blockmgr.ports.aphrodite.groups import GroupLike, SequenceLike
    from blockmgr.ports.aphrodite.growth import Growth
    from blockmgr.ports.aphrodite.table import BlockTable

    Running = list[tuple[SequenceLike, BlockTable]]
    """Sequences of a group, each with its table."""

__all__ = ["GroupTables", "growths", "on_device"]


class GroupTables:
    """Which sequences have a block table, and which of a group have.

    Attributes:
        by_id: The tables, by the ids of their sequences.
    """

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[int, BlockTable] = {}

    def of(self, seq: SequenceLike) -> BlockTable:
        """The table of a sequence.

        Raises:
            UnknownSequenceError: It has none.
        """
        name = id_of(seq)
        try:
            return self.by_id[name]
        except KeyError:
            raise UnknownSequenceError(name) from None

    def running(self, seq_group: GroupLike) -> Running:
        """The sequences of a group that have a table.

        Raises:
            UnknownSequenceError: None has.
        """
        sequences = distinct_sequences(seq_group)
        running = [(s, self.by_id[s.seq_id]) for s in sequences if s.seq_id in self.by_id]
        if not running:
            raise UnknownSequenceError(sequences[0].seq_id)
        return running

    def waiting(self, seq_group: GroupLike) -> list[SequenceLike]:
        """The sequences of a group that have none yet.

        Raises:
            SequenceStateError: Each has one, or has ended.
        """
        waiting = [
            seq
            for seq in distinct_sequences(seq_group)
            if seq.seq_id not in self.by_id and not getattr(seq, "is_finished", bool)()
        ]
        if not waiting:
            raise SequenceStateError("every sequence of the group has blocks already, or has ended")
        return waiting


def growths(running: Running, num_lookahead_slots: int) -> list[Growth]:
    """How each table grows in the next step, with so many look-ahead slots."""
    lookahead = whole("num_lookahead_slots", num_lookahead_slots, 0)
    return [
        table.next_growth(len(table.get_unseen_token_ids(tokens_of(seq))), lookahead)
        for seq, table in running
    ]


def on_device(table: BlockTable) -> BlockTable:
    """The table.

    Raises:
        ValueError: It is on the host.
    """
    if table.device is not Device.GPU:
        raise ValueError("seq must be on the device, it is on the host; swap it in")
    return table
