"""What do events cost per block, and how fast is a replay answered, compared with vLLM?

Both sides store the same prompts of 2,048 blocks of 16 tokens in a pool that holds one of them,
with events off and on, and hash with sha256_cbor. Times are the best of the rounds, in nanoseconds
per block. The timed calls of vLLM are ``cache_full_blocks`` (without hashing, which happens when a
request is created) and ``get_new_blocks``; ours are ``commit`` (with hashing) and ``admit``. So
only what events add is comparable. For vLLM, "made and encoded" is encoding alone, because it
creates its events while it caches. Not measured: the network.

Run: VLLM_PYTHON=/path/to/python python -m benchmarks.events
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.events import ours


def vllms(rounds: int) -> dict[str, Any]:
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        return {}
    command = [python, "-m", "benchmarks.events.vllm_side", str(rounds)]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def added(figures: dict[str, Any], what: str) -> float | None:
    if f"{what}, events on" not in figures:
        return None
    return float(figures[f"{what}, events on"]) - float(figures[f"{what}, events off"])


def main() -> None:
    """Measures both sides in turn and prints a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.events",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    sides: dict[str, dict[str, Any]] = {
        "blockmgr": ours.measure("sha256_cbor", rounds),
        "blockmgr, xxh3_128": ours.measure("xxh3_128", rounds),
    }
    if theirs := vllms(rounds):
        sides[str(theirs.pop("version"))] = theirs
    rows = list(next(iter(sides.values())))
    for figures in sides.values():
        for what in ("stored", "evicted"):
            figures[f"{what}, added by events"] = added(figures, what)
    table = Table(box=None)
    table.add_column("ns a block", no_wrap=True)
    for side in sides:
        table.add_column(side, justify="right", no_wrap=True)
    for row in ["stored, added by events", "evicted, added by events", *rows]:
        cells = (figures.get(row) for figures in sides.values())
        table.add_row(row, *("" if cell is None else f"{cell:,.1f}" for cell in cells))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
