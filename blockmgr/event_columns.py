"""The result of ``take_events``: blocks that became or stopped being findable, as columns."""

from __future__ import annotations

import enum
import functools
from collections import deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    # Sphinx would read the trailing underscore of the type's own name as a link.
    _Flags = npt.NDArray[np.bool_]

__all__ = ["WHOLE_PREFIX", "Event", "EventKind", "Events", "Tier", "events_of", "joined"]

WHOLE_PREFIX = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of layers, under vLLM's names, whose blocks stand for all tokens before them."""


class EventKind(enum.IntEnum):
    """Kind of an event about blocks."""

    STORED = 0
    """The blocks became findable."""

    REMOVED = 1
    """The tier has no findable copy of the blocks any more."""

    CLEARED = 2
    """All blocks of the tier were removed."""


class Tier(enum.IntEnum):
    """The kind of memory that holds K/V."""

    DEVICE = 0
    """In the memory that attention kernels read."""

    HOST = 1
    """In the host memory of the same machine."""

    DISK = 2
    """In a file."""

    REMOTE = 3
    """On another machine."""


_KINDS, _TIERS = tuple(EventKind), tuple(Tier)  # by number: faster than calling the enum


class Event(NamedTuple):
    """One event: a run of blocks that share its fields."""

    kind: EventKind
    digests: Sequence[bytes]
    """Digests of its blocks; if stored, each is the parent of the next. Empty for a clearing."""
    parent: bytes | None
    """Digest of the block that the first one continues; None if it begins a prompt."""
    tokens: npt.NDArray[np.uint32]
    """``uint32[blocks, block_size]`` on the host: tokens of stored blocks; else empty."""
    extras: Mapping[int, bytes]
    """Extra keys of stored blocks that have any, by position in the run."""
    group: int
    """Position of the group of layers in ``ManagerConfig.groups``; 0 without."""
    tier: Tier
    namespace: bytes
    """Namespace of stored blocks."""
    step: int
    """Number of steps whose copies had been applied."""
    session: bytes = b""
    """Session of the sequence that stored the blocks; empty if it named none, or in a snapshot."""

    def __repr__(self) -> str:
        # No namespace and no extra keys: they may hold secrets.
        return f"<Event: {self.kind.name}, {len(self.digests)} blocks, step {self.step}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Events:
    """Events in order, as columns: one row per event, and one row per block. All on the host.

    A run of stored blocks, each the parent of the next, is one event; so is a run of removed
    blocks.

    Attributes:
        kind: ``uint8[events]``: an ``EventKind``.
        start: ``int64[events + 1]``: where the blocks of each event begin among all blocks.
        digests: ``uint8[blocks, digest_size]``: digests of the blocks of all events.
        has_parent: ``bool[events]``: whether stored blocks continue another block.
        parent: ``uint8[events, digest_size]``: digest of that block, or zeros.
        tokens: ``uint32[stored blocks, block_size]``: tokens of the blocks of all stored events.
        extras: Extra keys of stored blocks that have any, by row of ``tokens``.
        group: ``uint8[events]``: position of the group of layers in ``ManagerConfig.groups``.
        tier: ``uint8[events]``: a ``Tier``.
        namespace: Namespace of the blocks of each stored event, else empty.
        step: ``int64[events]``: number of steps whose copies had been applied at the event.
        num_lost: Blocks whose events did not fit. Lost events came after all events here. If there
            are any, only ``take_snapshot`` gives the findable blocks.
        session: Session of the sequence that stored the blocks of each event, else empty; no items
            if none named a session. Between two calls there is room for 32 bytes of names for each
            block of ``event_blocks``; later events have none.
    """

    kind: npt.NDArray[np.uint8]
    start: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint8]
    has_parent: _Flags
    parent: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.uint32]
    extras: Mapping[int, bytes] = field(repr=False)  # may hold secrets, like the namespace
    group: npt.NDArray[np.uint8]
    tier: npt.NDArray[np.uint8]
    namespace: Sequence[bytes] = field(repr=False)
    step: npt.NDArray[np.int64]
    num_lost: int
    session: Sequence[bytes] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"<Events: {len(self)} of {self.num_blocks} blocks, {self.num_lost} lost>"

    @property
    def num_blocks(self) -> int:
        """Blocks of all events."""
        return len(self.digests)

    def __iter__(self) -> Iterator[Event]:
        size = self.digests.shape[1]
        raw, parents = self.digests.tobytes(), self.parent.tobytes()
        starts, kinds = self.start.tolist(), self.kind.tolist()
        groups, tiers, steps = self.group.tolist(), self.tier.tolist(), self.step.tolist()
        parented = self.has_parent.tolist()
        extras = deque(sorted(self.extras.items()))
        row = 0
        for i, kind in enumerate(kinds):
            first, last = starts[i], starts[i + 1]
            stored = kind == EventKind.STORED
            rows = last - first if stored else 0
            own: dict[int, bytes] = {}
            while extras and extras[0][0] < row + rows:
                block, key = extras.popleft()
                own[block - row] = key
            yield Event(
                _KINDS[kind],
                [raw[at : at + size] for at in range(first * size, last * size, size)],
                parents[i * size : (i + 1) * size] if parented[i] else None,
                self.tokens[row : row + rows],
                own,
                groups[i],
                _TIERS[tiers[i]],
                self.namespace[i],
                steps[i],
                self.session[i] if self.session else b"",
            )
            row += rows


@functools.cache
def _no_events(block_size: int, digest_size: int) -> Events:
    """No events, as after most steps: one shared object without writable memory."""
    none: npt.NDArray[np.uint8] = np.ndarray(0, np.uint8, bytes(1))
    start: npt.NDArray[np.int64] = np.ndarray(1, np.int64, bytes(8))  # no flag makes it writable
    return Events(
        kind=none,
        start=start,
        digests=none.reshape(-1, max(1, digest_size)),
        has_parent=none.astype(np.bool_),
        parent=none.reshape(0, digest_size),
        tokens=np.zeros((0, block_size), np.uint32),
        extras=MappingProxyType({}),
        group=none,
        tier=none,
        namespace=(),
        step=np.zeros(0, np.int64),
        num_lost=0,
    )


def events_of(  # noqa: PLR0917  (the core calls it)
    block_size: int,
    digest_size: int,
    kind: npt.NDArray[np.uint8],
    counts: npt.NDArray[np.int64],
    has_parent: npt.NDArray[np.bool_],
    group: npt.NDArray[np.uint8],
    parents: bytes,
    digests: bytes,
    tokens: npt.NDArray[np.uint32],
    extras: Mapping[int, bytes],
    namespaces: Sequence[bytes],
    sessions: Sequence[bytes],
    step: npt.NDArray[np.int64],
    num_lost: int,
    /,
) -> Events:
    """Events from the columns that the core returns.

    Args:
        block_size: Tokens per block.
        digest_size: Bytes per digest; 0 without prefix caching.
        kind: As in ``Events``.
        counts: ``int64[events]``: blocks of each event.
        has_parent: As in ``Events``.
        group: As in ``Events``.
        parents: ``digest_size`` bytes for each event.
        digests: ``digest_size`` bytes for each block.
        tokens: ``uint32[stored blocks * block_size]``.
        extras: As in ``Events``.
        namespaces: As in ``Events``.
        sessions: As in ``Events``.
        step: As in ``Events``.
        num_lost: As in ``Events``.
    """
    if not len(kind) and not num_lost:
        return _no_events(block_size, digest_size)
    start = np.zeros(len(kind) + 1, np.int64)
    np.add.accumulate(counts, out=start[1:])
    return Events(
        kind=kind,
        start=start,
        digests=np.frombuffer(digests, np.uint8).reshape(-1, max(1, digest_size)),
        has_parent=has_parent,
        parent=np.frombuffer(parents, np.uint8).reshape(len(kind), digest_size),
        tokens=tokens.reshape(-1, block_size),
        extras=extras,
        group=group,
        tier=np.zeros(len(kind), np.uint8),
        namespace=namespaces,
        step=step,
        num_lost=num_lost,
        session=sessions,
    )


def joined(parts: Mapping[Tier, Events]) -> Events:
    """The events of several pools as one list, each of its tier.

    Args:
        parts: The events of each tier. They have digests of one size, and blocks of one size.
    """
    kept = {tier: part for tier, part in parts.items() if len(part) or part.num_lost}
    if set(kept) <= {Tier.DEVICE}:
        return parts[Tier.DEVICE]
    start, rows = [np.zeros(1, np.int64)], 0
    extras: dict[int, bytes] = {}
    for part in kept.values():
        start.append(part.start[1:] + start[-1][-1:])
        extras.update((rows + row, key) for row, key in part.extras.items())
        rows += len(part.tokens)
    named = any(part.session for part in kept.values())

    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in kept.values()])

    return Events(
        kind=column("kind"),
        start=np.concatenate(start),
        digests=column("digests"),
        has_parent=column("has_parent"),
        parent=column("parent"),
        tokens=column("tokens"),
        extras=extras,
        group=column("group"),
        tier=np.repeat([*kept], [len(part) for part in kept.values()]).astype(np.uint8),
        namespace=[name for part in kept.values() for name in part.namespace],
        step=column("step"),
        num_lost=sum(part.num_lost for part in kept.values()),
        session=[name for part in kept.values() for name in (part.session or [b""] * len(part))]
        if named
        else (),
    )
