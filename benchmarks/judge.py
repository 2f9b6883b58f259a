"""Has each eviction policy earned its place? Judges all of them on all traces at all capacities.

Each cell is a replay by ids with one policy: a trace, a share of the blocks that an unbounded pool
keeps, and requests one at a time or with service times. Beside it stand LRU and the optimum: the
most that any order can find in such a pool, one request at a time, which is an upper bound with
service times, too. Shares below 1 % are added where LRU finds nearly everything at 1 %; pools below
the largest request are left out.

A policy is judged by each trace apart:

* *closed*: the median percentage of the gap between LRU and the optimum that it closes, of pools
  with a gap of at least 0.05 points;
* *lowest*: the fewest points that it finds more than LRU, in any pool;
* *best in*: pools where it finds at least 0.05 points more than every other policy.

It may take the place of LRU if it closes at least 10 % in the median of all traces and never loses
more than 0.3 points. It is worth offering if it is the best somewhere. The last table leaves one
trace out at a time: it chooses the policy with the highest median on the others, or LRU if none is
above 0, and shows what that policy does on the one left out.

The traces are all files in FOLDER whose names end in .jsonl or .jsonl.gz, and the built-in
workloads, generated with a seed that no other table uses. The parameters of the policies are those
of their papers, so no trace has been seen before.

Run: python -m benchmarks.judge FOLDER [--policies arc,s3fifo] [--shares 1,2,5,10,20,50]
         [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.config import EVICTION_POLICIES
from blockmgr.lab.by_ids import id_replays
from blockmgr.lab.optimum import optima_of
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workloads import NAMES, generate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SHARES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)  # percent of the blocks of an unbounded pool
SMALL_SHARES = (0.5, 0.2, 0.1, 0.05)  # added, one after the other, until there is a gap
SMALLEST_GAP = 0.05  # points
MOST_LOSS = 0.3  # points
LEAST_CLOSED = 10  # percent, in the median
SEED = 7
BLOCK_SIZE = 16  # of the built-in workloads
MODES = {"one at a time": False, "service times": True}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Every policy in one pool; rates in percent."""

    trace: str
    mode: str
    share: float
    num_blocks: int
    optimum: float
    rates: dict[str, float]

    @property
    def gap(self) -> float:
        """Points between LRU and the optimum."""
        return self.optimum - self.rates["lru"]

    def gain(self, policy: str) -> float:
        """Points that ``policy`` finds more than LRU."""
        return self.rates[policy] - self.rates["lru"]

    def closed(self, policy: str) -> float | None:
        """Percentage of the gap that ``policy`` closes; None if there is no gap."""
        return 100 * self.gain(policy) / self.gap if self.gap >= SMALLEST_GAP else None

    def won_by(self, policy: str) -> bool:
        """Whether ``policy`` finds clearly more than every other one."""
        others = (rate for name, rate in self.rates.items() if name != policy)
        return self.rates[policy] >= max(others, default=100) + SMALLEST_GAP


def by_ids(name: str) -> Trace:
    """A built-in workload as a trace of ids, each for one block of a prompt."""
    ids: dict[tuple[int, bytes], int] = {}
    lines = []
    for request in generate(name, SEED).requests:
        tokens = np.asarray(request.prompt)
        prompt = [0]
        for start in range(0, len(tokens), BLOCK_SIZE):
            key = prompt[-1], tokens[start : start + BLOCK_SIZE].tobytes()
            prompt.append(ids.setdefault(key, len(ids) + 1))
        row: dict[str, Any] = {
            "timestamp": request.arrival_ms,
            "input_length": len(tokens),
            "output_length": request.num_output_tokens,
            "hash_ids": prompt[1:],
        }
        lines.append(json.dumps(row) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        return read_trace(path, tokens_per_id=BLOCK_SIZE)


def traces(folder: Path) -> Iterator[tuple[str, Trace]]:
    """Names and requests: recorded traces first."""
    for path in sorted(folder.iterdir()):
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            yield path.name.partition(".")[0], read_trace(path)
    for name in NAMES:
        yield name, by_ids(name)


def cells(
    name: str, trace: Trace, mode: str, policies: Sequence[str], shares: Sequence[float]
) -> Iterator[Cell]:
    """Replays one trace at every capacity."""
    config = ReplayConfig(block_size=trace.tokens_per_id)
    if not MODES[mode]:
        config = replace(config, min_service_ms=0, service_ms_per_token=0, outputs="none")
    replays = id_replays(trace, config)
    if replays is None:
        raise SystemExit(f"{name} cannot be replayed by ids")
    columns = replays.columns()
    full = int(columns.length.sum())
    # From the largest pool on, so that smaller ones are added only where they are needed.
    added = False
    for share in (*sorted(shares, reverse=True), *SMALL_SHARES):
        if share < min(shares) and added:
            return
        blocks = int(full * share / 100)
        if not blocks:
            return
        found = {
            policy: replays.replay(blocks, replace(config, eviction=policy)) for policy in policies
        }
        if found["lru"].rejected:
            return
        cell = Cell(
            trace=name,
            mode=mode,
            share=share,
            num_blocks=blocks,
            optimum=100 * optima_of(columns, [blocks], config)[0].hit_rate,
            rates={policy: 100 * result.hit_rate for policy, result in found.items()},
        )
        added = cell.gap >= 1
        yield cell


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One policy on one trace."""

    closed: float | None
    lowest: float
    where: Cell
    best_in: int


def verdict(policy: str, found: Iterable[Cell]) -> Verdict:
    """What the pools of one trace say of ``policy``."""
    pools = list(found)
    closed = [part for cell in pools if (part := cell.closed(policy)) is not None]
    where = min(pools, key=lambda cell: cell.gain(policy))
    return Verdict(
        closed=median(closed) if closed else None,
        lowest=where.gain(policy),
        where=where,
        best_in=sum(cell.won_by(policy) for cell in pools),
    )


def median_of(verdicts: Iterable[Verdict]) -> float:
    """The median over traces of the gap closed; traces without a gap do not count."""
    return median([v.closed for v in verdicts if v.closed is not None] or [0.0])


def print_traces(by_trace: dict[str, list[Cell]], policies: Sequence[str]) -> None:
    """Every policy on every trace."""
    print(f"| closed, % (lowest, points) | pools | {' | '.join(f'`{p}`' for p in policies)} |")
    print(f"|---|---:|{'---:|' * len(policies)}")
    for name, found in by_trace.items():
        row = []
        for policy in policies:
            v = verdict(policy, found)
            closed = "no gap" if v.closed is None else f"{v.closed:+.0f}"
            row.append(f"{closed} ({v.lowest:+.2f})")
        print(f"| {name} | {len(found)} | {' | '.join(row)} |")
    print()


def print_policies(by_trace: dict[str, list[Cell]], policies: Sequence[str]) -> None:
    """Every policy over all traces."""
    print("| policy | closed, % | lowest, points | loses > 0.3 | best in | may be the default |")
    print("|---|---:|---|---:|---:|---|")
    total = sum(map(len, by_trace.values()))
    for policy in policies:
        of = [verdict(policy, found) for found in by_trace.values()]
        worst = min(of, key=lambda v: v.lowest)
        losses = sum(
            cell.gain(policy) < -MOST_LOSS for found in by_trace.values() for cell in found
        )
        where = f"{worst.where.trace}, {worst.where.share:g} %, {worst.where.mode}"
        passed = median_of(of) >= LEAST_CLOSED and worst.lowest >= -MOST_LOSS
        print(
            f"| `{policy}` | {median_of(of):+.1f} | {worst.lowest:+.2f} ({where}) "
            f"| {losses} of {total} | {sum(v.best_in for v in of)} | {'yes' if passed else 'no'} |"
        )
    print()


def print_left_out(by_trace: dict[str, list[Cell]], policies: Sequence[str]) -> None:
    """For each trace: the policy that the other traces would choose, and what it does here."""
    print("| trace left out | chosen by the others | closed, % | lowest, points |")
    print("|---|---|---:|---:|")
    for left_out, cells_left_out in by_trace.items():
        others = [found for name, found in by_trace.items() if name != left_out]
        medians = {
            policy: median_of(verdict(policy, found) for found in others)
            for policy in ("lru", *policies)
        }
        chosen = max(medians, key=medians.__getitem__)
        v = verdict(chosen, cells_left_out)
        closed = "no gap" if v.closed is None else f"{v.closed:+.1f}"
        print(f"| {left_out} | `{chosen}` | {closed} | {v.lowest:+.2f} |")


def main() -> None:
    """Replays everything and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=__doc__)
    parser.add_argument("folder", type=Path, help="recorded traces")
    parser.add_argument("--policies", default=",".join(EVICTION_POLICIES), help="besides LRU")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="in percent")
    parser.add_argument("--json", type=Path, help="also write all cells to this file")
    arguments = parser.parse_args()
    judged = [name for name in arguments.policies.split(",") if name != "lru"]
    shares = [float(share) for share in arguments.shares.split(",")]

    by_trace: dict[str, list[Cell]] = defaultdict(list)
    for name, trace in traces(arguments.folder):
        for mode in MODES:
            by_trace[name] += cells(name, trace, mode, ["lru", *judged], shares)
    if arguments.json:
        content = [asdict(cell) for found in by_trace.values() for cell in found]
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print_traces(by_trace, judged)
    print_policies(by_trace, judged)
    print_left_out(by_trace, judged)


if __name__ == "__main__":
    main()
