"""Repeated replays of one trace: by its ids if the counts are the same, else by a manager.

They can leave out the first requests of the trace, which then only fill the pool. Requests are
admitted in the order of the trace, and later requests do not affect earlier ones. So the counts of
the first requests are those of a replay of them alone, and the result is the difference. For an
eviction order that knows the future, the first requests look nothing up instead
(``References.counted_after``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.lab.attainable import Attainable, unbounded_of
from blockmgr.lab.by_ids import IdReplays, id_replays, same_replays
from blockmgr.lab.curve import between, hit_rate_curve
from blockmgr.lab.optimum import Optimum, check_full_blocks_only, optima_of
from blockmgr.lab.references import references
from blockmgr.lab.replay import ReplayConfig, ReplayResult, replay
from blockmgr.lab.study import attainable, full_attention
from blockmgr.lab.tiered import less

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from blockmgr.lab.curve import Counts, Curve
    from blockmgr.lab.replay_result import ReplayResult
    from blockmgr.lab.trace import Trace

__all__ = [
    "Replays",
    "attainable_after",
    "curve_after",
    "first_requests",
    "result_after",
    "warmup_requests",
]


class Replays:
    """Replays of one trace, which reuse what they compute about its blocks.

    Every call has the results and errors of the function with its name in the lab. Only
    ``ReplayResult.host_s`` differs: it is the processor time of the whole replay.

    Args:
        trace: The requests.
        warmup: Requests at the start that fill the pool and are not counted
            (the module says how), fewer than the trace has.
    """

    def __init__(self, trace: Trace, warmup: int = 0) -> None:
        if not 0 <= warmup < len(trace.requests):
            raise ValueError(f"warmup must be in [0, {len(trace.requests)}), got {warmup}")
        self._trace = trace
        self._warmup = warmup
        self._first = Replays(first_requests(trace, warmup)) if warmup else None
        self._named: tuple[ReplayConfig, IdReplays | None] | None = None  # for the last config

    @property
    def trace(self) -> Trace:
        """The trace."""
        return self._trace

    def attainable(self, config: ReplayConfig) -> Attainable:
        """The counts of an unbounded pool."""
        by_ids = None if config.groups else self._by_ids(config)
        if by_ids is None or config.min_partial_tokens:
            found = attainable(self._trace, config)
        else:
            found = unbounded_of(by_ids.columns(), self._trace, config)
        if self._first is None:
            return found
        return attainable_after(found, self._first.attainable(config))

    def optima(self, sizes: Sequence[int], config: ReplayConfig) -> Sequence[Optimum | None]:
        """The optimum at several pool sizes; with groups of layers, None for each."""
        if config.groups:
            return [None] * len(sizes)
        check_full_blocks_only(config)
        by_ids = self._by_ids(config)
        columns = references(self._trace, config) if by_ids is None else by_ids.columns()
        return optima_of(columns.counted_after(self._warmup), sizes, config)

    def curve(self, config: ReplayConfig) -> Curve:
        """The hits at every capacity."""
        found = hit_rate_curve(self._trace, config)
        return found if self._first is None else curve_after(found, self._first.curve(config))

    def full_attention(self, config: ReplayConfig) -> Attainable:
        """The counts of an unbounded pool for full attention alone."""
        found = full_attention(self._trace, config)
        if self._first is None:
            return found
        return attainable_after(found, self._first.full_attention(config))

    def replay(self, num_blocks: int, config: ReplayConfig) -> ReplayResult:
        """One replay."""
        by_ids = None if config.groups else self._by_ids(config)
        if by_ids is None or not by_ids.exact(config):
            result = replay(self._trace, num_blocks, config)
        else:
            result = by_ids.replay(num_blocks, config)
        if self._first is None:
            return result
        return result_after(result, self._first.replay(num_blocks, config))

    def _by_ids(self, config: ReplayConfig) -> IdReplays | None:
        same = same_replays(config)
        if self._named is None or self._named[0] != same:
            self._trace.check_block_size(config.block_size)
            self._named = None  # frees memory before the next ones are computed
            self._named = (same, id_replays(self._trace, same))
        return self._named[1]


COUNTED: Final = (
    "requests",
    "rejected",
    "waited",
    "wait_ms",
    "query_tokens",
    "hit_tokens",
    "partial_hit_tokens",
    "evictions",
)
"""Counts of a replay that are sums over requests."""


def warmup_requests(trace: Trace, share: Fraction) -> int:
    """Number of requests in this fraction of a trace, rounded down.

    Raises:
        ValueError: ``share`` is not in ``[0, 1)``.
    """
    if not 0 <= share < 1:
        raise ValueError(f"warmup must be in [0%, 100%), got {float(share):.0%}")
    return int(share * len(trace.requests))


def first_requests(trace: Trace, number: int) -> Trace:
    """The first requests of a trace."""
    return replace(trace, requests=trace.requests[:number])


def result_after(result: ReplayResult, first: ReplayResult) -> ReplayResult:
    """The counts of a replay without those of its first requests.

    Args:
        result: Counts of the whole trace.
        first: Counts of its first requests, in the same pool.

    Returns:
        ``result`` with reduced counts of requests, tokens, waits and evictions. The other numbers,
        such as peaks and means over time, are those of the whole replay.
    """
    by_group, by_tier = result.by_group, result.by_tier
    if by_group is not None and first.by_group is not None:
        pairs = zip(by_group.groups, first.by_group.groups, strict=True)
        groups = tuple(less(mine, other, "refused_tokens") for mine, other in pairs)
        by_group = replace(by_group, groups=groups)
    if by_tier is not None and first.by_tier is not None:
        by_tier = by_tier.after(first.by_tier)
    return less(result, first, *COUNTED, by_group=by_group, by_tier=by_tier)


def attainable_after(whole: Attainable, first: Attainable) -> Attainable:
    """The hits of an unbounded pool after the first requests; blocks are those of all."""
    return less(whole, first, "query_tokens", "hit_tokens")


def curve_after(whole: Curve, first: Curve) -> Curve:
    """A curve without the look-ups of the first requests.

    Args:
        whole: Curve of the whole trace.
        first: Curve of its first requests.
    """
    sizes = np.union1d(whole.capacities, first.capacities)
    sizes = sizes[sizes >= whole.longest_request_blocks]

    def after(name: str) -> Counts:
        found, before = (between(each, getattr(each, name), sizes) for each in (whole, first))
        # Below ``exact_from``, the difference of two estimates may decrease slightly.
        return np.maximum.accumulate(np.maximum(found - before, 0))

    return replace(
        whole,
        capacities=sizes,
        hit_blocks=after("hit_blocks"),
        hit_tokens=after("hit_tokens"),
        query_tokens=whole.query_tokens - first.query_tokens,
    )
