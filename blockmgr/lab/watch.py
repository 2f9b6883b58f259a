"""A replay that records when each block was filled, found and evicted.

* A *reuse gap* is the time from one use of a block's content, such as its computation, to the next
  request for it, whether or not it is still cached.
* A *lifetime* is the time from a block's promotion to its eviction.

Times are simulated. All data come from the block tables, so the counts are those of a replay that
is not watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blockmgr.blocks import BlockState
from blockmgr.lab.references import references
from blockmgr.lab.replay import EventLoop, Progress, ReplayConfig, ReplayResult
from blockmgr.manager import BlockManager

if TYPE_CHECKING:
    import collections.abc

    from blockmgr.config import ManagerConfig
    from blockmgr.lab.trace import Request, Trace
    from blockmgr.manager import Sequence

__all__ = ["Frame", "Watched", "watch"]

Times = npt.NDArray[np.int64]

NEVER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The pool at one instant. All numbers are blocks, and their sum is the pool.

    Attributes:
        time_ms: Time in simulated milliseconds.
        shared: Blocks in use by two or more sequences.
        alone: Blocks in use by one sequence, or held for a copy.
        idle: Idle blocks by time since their last use: one number for each age band.
        free: Free blocks.
    """

    time_ms: int
    shared: int
    alone: int
    idle: tuple[int, ...]
    free: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Watched:
    """The data of a watched replay.

    Attributes:
        result: The counts of the replay.
        asked_gaps_ms: Reuse gap of each requested block that was computed before: ``int64[n]``.
        reuse_gaps_ms: Of these, the gaps of blocks that were found: ``int64[m]``.
        lifetimes_ms: Lifetime of each evicted block: ``int64[k]``, where k is ``result.evictions``
            without a warm-up.
        idle_ms: For the same blocks, the time since their last use: ``int64[k]``.
        uses: For the same blocks, how often a prompt found them: ``int64[k]``.
        age_bounds_ms: Bounds between the age bands of frames, ascending; the last band has no end.
        frames: The pool over time; empty if not requested.
    """

    result: ReplayResult
    asked_gaps_ms: Times
    reuse_gaps_ms: Times
    lifetimes_ms: Times
    idle_ms: Times
    uses: Times
    age_bounds_ms: tuple[int, ...]
    frames: tuple[Frame, ...]


def watch(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    *,
    frames: int = 0,
    age_bounds_ms: collections.abc.Sequence[int] = (),
    warmup: int = 0,
    progress: Progress | None = None,
) -> Watched:
    """A watched ``replay``.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of the replay, without reuse of parts of blocks.
        frames: Number of samples of the whole pool, spread evenly over the trace.
        age_bounds_ms: Bounds between the age bands of idle blocks, ascending.
        warmup: Requests at the start whose gaps are not recorded, nor evictions before the next
            request; ``result`` counts all.
        progress: Called once for each request.

    Raises:
        ValueError: ``config.min_partial_tokens`` is not 0, or the trace cannot be cut into blocks
            of ``config.block_size``.

    Cost: That of ``replay``, O(blocks of the request) per request, and O(num_blocks) per frame.
    """
    if config.min_partial_tokens:
        raise ValueError(
            f"min_partial_tokens must be 0 to watch whole blocks, got {config.min_partial_tokens}"
        )
    bounds = tuple(age_bounds_ms)
    loop = _WatchedLoop(
        trace, num_blocks, config, progress, frames=frames, age_bounds_ms=bounds, warmup=warmup
    )
    return loop.watched()


class _WatchedManager(BlockManager):
    """A manager that records the history of each block id. The driver sets ``now``."""

    def __init__(self, config: ManagerConfig) -> None:
        self._set_up(config)
        count = config.num_blocks
        self.now = 0
        self.noting = True
        self.promoted_ms = np.full(count, NEVER, dtype=np.int64)
        self.used_ms = np.full(count, NEVER, dtype=np.int64)
        self.uses = np.zeros(count, dtype=np.int64)
        self.gone: list[tuple[Times, Times, Times]] = []

    def admit(self, tokens: Any, **options: Any) -> int:
        handle = super().admit(tokens, **options)
        view = self.sequence(handle)
        ids = view.block_ids
        found = view.num_cached_tokens // self.config.block_size
        hits = ids[:found]
        if found:
            self.used_ms[hits] = self.now
            self.uses[hits] += 1
        self._taken(ids[found:])
        return handle

    def reserve(self, handle: int, num_slots: int) -> None:
        before = self.sequence(handle).block_ids
        super().reserve(handle, num_slots)
        self._taken_since(before, handle)

    def append(self, handle: int, tokens: Any) -> None:
        before = self.sequence(handle).block_ids
        super().append(handle, tokens)
        self._taken_since(before, handle)

    def commit(self, handle: int, num_computed_tokens: int) -> None:
        super().commit(handle, num_computed_tokens)
        full = self.sequence(handle).block_ids[: num_computed_tokens // self.config.block_size]
        # A block that was cached already is replaced by the cached one, which keeps its time of
        # filling.
        fresh = full[self.promoted_ms[full] == NEVER]
        self.promoted_ms[fresh] = self.now
        self.used_ms[fresh] = self.now
        self.uses[fresh] = 0

    def _taken_since(self, before: npt.NDArray[np.int32], handle: int) -> None:
        ids = self.sequence(handle).block_ids
        kept = np.zeros(len(ids), dtype=bool)
        common = min(len(before), len(ids))
        kept[:common] = before[:common] == ids[:common]
        self._taken(ids[~kept])

    def _taken(self, ids: npt.NDArray[np.int32]) -> None:
        """Record the old content of blocks that are taken for new content."""
        evicted = ids[self.promoted_ms[ids] != NEVER]
        if len(evicted):
            lived = self.now - self.promoted_ms[evicted]
            if self.noting:
                self.gone.append((lived, self.now - self.used_ms[evicted], self.uses[evicted]))
            self.promoted_ms[evicted] = NEVER


class _WatchedLoop(EventLoop):
    """The replay's event loop, which sets the manager's time and samples the pool."""

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        config: ReplayConfig,
        progress: Progress | None,
        *,
        frames: int,
        age_bounds_ms: tuple[int, ...],
        warmup: int,
    ) -> None:
        super().__init__(trace, num_blocks, config, progress=progress)
        self._watched = _WatchedManager(self._manager.config)
        self._warmup = warmup
        self._manager = self._watched
        self._ends: dict[int, int] = {}
        self._age_bounds_ms = age_bounds_ms
        first, last = trace.requests[0].arrival_ms, trace.requests[-1].arrival_ms
        due = np.linspace(first, last, frames) if frames else np.zeros(0)
        self._due = [int(instant) for instant in reversed(due)]
        self._frames: list[Frame] = []
        # The references of requests by content, which do not change with evictions.
        self._stream = references(trace, config)
        self._content_used_ms = np.full(self._stream.runs.num_nodes, NEVER, dtype=np.int64)
        self._asked_gaps: list[Times] = []
        self._found_gaps: list[Times] = []

    def watched(self) -> Watched:
        result = self.run()
        manager = self._watched
        columns = list(zip(*manager.gone, strict=True)) or [(), (), ()]
        lifetimes, idle, uses = (_joined(column) for column in columns)
        return Watched(
            result=result,
            asked_gaps_ms=_joined(self._asked_gaps),
            reuse_gaps_ms=_joined(self._found_gaps),
            lifetimes_ms=lifetimes,
            idle_ms=idle,
            uses=uses,
            age_bounds_ms=self._age_bounds_ms,
            frames=tuple(self._frames),
        )

    def _admit(self, waiting: Any, now: int) -> bool:
        self._watched.now = now
        self._watched.noting = waiting.number > self._warmup
        admitted = super()._admit(waiting, now)
        if admitted:
            _, _, request, handles = max(self._running, key=lambda entry: entry[1])
            self._ends[handles[0]] = now + self._config.service_ms(request)
            self._note_gaps(waiting.number, now, self._watched.sequence(handles[0]))
        return admitted

    def _note_gaps(self, number: int, now: int, view: Sequence) -> None:
        """Record the times since the last use of a prompt's blocks, and their new use."""
        refers = self._stream.requests[number - 1]
        used = self._content_used_ms
        asked = np.array(self._stream.nodes(refers.limit), dtype=np.int64)
        found = asked[: view.num_cached_tokens // self._config.block_size]
        if number > self._warmup:
            self._found_gaps.append(now - used[found])
            known = asked[used[asked] != NEVER]
            self._asked_gaps.append(now - used[known])
        used[self._stream.nodes(refers.prompt)] = now

    def _end(self, request: Request, handles: list[int], number: int) -> None:
        now = self._ends.pop(handles[0])
        self._watched.now = now
        refers = self._stream.requests[number - 1]
        whole = len(self._stream.nodes(refers.prompt))
        for end in refers.ends:
            self._content_used_ms[self._stream.nodes(end)[whole:]] = now
        super()._end(request, handles, number)

    def _count_step(self, now: int) -> None:
        super()._count_step(now)
        if self._due and now >= self._due[-1]:
            while self._due and now >= self._due[-1]:
                self._due.pop()
            self._frames.append(self._frame(now))

    def _frame(self, now: int) -> Frame:
        blocks = self._watched.blocks()
        in_use = np.isin(blocks.state, (BlockState.OWNED, BlockState.CACHED))
        shared = int(np.count_nonzero(in_use & (blocks.ref_count > 1)))
        ages = now - self._watched.used_ms[blocks.state == BlockState.IDLE]
        band = np.searchsorted(np.array(self._age_bounds_ms), ages, side="right")
        return Frame(
            time_ms=now,
            shared=shared,
            alone=int(np.count_nonzero(in_use)) - shared,
            idle=tuple(np.bincount(band, minlength=len(self._age_bounds_ms) + 1).tolist()),
            free=blocks.count(BlockState.FREE),
        )


def _joined(parts: collections.abc.Sequence[Times]) -> Times:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
