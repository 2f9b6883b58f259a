"""What movers are told: which bytes go where, and how each block is proved.

A ticket is what a transfer under way reads and writes, until its mover says how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import TicketError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from blockmgr.blocks import Match
    from blockmgr.common_calls import CommonCalls
    from blockmgr.tiers.layout import Pieces
    from blockmgr.tiers.paths import Path

__all__ = [
    "DEVICE",
    "LookUp",
    "Proofs",
    "Ticket",
    "Tickets",
    "TierMatch",
    "TierStats",
    "Transfer",
    "TransferPlan",
    "num_unchanged",
]

DEVICE: Final = -1
"""The device, where another number is the position of a tier."""


class Proofs(NamedTuple):
    """What the blocks of one tier have to be, in the order of a transfer."""

    serials: npt.NDArray[np.uint64]
    """``uint64[n]`` on the host: a number that no other write to the tier has."""
    keys: tuple[bytes, ...]
    """For each block: serial of the block that it continues, and number of its tokens, or in a
    shared store the digest of its key; namespace, extra keys and tokens. Of several groups of
    layers, the others' continue the block of full attention with their tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Some blocks of one prefix, in order, to move between the device and a tier, or two tiers.

    With several groups of layers, those of full attention come first. The last of these can be an
    *end*, with fewer tokens than others; what is in it behind them means nothing.

    Attributes:
        ticket: Its number, for ``loads_done`` or ``stores_done``.
        source: Position of the tier that is read, or ``DEVICE``.
        target: Position of the tier that is written, or ``DEVICE``.
        handle: The sequence that waits for it; -1 for a store.
        source_blocks: ``int32[n]`` on the host: blocks to read.
        target_blocks: ``int32[n]`` on the host: blocks to write.
        groups: ``int32[n]`` on the host: the group of layers of each; None for a manager without
            groups.
        source_proofs: What must have been read; None for the device.
        target_proofs: What to write beside the blocks; None for the device.
        num_tokens: Tokens in its blocks of full attention.
    """

    ticket: int
    source: int
    target: int
    handle: int
    source_blocks: npt.NDArray[np.int32]
    target_blocks: npt.NDArray[np.int32]
    groups: npt.NDArray[np.int32] | None
    source_proofs: Proofs | None
    target_proofs: Proofs | None
    num_tokens: int

    def __len__(self) -> int:
        return len(self.source_blocks)


@dataclass(frozen=True, slots=True, eq=False)
class TransferPlan:
    """Transfers to begin, in any order.

    Attributes:
        transfers: The transfers.
    """

    transfers: tuple[Transfer, ...] = ()

    def __len__(self) -> int:
        return len(self.transfers)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self.transfers)


class LookUp(NamedTuple):
    """What to ask a shared store, for ``lookups_done``."""

    ticket: int
    """Its number."""
    tier: int
    """Position of the tier."""
    keys: tuple[bytes, ...]
    """Keys of blocks: those of full attention continue each other, and come first."""


@dataclass(frozen=True, slots=True, eq=False)
class TierMatch:
    """The part of a prompt that is cached on the device and in tiers.

    Attributes:
        device: What the device has.
        num_tier_tokens: For each tier, leading tokens that it has, in whole blocks and an end; with
            several groups of layers, up to where all groups have what is read behind them.
        num_loadable_tokens: Tokens after those of whole blocks on the device that a load brings;
            0 if the device has as much as any tier.
    """

    device: Match
    num_tier_tokens: tuple[int, ...]
    num_loadable_tokens: int

    @property
    def num_cached_tokens(self) -> int:
        """Leading tokens that need not be computed, if everything can be loaded."""
        return max(self.device.num_cached_tokens, *self.num_tier_tokens)


@dataclass(slots=True)
class TierStats:
    """What happened in one tier so far, in blocks.

    Attributes:
        stored: Blocks that were written and became findable.
        loaded: Blocks that were read from it for a sequence and proved.
        promoted: Blocks that were read from it for a faster tier.
        refused: Blocks that were read from it and not proved, or missing in a shared store.
        failed: Blocks that could not be written to it or read from it, or whose source was evicted
            before it was read.
        dropped: Blocks for which it had no room, because transfers used all of it.
        restored: Blocks that were there when it was opened.
        found: Blocks that look-ups found in a shared store.
    """

    stored: int = 0
    loaded: int = 0
    promoted: int = 0
    refused: int = 0
    failed: int = 0
    dropped: int = 0
    restored: int = 0
    found: int = 0


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
    def serials(self) -> range:
        """Of a store, the serials of its writes."""
        return range(self.serial, self.serial + len(self))

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
