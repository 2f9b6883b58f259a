"""What does an eviction policy cost per step, compared with least recently used?

Times the same operations under every policy, in one process, in turns: admission of a cached prompt
(every block is a hit), its end (every block becomes idle), a new prompt into a full pool (every
block is hashed, evicts one and is cached), and a decode step of 1,024 sequences, one in sixteen of
which evicts. Ratios of minima and of medians are relative to least recently used in the same run.

Not measured: how often a policy evicts blocks that are needed again, which costs far more than all
of this (``blockmgr sweep``).

Run: python -m benchmarks.policies [--rounds 20] [--burst 10]
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import cases
from benchmarks.measure import machine, time_side_by_side
from blockmgr.config import EVICTION_POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATIONS: dict[str, tuple[Callable[..., cases.Case], float, str]] = {
    "hit": (cases.Admit, 1e9, "ns/block"),
    "free": (cases.Free, 1e9, "ns/block"),
    "miss and evict": (partial(cases.ColdAdmit, evicting=True), 1e9, "ns/block"),
    "decode of 1,024": (partial(cases.DecodeStep, evicting=True), 1e6, "µs"),
}


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each policy")
    parser.add_argument("--burst", type=int, default=10, help="timed runs in a turn")
    arguments = parser.parse_args()

    table = Table(box=None, pad_edge=False)
    for heading in ("operation", "policy", "unit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("min", "median", "min / lru", "median / lru"):
        table.add_column(heading, justify="right", no_wrap=True)
    for operation, (make, scale, unit) in OPERATIONS.items():
        built = {name: make(eviction=name) for name in EVICTION_POLICIES}
        timings = time_side_by_side(built, rounds=arguments.rounds, burst=arguments.burst)
        lru = timings["lru"]
        for name, timing in timings.items():
            table.add_row(
                operation,
                name,
                unit,
                f"{timing.minimum * scale:,.1f}",
                f"{timing.median * scale:,.1f}",
                f"{timing.minimum / lru.minimum:.2f}",
                f"{timing.median / lru.median:.2f}",
            )
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)
    about = machine()
    console.print(
        f"{about['processors']} x {about['processor']}, load {about['load_average']:.1f}, "
        f"Python {about['versions']['python']}, blockmgr {about['versions']['blockmgr']}"
    )


if __name__ == "__main__":
    main()
