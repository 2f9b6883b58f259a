"""Finds the smallest pool for a hit rate with groups of layers, by bisection.

With one group, the curve of LRU contains the answer. With several, a hit ends where any group lacks
a block, so no single list of blocks determines the hits, and pools are replayed. A larger pool
almost always finds more. The answer is a pool that reaches the rate, while one that is smaller by a
hundredth of the working set does not, or by one block if the answer is far above the rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blockmgr.lab.replay import replay
from blockmgr.lab.study import attainable
from blockmgr.lab.sweep import largest_request_blocks

if TYPE_CHECKING:
    from fractions import Fraction

    from blockmgr.lab.replay import ReplayConfig, ReplayResult
    from blockmgr.lab.trace import Trace

__all__ = ["LARGE_STEP", "PoolSearch"]

LARGE_STEP: Final = 0.005
"""Hit rate above the requested one from which the search goes on, block by block at last."""

STEPS: Final = 100
"""Resolution of pool sizes, as a fraction of the working set."""


class PoolSearch:
    """Replays of one trace at one block size, with each pool replayed once.

    Args:
        trace: The requests.
        config: Config of the replays, with groups.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """

    def __init__(self, trace: Trace, config: ReplayConfig) -> None:
        self._trace = trace
        self._config = config
        best = attainable(trace, config)
        self.attainable = best.hit_rate
        self._working_set = best.working_set_blocks
        self._least = largest_request_blocks(trace, config)
        self._replayed: dict[int, ReplayResult] = {}

    def replay(self, num_blocks: int) -> ReplayResult:
        """The replay of a pool."""
        if num_blocks not in self._replayed:
            self._replayed[num_blocks] = replay(self._trace, num_blocks, self._config)
        return self._replayed[num_blocks]

    def blocks_for(self, hit_rate: Fraction) -> int | None:
        """The smallest pool that reaches ``hit_rate``; None if an unbounded one does not."""
        if hit_rate > self.attainable:
            return None
        largest = max(self._least, self._working_set)
        step = max(1, largest // STEPS)
        low, high = self._least, largest
        if self.replay(low).hit_rate >= hit_rate:
            return low
        while high - low > step or (high - low > 1 and self._is_far_above(high, hit_rate)):
            middle = (low + high) // 2
            if self.replay(middle).hit_rate >= hit_rate:
                high = middle
            else:
                low = middle
        return high

    def _is_far_above(self, num_blocks: int, hit_rate: Fraction) -> bool:
        return self.replay(num_blocks).hit_rate - float(hit_rate) > LARGE_STEP

    def smaller(self, num_blocks: int) -> ReplayResult | None:
        """The replay of the largest pool below ``num_blocks`` so far; None if there is none."""
        tried = [blocks for blocks in self._replayed if blocks < num_blocks]
        return self._replayed[max(tried)] if tried else None
