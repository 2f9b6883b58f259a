"""The vocabulary as types: what the manager hands out besides plain ints."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

__all__ = ["PAD_SLOT", "Admission", "BlockCopy", "CopyPlan", "Match", "Remap"]

PAD_SLOT: Final = -1
"""Slot of a padding token: kernels skip it, the manager never hands it out."""


class Admission(enum.Enum):
    """Whether a prompt can be admitted, as ``can_admit`` answers."""

    NOW = "now"
    """``admit`` with the same arguments would succeed."""

    LATER = "later"
    """Not at the moment, but once enough running sequences are freed."""

    NEVER = "never"
    """Larger than the pool or a block table row can ever hold."""


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
        num_tokens: ``int32[num_copies]`` on the host, each in ``[1, block_size]``.
    """

    ticket: int
    sources: npt.NDArray[np.int32]
    destinations: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]

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
    """Block id that stood there; -1 if that is not known any more."""
    new: int
    """Block id with the same content that stands there instead."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """What the prefix cache holds of a prompt.

    Attributes:
        num_cached_tokens: Leading tokens that would not have to be computed.
        num_partial_tokens: Of those, tokens that would come from a part of a block.
        block_ids: ``int32[num_full_blocks]`` on the host: the whole blocks, in order.
    """

    num_cached_tokens: int
    num_partial_tokens: int
    block_ids: npt.NDArray[np.int32]
