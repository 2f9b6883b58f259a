"""What an engine remembers of its sequences, where it does not look everything up again."""

# ruff: noqa: D102
from __future__ import annotations

from typing import Any

import numpy as np

from blockmgr.stress.lockstep import Entry, LockStep

__all__ = ["RememberingEngine"]


class RememberingEngine(LockStep):
    """Where the forward of a sequence starts to write, and where to, by habit."""

    def first_to_write(self, entry: Entry) -> int:
        """The first position that the next forward of the sequence writes."""
        if not self.habits.looks_up:
            return entry.left_off
        start = entry.start
        return start if self.early else int(self.manager.sequence(entry.handle).num_computed_tokens)

    def hand(self, entry: Entry) -> None:
        """The slots of all that is not written, as the last call on the sequence left them."""
        if self.habits.writes != "as_handed":
            return
        view = self.manager.sequence(entry.handle)
        end = min(view.num_tokens, view.num_slots)
        start = min(entry.left_off, end)
        slots = self.slots(entry, start, end)
        known = np.zeros(start, np.int64)
        known[: len(entry.handed)] = entry.handed[:start]
        entry.handed = np.concatenate((known, slots))

    def hand_anew(self, entry: Entry) -> None:
        """Growth may have moved the sequence to another block, without what it promised."""
        entry.promise = 0
        self.hand(entry)

    def slots(self, entry: Entry, start: int, stop: int) -> Any:
        if not self.habits.by_row:
            return self.manager.slot_mapping(entry.handle, start, stop)
        table = self.manager.block_tables[self.manager.row(entry.handle)].astype(np.int64)
        positions = np.arange(start, stop)
        return table[positions // self.size] * self.size + positions % self.size
