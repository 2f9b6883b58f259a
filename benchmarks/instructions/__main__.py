"""Has a hot call grown? Compares its instructions under callgrind with recorded counts.

Instruction counts, unlike seconds, do not change on a busy machine. They are not speed: a cache
miss counts nothing, and a division counts as much as an addition. The core is counted without
Python and without the digest, which is another library's code; calls from Python are counted with
both.

Run: python -m benchmarks.instructions             # the table, against benchmarks/instructions.json
     python -m benchmarks.instructions --check     # and exit code 1 where a count is off by 2 %
     python -m benchmarks.instructions --record    # keep the counts of this run

Counts are valid for one compiler, C library and interpreter; ``--check`` fails and says so where
none are recorded for the installed ones. A count that fell by 2 % fails too: it has to be recorded,
or the next change could lose the gain unnoticed. Needs valgrind and a C++20 compiler (CXX; g++).
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.instructions import counted

KEPT = Path(__file__).parent.with_suffix(".json")
ALLOWED = 0.02
PACKAGES = ("blockmgr", "nanobind-backend", "numpy", "xxhash")


def part(name: str) -> tuple[str, list[str], list[counted.Count]]:
    """The key under which this part's counts are recorded, their note, and the counts."""
    if name == "core":
        return counted.toolchain(), counted.flags(), counted.core()
    versions = [f"{package} {version(package)}" for package in PACKAGES]
    return f"{counted.python()}, {counted.toolchain()}", versions, counted.calls()


def compare(kept: dict[str, float], counts: list[counted.Count]) -> list[str]:
    """A sentence for each count that differs too much, and for each without a counterpart."""
    found = {count.name: count.instructions for count in counts}
    faults = [f"'{name}' is kept, and not counted" for name in kept if name not in found]
    for name, instructions in found.items():
        if name not in kept:
            faults.append(f"'{name}' is counted, and not kept")
            continue
        change = instructions / kept[name] - 1
        if abs(change) > ALLOWED:
            word = "grew" if change > 0 else "fell, and should be recorded:"
            faults.append(
                f"'{name}' {word} {kept[name]:,.1f} to {instructions:,.1f}, {change:+.1%}"
            )
    return faults


def table(name: str, kept: dict[str, float], counts: list[counted.Count]) -> Table:
    """A table of each count beside the recorded one."""
    result = Table(box=None, pad_edge=False)
    result.add_column(name, no_wrap=True)
    for heading in ("instructions", "kept", "change"):
        result.add_column(heading, justify="right", no_wrap=True)
    result.add_column("for each", no_wrap=True)
    for count in counts:
        before = kept.get(count.name)
        result.add_row(
            count.name,
            f"{count.instructions:,.1f}",
            "" if before is None else f"{before:,.1f}",
            "" if before is None else f"{count.instructions / before - 1:+.1%}",
            count.unit,
        )
    return result


def main() -> int:
    """Counts, prints the table, and records or compares the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=("core", "calls"), action="append", dest="parts")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="exit with 1 if a count differs too much"
    )
    what.add_argument("--record", action="store_true", help="record the counts of this run")
    arguments = parser.parse_args()

    document: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    console = Console(width=None if sys.stdout.isatty() else 120)
    faults: list[str] = []
    for name in arguments.parts or ("core", "calls"):
        key, built_with, counts = part(name)
        known = document.setdefault(name, {})
        kept = known.get(key, {}).get("counts", {})
        console.print(table(name, kept, counts), "", sep="\n")
        if arguments.record:
            numbers = {count.name: round(count.instructions, 1) for count in counts}
            known[key] = {"built_with": built_with, "counts": numbers}
        elif key not in known:
            others = "; ".join(known) or "none"
            faults.append(f"no counts of {name} are kept for {key}; kept are those for: {others}")
        else:
            faults += [f"{name}: {fault}" for fault in compare(kept, counts)]
            if faults and (before := known[key]["built_with"]) != built_with:
                faults.append(f"{name}: kept with {before}, counted with {built_with}")
    if arguments.record:
        KEPT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        console.print(f"written to {KEPT}")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
