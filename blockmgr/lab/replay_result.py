"""The result of a replay."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockmgr.lab.grouped import ByGroup
    from blockmgr.lab.tiered import ByTier

__all__ = ["ReplayResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The counts of one replay. Units are blocks unless the name says otherwise.

    Attributes:
        num_blocks: Blocks in the pool.
        requests: Requests in the trace.
        rejected: Of those, requests larger than the pool can ever hold.
        waited: Of those, requests that were admitted after their arrival.
        wait_ms: Total simulated milliseconds that requests waited.
        query_tokens: Prompt tokens of all requests, including rejected ones.
        hit_tokens: Of those, tokens found in the cache.
        partial_hit_tokens: Of those, tokens found in part of a block.
        evictions: Cached blocks evicted for new content.
        copies: Block copies for the engine.
        deduplicated: Full blocks that were cached already when they were committed.
        peak_used_blocks: Most blocks in use at a time, without idle blocks.
        steps: Instants of simulated time at which requests were admitted or ended.
        memory_bytes: Host memory of the manager.
        host_s: Seconds of processor time inside manager calls, or of the whole replay if it used
            ids (``blockmgr.lab.replays``); varies between runs.
        by_group: The blocks and refused tokens of each group of layers; None without groups.
        by_tier: Where the tokens of prompts came from, and what was moved; None without tiers.
    """

    num_blocks: int
    requests: int
    rejected: int
    waited: int
    wait_ms: int
    query_tokens: int
    hit_tokens: int
    partial_hit_tokens: int
    evictions: int
    copies: int
    deduplicated: int
    peak_used_blocks: int
    steps: int
    memory_bytes: int
    host_s: float = field(compare=False)
    by_group: ByGroup | None = None
    by_tier: ByTier | None = None

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens, in ``0 … 1``."""
        return self.hit_tokens / self.query_tokens

    @property
    def as_plain(self) -> dict[str, Any]:
        """The counts for a JSON document, without host times, by group and by tier if there are."""
        counts = asdict(replace(self, by_tier=None))
        del counts["host_s"], counts["by_tier"]
        if self.by_group is None:
            del counts["by_group"]
        if self.by_tier is not None:
            counts["by_tier"] = self.by_tier.as_plain
        return counts
