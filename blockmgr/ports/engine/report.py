"""The work of an engine, and the savings by sharing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr.stats import Stats

__all__ = ["EngineReport", "Tally"]

# Counters of the manager.
MANAGERS = ("query_tokens", "hit_tokens", "evicted_blocks", "deduplicated_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
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

    steps: int
    computed_tokens: int
    generated_tokens: int
    query_tokens: int
    hit_tokens: int
    copies: int
    copied_tokens: int
    preemptions: int
    evicted_blocks: int
    deduplicated_blocks: int
    peak_blocks: int
    peak_unshared_blocks: int
    peak_saved_blocks: int
    host_s: float
    device_s: float


@dataclass(slots=True)
class Tally:
    """The scheduler's counters; ``EngineReport`` has their meanings.

    Of the manager's counters, it holds only the sums of earlier managers.
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

    def count_step(self, num_tokens: int, used: int, unshared: int) -> None:
        """Records a forward, the blocks in use, and the blocks it would use without sharing."""
        self.steps += 1
        self.computed_tokens += num_tokens
        self.peak_blocks = max(self.peak_blocks, used)
        self.peak_unshared_blocks = max(self.peak_unshared_blocks, unshared)
        self.peak_saved_blocks = max(self.peak_saved_blocks, unshared - used)

    def keep(self, stats: Stats) -> None:
        """Adds the counts of a manager that is about to be deleted."""
        for name in MANAGERS:
            setattr(self, name, getattr(self, name) + getattr(stats, name))

    def report(self, stats: Stats) -> EngineReport:
        """A snapshot, with the counts of the manager."""
        sums = {name: getattr(self, name) + getattr(stats, name) for name in MANAGERS}
        return EngineReport(**{**asdict(self), **sums})
