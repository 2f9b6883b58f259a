"""What movers are told: which bytes go where, and how each block is proved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from blockmgr.blocks import Match

__all__ = ["DEVICE", "LookUp", "Proofs", "TierMatch", "TierStats", "Transfer", "TransferPlan"]

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
