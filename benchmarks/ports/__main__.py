"""Times every call of a port and the core calls beneath it, and prints the ratios."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.measure import machine, time_side_by_side
from benchmarks.ports import aphrodite, nano_vllm, radix, slots, tgi
from benchmarks.ports.pair import Loop

MODULES = (aphrodite, nano_vllm, radix, slots, tgi)
BUDGET = 5.0


def main() -> int:
    """Measures and prints the table; 1 if a ratio is over the budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ports", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="turns of each call")
    parser.add_argument("--burst", type=int, default=10, help="timed runs in a turn")
    arguments = parser.parse_args()

    table = Table(box=None, pad_edge=False)
    for heading in ("call", "core, us", "port, us", "ratio"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    worst = 0.0
    for pair in (pair for module in MODULES for pair in module.PAIRS):
        cases = {"core": Loop(pair.core()), "port": Loop(pair.port())}
        timed = time_side_by_side(cases, rounds=arguments.rounds, burst=arguments.burst)
        core, port = timed["core"].minimum, timed["port"].minimum
        worst = max(worst, port / core)
        table.add_row(pair.name, f"{core * 1e6:,.2f}", f"{port * 1e6:,.2f}", f"{port / core:.2f}")
    console = Console()
    console.print(table)
    about = machine()
    console.print(f"{about['processors']} x {about['processor']}, load {about['load_average']:.1f}")
    console.print(f"worst ratio {worst:.2f}, budget {BUDGET:.0f}")
    return int(worst > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
