"""The specification of groups, part two: copies, and the steps that run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.groups import memory
from tests.groups.model_pool import Block, Content, Copy, ModelPool, Seq


class ModelSteps(ModelPool):
    """Plans copies, and tracks the steps that are launched and not complete."""

    steps_in_flight = 0
    early = False
    """Commits come before the forward that writes the tokens."""

    closed = False
    """Whether a plan is taken and neither applied nor aborted."""

    tickets = 0
    moved: list[Seq]
    """Sequences whose states the step being launched may advance."""

    # ---- all or nothing -----------------------------------------------------------------

    @contextmanager
    def call(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.held.clear()
            self.settle()

    # ---- copies -------------------------------------------------------------------------

    def waiting(self) -> list[Copy]:
        """The copies that are not applied."""
        return self.flight + self.pending

    def is_destination(self, block: Block) -> bool:
        return any(block is copy.destination for copy in self.waiting())

    def is_source(self, block: Block) -> bool:
        return any(block is copy.source for copy in self.waiting())

    def is_kept(self, block: Block) -> bool:
        """Whether a copy or a caller still reads it, so that it cannot become something else."""
        return self.is_source(block) or block in self.holds

    def is_being_kept(self, block: Block) -> bool:
        """Whether it is a kept state whose sequence still waits for the copy."""
        return any(block is copy.source and copy.keeps for copy in self.waiting())

    def told(self) -> set[Content]:
        """What events have reported: every whole unit that can be found, group by group."""
        return {
            block.content
            for block in self.blocks
            if block.content is not None
            and len(block.content[1][1]) % self.size == 0
            and not self.is_being_kept(block)
        }

    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        """Plans a copy, from the source's own source if that is pending; returns its tokens."""
        for copy in self.pending:
            if copy.destination is source:
                source, num_tokens = copy.source, min(num_tokens, copy.num_tokens)
        self.pending = [copy for copy in self.pending if copy.destination is not destination]
        if num_tokens:
            self.pending.append(Copy(group, source, destination, num_tokens, keeps))
        return num_tokens

    # ---- steps --------------------------------------------------------------------------

    def num_slots(self, seq: Seq) -> int:
        lengths = [len(seq.tables[group]) for group, _ in self.attention()]
        return min(lengths) * self.size if lengths else 1 << 40

    def take_copies(self) -> list[memory.Copy]:
        """Closes the plan of a step, whose forward may advance any sequence with work left."""
        assert not self.closed
        self.closed = True
        self.flight, self.pending = self.pending, []
        self.tickets, self.moved = self.tickets + 1, []
        if self.steps_in_flight:
            self.open_steps += (self.tickets,)
        for seq in self.seqs.values():
            if not seq.preempted and seq.settled < min(len(seq.tokens), self.num_slots(seq)):
                self.moved.append(seq)
                seq.stands, seq.moves = False, seq.moves + 1
        return [
            memory.Copy(c.group, c.source.id, c.destination.id, c.num_tokens) for c in self.flight
        ]

    def copies_applied(self) -> None:
        """The forward that follows writes what was committed early."""
        with self.call():
            self.flight, self.closed = [], False
            for block in self.blocks:
                block.unwritten = 0
            for seq in self.seqs.values():
                seq.settled = seq.written = seq.computed

    def copies_aborted(self) -> None:
        """Puts its copies back in front of later ones, which may read their destinations."""
        with self.call():
            later, self.pending, self.flight = self.pending, self.flight, []
            self.closed = False
            for copy in later:
                self.record(*copy.ends(), keeps=copy.keeps)
            self.open_steps = self.open_steps[:-1]
            for seq in self.moved:  # nothing was launched
                seq.moves = max(0, seq.moves - 1)
                seq.stands = not seq.moves

    def complete(self) -> None:
        """The oldest step in flight is done."""
        self.open_steps = self.open_steps[1:]
