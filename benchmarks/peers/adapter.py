"""The interface that drives every system, blockmgr included.

A row of the comparison is written once, against these two protocols. The timed part is a call of a
``Cache`` method: what an engine built on that system would call for the operation, and one Python
call around it. Conversion of arguments to the form that suits the system best (``Peer.prompt``,
``Cache.batch``) happens outside the timed part.

A system that has no counterpart for an operation, or for which a time would be misleading, says so
in ``Peer.cannot``; its methods for that operation are then never called.
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
    """It takes too long to bring a cache into the state that a row needs."""


class Cache(Protocol):
    """A pool of blocks with a prefix cache, as an engine would hold it."""

    def match(self, prompt: Any) -> int:
        """How many leading tokens are cached; takes nothing. The last token never counts."""

    def admit(self, prompt: Any) -> Any:
        """Starts a request: references cached blocks, allocates the rest, promotes full ones."""

    def free(self, request: Any) -> None:
        """Ends a request; its full blocks stay findable until they are evicted."""

    def batch(self, requests: Sequence[Any]) -> Any:
        """Running requests in the form that suits ``step`` best; not timed."""

    def step(self, batch: Any, tokens: Any) -> None:
        """Appends a decoded token to each; allocates and promotes blocks as the peer does.

        ``tokens`` come from ``Peer.prompt``.
        """

    def fork(self, request: Any, count: int) -> Sequence[Any]:
        """Children that share all blocks; the next step of each copies the one it writes to."""

    def copies(self) -> int:
        """Block copies due since the last call, drained as an engine would drain them."""

    def num_free(self) -> int:
        """Blocks that are available: free, or cached and not in use."""

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        """Puts the free blocks of an unused pool into this order; not timed.

        ``order`` is a permutation of ``range(num_blocks)``; any equally random order is fine.
        """


class Peer(Protocol):
    """A system that can open caches."""

    name: str
    """With its version, and the hash where there is a choice."""

    cannot: Mapping[str, str]
    """Operation to reason, for the operations it is not timed at."""

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> Any:
        """Converts ``uint32[n]`` token ids to the form that suits the system best; not timed."""

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> Cache:
        """A cache with ``num_blocks`` usable blocks, all of them free.

        Args:
            num_blocks: Blocks besides any that the system keeps for itself.
            block_size: Tokens in a block.
            max_requests: Maximum number of running requests.
            max_tokens: Tokens of the longest request.
        """
