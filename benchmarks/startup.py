"""What memory does a manager take, and how long does it take to build one?

Managers have 10^4 to 10^7 blocks. Every line is measured several times, each in a fresh process,
and the least value is shown: the memory that the manager reports, the growth of the process when it
was built and after all its blocks were cached, the time to build it, and the time of its first
admissions, which touch fresh pages. The column beside the processor time shows how long it takes to
touch as many fresh bytes, page by page, in the same process: the time any process needs to get
memory from the system.

Not measured: the eviction of a full pool (``python -m benchmarks.policies``).

Run: python -m benchmarks.startup [--repetitions 3] [--largest 10000000]
"""

from __future__ import annotations

import argparse
import json
import mmap
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.cases import Prompts, cache
from benchmarks.measure import RESULTS, machine, write_result
from benchmarks.memory import REPOSITORY, weights
from blockmgr import BlockManager
from blockmgr.config import EVICTION_POLICIES

COLUMNS = 2048
PROMPT_TOKENS = 4096
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Start:
    """One manager in a fresh process; times are in seconds, the rest in bytes per block."""

    accounted: float
    resident_built: float
    resident_cached: float
    build: float
    build_processor: float
    touch_processor: float
    """Processor time to touch as many fresh bytes as were resident when it was built."""
    first_admission: float
    """``admit`` and ``commit`` of a prompt of 4,096 tokens, the first the manager sees."""
    second_admission: float
    """The same of another prompt of that length."""


def resident() -> int:
    """Resident bytes of this process."""
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * resource.getpagesize()


def _touch_seconds(num_bytes: int) -> float:
    # Not an array that NumPy allocates: NumPy asks for huge pages.
    with mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE)) as memory:
        begin = time.process_time()
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
        return time.process_time() - begin


def _admission(manager: BlockManager, prompts: Prompts) -> float:
    prompt = prompts.draw(PROMPT_TOKENS)
    start = time.perf_counter()
    handle = manager.admit(prompt)
    manager.commit(handle, len(prompt))
    seconds = time.perf_counter() - start
    manager.free(handle)
    return seconds


def start(num_blocks: int, eviction: str) -> Start:
    """Builds a manager in this process, which has built no other."""
    prompts = Prompts()
    cache(BlockManager(2048, BLOCK_SIZE), prompts.draw(PROMPT_TOKENS))
    before = resident()
    processor, begin = time.process_time(), time.perf_counter()
    manager = BlockManager(
        num_blocks, BLOCK_SIZE, max_seqs=1, max_blocks_per_seq=COLUMNS, eviction=eviction
    )
    build, build_processor = time.perf_counter() - begin, time.process_time() - processor
    built = resident() - before
    touch = _touch_seconds(built)
    admissions = [_admission(manager, prompts) for _ in range(2)]
    while free := manager.stats().free_blocks:
        cache(manager, prompts.draw(min(free, COLUMNS) * BLOCK_SIZE))
    return Start(
        manager.memory_usage() / num_blocks,
        built / num_blocks,
        (resident() - before) / num_blocks,
        build,
        build_processor,
        touch,
        *admissions,
    )


def least(num_blocks: int, eviction: str, repetitions: int) -> Start:
    """The least of each number over several fresh processes."""
    command = [sys.executable, "-m", "benchmarks.startup", "--one", str(num_blocks), eviction]
    runs = [Start(**_output(command)) for _ in range(repetitions)]
    return Start(*(min(getattr(run, field.name) for run in runs) for field in fields(Start)))


def _output(command: list[str]) -> Any:
    result = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(result.stdout)


def table(rows: list[tuple[int, str, Start]]) -> Table:
    """A line for each manager."""
    result = Table(box=None, pad_edge=False)
    headings = ("blocks", "policy", "B/block", "built", "cached", "build", "processor")
    for heading in (*headings, "touch alone", "first admission", "second"):
        result.add_column(heading, justify="right", no_wrap=True)
    for num_blocks, eviction, it in rows:
        result.add_row(
            f"{num_blocks:,}",
            eviction,
            *(f"{n:.1f}" for n in (it.accounted, it.resident_built, it.resident_cached)),
            *(f"{1e3 * n:,.1f} ms" for n in (it.build, it.build_processor, it.touch_processor)),
            *(f"{1e6 * n:,.0f} µs" for n in (it.first_admission, it.second_admission)),
        )
    return result


def main() -> None:
    """Measures, prints the table, and writes the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repetitions", type=int, default=3, help="processes for each line")
    parser.add_argument("--largest", type=int, default=10**7, help="blocks, for every policy")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        num_blocks, eviction = arguments.one
        print(json.dumps(asdict(start(int(num_blocks), eviction))))
        return

    about = machine()
    sizes = [10**k for k in range(4, 9) if 10**k < arguments.largest]
    what = [(size, "lru") for size in sizes]
    what += [(arguments.largest, eviction) for eviction in EVICTION_POLICIES]
    rows = [(*key, least(*key, arguments.repetitions)) for key in what]
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table(rows))
    rest = {
        "block_size": BLOCK_SIZE,
        "weights": [
            {"what": name, "budget": budget, "bytes": measured}
            for name, budget, measured in weights()
        ],
        "starts": [{"blocks": n, "eviction": p} | asdict(it) for n, p, it in rows],
    }
    path = write_result(arguments.results, "memory", "benchmarks.startup", about, rest)
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
