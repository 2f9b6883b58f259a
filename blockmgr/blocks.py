"""The types that a manager returns besides plain ints."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from blockmgr.arguments import real

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    _Flags = npt.NDArray[np.bool_]

__all__ = [
    "PAD_SLOT",
    "Admission",
    "BlockCopy",
    "BlockSnapshot",
    "BlockState",
    "CachedPrefix",
    "CopyPlan",
    "DigestPin",
    "IdleFront",
    "Match",
    "Pin",
    "PrefixParts",
    "Priority",
    "Remap",
    "retention_of",
    "signal_of",
]

PAD_SLOT: Final = -1
"""Slot of a padding token: kernels skip it, the manager never hands it out."""


class Admission(enum.Enum):
    """Whether a prompt can be admitted: the result of ``can_admit``."""

    NOW = "now"
    """``admit`` with the same arguments would succeed."""

    LATER = "later"
    """Not now; ``admit`` can succeed after running sequences are freed."""

    NEVER = "never"
    """Larger than the pool or a row of the block table."""


class BlockCopy(NamedTuple):
    """One copy the engine must run before the next forward."""

    source: int
    """Block id to read."""
    destination: int
    """Block id to write."""
    num_tokens: int
    """Leading tokens of the block that hold K/V; the rest need not be copied."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CopyPlan:
    """The block copies of one step, safe to run in any order or all at once.

    No block is both a source and a destination, and no destination appears twice.

    Attributes:
        ticket: Number of the step; pass it to ``copies_applied`` or ``copies_aborted``.
        sources: ``int32[num_copies]`` on the host.
        destinations: ``int32[num_copies]`` on the host.
        num_tokens: ``int32[num_copies]`` on the host, each in ``[1, block_size]``; a state is
            copied as a whole block.
        groups: ``int32[num_copies]`` on the host: the group of layers whose blocks these are, by
            its position in ``ManagerConfig.groups``. None without groups.
        zeros: ``int32[num_zeros]`` on the host: blocks of rings that begin empty. Fill them with
            zeros after the copies, because a copy may read one; no copy writes one. None without
            groups.
    """

    ticket: int
    sources: npt.NDArray[np.int32]
    destinations: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]
    groups: npt.NDArray[np.int32] | None = None
    zeros: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[BlockCopy]:
        columns = (self.sources, self.destinations, self.num_tokens)
        return map(BlockCopy._make, zip(*(c.tolist() for c in columns), strict=True))


class Remap(NamedTuple):
    """A block table entry that deduplication changed."""

    handle: int
    """The sequence whose table changed."""
    index: int  # type: ignore[assignment]  # hides tuple.index, which means nothing here
    """Logical block, from 0."""
    old: int
    """The previous block id; -1 if it is unknown."""
    new: int
    """The current block id, with the same content."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """The part of a prompt that is in the prefix cache.

    Attributes:
        num_cached_tokens: Leading tokens that need not be computed: the first forward begins here.
        num_partial_tokens: Of those, tokens that would come from part of a block.
        block_ids: ``int32[num_full_blocks]`` on the host: the whole blocks, in order. Without a
            group of full attention, those of the group of ``block_tables``; 0 where it has none.
        num_idle_blocks: Idle blocks that admission takes into use for it, besides the fresh ones.
            So it takes ``ceil(num_slots / block_size) - len(block_ids) + num_idle_blocks`` of the
            available blocks. With several groups of layers, the blocks that it takes for the other
            groups count here, fresh ones too; without full attention, it takes just these.
        num_computing_tokens: Tokens after the cached ones, in whole blocks, that a running sequence
            of the same namespace has not committed yet. A request that waits for this commit need
            not compute them.
        stops: With groups of states, what ``stops`` returns after that admission: the engine can
            choose the first chunk of the prompt before it admits the prompt.
        num_shared_tokens: Leading tokens that full attention has; of all but the last one, unless
            ``stop_margin_tokens`` asks what is behind a hit. Fewer are cached where other groups
            lack what the query behind them reads, and the last token is computed.
        num_replayed_tokens: With uncached windows, the tokens after the cached ones that are found,
            too, and are computed again for uncached groups alone; else 0.
    """

    num_cached_tokens: int
    num_partial_tokens: int
    block_ids: npt.NDArray[np.int32]
    num_idle_blocks: int = 0
    num_computing_tokens: int = 0
    stops: tuple[int, ...] = ()
    num_shared_tokens: int = 0
    num_replayed_tokens: int = 0


class Priority(enum.IntEnum):
    """Priority of a cached block: idle blocks of a lower priority are evicted first."""

    LOW = 0
    """Evicted before all others."""

    NORMAL = 1
    """No call set a priority."""

    EXPECTED = 2
    """Its last user expects it to be used again (``free(handle, expect_reuse=True)``)."""

    HIGH = 3
    """Kept longer than expected blocks."""

    PINNED = 4
    """Covered by a pin: evicted only when nothing else is left. Not for ``retain``."""


def retention_of(priority: Priority | None, ttl: float | None) -> tuple[int, float]:
    """A priority and its ttl in the core's form: -1 for no priority, infinity for no end.

    Raises:
        TypeError: A value of the wrong type.
        ValueError: A value out of its bounds, or a ttl without a priority.
    """
    if priority is not None and not isinstance(priority, Priority):
        raise TypeError(f"priority must be a Priority or None, got {priority!r}")
    if priority is Priority.PINNED:
        raise ValueError("priority must be at most Priority.HIGH, got Priority.PINNED; see pin")
    if ttl is None:
        return (-1 if priority is None else priority.value), math.inf
    seconds = real("ttl", ttl)
    if not 0 < seconds < math.inf:
        raise ValueError(f"ttl must be above 0 and finite, got {ttl!r}")
    if priority is None:
        raise ValueError(f"ttl must be None where priority is None, got {ttl!r}")
    return priority.value, seconds


SIGNALS = ("tool_wait", "resumed", "done")


def signal_of(signal: str, expected_in: float | None) -> tuple[int, float]:
    """A signal and its time in the core's form: infinity for no time.

    Raises:
        TypeError: A value of the wrong type.
        ValueError: A value out of its bounds, or a time for no prompt.
    """
    if not isinstance(signal, str):
        raise TypeError(f"signal must be a str, got {type(signal).__name__}")
    if signal not in SIGNALS:
        raise ValueError(f"signal must be one of {', '.join(SIGNALS)}, got {signal!r}")
    if expected_in is None:
        return SIGNALS.index(signal), math.inf
    if signal == "done":
        raise ValueError(f"expected_in must be None with 'done', got {expected_in!r}")
    seconds = real("expected_in", expected_in)
    if not 0 < seconds < math.inf:
        raise ValueError(f"expected_in must be above 0 and finite, got {expected_in!r}")
    return SIGNALS.index(signal), seconds


class IdleFront(NamedTuple):
    """The last blocks of prefixes that are evicted soon. All on the host."""

    block_ids: npt.NDArray[np.int32]
    """``int32[n]``: the least recently used first."""
    contents: npt.NDArray[np.int64]
    """``int64[n]``: a number of the content of each, which no other content ever has."""


class PrefixParts(NamedTuple):
    """What other groups of layers read behind a prefix. Empty without groups. All on the host."""

    block_ids: npt.NDArray[np.int32]
    """``int32[k]``."""
    contents: npt.NDArray[np.int64]
    """``int64[k]``: a number of the content of each, as in ``IdleFront``."""
    groups: npt.NDArray[np.int32]
    """``int32[k]``: positions in ``ManagerConfig.groups``."""
    starts: npt.NDArray[np.int64]
    """``int64[k]``: the first token in each block; of a state, the first one in the last block of
    the prefix."""


class CachedPrefix(NamedTuple):
    """What a cached block holds, with all blocks that it continues. All on the host."""

    block_ids: npt.NDArray[np.int32]
    """``int32[n]``: from the beginning of the prompt. With several groups of layers, those of
    ``BlockManager.block_tables``; of smaller blocks, the first one in each ``block_size`` tokens,
    and ``parts`` has the others."""
    contents: npt.NDArray[np.int64]
    """``int64[n]``: a number of the content of each, as in ``IdleFront``."""
    tokens: npt.NDArray[np.uint32]
    """``uint32[n * block_size]``, or fewer if the last block is the tail of a sequence."""
    namespace: bytes
    """The namespace."""
    extras: dict[int, bytes]
    """Extra keys by logical block."""
    levels: npt.NDArray[np.int8]
    """``int8[n]``: the ``Priority`` that ``retain`` set for each; -1 for none. Empty without
    ``retention``."""
    until: list[float]
    """The time, in seconds, when that ends for each; infinity for never. Empty likewise."""
    is_whole: bool
    """Whether a prompt can continue here: each group of layers has what is read there."""
    parts: PrefixParts
    """The blocks of other groups of layers, group by group; empty unless it is whole."""

    def __repr__(self) -> str:
        # Neither tokens nor keys: they may be secrets.
        return f"<CachedPrefix: {len(self.block_ids)} blocks>"


class Pin(NamedTuple):
    """The number of blocks of a pin."""

    num_blocks: int
    """Leading full blocks of the prompt that were cached when the pin was made."""
    num_cached_blocks: int
    """Of those, blocks that are still cached; the others were evicted for running sequences."""


class DigestPin(NamedTuple):
    """A pin that was made by digests."""

    pin: int
    """The pin, for ``unpin`` and ``pinned``."""
    num_blocks: int
    """Blocks that it covers, from the first one of the prompt on."""
    num_cached_blocks: int
    """Blocks up to the deepest one found, which fewer bounds would let it cover."""
    num_found: int
    """Of the digests, those of cached blocks."""
    digest: bytes
    """The digest of the last block that it covers."""


class BlockState(enum.IntEnum):
    """The state of a block. In use: named by a block table, or with an internal pin."""

    FREE = 0
    """Not in use, without content: handed out first."""

    OWNED = 1
    """In use, and not cached."""

    CACHED = 2
    """In use, and findable by prompts with the same prefix."""

    IDLE = 3
    """Not in use, and cached: evicted in order when no block is free."""

    FENCED = 4
    """Not in use, waiting for a launched step to complete; free or idle after that."""

    NULL = 5
    """Block 0 of a manager with ``null_block``: a target for padded writes, never handed out."""

    OUT = 6
    """Out of use since a ``shrink``, and in no use any more: not handed out before a ``grow``."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockSnapshot:
    """Every block of a manager at one moment, as columns indexed by block id. All on the host.

    Attributes:
        state: ``uint8[num_blocks]``: a ``BlockState``.
        priority: ``uint8[num_blocks]``: the ``Priority`` of a block that can be found, at least
            that of the blocks that continue it; else ``Priority.NORMAL``.
        group: ``int32[num_blocks]``: group of layers that has the block, by its position in
            ``ManagerConfig.groups``; 0 without groups; ``-1`` for a free block and for the null
            block.
        ref_count: ``int32[num_blocks]``: block tables that name the block.
        pins: ``int32[num_blocks]``: number of internal pins: copies, cached children in use.
        parent: ``int32[num_blocks]``: for a block that can be found, the block before it in its
            prefix; ``-2`` or less if it begins a prompt, one number for each namespace. In a group
            other than that of ``block_tables``, the block of that table with which it is found.
            Else ``-1``.
        twin: ``int32[num_blocks]``: for an owned block, the cached block in use with the same
            content (``dedup="append_only"``), else ``-1``.
        num_children: ``int32[num_blocks]``: findable blocks and tails that continue this one.
        num_tokens: ``int32[num_blocks]``: tokens in the block, in ``[0, block_size]``; 0 for a
            state.
        num_computed_tokens: ``int32[num_blocks]``: of those, leading tokens with K/V, as if all
            copies had run.
        eviction_rank: ``int32[num_blocks]``: for an idle block, the number of blocks that LRU
            evicts before it: those of a lower priority, then those that have been idle longer; else
            ``-1``. With quotas, only blocks of the same share count.
        copy_source: ``int32[num_blocks]``: source of a copy into this block that is pending, or
            taken and not resolved; else ``-1``.
        copy_tokens: ``int32[num_blocks]``: leading tokens that this copy copies; else 0.
        copy_taken: ``bool[num_blocks]``: whether the copy is in an unresolved plan.
    """

    state: npt.NDArray[np.uint8]
    priority: npt.NDArray[np.uint8]
    group: npt.NDArray[np.int32]
    ref_count: npt.NDArray[np.int32]
    pins: npt.NDArray[np.int32]
    parent: npt.NDArray[np.int32]
    twin: npt.NDArray[np.int32]
    num_children: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]
    num_computed_tokens: npt.NDArray[np.int32]
    eviction_rank: npt.NDArray[np.int32]
    copy_source: npt.NDArray[np.int32]
    copy_tokens: npt.NDArray[np.int32]
    copy_taken: _Flags

    def __len__(self) -> int:
        return len(self.state)

    def count(self, state: BlockState) -> int:
        """Blocks in this state."""
        return int(np.count_nonzero(self.state == state))

    def ids(self, state: BlockState) -> npt.NDArray[np.int32]:
        """``int32[count(state)]`` on the host: the blocks in this state, by id."""
        return np.flatnonzero(self.state == state).astype(np.int32)

    @property
    def eviction_order(self) -> npt.NDArray[np.int32]:
        """``int32[idle blocks]`` on the host: the idle blocks, the next one that LRU evicts first.

        With quotas, the next block of each share comes before the second of any.
        """
        idle = self.ids(BlockState.IDLE)
        return idle[np.argsort(self.eviction_rank[idle], kind="stable")]
