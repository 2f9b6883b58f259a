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
            parts.append(self._of_a_larger_pool())
        return "".join(parts)

    def _of_a_larger_pool(self) -> str:
        """Every share on its own, together."""
        config = self._manager.config
        names = [
            name for name, size in zip((b"", *config.quotas), config.shares, strict=True) if size
        ]
        curves = [self._manager.hit_rate_curve(name) for name in names]
        asked = sum(curve.query_tokens for curve in curves) or 1
        here = sum(int(curve.hit_tokens[curve.num_blocks]) for curve in curves) / asked
        more = sum(int(curve.hit_tokens[-1]) for curve in curves) / asked
        num_blocks = sum(curve.num_blocks for curve in curves)
        max_blocks = sum(curve.max_blocks for curve in curves)
        return (
            f"; {max_blocks} blocks instead of {num_blocks} would have found "
            f"{more:.1%} of all tokens instead of {here:.1%}"
        )
