"""Stack distances of the look-ups of a replay, from a pool without bounds.

Every event of a replay in which no request waits for blocks is known before: requests are
admitted when they come, and end when their time is over. What a pool of some size still holds
then follows from the order of releases alone, see ``curve``.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from blockmgr.lab.references import NO_RUN, References, RequestReferences
from blockmgr.lab.spread import FAR, LookUps
from blockmgr.lab.stack import ReleaseStack

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["Counts", "Hits", "StackPass"]

Counts = npt.NDArray[np.int64]
"""One number a capacity: ``int64[n]`` on the host."""


IN_USE: Final = -1
ABSENT: Final = -2


@dataclass(slots=True)
class Hits:
    """Look-ups by stack distance, as stretches of consecutive distances with one weight each."""

    first: list[int]
    last: list[int]
    blocks: list[int]
    tokens: list[int]

    def add(self, first: int, last: int, blocks: int, tokens: int) -> None:
        """Count ``blocks`` and ``tokens`` for each distance from ``first`` to ``last``."""
        self.first.append(first)
        self.last.append(last)
        self.blocks.append(blocks)
        self.tokens.append(tokens)

    def points(self, lowest: int) -> tuple[Counts, Counts, Counts]:
        """Capacities from ``lowest`` on at which the slope changes, and the hits there."""
        first = np.array(self.first, dtype=np.int64)
        last = np.array(self.last, dtype=np.int64)
        at = np.concatenate((first, last + 1, [lowest + 1]))
        order = np.argsort(at, kind="stable")
        at = at[order]
        totals = []
        for counts in (self.blocks, self.tokens):
            weight = np.array(counts, dtype=np.int64)
            slope = np.cumsum(np.concatenate((weight, -weight, [0]))[order])
            growth = slope[:-1] * np.diff(at)
            totals.append(np.concatenate((np.zeros(1, np.int64), np.cumsum(growth))))
        # Distances [at[i], at[i + 1]) have one slope, so hits are known one below each.
        keep = (at > lowest) & np.append(at[1:] != at[:-1], True)
        return at[keep] - 1, totals[0][keep], totals[1][keep]


class StackPass:
    """A replay through a pool without bounds that remembers the order of all releases."""

    def __init__(self, stream: References, max_seqs: int, rate: float = 1.0) -> None:
        self._stream = stream
        self.look_ups = LookUps()  # of a sample; of all blocks there is nothing to estimate
        self._rate = rate  # share of the blocks that the forest of the stream holds
        self._runs = stream.runs
        samples = sum(request.num_samples for request in stream.requests)
        self._free_rows = self._rows = min(max_seqs, samples)
        self._state = [ABSENT] * len(self._runs)  # or the release that made the run idle
        self._holders = [0] * len(self._runs)
        self._stack = ReleaseStack(samples)
        self._tail: list[int] = []  # blocks from the root to the end of each release
        self._in_use = 0  # cached blocks that running requests refer to
        self._private = 0  # blocks of running requests that are not cached
        self._peak = 0
        self._hits = Hits([], [], [], [])

    def run(self) -> Hits:
        """Go through the trace, once."""
        stream = self._stream
        for number, starts in self._events():
            if starts:
                self._admit(stream.requests[number])
            else:
                self._end(stream.requests[number])
        return self._hits

    @property
    def longest(self) -> int:
        """Blocks of the longest request that is ever admitted, at least 1."""
        admitted = (r.held_blocks for r in self._stream.requests if r.num_samples <= self._rows)
        return max(admitted, default=1)

    @property
    def peak(self) -> int:
        """Most blocks that were in use or asked for at one time."""
        return self._peak

    def _events(self) -> Iterator[tuple[int, bool]]:
        """Numbers of requests as they are admitted (true) and as they end, in a replay's order."""
        waiting: deque[int] = deque()
        running: list[tuple[int, int, int]] = []
        admitted = 0

        def start(now: int) -> Iterator[tuple[int, bool]]:
            nonlocal admitted
            while waiting:
                head = self._stream.requests[waiting[0]]
                samples = head.num_samples
                if self._free_rows < samples <= self._rows:
                    return
                number = waiting.popleft()
                if samples <= self._rows:
                    self._free_rows -= samples
                    heapq.heappush(running, (now + head.service_ms, admitted, number))
                    admitted += 1
                    yield number, True

        def end(until: float) -> Iterator[tuple[int, bool]]:
            while running and running[0][0] <= until:
                now = running[0][0]
                while running and running[0][0] == now:
                    _, _, number = heapq.heappop(running)
                    self._free_rows += self._stream.requests[number].num_samples
                    yield number, False
                yield from start(now)

        for number, request in enumerate(self._stream.requests):
            yield from end(request.arrival_ms)
            waiting.append(number)
            yield from start(request.arrival_ms)
        yield from end(float("inf"))

    def _admit(self, request: RequestReferences) -> None:
        self._look_up(request)
        self._acquire(self._runs.path(request.limit))
        served = request.limit_blocks
        if request.num_samples > 1:
            # A replay asks for all of them first, twins of cached blocks included.
            self._note_peak(request.held_blocks - served)
        self._private += request.first_held_blocks - served
        self._take()
        self._acquire(self._after(request.prompt, request.limit))
        self._private -= request.prompt_blocks - served
        if request.num_samples > 1:
            self._private += request.held_blocks - request.first_held_blocks
            self._take()

    def _end(self, request: RequestReferences) -> None:
        self._private -= request.held_blocks - request.prompt_blocks
        outputs = [self._after(end, request.prompt) for end in request.ends]
        for output in outputs:
            self._acquire(output)
        for output, end in zip(outputs[:-1], request.ends[:-1], strict=True):
            self._release(output, end)
        self._release(self._runs.path(request.ends[-1]), request.ends[-1])

    def _after(self, run: int, start: int) -> list[int]:
        """The runs from behind ``start`` to ``run``, parents first."""
        path = []
        while run != start:
            path.append(run)
            run = self._runs.parent[run]
        path.reverse()
        return path

    def _look_up(self, request: RequestReferences) -> None:
        """Enter the distance of each block of a prompt that may hit."""
        runs, size = self._runs, self._stream.block_size
        last = NO_RUN
        path = runs.path(request.limit)
        for number, run in enumerate(path):
            release = self._state[run]
            if release == ABSENT:
                for missed in path[number:]:
                    self._note(missed, FAR)
                return
            end, length = runs.end[run], runs.length[run]
            distance = 0
            if release != IN_USE:
                distance = max(0, self._stack.distance(release) - (self._tail[release] - end))
            self._note(run, distance)
            # Nothing was ever taken at the cost of the blocks with distances below 1.
            near = max(0, length - distance)
            self._hits.add(0, 0, near, near * size)
            self._hits.add(distance - length + near + 1, distance, 1, size)
            last = run
        if last != NO_RUN and request.last_tokens < size:
            self._hits.add(distance, distance, 0, request.last_tokens - size)

    def _note(self, run: int, distance: int) -> None:
        if self._rate < 1:
            self.look_ups.add(self._runs.first_node[run], self._runs.length[run], distance)

    def _acquire(self, path: list[int]) -> None:
        for run in path:
            self._holders[run] += 1
            release = self._state[run]
            if release == IN_USE:
                continue
            length = self._runs.length[run]
            if release != ABSENT:
                self._stack.remove(release, length)
            self._state[run] = IN_USE
            self._in_use += length

    def _release(self, path: list[int], end: int) -> None:
        """Make the blocks of ``path`` idle, up to ``end``, that no other request uses."""
        idle = []
        for run in path:
            self._holders[run] -= 1
            if not self._holders[run]:
                idle.append(run)
        if not idle:
            return
        blocks = sum(self._runs.length[run] for run in idle)
        release = self._stack.push(blocks)
        self._tail.append(self._runs.end[end])
        self._in_use -= blocks
        for run in idle:
            self._state[run] = release

    def _take(self) -> None:
        """Blocks were taken: whatever has no room beside them is gone."""
        self._note_peak(0)
        self._stack.record(self._in_use + round(self._private * self._rate))

    def _note_peak(self, more: int) -> None:
        self._peak = max(self._peak, round(self._in_use / self._rate) + self._private + more)
