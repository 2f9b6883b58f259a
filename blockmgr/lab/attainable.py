"""Computes the hit rate of an unbounded pool without a manager.

Such a pool keeps every computed prefix, and no request waits. So the first request that can find a
run of blocks is known from arrivals and service times alone, and hits need no replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blockmgr.lab.references import references
from blockmgr.lab.runs import NO_RUN

if TYPE_CHECKING:
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.runs import References
    from blockmgr.lab.trace import Trace

__all__ = ["Attainable", "unbounded", "unbounded_of"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainable:
    """The counts of an unbounded pool, in which no request waits.

    Attributes:
        query_tokens: Prompt tokens of the trace.
        hit_tokens: Of those, tokens found.
        full_blocks: Distinct full blocks that end up in the pool.
        peak_private_blocks: Most additional blocks that running requests hold at a time: each
            sequence's blocks from the one with its last prompt token on, which never come from the
            cache.
    """

    query_tokens: int
    hit_tokens: int
    full_blocks: int
    peak_private_blocks: int

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens, in ``0 … 1``."""
        return self.hit_tokens / self.query_tokens

    @property
    def working_set_blocks(self) -> int:
        """Number of blocks with which a replay of full-block reuse neither evicts nor waits.

        Capacities given in percent are shares of this number.
        """
        return self.full_blocks + self.peak_private_blocks


def unbounded(trace: Trace, config: ReplayConfig) -> Attainable:
    """Count the hits of an unbounded pool that reuses full blocks only.

    Raises:
        ValueError: ``config`` has groups of layers, or the trace cannot be cut into blocks of
            ``config.block_size``.

    Cost: O(hash ids) if every prompt is known by ids and no output is known, else O(tokens).
    """
    return unbounded_of(references(trace, config), trace, config)


def unbounded_of(columns: References, trace: Trace, config: ReplayConfig) -> Attainable:
    """``unbounded`` for a trace with known references."""
    numbers = np.arange(len(columns.requests))
    arrival = columns.column("arrival_ms")
    # The first request that can find what another one computed at its end, or frees then: at each
    # instant, requests end before others are admitted.
    after_end = np.searchsorted(arrival, arrival + columns.column("service_ms"))
    after_end = np.maximum(numbers + 1, after_end)
    private = _private_blocks(columns, trace, config)
    freed = np.zeros(len(numbers) + 1, dtype=np.int64)
    np.add.at(freed, after_end, private)
    return Attainable(
        query_tokens=columns.query_tokens,
        hit_tokens=_hit_blocks(columns, numbers, after_end) * config.block_size,
        full_blocks=int(columns.length.sum()),
        peak_private_blocks=int((np.cumsum(private) - np.cumsum(freed[:-1])).max()),
    )


def _private_blocks(columns: References, trace: Trace, config: ReplayConfig) -> Numbers:
    """Blocks of each request from that with the last token of its prompt on, by sample."""
    size = config.block_size
    served = columns.column("limit_blocks")
    private = columns.column("held_blocks") - served
    for index in np.flatnonzero(columns.column("num_samples") > 1).tolist():
        request = trace.requests[index]
        private[index] = sum(
            -(-(request.num_prompt_tokens + output) // size) - int(served[index])
            for output in config.output_lengths(request)
        )
    return private


def _hit_blocks(columns: References, numbers: Numbers, after_end: Numbers) -> int:
    """Blocks that requests find, if requests can find what others computed from these on."""
    found_from = np.full(len(columns.parent), len(numbers), dtype=np.int64)
    owner = np.repeat(numbers, columns.column("num_samples"))
    for runs, first in (
        (columns.column("prompt"), numbers + 1),
        (columns.ends, after_end[owner]),
    ):
        np.minimum.at(found_from, runs[runs != NO_RUN], first[runs != NO_RUN])
    first_of, parents = found_from.tolist(), columns.parent.tolist()
    for run in range(len(parents) - 1, -1, -1):  # a parent has a smaller number
        parent = parents[run]
        if parent != NO_RUN and first_of[parent] > first_of[run]:
            first_of[parent] = first_of[run]
    found_from = np.array(first_of, dtype=np.int64)
    found = columns.column("limit").copy()
    left = numbers[found != NO_RUN]
    while len(left := left[found_from[found[left]] > left]):
        found[left] = columns.parent[found[left]]
        left = left[found[left] != NO_RUN]
    return int(columns.end[found[found != NO_RUN]].sum())
