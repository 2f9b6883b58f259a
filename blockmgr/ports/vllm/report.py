"""A line in the log now and then: what the cache finds, and what larger pools would."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllm.logger import init_logger

if TYPE_CHECKING:
    from blockmgr import BlockManager

__all__ = ["Report"]

logger = init_logger("vllm.blockmgr")


class Report:
    """Says every so many seconds how well the cache serves; never, with 0."""

    def __init__(self, manager: BlockManager, every: float) -> None:
        self._manager = manager
        self._every = every
        self._due = time.monotonic() + every

    def now_and_then(self) -> None:
        """To be called once a step."""
        if not self._every or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        logger.info("%s", self.line())

    def line(self) -> str:
        """What the last requests found, and what a larger pool would have."""
        recent, stats = self._manager.recent_hits(), self._manager.stats()
        parts = [
            f"blockmgr: {recent.hit_tokens} of the last {recent.query_tokens} prompt tokens came "
            f"from the cache; {stats.used_blocks} of {stats.capacity} blocks in use, "
            f"{stats.idle_blocks} kept for reuse, {stats.evicted_blocks} evicted so far"
        ]
        if self._manager.config.ghost_blocks and self._manager.config.prefix_caching:
            curve = self._manager.hit_rate_curve()
            here, more = curve.hit_rate_at(curve.num_blocks), curve.hit_rate_at(curve.max_blocks)
            parts.append(
                f"; {curve.max_blocks} blocks instead of {curve.num_blocks} would have found "
                f"{more:.1%} of all tokens instead of {here:.1%}"
            )
        return "".join(parts)
