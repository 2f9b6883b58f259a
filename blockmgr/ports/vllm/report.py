"""Reports hit rates of this pool and of larger ones, and reasons for misses.

They go to the log periodically, and to Prometheus.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from vllm.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blockmgr import BlockManager, MissReason
    from blockmgr.ports.vllm.misses import Misses

__all__ = ["Report"]

PARTS = 4  # parts of the remembered blocks for which hit rates are reported
logger = init_logger("vllm.blockmgr")


class Report:
    """Logs the hit rate periodically.

    Args:
        manager: The manager.
        every: Seconds between log lines; 0 for none.
        misses: Counts of missed tokens by reason, if there are any.
        ignored: Ignored wishes of requests by name, which the caller keeps counting.
    """

    def __init__(
        self,
        manager: BlockManager,
        every: float,
        misses: Misses | None = None,
        ignored: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.manager = manager
        self._every = every
        self._misses = misses
        self.ignored_wishes = ignored
        self._due = time.monotonic() + every

    def now_and_then(self) -> None:
        """Call it once per step."""
        if not self._every or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        logger.info("%s", self.line())

    def line(self) -> str:
        """The hits of the last requests, and those of a larger pool."""
        recent, stats = self.manager.recent_hits(), self.manager.stats()
        parts = [
            f"blockmgr: {recent.hit_tokens} of the last {recent.query_tokens} prompt tokens came "
            f"from the cache; {stats.used_blocks} of {stats.capacity} blocks in use, "
            f"{stats.idle_blocks} kept for reuse, {stats.evicted_blocks} evicted so far"
        ]
        if rates := list(self.hit_rates().items()):
            (num_blocks, here), (max_blocks, more) = rates[0], rates[-1]
            parts.append(
                f"; in whole blocks, this pool of {num_blocks} has found {here:.1%} of all tokens "
                f"so far, and {max_blocks} blocks would have found {more:.1%}"
            )
        if self._misses is not None:
            parts.append(self._misses.line())
        if ignored := self.ignored_wishes:
            named = ", ".join(f"{count} of {name}" for name, count in sorted(ignored.items()))
            parts.append(f"; wishes of requests ignored: {named}")
        return "".join(parts)

    def missed_tokens(self) -> Mapping[MissReason, int]:
        """Missed tokens by reason; empty if they are not counted."""
        return {} if self._misses is None else dict(self._misses.tokens)

    def hit_rates(self) -> dict[int, float]:
        """The token hit rates of this pool and of larger ones, by number of blocks.

        With quotas, the sums over all shares. Empty without ``ghost_blocks``.
        """
        config = self.manager.config
        if not (config.ghost_blocks and config.prefix_caching):
            return {}
        names = [
            name for name, size in zip((b"", *config.quotas), config.shares, strict=True) if size
        ]
        curves = [self.manager.hit_rate_curve(name) for name in names]
        asked = sum(curve.query_tokens for curve in curves) or 1
        rates = {}
        for part in range(PARTS + 1):
            num_blocks = hits = 0
            for curve in curves:
                blocks = curve.num_blocks + (curve.max_blocks - curve.num_blocks) * part // PARTS
                num_blocks += blocks
                hits += int(curve.hit_tokens[blocks])
            rates[num_blocks] = hits / asked
        return rates
