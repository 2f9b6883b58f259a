"""The position of a reader in a publisher's stream, and its verdict on each batch."""

from __future__ import annotations

import enum

__all__ = ["Stream", "Verdict"]


class Verdict(enum.Enum):
    """What to do with a batch."""

    APPLY = "apply"
    """It is the next batch."""

    DUPLICATE = "duplicate"
    """It was applied already."""

    GAP = "gap"
    """Earlier batches are missing."""

    RESTARTED = "restarted"
    """The publisher has restarted: the known state is wrong."""

    OUTDATED = "outdated"
    """It comes from a publisher before the current one."""


class Stream:
    """The batch numbers of one publisher: the last one read, and the publisher's epoch.

    An epoch distinguishes a restart from a gap. Publishers without an epoch (vLLM's) restart at 0,
    and the connection keeps batches in order, so a number that goes back to 0 means a restart.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.next: int | None = None  # None: no batch read yet

    def judge(self, epoch: int | None, number: int) -> Verdict:
        """The verdict on a batch; changes nothing."""
        if self.epoch is not None and epoch is not None and epoch != self.epoch:
            return Verdict.RESTARTED if epoch > self.epoch else Verdict.OUTDATED
        if self.next is None:
            return Verdict.GAP if number else Verdict.APPLY
        if number == self.next:
            return Verdict.APPLY
        if number > self.next:
            return Verdict.GAP
        if epoch is None and number == 0:
            return Verdict.RESTARTED
        return Verdict.DUPLICATE

    def advance(self, epoch: int | None, number: int) -> None:
        """Records that a batch, or a snapshot up to it, was applied."""
        if epoch is not None:
            self.epoch = epoch
        self.next = number + 1

    def restart(self) -> None:
        """Starts again with another publisher."""
        self.epoch = self.next = None
