"""What a reader knows of one publisher, and what each batch is to it. No sockets here."""

from __future__ import annotations

import enum

__all__ = ["Stream", "Verdict"]


class Verdict(enum.Enum):
    """What is to be done with a batch."""

    APPLY = "apply"
    """It is the next one."""

    DUPLICATE = "duplicate"
    """It has been applied."""

    GAP = "gap"
    """Others are missing before it."""

    RESTARTED = "restarted"
    """The publisher is another one than before: all that is known of it is wrong."""

    OUTDATED = "outdated"
    """It is of a publisher before the present one."""


class Stream:
    """Numbers of one publisher: how far it was read, and since which start of its.

    An epoch tells a restart from a gap. Publishers without one (vLLM's) begin again at 0, and their
    connection keeps batches in order, so a number that goes back to 0 is taken for a restart.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.next: int | None = None  # None: nothing is known yet

    def judge(self, epoch: int | None, number: int) -> Verdict:
        """What a batch is; changes nothing."""
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
        """A batch has been applied, or stands for all that a snapshot says."""
        if epoch is not None:
            self.epoch = epoch
        self.next = number + 1

    def restart(self) -> None:
        """Another publisher is there."""
        self.epoch = self.next = None
