"""How much of the gap between LRU and the optimum does the adaptive policy close?

Each cell is a replay through the real manager. The table compares LRU and ``adaptive`` with a
policy that knows the future and evicts the leaf whose next use is farthest (Belady 1966), and shows
how much of the gap between that policy and LRU ``adaptive`` closes. Capacities are shares of the
blocks an unbounded pool would keep; those below the largest request are left out.

Workloads: the trace given with --trace, both one request at a time and with service times; its
halves; and the larger variants of the generators, with seed 1. The policy that knows the future is
written in Python and takes some microseconds per block, so block size 16 on a long trace takes
hours; --no-optimum leaves it out.

Run: python -m benchmarks.adaptive [--trace FILE] [--block-size 512] [--shares 1,2,5,10,20,50]
         [--no-optimum] [--json FILE]
"""

from __future__ import annotations

import argparse
import heapq
import json
from bisect import bisect_left
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import ReplayConfig, held_blocks, replay
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workloads import VARIANTS, generate

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER = 1 << 60

SEED = 1  # of the generators, whose default sizes are too small to learn from


class Recorder:
    """A policy that evicts nothing and records which requests find which digests."""

    def __init__(self) -> None:
        self.admitted = 0
        self.digest: dict[int, bytes] = {}
        self.uses: dict[bytes, list[int]] = defaultdict(list)

    def count(self) -> None:
        """One more request was admitted."""
        self.admitted += 1

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        self.digest[block] = digest

    def on_hit(self, block: int) -> None:
        self.uses[self.digest[block]].append(self.admitted)

    def on_idle(self, block: int) -> None: ...
    def on_used(self, block: int) -> None: ...
    def on_uncached(self, block: int, evicted: bool) -> None: ...

    def victim(self) -> int:
        raise AssertionError("an unbounded pool evicts nothing")


class Clairvoyant:
    """Evicts the idle leaf whose next use is farthest in the future.

    Requests are admitted in the same order whatever is evicted, so their numbers are its clock.
    """

    def __init__(self, uses: dict[bytes, list[int]]) -> None:
        self.uses = uses
        self.admitted = 0
        self.digest: dict[int, bytes] = {}
        self.depth: dict[int, int] = {}
        self.idle: dict[int, tuple[int, int, int]] = {}
        self.heap: list[tuple[int, int, int]] = []

    def count(self) -> None:
        """One more request was admitted."""
        self.admitted += 1

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        self.digest[block] = digest
        self.depth[block] = self.depth[parent] + 1 if parent >= 0 else 0

    def on_hit(self, block: int) -> None: ...

    def on_idle(self, block: int) -> None:
        uses = self.uses.get(self.digest[block], [])
        later = bisect_left(uses, self.admitted)
        use = uses[later] if later < len(uses) else NEVER
        # A prompt that finds a child finds its parent; of blocks never found again, evict the
        # deeper.
        self.idle[block] = entry = (-use, -self.depth[block], block)
        heapq.heappush(self.heap, entry)

    def on_used(self, block: int) -> None:
        del self.idle[block]

    def on_uncached(self, block: int, evicted: bool) -> None:
        self.idle.pop(block, None)

    def victim(self) -> int:
        while self.idle.get(self.heap[0][2]) != self.heap[0]:
            heapq.heappop(self.heap)
        return self.heap[0][2]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the table; rates in percent."""

    workload: str
    block_size: int
    service: bool
    share: float
    num_blocks: int
    lru: float
    adaptive: float
    optimum: float | None

    @property
    def closed(self) -> float | None:
        """Percentage of the gap that is closed; None if there is no gap."""
        if self.optimum is None or self.optimum - self.lru < 0.05:
            return None
        return 100 * (self.adaptive - self.lru) / (self.optimum - self.lru)


def look_ups(trace: Trace, blocks: int, settings: dict[str, Any]) -> dict[bytes, list[int]]:
    """The requests that find each digest in an unbounded pool."""
    recorder = Recorder()
    config = ReplayConfig(**settings, eviction=lambda _: recorder)
    replay(trace, blocks, config, progress=recorder.count)
    return recorder.uses


def optimum(
    trace: Trace, blocks: int, settings: dict[str, Any], uses: dict[bytes, list[int]]
) -> float:
    """The hit rate of a policy that knows which blocks will be found."""
    policy = Clairvoyant(uses)
    config = ReplayConfig(**settings, eviction=lambda _: policy)
    return replay(trace, blocks, config, progress=policy.count).hit_rate


def cells(
    name: str, trace: Trace, block_size: int, shares: list[float], with_optimum: bool
) -> Iterator[Cell]:
    """Replays one workload at every capacity, without and with service times."""
    for service in (False, True):
        # Only prompts, as in simulators that work on ids.
        settings: dict[str, Any] = {"block_size": block_size, "outputs": "none"}
        if not service:
            settings |= {"min_service_ms": 0, "service_ms_per_token": 0}
        attainable = unbounded(trace, ReplayConfig(**settings))
        widest = max(held_blocks(request, ReplayConfig(**settings)) for request in trace.requests)
        enough = attainable.working_set_blocks + 1
        uses = look_ups(trace, enough, settings) if with_optimum else {}
        for share in shares:
            blocks = int(attainable.full_blocks * share / 100)
            if blocks < widest:
                continue
            lru, adaptive = (
                100 * replay(trace, blocks, ReplayConfig(**settings, eviction=policy)).hit_rate
                for policy in ("lru", "adaptive")
            )
            yield Cell(
                workload=name,
                block_size=block_size,
                service=service,
                share=share,
                num_blocks=blocks,
                lru=lru,
                adaptive=adaptive,
                optimum=100 * optimum(trace, blocks, settings, uses) if with_optimum else None,
            )


def workloads(path: Path | None, block_size: int) -> Iterator[tuple[str, Trace, int]]:
    """Names, requests and block sizes."""
    if path:
        trace = read_trace(path)
        half = len(trace.requests) // 2
        yield "trace", trace, block_size
        yield "trace, first half", Trace("first", trace.requests[:half]), block_size
        yield "trace, second half", Trace("second", trace.requests[half:]), block_size
        return
    for name in VARIANTS:
        yield name, generate(name, SEED), 16


def main() -> None:
    """Replays every cell and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptive", description=__doc__)
    parser.add_argument("--trace", type=Path, help="trace to replay instead of the generators")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--shares", default="1,2,5,10,20,50", help="capacities, in percent")
    parser.add_argument("--no-optimum", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    shares = [float(share) for share in arguments.shares.split(",")]

    table = Table(box=None, pad_edge=False)
    for heading in ("workload", "block", "service"):
        table.add_column(heading, no_wrap=True)
    for heading in ("share, %", "blocks", "LRU, %", "adaptive, %", "optimum, %", "closed, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    found = []
    for name, trace, block_size in workloads(arguments.trace, arguments.block_size):
        for cell in cells(name, trace, block_size, shares, not arguments.no_optimum):
            found.append(asdict(cell) | {"closed": cell.closed})
            table.add_row(
                cell.workload,
                str(cell.block_size),
                "30 ms a token" if cell.service else "none",
                f"{cell.share:g}",
                f"{cell.num_blocks:,}",
                f"{cell.lru:.2f}",
                f"{cell.adaptive:.2f}",
                "" if cell.optimum is None else f"{cell.optimum:.2f}",
                "" if cell.closed is None else f"{cell.closed:+.1f}",
            )
    Console(width=120).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
