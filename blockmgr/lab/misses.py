"""Why a replay computed what it computed: the missed tokens by reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from blockmgr.explain import MissReason
    from blockmgr.lab.replay import Progress, ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = ["MissTable", "misses"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MissTable:
    """The prompt tokens of one replay that were computed, by the reason why.

    Attributes:
        trace: Name of the trace.
        config: How it was replayed.
        num_blocks: Blocks in the pool.
        query_tokens: Prompt tokens of all requests.
        hit_tokens: Of those, tokens found.
        missed_tokens: The others by reason, in the order of ``MissReason``, reasons that do not
            occur left out. They sum to ``query_tokens - hit_tokens``.
        more_blocks: ``int64[n]`` on the host, growing: by how many blocks the pool was too small
            for blocks that were evicted.
        saved_tokens: ``int64[n]`` on the host, growing: evicted tokens that so many more blocks, or
            fewer, would have kept.
    """

    trace: str
    config: ReplayConfig
    num_blocks: int
    query_tokens: int
    hit_tokens: int
    missed_tokens: Mapping[MissReason, int]
    more_blocks: npt.NDArray[np.int64]
    saved_tokens: npt.NDArray[np.int64]

    def saved(self, more_blocks: int) -> int:
        """Evicted tokens that a pool with ``more_blocks`` more blocks would have found."""
        place = int(np.searchsorted(self.more_blocks, more_blocks, side="right"))
        return int(self.saved_tokens[place - 1]) if place else 0


def misses(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    *,
    progress: Progress | None = None,
) -> MissTable:
    """``replay``, and why each token that was missed was missed.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: How to replay.
        progress: Called once for each request.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """
    raise NotImplementedError
