"""Repeated replays of one trace: by its ids if the counts are the same, else by a manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.lab.attainable import Attainable, unbounded_of
from blockmgr.lab.by_ids import IdReplays, id_replays, same_replays
from blockmgr.lab.optimum import Optimum, check_full_blocks_only, optima_of
from blockmgr.lab.references import references
from blockmgr.lab.replay import ReplayConfig, ReplayResult, replay
from blockmgr.lab.study import attainable
from blockmgr.lab.warmup import attainable_after, first_requests, result_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.trace import Trace

__all__ = ["Replays"]


class Replays:
    """Replays of one trace, which reuse what they compute about its blocks.

    Every call has the results and errors of the function with its name in the lab. Only
    ``ReplayResult.host_s`` differs: it is the processor time of the whole replay.

    Args:
        trace: The requests.
        warmup: Requests at the start that fill the pool and are not counted
            (``blockmgr.lab.warmup``), fewer than the trace has.
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
