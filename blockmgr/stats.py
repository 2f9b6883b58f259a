"""Frozen snapshots of gauges and counters; other modules export them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["HitRateCurve", "QuotaUsage", "RecentHits", "Stats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A manager's gauges and counters at one moment. Units are blocks unless the name says tokens.

    Gauges: ``capacity`` = ``free_blocks`` + ``idle_blocks`` + ``fenced_blocks`` + ``used_blocks``.
    Counters only grow. A ratio over any window is the difference of two snapshots.

    Attributes:
        capacity: All blocks but the null block and those that left by ``shrink``.
        free_blocks: Not in use, without content.
        idle_blocks: Not in use, cached.
        fenced_blocks: Released, waiting for a launched step to complete.
        used_blocks: Named by a block table, or with an internal pin.
        cached_blocks: With content that prompts can find: used, idle or fenced.
        peak_used_blocks: Largest ``used_blocks`` so far.
        num_sequences: Sequences alive, running or preempted.
        pending_copies: Copies recorded and not taken.
        query_tokens: Prompt tokens looked up, at first admissions only; none if ``read_cache`` is
            False.
        hit_tokens: Of those, tokens found.
        partial_hit_tokens: Of those, tokens found in part of a block.
        resumed_query_tokens: Tokens looked up by ``resume``; they do not count in the hit rate.
        resumed_hit_tokens: Of those, tokens found.
        promoted_blocks: Blocks that became findable.
        deduplicated_blocks: Full blocks found to be cached already.
        cached_tails: Partial tails kept when a sequence ended.
        evicted_blocks: Idle blocks evicted for new content.
        planned_copies: Copies recorded.
        cancelled_copies: Of those, copies dropped because their destination was released.
        forks: Sequences made by ``fork``.
        preemptions: Calls of ``preempt``.
        low_priority_blocks: Cached blocks at ``Priority.LOW``, evicted before others; a gauge.
        expected_blocks: Cached blocks at ``Priority.EXPECTED``; a gauge.
        high_priority_blocks: Cached blocks at ``Priority.HIGH``; a gauge.
        pinned_blocks: Cached blocks that pins cover, each counted once; a gauge.
        pins: Number of pins held; a gauge.
        expired_blocks: Blocks whose retention ran out.
        evicted_pinned_blocks: Pinned blocks evicted for a running sequence because no other was
            left.
        touched_blocks: Idle blocks that ``touch`` moved to the end of the eviction order.
        forgotten_blocks: Cached blocks that ``reset_prefix_cache``, ``forget``, ``retire`` or
            ``shrink`` took out of the cache.
        sessions: Sessions that the manager knows; a gauge.
        superseded_blocks: Cached blocks that go first since the next prompt of their session does
            not use them.
    """

    capacity: int
    free_blocks: int
    idle_blocks: int
    fenced_blocks: int
    used_blocks: int
    cached_blocks: int
    peak_used_blocks: int
    num_sequences: int
    pending_copies: int
    query_tokens: int
    hit_tokens: int
    partial_hit_tokens: int
    resumed_query_tokens: int
    resumed_hit_tokens: int
    promoted_blocks: int
    deduplicated_blocks: int
    cached_tails: int
    evicted_blocks: int
    planned_copies: int
    cancelled_copies: int
    forks: int
    preemptions: int
    low_priority_blocks: int
    expected_blocks: int
    high_priority_blocks: int
    pinned_blocks: int
    pins: int
    expired_blocks: int
    evicted_pinned_blocks: int
    touched_blocks: int
    forgotten_blocks: int
    sessions: int
    superseded_blocks: int

    @property
    def available(self) -> int:
        """Blocks that can be handed out: free and idle."""
        return self.free_blocks + self.idle_blocks

    @property
    def usage(self) -> float:
        """Used blocks over capacity, in ``0 … 1``; 0 if all blocks have left."""
        return self.used_blocks / self.capacity if self.capacity else 0.0

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens, in ``0 … 1``; 0 before the first admission."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentHits:
    """The hits of the last requests, at most ``hit_rate_window``.

    Each first admission that reads the cache counts as one request.

    Attributes:
        requests: Number of requests.
        query_tokens: Tokens of their prompts.
        hit_tokens: Of those, tokens found.
    """

    requests: int
    query_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens, in ``0 … 1``; 0 before the first request."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUsage:
    """The limit of one share of the pool, and its blocks by state.

    ``limit`` = ``free_blocks`` + ``idle_blocks`` + ``fenced_blocks`` + ``used_blocks``. It names
    neither its namespace nor any token.

    Attributes:
        limit: Blocks of the quota; for namespaces without a quota, the rest of the pool, without
            what left by ``shrink``.
        free_blocks: Not in use, without content.
        idle_blocks: Not in use, cached.
        fenced_blocks: Released, waiting for a launched step to complete.
        used_blocks: Named by a block table, or with an internal pin.
        evicted_blocks: Idle blocks evicted for new content so far.
    """

    limit: int
    free_blocks: int
    idle_blocks: int
    fenced_blocks: int
    used_blocks: int
    evicted_blocks: int

    @property
    def available(self) -> int:
        """Blocks that can be handed out: free and idle."""
        return self.free_blocks + self.idle_blocks


@dataclass(frozen=True, slots=True, eq=False)
class HitRateCurve:
    """The hits that pools of other sizes would have had in all look-ups so far.

    Whole blocks only, at first admissions, in pools that evict the least recently used block. Like
    the counters of ``Stats`` these only grow, so the difference of two snapshots is the curve of
    the time between them.

    Attributes:
        num_blocks: Blocks of the share, without the null block.
        query_tokens: Prompt tokens looked up.
        hit_tokens: ``int64[max_blocks + 1]`` on the host: of those, tokens that a pool would have
            found, by its number of blocks. The curve ignores that requests would have had to wait
            for blocks in a small pool.
    """

    num_blocks: int
    query_tokens: int
    hit_tokens: npt.NDArray[np.int64]

    @property
    def max_blocks(self) -> int:
        """Largest pool of the curve."""
        return len(self.hit_tokens) - 1

    def hit_rate_at(self, num_blocks: int) -> float:
        """Hit tokens over query tokens in a pool of this size; 0 before the first admission.

        Args:
            num_blocks: In ``[0, max_blocks]``.

        Raises:
            ValueError: The curve has no pool of this size.
        """
        if not 0 <= num_blocks <= self.max_blocks:
            bound = f"[0, {self.max_blocks}], the blocks of the share and those it remembers"
            raise ValueError(f"num_blocks must be in {bound}, got {num_blocks}")
        return int(self.hit_tokens[num_blocks]) / self.query_tokens if self.query_tokens else 0.0

    def __sub__(self, earlier: HitRateCurve) -> HitRateCurve:
        """The curve of all look-ups since ``earlier``, a snapshot of the same manager.

        Raises:
            ValueError: ``earlier`` is of a manager of another size, or later than this one.
        """
        if not isinstance(earlier, HitRateCurve):
            return NotImplemented
        sizes = (self.num_blocks, self.max_blocks), (earlier.num_blocks, earlier.max_blocks)
        if sizes[0] != sizes[1] or earlier.query_tokens > self.query_tokens:
            raise ValueError("only an earlier curve of the same manager can be subtracted")
        return HitRateCurve(
            self.num_blocks,
            self.query_tokens - earlier.query_tokens,
            self.hit_tokens - earlier.hit_tokens,
        )
