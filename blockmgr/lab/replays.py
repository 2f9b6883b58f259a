"""One trace, replayed over and over: by its ids where that counts the same, else by the manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.lab.attainable import Attainable, unbounded_by_ids
from blockmgr.lab.by_ids import IdReplays, id_replays, same_replays
from blockmgr.lab.optimum import Optimum, check_full_blocks_only, optima, optima_of
from blockmgr.lab.replay import ReplayConfig, ReplayResult, replay
from blockmgr.lab.study import attainable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.trace import Trace

__all__ = ["Replays"]


class Replays:
    """Replays of one trace. What one found out about its blocks serves the next.

    Every call raises what the function of its name in the lab raises, and returns what it returns.
    Only ``ReplayResult.host_s`` is another: the processor time of the whole replay.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._named: tuple[ReplayConfig, IdReplays | None] | None = None  # for the last config

    @property
    def trace(self) -> Trace:
        """The trace."""
        return self._trace

    def attainable(self, config: ReplayConfig) -> Attainable:
        """What an unbounded pool does."""
        by_ids = None if config.groups else self._by_ids(config)
        if by_ids is None or config.min_partial_tokens:
            return attainable(self._trace, config)
        return unbounded_by_ids(by_ids)

    def optima(self, sizes: Sequence[int], config: ReplayConfig) -> Sequence[Optimum | None]:
        """The optimum at several pool sizes; None for each with groups of layers."""
        if config.groups:
            return [None] * len(sizes)
        check_full_blocks_only(config)
        by_ids = self._by_ids(config)
        if by_ids is None:
            return optima(self._trace, sizes, config)
        return optima_of(by_ids.columns(), sizes, config)

    def replay(self, num_blocks: int, config: ReplayConfig) -> ReplayResult:
        """One replay."""
        by_ids = None if config.groups else self._by_ids(config)
        if by_ids is None or not by_ids.exact(config):
            return replay(self._trace, num_blocks, config)
        return by_ids.replay(num_blocks, config)

    def _by_ids(self, config: ReplayConfig) -> IdReplays | None:
        same = same_replays(config)
        if self._named is None or self._named[0] != same:
            self._trace.check_block_size(config.block_size)
            self._named = None  # before the next ones take as much
            self._named = (same, id_replays(self._trace, same))
        return self._named[1]
