"""What are the names of sessions worth to an eviction order, if clients promise nothing?

Replays traces one request at a time, with ``session=``, under three orders: LRU, and two that evict
what is least likely to return soon. These know of an idle block what a manager can know from names
and times: the turn of its session, whether another session or an earlier prompt has used it, and
how long it has been idle. From such blocks in the past they count how many returned at which age,
and rank a block by the most returns that it promises in any time from now, for each second of that
time (the Gittins index).

* *learned* has counted the requests so far, 64 times in a trace, with 21 classes of blocks;
* *fitted* has counted the whole trace, the future included, with 420 classes: it also knows the
  length of the prompt and the pause before it. No online order of this kind has such tables, so it
  shows how far tables can go.

Both remember all past requests, evicted ones too. Prints the points that each order finds more than
LRU without names, the share of the gap to the optimum that it closes, and the median and the fewest
points of all pools. Pools below the largest request are left out, as are those without a gap.

Not measured: the memory and the time of such an order in the core.

Run: python -m benchmarks.sessions TRACE ... [--halves TRACE] [--shares 1,2,5,10,20,50]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.hints import sessions_of
from blockmgr.lab.optimum import optima_of
from blockmgr.lab.references import columns_of
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.runs import NO_RUN
from blockmgr.lab.trace import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.lab.runs import References

Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

SMALLEST_GAP = 0.05  # points
TIMES = 64  # that the learned order counts in a trace
AGES = np.array([0.0, *(0.5 * 2 ** (k / 2) for k in range(29))])  # s, where the bins of ages begin
SPANS = np.append(np.diff(AGES), AGES[-1])  # s, of each bin
PRIOR = 0.06  # returns in a bin for each block that reaches it, if nothing is known
PRIOR_WEIGHT = 20.0  # mean visits to a run
TURNS = (2, 3, 4, 6, 9, 14)  # where classes of turns begin
PAUSES = (0.0, 5.0, 20.0, 60.0, 180.0)  # s
SIZES = (0.25, 0.75, 1.5, 3.0)  # of the median prompt
NEW, FOUND, SHARED = range(3)


class Facts:
    """What names and times tell of the blocks of each request, and when these return."""

    def __init__(self, trace: Trace, config: ReplayConfig) -> None:
        columns = columns_of(trace, config)
        self.times = columns.column("arrival_ms") / 1000
        named = enumerate(sessions_of(trace, config.block_size), start=1)
        sessions = [session or -number for number, session in named]
        self.turns, pauses = self._turns(sessions)
        sizes = columns.column("prompt_blocks")
        self.turn_class: Numbers = np.searchsorted(TURNS, self.turns, side="right")
        pause_class = np.searchsorted(PAUSES, pauses)
        size_class = np.searchsorted(np.array(SIZES) * np.median(sizes), sizes)
        self.fine_class: Numbers = (self.turn_class * 6 + pause_class) * 5 + size_class
        self.ends = np.zeros((len(sessions), 2), dtype=np.int64)  # of what is shared, of what found
        rows = self._visits(sessions, columns)
        names = ("request", "use", "weight", "next")
        self.visits = dict(zip(names, np.array(rows, dtype=np.int64).T, strict=True))

    def _turns(self, sessions: list[int]) -> tuple[Numbers, Reals]:
        turns, pauses = np.ones(len(sessions), dtype=np.int64), np.full(len(sessions), -1.0)
        last: dict[int, int] = {}
        for number, session in enumerate(sessions):
            if session in last:
                before = last[session]
                turns[number] = turns[before] + 1
                pauses[number] = self.times[number] - self.times[before]
            last[session] = number
        return turns, pauses

    def by_turn_and_use(self) -> Numbers:
        """The classes of the order that learns."""
        return np.add.outer(self.turn_class * 3, [NEW, FOUND, SHARED])

    def by_all(self) -> Numbers:
        """The classes of the order that is fitted."""
        return np.add.outer(self.fine_class * 2, [0, 0, 1])

    def _visits(self, sessions: list[int], columns: References) -> list[list[int]]:
        """Each run of each prompt: the request, how it is used, its blocks, the next request."""
        parent, length, end = (getattr(columns, c).tolist() for c in ("parent", "length", "end"))
        owner: dict[int, int] = {}  # the session of a run; 0: several
        latest: dict[int, int] = {}  # the row of the last visit
        rows: list[list[int]] = []
        for number, last in enumerate(columns.column("prompt").tolist()):
            run, shared, found = last, 0, 0
            while run != NO_RUN:
                if run in latest:
                    rows[latest[run]][3] = number
                    found = max(found, end[run])
                    if owner[run] != sessions[number]:
                        owner[run] = 0
                        shared = max(shared, end[run])
                else:
                    owner[run] = sessions[number]
                use = SHARED if end[run] <= shared else FOUND if end[run] <= found else NEW
                latest[run] = len(rows)
                rows.append([number, use, length[run], len(sessions)])
                run = parent[run]
            self.ends[number] = shared, max(shared, found)
        return rows

    def use(self, number: int, depth: int) -> int:
        """How the block after ``depth`` others of a request is used."""
        shared, found = self.ends[number]
        return SHARED if depth < shared else FOUND if depth < found else NEW


@dataclass(frozen=True)
class Order:
    """A rank for each class of blocks and age, at each time of counting."""

    classes: Numbers  # by request and use
    ranks: list[Reals]  # by class and age

    @classmethod
    def counted(cls, facts: Facts, classes: Numbers, times: int) -> Order:
        """An order that counts so often in a trace; 0: once, with the future."""
        visits, ends = facts.visits, np.append(facts.times, np.inf)
        request, weight = visits["request"], visits["weight"] / visits["weight"].mean()
        start, age = facts.times[request], ends[visits["next"]] - facts.times[request]
        each, shape = classes[request, visits["use"]], (int(classes.max()) + 1, len(AGES))
        tables = []
        for time in range(max(1, times)):
            first = len(facts.times) * time // times if times else len(facts.times)
            now = facts.times[min(first, len(facts.times) - 1)]
            past = request < first
            seen = np.minimum(age, now - start)[past]
            place = each[past] * len(AGES) + np.searchsorted(AGES, seen, side="right") - 1
            stopped, returned = weight[past], weight[past] * (age[past] <= seen)
            counts = [np.bincount(place, of, shape[0] * shape[1]) for of in (returned, stopped)]
            tables.append(ranks(*(count.reshape(shape).astype(float) for count in counts)))
        return cls(classes, tables)


def ranks(returned: Reals, stopped: Reals) -> Reals:
    """The Gittins index by class and age, from the blocks that returned, or were last seen, there.

    What few blocks of a class have reached is filled up with the mean of all classes.
    """
    reached = stopped[:, ::-1].cumsum(axis=1)[:, ::-1] - (stopped - returned) / 2
    mean = (returned.sum(axis=0) + PRIOR_WEIGHT * PRIOR) / (reached.sum(axis=0) + PRIOR_WEIGHT)
    hazard = (returned + PRIOR_WEIGHT * mean) / (reached + PRIOR_WEIGHT)
    index: Reals = np.zeros_like(hazard)
    for age in range(len(AGES)):
        left, back, time = np.ones(len(hazard)), np.zeros(len(hazard)), np.zeros(len(hazard))
        for later in range(age, len(AGES)):
            now = hazard[:, later]
            back, time = back + left * now, time + left * SPANS[later] * (1 - now / 2)
            left = left * (1 - now)
            index[:, age] = np.maximum(index[:, age], back / time)
    return index


class ByRank:
    """An eviction policy: the idle block without cached children that has the lowest rank.

    Blocks of one request that are used alike have one rank, so each such slot is ranked once.
    """

    def __init__(self, facts: Facts, order: Order, _capacity: int) -> None:
        self._facts, self._order = facts, order
        self._classes = order.classes.ravel()
        self._parent: dict[int, int] = {}
        self._depth = {-1: -1}
        self._children: defaultdict[int, int] = defaultdict(int)
        self._idle: dict[int, int] = {}  # the slot of a block
        self._leaves: defaultdict[int, list[int]] = defaultdict(list)
        self._has_leaves = np.zeros(len(self._classes), dtype=np.bool_)
        self._ended = 0
        self._chosen = -1, -1  # the slot, and the request for which it was chosen

    def on_request_end(self, _traits: object) -> None:
        self._ended += 1

    def on_cached(self, block: int, parent: int, _digest: bytes) -> None:
        self._parent[block], self._depth[block] = parent, self._depth[parent] + 1
        self._children[parent] += 1

    def on_hit(self, block: int) -> None: ...

    def on_idle(self, block: int) -> None:
        number = self._ended - 1
        self._idle[block] = number * 3 + self._facts.use(number, self._depth[block])
        self._add_leaf(block)

    def on_used(self, block: int) -> None:
        del self._idle[block]

    def on_uncached(self, block: int, _evicted: bool) -> None:
        self._idle.pop(block, None)
        parent = self._parent.pop(block)
        self._children[parent] -= 1
        self._add_leaf(parent)

    def victim(self) -> int:
        slot, number = self._chosen
        block = self._leaf(slot) if number == self._ended else -1
        while block < 0:
            slot = self._lowest()
            block = self._leaf(slot)
        self._chosen = slot, self._ended
        return block

    def _add_leaf(self, block: int) -> None:
        if block in self._idle and not self._children[block]:
            slot = self._idle[block]
            self._leaves[slot].append(block)
            self._has_leaves[slot] = True

    def _leaf(self, slot: int) -> int:
        """A leaf of a slot; -1 if it has none."""
        leaves = self._leaves[slot]
        while leaves:
            block = leaves[-1]
            if self._idle.get(block) == slot and not self._children[block]:
                return block
            leaves.pop()
        del self._leaves[slot]
        self._has_leaves[slot] = False
        return -1

    def _lowest(self) -> int:
        """The slot with the lowest rank, the oldest of several."""
        times, tables = self._facts.times, self._order.ranks
        slots = np.flatnonzero(self._has_leaves)
        ages = times[self._ended] - times[slots // 3]
        bins = np.searchsorted(AGES, ages, side="right") - 1
        table = tables[self._ended * len(tables) // len(times)]
        return int(slots[table[self._classes[slots], bins].argmin()])


def parts_of(path: Path, parts: int) -> Iterator[Trace]:
    """The trace in so many parts, by requests."""
    trace = read_trace(path)
    size = -(-len(trace.requests) // parts)
    for start in range(0, len(trace.requests), size):
        yield replace(trace, requests=trace.requests[start : start + size])


def gains(trace: Trace, shares: list[float]) -> Iterator[tuple[dict[str, float], float]]:
    """By pool: the points that each order finds more than LRU, and the gap to the optimum."""
    config = ReplayConfig(block_size=trace.tokens_per_id, min_service_ms=0, service_ms_per_token=0)
    named = replace(config, hints="session")
    facts, columns = Facts(trace, config), columns_of(trace, config)
    full = unbounded(trace, config).working_set_blocks

    orders = {
        "learned": Order.counted(facts, facts.by_turn_and_use(), TIMES),
        "fitted": Order.counted(facts, facts.by_all(), 0),
    }
    for share in shares:
        blocks = int(full * share / 100)
        lru = replay(trace, blocks, config) if blocks else None
        if lru is None or lru.rejected:
            continue
        best = optima_of(columns, [blocks], config)[0].hit_rate
        rates = {"session": replay(trace, blocks, named).hit_rate}
        for name, order in orders.items():
            policy = partial(ByRank, facts, order)
            rates[name] = replay(trace, blocks, replace(named, eviction=policy)).hit_rate
        gap = 100 * (best - lru.hit_rate)
        if gap >= SMALLEST_GAP:
            yield {"share": share} | {n: 100 * (r - lru.hit_rate) for n, r in rates.items()}, gap


def main() -> None:
    """Replays everything and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions", description=__doc__)
    parser.add_argument("traces", type=Path, nargs="*")
    parser.add_argument("--halves", type=Path, nargs="+", default=[], help="judged apart")
    parser.add_argument("--shares", default="1,2,5,10,20,50", help="percent of the working set")
    arguments = parser.parse_args()
    shares = [float(share) for share in arguments.shares.split(",")]
    closed: defaultdict[str, list[float]] = defaultdict(list)
    points: defaultdict[str, list[float]] = defaultdict(list)
    traces = [(path, 1) for path in arguments.traces] + [(path, 2) for path in arguments.halves]
    for path, parts in traces:
        for number, trace in enumerate(parts_of(path, parts), start=1):
            for found, gap in gains(trace, shares):
                share = found.pop("share")
                cells = []
                for name, gain in found.items():
                    closed[name].append(100 * gain / gap)
                    points[name].append(gain)
                    cells.append(f"{name} {gain:+.2f} ({100 * gain / gap:.0f} %)")
                where = f"{path.name} {number}/{parts}, {share:g} %"
                print(f"{where}: gap {gap:.2f}, {', '.join(cells)}", flush=True)
    for name, shown in closed.items():
        print(f"{name}: median {median(shown):.1f} %, lowest {min(points[name]):+.2f} points")


if __name__ == "__main__":
    main()
