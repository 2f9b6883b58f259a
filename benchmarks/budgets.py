"""Does every operation keep its budget? Run ``python -m benchmarks.budgets``.

All operations are timed in this process, in turns, and compared with the budgets of the design. The
verdict uses the minimum: on a shared machine, everything above it is noise from other processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks import cases, large_pool, memory
from benchmarks.measure import (
    RESULTS,
    Timing,
    machine,
    machine_line,
    time_side_by_side,
    write_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True)
class Row:
    """An operation, its budget and a factory of the timed case."""

    name: str
    budget: float | None
    unit: str
    case: Callable[[], cases.Case]


ROWS = (
    Row("warm admit, 32k tokens, array", 3.5, "ns/block", cases.Admit),
    Row("warm match, 32k tokens, array", 2.5, "ns/block", cases.Match),
    Row("warm admit, from a list of ints", None, "ns/block", lambda: cases.Admit(as_list=True)),
    Row("warm match, from a list of ints", None, "ns/block", lambda: cases.Match(as_list=True)),
    Row("warm match, 142k tokens, array", 2.5, "ns/block", lambda: cases.Match(TURN_TOKENS)),
    Row("the same, of a list that grows", 5, "ns/block", lambda: cases.MatchOfTurn(TURN_TOKENS)),
    Row("cold admit + commit", 35, "ns/block", cases.ColdAdmit),
    Row("the same, each block evicts", 40, "ns/block", lambda: cases.ColdAdmit(evicting=True)),
    Row("all digests of 1 M tokens", None, "ns/block", lambda: cases.DigestsDue(1_000_000)),
    Row("free", 1, "ns/block", cases.Free),
    Row("decode of 1,024", 20, "µs", cases.DecodeStep),
    Row("the same, each block evicts", 40, "µs", lambda: cases.DecodeStep(evicting=True)),
    Row("fork of 2,048 blocks x 8", 4, "µs", cases.Fork),
    Row("match, 1 M blocks, cache-missing", 8, "ns/block", large_pool.LargePoolMatch),
    Row("admit, 1 M blocks, cache-missing", 60, "ns/block", large_pool.LargePoolAdmit),
)
TURN_TOKENS = 142_000
"""Tokens of a long session of an agent."""

SCALE = {"ns/block": 1e9, "µs": 1e6, "ms": 1e3, "bytes": 1.0}

IMPORT_BUDGET_MS = 150
IMPORT_REPETITIONS = 9
# Timed inside, so that the start of the interpreter does not count.
IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


@dataclass(frozen=True)
class Result:
    """One line of the table; ``minimum`` and ``median`` are in ``unit``."""

    name: str
    unit: str
    budget: float | None
    minimum: float
    median: float
    repetitions: int

    @property
    def verdict(self) -> str:
        """Whether the budget was kept, always or only in quiet moments."""
        if self.budget is None:
            return "no budget"
        if self.minimum > self.budget:
            return "missed"
        return "met" if self.median <= self.budget else "met at best"

    def as_json(self) -> dict[str, Any]:
        """All fields, the ratio to the budget and the verdict."""
        ratio = self.minimum / self.budget if self.budget else None
        return asdict(self) | {"ratio": ratio, "verdict": self.verdict}


def time_rows(rounds: int, burst: int) -> Iterable[Result]:
    """Times every row side by side."""
    built = {f"{i} {row.name}": row.case() for i, row in enumerate(ROWS)}
    timings = time_side_by_side(built, rounds=rounds, burst=burst)
    for row, timing in zip(ROWS, timings.values(), strict=True):
        yield _in_unit(row.name, row.unit, row.budget, timing)


def time_import() -> Iterable[Result]:
    """Times the import in fresh interpreters, and NumPy's share of it."""
    for module, budget in (("blockmgr", IMPORT_BUDGET_MS), ("numpy", None)):
        command = [sys.executable, "-c", IMPORT.format(module)]
        runs = [float(subprocess.check_output(command)) for _ in range(IMPORT_REPETITIONS)]
        yield _in_unit(f"import {module}", "ms", budget, Timing.of(runs))


def weigh() -> Iterable[Result]:
    """The memory of a manager, by its own count and by the system's."""
    for name, budget, measured in memory.weights():
        yield Result(name, "bytes", budget, measured, measured, 1)


def _in_unit(name: str, unit: str, budget: float | None, timing: Timing) -> Result:
    scale = SCALE[unit]
    minimum, median = timing.minimum * scale, timing.median * scale
    return Result(name, unit, budget, minimum, median, timing.repetitions)


def _table(results: list[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("operation", "unit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("budget", "min", "median", "min / budget"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for r in results:
        table.add_row(
            r.name,
            r.unit,
            "" if r.budget is None else f"{r.budget:,.0f}",
            f"{r.minimum:,.1f}",
            f"{r.median:,.1f}",
            f"{r.minimum / r.budget:.2f}" if r.budget else "",
            r.verdict,
        )
    return table


def main() -> None:
    """Measures, prints the table, and writes the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each operation")
    parser.add_argument("--burst", type=int, default=20, help="timed runs in a turn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    arguments = parser.parse_args()

    about = machine()
    results = [*time_rows(arguments.rounds, arguments.burst), *weigh(), *time_import()]
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(_table(results))
    console.print(machine_line(about))
    path = write_result(
        arguments.results,
        "",
        "benchmarks.budgets",
        about,
        {"results": [result.as_json() for result in results]},
    )
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
