"""A replay that records when each block was filled, found and evicted.

* A *reuse gap* is the time from one use of a block's content, such as its computation, to the next
  request for it, whether or not it is still cached.
* A *lifetime* is the time from a block's promotion to its eviction.

Times are simulated. All data come from the manager's events and from its answers, so the counts are
those of a replay that is not watched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from blockmgr.blocks import BlockState
from blockmgr.event_columns import EventKind
from blockmgr.lab.group_frames import DueFrames
from blockmgr.lab.references import references
from blockmgr.lab.replay import EventLoop, Limits, Progress, ReplayConfig, ReplayResult
from blockmgr.lab.replica import event_bytes

if TYPE_CHECKING:
    import collections.abc

    from blockmgr.lab.replay import Waiting
    from blockmgr.lab.trace import Request, Trace

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


class _WatchedLoop(EventLoop):
    """The replay's event loop, which reads the manager's events and samples the pool."""

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
        limits = replace(Limits.of(trace, config), events=True)
        super().__init__(trace, num_blocks, config, progress=progress, limits=limits)
        self._event_bytes = event_bytes(num_blocks, config, limits)
        self._warmup = warmup
        self._noting = True
        # By digest: when each findable block was stored and last used, and how often it was found.
        self._lives: dict[bytes, tuple[int, int, int]] = {}
        self._gone: list[tuple[int, int, int]] = []
        self._digests: dict[int, list[bytes]] = {}  # of the whole blocks of running prompts
        self._ends: dict[int, int] = {}
        self._age_bounds_ms = age_bounds_ms
        self._due = DueFrames(trace, frames)
        self._frames: list[Frame] = []
        # The references of requests by content, which do not change with evictions.
        self._stream = references(trace, config)
        self._limits = self._stream.column("limit").tolist()
        self._prompts = self._stream.column("prompt").tolist()
        self._content_used_ms = np.full(self._stream.num_nodes, NEVER, dtype=np.int64)
        self._asked_gaps: list[Times] = []
        self._found_gaps: list[Times] = []

    def watched(self) -> Watched:
        result = self.run()
        gone = np.array(self._gone, dtype=np.int64).reshape(-1, 3)
        return Watched(
            result=replace(result, memory_bytes=result.memory_bytes - self._event_bytes),
            asked_gaps_ms=_joined(self._asked_gaps),
            reuse_gaps_ms=_joined(self._found_gaps),
            lifetimes_ms=gone[:, 0],
            idle_ms=gone[:, 1],
            uses=gone[:, 2],
            age_bounds_ms=self._age_bounds_ms,
            frames=tuple(self._frames),
        )

    def _admit(self, waiting: Waiting, now: int) -> bool:
        self._noting = waiting.number > self._warmup
        admitted = super()._admit(waiting, now)
        if admitted:
            newest = next(reversed(self._running.values()))
            request, handle = newest.request, newest.handles[0]
            self._ends[handle] = now + self._busy_ms(newest)
            self._note_events(now)
            assert waiting.tokens is not None  # it was admitted
            digests = self.manager.block_digests(waiting.tokens, namespace=request.namespace)
            self._digests[handle] = digests
            found = self.manager.sequence(handle).num_cached_tokens // self._config.block_size
            for digest in digests[:found]:
                stored, _, uses = self._lives[digest]
                self._lives[digest] = (stored, now, uses + 1)
            self._note_gaps(waiting.number, now, found)
        return admitted

    def _note_events(self, now: int) -> None:
        """Record the blocks that became and stopped being findable."""
        for event in self.manager.take_events():
            for digest in event.digests:
                if event.kind is EventKind.STORED:
                    self._lives[digest] = (now, now, 0)
                    continue
                stored, used, uses = self._lives.pop(digest)
                if self._noting:
                    self._gone.append((now - stored, now - used, uses))

    def _note_gaps(self, number: int, now: int, num_found: int) -> None:
        """Record the times since the last use of a prompt's blocks, and their new use."""
        used = self._content_used_ms
        asked = self._stream.nodes(self._limits[number - 1])
        found = asked[:num_found]
        if number > self._warmup:
            self._found_gaps.append(now - used[found])
            known = asked[used[asked] != NEVER]
            self._asked_gaps.append(now - used[known])
        used[self._stream.nodes(self._prompts[number - 1])] = now

    def _end(self, request: Request, handles: list[int], number: int) -> None:
        now = self._ends.pop(handles[0])
        del self._digests[handles[0]]
        whole = len(self._stream.nodes(self._prompts[number - 1]))
        for end in self._stream.ends_of(number - 1):
            self._content_used_ms[self._stream.nodes(end)[whole:]] = now
        super()._end(request, handles, number)
        self._note_events(now)

    def _count_step(self, now: int) -> None:
        super()._count_step(now)
        if self._due.reached(now):
            self._frames.append(self._frame(now))

    def _frame(self, now: int) -> Frame:
        blocks = self.manager.blocks()
        in_use = np.isin(blocks.state, (BlockState.OWNED, BlockState.CACHED))
        shared = int(np.count_nonzero(in_use & (blocks.ref_count > 1)))
        held = set[bytes]()
        for handle, digests in self._digests.items():
            cached = blocks.state[self.manager.block_ids(handle)] == BlockState.CACHED
            held.update(compress(digests, cached))
        idle = (used for digest, (_, used, _) in self._lives.items() if digest not in held)
        ages = now - np.fromiter(idle, dtype=np.int64)
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
