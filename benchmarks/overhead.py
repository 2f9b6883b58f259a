"""What does Python add to a short call? Run ``python -m benchmarks.overhead``.

The same calls are timed twice in one run: from Python, and from ``overhead.cc``, a C++ loop on the
core without Python. A call from Python may take twice the core's own time plus 150 ns.

Prompts have 20 tokens and a cached first block of 16, so that nothing is hashed:
``benchmarks.budgets`` measures the digest. The time of Python's loop counts towards its calls.
Every number is the time of 256 consecutive calls, divided by 256; the verdict uses the minimum.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import RESULTS, machine, write_result
from blockmgr import BlockManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HERE = Path(__file__).parent
CORE = HERE.parent / "blockmgr" / "csrc"

CALLS = 256
TURNS = 5  # of the core alone and of Python, in turn
PROMPT_TOKENS = 20
FACTOR = 2
ALLOWANCE_NS = 150

# Calls that return an array: creating it in NumPy takes longer than their bound.
RETURNS_ARRAY = ("match", "decode of 1")


@dataclass(frozen=True)
class Row:
    """Nanoseconds per call, in the core itself and from Python."""

    name: str
    core: float
    core_median: float
    python: float
    python_median: float

    @property
    def bound(self) -> float:
        """The time that the call may take."""
        return FACTOR * self.core + ALLOWANCE_NS

    @property
    def verdict(self) -> str:
        """Whether the call keeps the bound."""
        if self.python <= self.bound:
            return "met"
        return "missed, makes an array" if self.name.startswith(RETURNS_ARRAY) else "missed"

    def as_json(self) -> dict[str, Any]:
        """All fields, the bound and the verdict."""
        return asdict(self) | {"bound": self.bound, "verdict": self.verdict}


def build(folder: Path, cxx: str) -> Path:
    """Compiles the loop and the core as one unit, with the flags of the extension."""
    sources = sorted(path for path in CORE.glob("*/*.cc") if path.parent.name != "bindings")
    unit = folder / "unit.cc"
    unit.write_text("".join(f'#include "{path}"\n' for path in [*sources, HERE / "overhead.cc"]))
    program = folder / "overhead"
    flags = ["-std=c++20", "-O3", f"-I{CORE}", "-pthread"]
    subprocess.run([cxx, *flags, str(unit), "-o", str(program)], check=True)
    return program


def time_core(program: Path, rounds: int) -> dict[str, tuple[float, float]]:
    """Minimum and median of each call without Python."""
    command = [str(program), str(rounds)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = (line.split("\t") for line in out.splitlines())
    return {name: (float(minimum), float(median)) for name, minimum, median in rows}


class Calls:
    """Makes the calls of ``overhead.cc`` from Python, in the same order on the same state."""

    def __init__(self, *, as_list: bool) -> None:
        self._manager = BlockManager(4096, 16, max_seqs=1024, max_blocks_per_seq=64)
        tokens = np.arange(PROMPT_TOKENS, dtype=np.uint32)
        self._prompt: Any = tokens.tolist() if as_list else tokens
        self._token: Any = [7] if as_list else np.array([7], dtype=np.uint32)
        self.seconds: dict[str, list[float]] = {}
        first = self._manager.admit(tokens)
        self._manager.commit(first, PROMPT_TOKENS)
        self._manager.free(first)

    def _time(self, name: str, calls: Callable[[], Any]) -> Any:
        start = perf_counter_ns()
        result = calls()
        took = perf_counter_ns() - start
        self.seconds.setdefault(name, []).append(took / CALLS)
        return result

    def run(self) -> None:
        """Runs each call ``CALLS`` times."""
        manager, prompt, token, time = self._manager, self._prompt, self._token, self._time
        time("match", lambda: [manager.match(prompt) for _ in range(CALLS)])
        handles = time("admit", lambda: [manager.admit(prompt) for _ in range(CALLS)])
        time("append", lambda: [manager.append(h, token) for h in handles])
        time("commit", lambda: [manager.commit(h, PROMPT_TOKENS + 1) for h in handles])
        # A batch is an array or a list, as the tokens are.
        batches = [[h] if isinstance(token, list) else np.array([h]) for h in handles]
        time("decode of 1", lambda: [manager.decode(batch, token) for batch in batches])
        forks = time("fork", lambda: [manager.fork(h) for h in handles])
        children = [child for fork in forks for child in fork]
        time("free of a fork", lambda: [manager.free(h) for h in children])
        time("free", lambda: [manager.free(h) for h in handles])

    def check(self) -> None:
        """Fails if the calls did not do their work."""
        stats = self._manager.stats()
        assert stats.used_blocks == 0
        assert stats.promoted_blocks == 1
        assert stats.forks == CALLS * len(self.seconds["fork"])


def compare(program: Path, rounds: int) -> Iterable[Row]:
    """Times Python and the core in turns, with arrays and with lists; a row for each call."""
    arrays, lists = Calls(as_list=False), Calls(as_list=True)
    core: dict[str, list[tuple[float, float]]] = {}
    for _ in range(TURNS):
        for name, times in time_core(program, rounds).items():
            core.setdefault(name, []).append(times)
        for _ in range(rounds // TURNS):
            arrays.run()
            lists.run()
    arrays.check()
    lists.check()
    takes_tokens = ("match", "admit", "append", "decode of 1")
    for calls, suffix in ((arrays, ""), (lists, ", list")):
        for name, seconds in calls.seconds.items():
            if suffix and name not in takes_tokens:
                continue
            minima, medians = zip(*core[name], strict=True)
            own = min(minima), statistics.median(medians)
            yield Row(name + suffix, *own, min(seconds), statistics.median(seconds))


def _table(rows: list[Row]) -> Table:
    table = Table("call", "core ns", "Python ns", "median", "at most", "verdict", box=None)
    for row in rows:
        numbers = (row.core, row.python, row.python_median, row.bound)
        table.add_row(row.name, *(f"{number:,.0f}" for number in numbers), row.verdict)
    return table


def main() -> None:
    """Builds, measures, prints the table, and writes the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500, help="rounds of 256 calls of each kind")
    parser.add_argument("--cxx", default="g++", help="compiler of the loop without Python")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    arguments = parser.parse_args()
    if arguments.rounds < TURNS:
        parser.error(f"--rounds must be at least {TURNS}, got {arguments.rounds}")
    if shutil.which(arguments.cxx) is None:
        parser.error(f"no compiler is called {arguments.cxx}")

    about = machine()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(compare(build(Path(folder), arguments.cxx), arguments.rounds))
    console = Console()
    console.print(_table(rows))
    path = write_result(
        arguments.results,
        "overhead",
        "benchmarks.overhead",
        about,
        {"results": [row.as_json() for row in rows]},
    )
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
