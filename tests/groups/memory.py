"""The memory of a model with several groups of layers: what was written, and what a forward reads.

A cell of an attention group knows the prefix for whose last token it was computed. A block of a
recurrent group holds one state, which knows the prefix that it has consumed. A forward advances it
in place, so a state that is used twice, too early or too late differs from the correct one.
Everything that a forward reads must belong to its own prefix: a layer's input decides what the next
layer writes, so one wrong value makes everything after it wrong.

Blocks of all groups have the same size. A state fills its block, so writing any other content into
the block destroys the state.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.specification.blocks import Prefix
from tests.specification.layers import Kind, RecurrentState

Cell = tuple[object, ...] | None
NULL = 0
"""The block that is never read and never written."""


class WrongRead(AssertionError):
    """A forward read something that was not computed from its own prefix."""


@dataclass(frozen=True)
class Copy:
    """Copies the leading cells of a block to another block of the group; a state only whole."""

    group: int
    source: int
    destination: int
    num_tokens: int


@dataclass(frozen=True)
class Work:
    """What one sequence does in one forward: computes the tokens ``[start, stop)``.

    Attributes:
        name: For messages.
        prefix: Namespace and tokens, up to ``stop`` at least.
        tables: For each group the blocks of its units; of a recurrent group the block of its state.
    """

    name: str
    prefix: Prefix
    start: int
    stop: int
    tables: tuple[tuple[int, ...], ...]


@dataclass
class Memory:
    """A device that runs launched steps one after the other."""

    num_blocks: int
    block_size: int
    kinds: Sequence[Kind]
    rng: random.Random
    cells: list[list[Cell]] = field(init=False)
    num_reads: int = 0

    def __post_init__(self) -> None:
        self.cells = [[None] * self.block_size for _ in range(self.num_blocks)]

    def run(self, copies: Iterable[Copy], work: Sequence[Work]) -> None:
        """Runs the copies in random order, then one forward of all the work."""
        self._copy(list(copies))
        for group, kind in enumerate(self.kinds):
            for one in self.rng.sample(work, len(work)):
                if isinstance(kind, RecurrentState):
                    self._advance(group, one)
                else:
                    self._write(group, one)
            if not isinstance(kind, RecurrentState):
                for one in work:
                    self._read(group, one)

    def _copy(self, copies: list[Copy]) -> None:
        """Copies cell by cell, because a plan promises that every order is correct."""
        cells = [(copy, cell) for copy in copies for cell in range(copy.num_tokens)]
        self.rng.shuffle(cells)
        for copy, cell in cells:
            if NULL in (copy.source, copy.destination):
                raise WrongRead(f"{copy} copies the null block")
            self.cells[copy.destination][cell] = self.cells[copy.source][cell]

    def _place(self, group: int, one: Work, position: int) -> tuple[int, int]:
        unit, cell = divmod(position, self.block_size)
        table = one.tables[group]
        if unit >= len(table) or table[unit] == NULL:
            raise WrongRead(f"{one.name} has no block for position {position} of group {group}")
        return table[unit], cell

    def _write(self, group: int, one: Work) -> None:
        namespace, tokens = one.prefix
        for position in range(one.start, one.stop):
            block, cell = self._place(group, one, position)
            self.cells[block][cell] = (group, (namespace, tokens[: position + 1]))

    def _read(self, group: int, one: Work) -> None:
        namespace, tokens = one.prefix
        kind = self.kinds[group]
        assert not isinstance(kind, RecurrentState)
        for query in range(one.start, one.stop):
            for position in range(kind.first_read(query), query + 1):
                block, cell = self._place(group, one, position)
                found = self.cells[block][cell]
                self.num_reads += 1
                if found != (group, (namespace, tokens[: position + 1])):
                    raise WrongRead(
                        f"{one.name} computes [{one.start}, {one.stop}) and reads at position"
                        f" {position} of group {group}, in block {block}: {found}"
                    )

    def _advance(self, group: int, one: Work) -> None:
        """A forward that starts at the first token starts with an empty state."""
        [block] = one.tables[group]
        if block == NULL:
            raise WrongRead(f"{one.name} has no state of group {group}")
        namespace, tokens = one.prefix
        self.num_reads += 1
        if one.start and self.cells[block] != self._state(group, (namespace, tokens[: one.start])):
            raise WrongRead(
                f"{one.name} continues from {one.start} with a wrong state of group {group}, in"
                f" block {block}: {self.cells[block]}"
            )
        self.cells[block] = self._state(group, (namespace, tokens[: one.stop]))

    def _state(self, group: int, prefix: Prefix) -> list[Cell]:
        return [(group, prefix, "state", cell) for cell in range(self.block_size)]
