"""The work of an engine, and the savings by sharing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr.stats import Stats

__all__ = ["EngineReport"]

# Counters of the manager.
MANAGERS = ("query_tokens", "hit_tokens", "evicted_blocks", "deduplicated_blocks")


@dataclass(slots=True, kw_only=True)
class EngineReport:
    """The work of an engine so far, and the savings by sharing.

    Attributes:
        steps: Forwards.
        computed_tokens: Tokens that went through a forward.
        generated_tokens: Tokens returned.
        query_tokens: Prompt tokens looked up in the cache.
        hit_tokens: Of those, tokens found, which need no computation.
        copies: Block copies that were applied.
        copied_tokens: Tokens whose K/V these copies copied.
        preemptions: How often a job lost its blocks and was computed again.
        evicted_blocks: Blocks of finished work evicted for other content.
        deduplicated_blocks: Full blocks found to be cached already.
        peak_blocks: Most blocks in use at a time.
        peak_unshared_blocks: Most blocks that the sequences of a step would have held without
            sharing.
        peak_saved_blocks: Largest difference of the two in one step.
        host_s: Seconds outside copies and forward: scheduling, block tables, choosing tokens.
        device_s: Seconds in copies and forward.
    """

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    copies: int = 0
    copied_tokens: int = 0
    preemptions: int = 0
    evicted_blocks: int = 0
    deduplicated_blocks: int = 0
    peak_blocks: int = 0
    peak_unshared_blocks: int = 0
    peak_saved_blocks: int = 0
    host_s: float = 0.0
    device_s: float = 0.0

    def _count_step(self, num_tokens: int, used: int, unshared: int) -> None:
        """Records a forward, the blocks in use, and the blocks it would use without sharing."""
        self.steps += 1
        self.computed_tokens += num_tokens
        self.peak_blocks = max(self.peak_blocks, used)
        self.peak_unshared_blocks = max(self.peak_unshared_blocks, unshared)
        self.peak_saved_blocks = max(self.peak_saved_blocks, unshared - used)

    def _with(self, stats: Stats) -> EngineReport:
        """A copy to which the counts of a manager are added."""
        return replace(self, **{n: getattr(self, n) + getattr(stats, n) for n in MANAGERS})
