"""The memory of an engine that does not look everything up again."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.stress.lockstep import Entry, LockStep

__all__ = ["RememberingEngine"]


class RememberingEngine(LockStep):
    """The first token and the slots that a forward writes, by habit."""

    def first_to_write(self, entry: Entry) -> int:
        """The first position that the next forward of the sequence writes."""
        if not self.habits.looks_up:
            return entry.left_off
        start = entry.start
        return start if self.early else int(self.manager.sequence(entry.handle).num_computed_tokens)

    def hand(self, entry: Entry) -> None:
        """The slots of all unwritten tokens after the last call on the sequence."""
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
        """Handles growth that moved the sequence to another block without its committed tokens."""
        entry.promise = 0
        self.hand(entry)

    def slots(self, entry: Entry, start: int, stop: int) -> Any:
        if not self.habits.by_row:
            return self.manager.slot_mapping(entry.handle, start, stop)
        table = self.manager.block_tables[self.manager.row(entry.handle)].astype(np.int64)
        positions = np.arange(start, stop)
        return table[positions // self.size] * self.size + positions % self.size
