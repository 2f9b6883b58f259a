"""Copies, and the steps that run them.

The order within a step is: copies, then the forward. So a copy brings what was written before the
step, and what the forward will write can be joined, but not copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockmgr.blocks import CopyPlan
from blockmgr.errors import StepError, TicketError
from tests.specification.blocks import Block, Content, Copy, ModelBlocks, Seq

__all__ = ["ModelSteps"]


class ModelSteps(ModelBlocks):
    """Plans copies, and tracks the steps that are launched and not complete."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.early = self.config.early_commit
        self.steps_in_flight = self.config.steps_in_flight
        self.last_ticket = 0
        self.moved: list[Seq] = []
        """Sequences whose states the step being launched may advance."""

    # ---- copies -------------------------------------------------------------------------

    def is_destination(self, block: Block) -> bool:
        return any(block is copy.destination for copy in self.waiting())

    def is_kept(self, block: Block) -> bool:
        """Whether a copy or a caller still reads it, so that it cannot become something else."""
        return any(block is copy.source for copy in self.waiting()) or block in self.holds

    def is_being_kept(self, block: Block) -> bool:
        """Whether it is a kept state whose sequence still waits for the copy."""
        return any(block is copy.source and copy.keeps for copy in self.waiting())

    def told(self) -> set[Content]:
        """What events have reported: every whole unit that can be found, group by group."""
        return {
            block.content
            for block in self.live
            if block.content is not None
            and len(block.content[1][1]) % self.size == 0
            and not self.is_being_kept(block)
        }

    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        """Plans a copy; of a copy that is not taken, from its source. Returns its tokens."""
        is_empty = source in self.due_zeros  # unlike a ring that is emptied after it was copied
        for copy in self.pending:
            if copy.destination is source:
                source, num_tokens = copy.source, min(num_tokens, copy.num_tokens)
        self.pending = [copy for copy in self.pending if copy.destination is not destination]
        if is_empty:
            self.due_zeros.append(destination)
        elif num_tokens:
            self.pending.append(Copy(group, source, destination, num_tokens, keeps))
            self.count["planned_copies"] += group != self.nodes
        return num_tokens

    def empty(self, block: Block) -> None:
        """A ring begins empty (G16): zeros are written after the copies of the next step."""
        self.pending = [copy for copy in self.pending if copy.destination is not block]
        if block not in self.due_zeros:
            self.due_zeros.append(block)

    # ---- steps --------------------------------------------------------------------------

    def num_slots(self, seq: Seq) -> int:
        return seq.num_slots

    def take_copies(self) -> CopyPlan:
        """Closes the plan of a step, whose forward may advance any sequence with work left."""
        if self.taken is not None:
            raise StepError(f"ticket {self.last_ticket} is not resolved")
        if self.steps_in_flight:
            if len(self.in_flight) >= self.steps_in_flight:
                raise StepError(f"{len(self.in_flight)} steps are in flight")
            self.in_flight.append(self.last_ticket + 1)
        self.taken, self.pending = self.pending, []
        self.taken_zeros, self.due_zeros = self.due_zeros, []
        self.last_ticket += 1
        self.moved = [
            seq
            for seq in self.seqs.values()
            if not (seq.preempted or seq.loads)
            and seq.begins < min(len(seq.tokens), self.num_slots(seq))
        ]
        for seq in self.moved:
            seq.stands, seq.moves = False, seq.moves + 1
            seq.farthest = max(seq.farthest, min(len(seq.tokens), self.num_slots(seq)))
        copies = [copy for copy in self.taken if copy.group != self.nodes]
        rows = [(c.source.id, c.destination.id, c.num_tokens, c.group) for c in copies]
        columns = np.array(rows, np.int32).reshape(-1, 4).T
        several = len(self.kinds) > 1
        zeros = np.array([block.id for block in self.taken_zeros], np.int32)
        return CopyPlan(self.last_ticket, *columns[:3], *((columns[3], zeros) if several else ()))

    def resolve(self, ticket: int) -> list[Copy]:
        if self.taken is None or ticket != self.last_ticket:
            raise TicketError(f"ticket {ticket} is not open")
        return self.taken

    def copies_applied(self, ticket: int) -> None:
        """The forward that follows writes what was committed early."""
        copies = self.resolve(ticket)
        while copies:
            del copies[0]
            self.settle()
        self.taken, self.taken_zeros = None, []
        for block in self.live:
            block.unwritten = 0
        for seq in self.seqs.values():
            seq.settled = seq.written = seq.computed
            seq.begun = seq.replayed
        self.settle()

    def copies_aborted(self, ticket: int) -> None:
        """Puts its copies back in front of later ones, which may read their destinations."""
        again, later = self.resolve(ticket), self.pending
        self.taken, self.pending = None, again
        planned, emptied = self.count["planned_copies"], self.due_zeros
        self.due_zeros, self.taken_zeros = self.taken_zeros, []
        for copy in later:
            self.record(
                copy.group, copy.source, copy.destination, copy.num_tokens, keeps=copy.keeps
            )
        self.count["planned_copies"] = planned
        for block in emptied:
            self.empty(block)
        for seq in self.moved:  # nothing was launched
            seq.moves = max(0, seq.moves - 1)
            seq.stands = not seq.moves
        self.settle()
        if ticket in self.in_flight:  # wait for the previous step
            self.in_flight.remove(ticket)
            fences = self.fence_of_id.items()
            self.fence_of_id = {i: self.last_fence() if f == ticket else f for i, f in fences}
            released = [block for block in self.live if block.fence == ticket]
            for block in released:
                block.fence = self.last_fence()
            if not self.in_flight:
                self.wait_no_longer(released)

    def complete(self, ticket: int) -> None:
        if not self.in_flight or not self.in_flight[0] <= ticket <= self.last_ticket:
            raise StepError(f"step {ticket} cannot complete")
        done = [t for t in self.in_flight if t <= ticket]
        self.in_flight = [t for t in self.in_flight if t > ticket]
        self.wait_no_longer([block for block in self.live if block.fence in done])

    def wait_no_longer(self, blocks: list[Block]) -> None:
        """A step in flight may read its blocks, so its end counts as their last use."""
        for block in sorted(blocks, key=lambda block: block.stamp or 0):
            if block.stamp is not None:
                block.stamp = next(self.clock)
