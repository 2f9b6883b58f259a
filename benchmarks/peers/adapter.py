"""What every system is driven through, blockmgr too.

A row of the comparison is written once, over these two protocols. Timed is a call of a ``Cache``
method: what an engine built on that system would call for the operation, and one Python call
around it. Whatever brings arguments into the form that the system likes best (``Peer.prompt``,
``Cache.batch``) happens outside the timed part.

A system that has no counterpart for an operation, or that nobody should time at it, says so in
``Peer.cannot``; its methods for that operation are never called then.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["BLOCK_SIZE", "Cache", "Operation", "Peer", "TooSlowError"]

BLOCK_SIZE = 16


class Operation(StrEnum):
    """What can be timed: keys of ``Peer.cannot``."""

    MATCH = "match"
    SCATTERED = "scattered"
    """Needs ``Cache.scatter``: matches where every block misses the processor's caches."""
    ADMIT = "admit"
    COLD_ADMIT = "cold admit"
    EVICTING_ADMIT = "evicting admit"
    FREE = "free"
    DECODE = "decode"
    FORK = "fork"
    COPY_ON_WRITE = "copy on write"
    REPLAY = "replay"
    GROWTH = "growth"


class TooSlowError(Exception):
    """A cache takes too long to bring into the state that a row is timed on."""


class Cache(Protocol):
    """A pool of blocks with a prefix cache, as an engine would hold it."""

    def match(self, prompt: Any) -> int:
        """How many leading tokens are cached; takes nothing. The last token never counts."""

    def admit(self, prompt: Any) -> Any:
        """A running request: finds, references, takes the rest, makes full blocks findable."""

    def free(self, request: Any) -> None:
        """Ends a request; its full blocks stay findable until they are evicted."""

    def batch(self, requests: Sequence[Any]) -> Any:
        """Running requests in the form that ``step`` likes best; not timed."""

    def step(self, batch: Any, tokens: Any) -> None:
        """One decoded token for each, blocks taken and made findable as the peer does it.

        ``tokens`` come from ``Peer.prompt``.
        """

    def fork(self, request: Any, count: int) -> Sequence[Any]:
        """Children that share all blocks; the next step of each copies the one it writes to."""

    def copies(self) -> int:
        """Block copies that fell due since the last call, drained as an engine would drain them."""

    def num_free(self) -> int:
        """Blocks that could be handed out: free, or cached and held by nobody."""

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        """Brings the free blocks of an unused pool into this order; not timed.

        ``order`` is a permutation of ``range(num_blocks)``; any order as random will do.
        """


class Peer(Protocol):
    """A system that can open caches."""

    name: str
    """With its version, and the hash where there is a choice."""

    cannot: Mapping[str, str]
    """Operation to reason, for the operations it is not timed at."""

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> Any:
        """``uint32[n]`` token ids in the system's best form; not timed."""

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> Cache:
        """A cache of ``num_blocks`` blocks that can be used, all of them free.

        Args:
            num_blocks: Blocks besides any that the system keeps for itself.
            block_size: Tokens in a block.
            max_requests: Requests running at once, at most.
            max_tokens: Tokens of the longest request.
        """
