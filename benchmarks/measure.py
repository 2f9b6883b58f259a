"""Times several cases side by side, and describes the machine.

The timing is ``timeit``'s: garbage collection off, preparation outside. Cases take turns in short
bursts: noise of the machine affects all of them alike, and within a burst a case finds its own data
in the processor's cache.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import statistics
import sys
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cpuinfo
from pytest_benchmark.utils import get_commit_info

if TYPE_CHECKING:
    from benchmarks.cases import Case

__all__ = [
    "RESULTS",
    "Timing",
    "machine",
    "machine_line",
    "machine_name",
    "repeat_command",
    "time_side_by_side",
    "write_result",
]

RESULTS = Path(__file__).with_name("results")

WARMUP = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one unit of what a case counts."""

    minimum: float
    median: float
    repetitions: int

    @classmethod
    def of(cls, seconds: Sequence[float], count: int = 1) -> Timing:
        """The timing of runs that each did ``count`` operations."""
        return cls(min(seconds) / count, statistics.median(seconds) / count, len(seconds))


def time_side_by_side(cases: Mapping[str, Case], *, rounds: int, burst: int) -> dict[str, Timing]:
    """Times every case ``rounds * burst`` times, in turns of ``burst`` runs.

    The first runs of a turn are warm-up and are not counted: they load the case's data back into
    the cache, from which the other cases displaced it.
    """
    timers = {name: timeit.Timer(case.run, case.prepare) for name, case in cases.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, timer in timers.items():
            seconds[name] += timer.repeat(WARMUP + burst, number=1)[WARMUP:]
    for case in cases.values():
        case.check()
    return {name: Timing.of(runs, cases[name].count) for name, runs in seconds.items()}


def machine() -> dict[str, Any]:
    """Processor, system and versions, for the top of a result."""
    versions = {"python": platform.python_version()}
    for package in ("blockmgr", "numpy", "xxhash", "nanobind-backend"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = get_commit_info()
    return {
        "processor": cpuinfo.get_cpu_info().get("brand_raw", platform.machine()),
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": versions,
        "commit": commit["id"],
        "uncommitted_changes": commit["dirty"],
    }


def machine_name(about: Mapping[str, Any]) -> str:
    """A file name for a kind of machine: its processor and the number of cores."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(about["processor"]).lower()).strip("-")
    return f"{slug}-{about['processors']}"


def repeat_command(module: str) -> str:
    """The command that repeats this run, without the folders of this machine."""
    given = sys.argv[1:]
    if "--results" in given:
        at = given.index("--results")
        given = given[:at] + given[at + 2 :]
    words = [Path(word).name if os.sep in word else word for word in given]
    return shlex.join(["python", "-m", module, *words])


def machine_line(about: Mapping[str, Any]) -> str:
    """Processor, load and versions, for the line below a table."""
    return (
        f"{about['processors']} x {about['processor']}, load {about['load_average']:.1f}, "
        f"Python {about['versions']['python']}, blockmgr {about['versions']['blockmgr']}"
    )


def write_result(
    folder: Path, kind: str, module: str, about: Mapping[str, Any], rest: Mapping[str, Any]
) -> Path:
    """Writes a result beside those of other machines and versions; returns its file.

    Args:
        folder: Made if it is missing.
        kind: End of the file's name; empty for the budgets.
        module: The module whose command repeats the run.
        about: From ``machine``.
        rest: Everything else in the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{machine_name(about)}-{about['versions']['blockmgr']}"
    path = folder / f"{name}{kind and '-' + kind}.json"
    document = {"command": repeat_command(module), "machine": about, **rest}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
