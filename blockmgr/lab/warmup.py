"""The counts of a replay without its first requests, which only fill the pool.

Requests are admitted in the order of the trace, and later requests do not affect earlier ones. So
the counts of the first requests are those of a replay of them alone, and the result is the
difference. For an eviction order that knows the future, the first requests look nothing up instead
(``References.counted_after``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.lab.curve import between
from blockmgr.lab.tiered import less

if TYPE_CHECKING:
    from fractions import Fraction

    from blockmgr.lab.attainable import Attainable
    from blockmgr.lab.curve import Counts, Curve
    from blockmgr.lab.replay_result import ReplayResult
    from blockmgr.lab.trace import Trace

__all__ = [
    "attainable_after",
    "curve_after",
    "first_requests",
    "result_after",
    "warmup_requests",
]

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
