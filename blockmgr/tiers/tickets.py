"""Tickets: what a transfer under way reads and writes, until its mover says how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import TicketError
from blockmgr.tiers.plans import DEVICE, Proofs, Transfer

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.common_calls import CommonCalls
    from blockmgr.tiers.layout import Pieces
    from blockmgr.tiers.paths import Path

__all__ = ["Ticket", "Tickets", "num_unchanged"]


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """A transfer that was planned.

    Attributes:
        number: Its number.
        source: As in ``Transfer``.
        target: As in ``Transfer``.
        path: The prefix, as tiers know it.
        pieces: The blocks of the prefix that are moved.
        groups: As in ``Transfer``.
        sources: Blocks to read.
        targets: Blocks to write.
        proofs: As in ``Transfer``: of the source and of the target.
        handle: The sequence that waits; -1 for none.
        have: Of a store, the blocks of the target tier that the first one continues.
        levels: Of a store, the retention of its source, as in ``CachedPrefix``.
        until: Of a store, the end of that, likewise.
        kept: Of a store, what it keeps in the target tier: these, and parts of them.
        names: Of a store, what nothing else may store at the same time.
        contents: Of a store, the contents of its source.
        serial: Of a store, the serial of the first write.
        num_read: Of a store, the leading blocks that were read whole; None while that is unknown.
        deadline: Of a load, the time after which it is late; None for never.
        is_taken: Whether a mover has it.
        result: Leading blocks that arrived, once it has ended.
        is_void: Whether a reset has made its content worthless.
    """

    number: int
    source: int
    target: int
    path: Path
    pieces: Pieces
    groups: npt.NDArray[np.int32] | None
    sources: list[int]
    targets: list[int]
    proofs: tuple[Proofs | None, Proofs | None]
    handle: int = -1
    have: list[int] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    until: list[float] = field(default_factory=list)
    kept: npt.NDArray[np.int32] | None = None
    names: set[tuple[object, ...]] = field(default_factory=set)
    contents: npt.NDArray[np.int64] | None = None
    serial: int = 0
    num_read: int | None = None
    deadline: float | None = None
    is_taken: bool = False
    result: int | None = None
    is_void: bool = False

    @property
    def is_load(self) -> bool:
        """Whether its target is the device."""
        return self.target == DEVICE

    def __len__(self) -> int:
        return len(self.sources)

    def transfer(self) -> Transfer:
        """What a mover is told."""
        sources, targets = (np.array(blocks, np.int32) for blocks in (self.sources, self.targets))
        ends = self.source, self.target, self.handle
        num_tokens = self.num_tokens(len(self))
        return Transfer(self.number, *ends, sources, targets, self.groups, *self.proofs, num_tokens)

    def num_tokens(self, n: int) -> int:
        """Tokens in the first ``n`` of its blocks, as far as these have full attention."""
        count = min(n, self.pieces.num_nodes)
        if not count:
            return 0
        first, size = int(self.pieces.units[0]), self.path.block_size
        return min((first + count) * size, len(self.path.tokens)) - first * size


class Tickets:
    """The tickets that are not resolved."""

    def __init__(self) -> None:
        self.open: dict[int, Ticket] = {}
        self._last = 0

    def next_number(self) -> int:
        """A number that no ticket has had."""
        self._last += 1
        return self._last

    def add(self, ticket: Ticket) -> None:
        """Opens a ticket."""
        self.open[ticket.number] = ticket

    def get(self, ticket: object, n: object, *, is_load: bool) -> tuple[Ticket, int]:
        """The ticket with this number, and the checked number of its blocks that arrived.

        Raises:
            TicketError: It is resolved, was never taken, or is of the other kind.
            ValueError: ``n`` out of its bounds.
            TypeError: A value of the wrong type.
        """
        number = whole("ticket", ticket, -(2**63), 2**63 - 1)
        known = self.open.get(number)
        if known is None or not known.is_taken:
            raise TicketError(f"ticket {number} was never taken, or is resolved")
        if known.is_load is not is_load:
            call = "loads_done" if known.is_load else "stores_done"
            raise TicketError(f"ticket {number} is for {call}")
        return known, whole("n", n, 0, len(known))

    def num_blocks(self, *, is_load: bool) -> int:
        """Blocks that loads, or stores, are to write."""
        return sum(len(t) for t in self.open.values() if t.is_load is is_load)


def num_unchanged(holder: CommonCalls, ticket: Ticket) -> int:
    """Leading source blocks of a store that kept their content since the plan.

    What is read from an idle block counts only if the block was not evicted meanwhile: so no
    admission waits for a store, which changes neither the order of evictions nor what is available.
    """
    changed = np.flatnonzero(holder.contents_of(ticket.sources) != ticket.contents)
    return int(changed[0]) if len(changed) else len(ticket)
