"""What do further groups of layers cost? Run ``python -m benchmarks.group_costs``.

Times the operations of ``benchmarks.budgets`` in managers of one group, with two additional windows
and with two additional recurrent states, in turns in one process. Ratios are relative to one group.
The verdict compares the minimum with the budget for two further groups: 2.5 times that of one.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import cases, large_pool
from benchmarks.budgets import SCALE
from benchmarks.measure import RESULTS, machine, machine_line, time_side_by_side, write_result
from blockmgr import FullAttention, RecurrentState, SlidingWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr import Group

MOST: Final = 2.5
"""Times the budget of one group."""

SETS: dict[str, tuple[Group, ...]] = {
    "one group": (),
    "2 windows": (FullAttention(), SlidingWindow(1024), SlidingWindow(4096)),
    "2 states": (FullAttention(), RecurrentState(), RecurrentState()),
}
BLOCKS: Final = 3 * cases.POOL_BLOCKS

ROWS: dict[str, tuple[Callable[..., cases.Case], float, str]] = {
    "warm match, 32k tokens": (partial(cases.Match, num_blocks=BLOCKS), 2.5, "ns/block"),
    "match, 1 M blocks, cache-missing": (large_pool.LargePoolMatch, 8, "ns/block"),
    "the same, 1k tokens": (
        partial(large_pool.LargePoolMatch, num_prompts=4096, num_tokens=1024), 40, "ns/block",
    ),
    "admit, 1 M blocks, cache-missing": (large_pool.LargePoolAdmit, 60, "ns/block"),
    "warm admit, 32k tokens": (partial(cases.Admit, num_blocks=BLOCKS), 3.5, "ns/block"),
    "cold admit + commit": (partial(cases.ColdAdmit, num_blocks=BLOCKS), 35, "ns/block"),
    "the same, evicting": (
        partial(cases.ColdAdmit, num_blocks=BLOCKS, evicting=True), 40, "ns/block",
    ),
    "free": (partial(cases.Free, num_blocks=BLOCKS), 1, "ns/block"),
    "decode of 1,024": (partial(cases.DecodeStep, num_blocks=BLOCKS), 20, "µs"),
    "fork of 2,048 blocks x 8": (cases.Fork, 4, "µs"),
}  # fmt: skip


def measure(rounds: int, burst: int) -> list[dict[str, Any]]:
    """A row for each operation, with minimum and median for each set of groups."""
    result = []
    for name, (case, budget, unit) in ROWS.items():
        built = {kind: case(groups=groups) for kind, groups in SETS.items()}
        timings = time_side_by_side(built, rounds=rounds, burst=burst)
        sets = {
            kind: {"minimum": t.minimum * SCALE[unit], "median": t.median * SCALE[unit]}
            for kind, t in timings.items()
        }
        result.append({"name": name, "unit": unit, "budget": budget, "sets": sets})
    return result


def table(results: list[dict[str, Any]]) -> Table:
    """Minima, with ratios to one group."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("operation", "unit"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("budget x 2.5", *SETS, "verdict"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in results:
        minima = {kind: timing["minimum"] for kind, timing in row["sets"].items()}
        one, *others = minima.values()
        most = MOST * row["budget"]
        shown.add_row(
            row["name"],
            row["unit"],
            f"{most:,.1f}",
            f"{one:,.1f}",
            *(f"{other:,.1f} ({other / one:.1f}x)" for other in others),
            "met" if max(others) <= most else "missed",
        )
    return shown


def main() -> None:
    """Measures, prints the table, and writes the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_costs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="turns of each set of groups")
    parser.add_argument("--burst", type=int, default=10, help="timed runs in a turn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    arguments = parser.parse_args()

    about = machine()
    results = measure(arguments.rounds, arguments.burst)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table(results))
    console.print(machine_line(about))
    path = write_result(
        arguments.results, "groups", "benchmarks.group_costs", about, {"results": results}
    )
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
