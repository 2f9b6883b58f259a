"""Plants each bug and counts the operations until it is found: ``python -m tests.mutants``.

The core is built without Python (see ``tests.core``), once for each mutant, and stressed. A mutant
that survives makes the exit code 1; so does one whose text the code no longer has.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.core.__main__ import CORE as SOURCES
from tests.core.__main__ import HERE as HARNESS
from tests.core.__main__ import OPTIONS, PROGRAMS
from tests.mutants.catalogue import CORE, Mutant

FOUND = re.compile(r"after (\d+) operations")
CRASHED = 0


def planted(mutant: Mutant, folder: Path) -> None:
    """A copy of the core with the bug in it."""
    shutil.copytree(SOURCES, folder / "csrc")
    file = folder / "csrc" / mutant.file
    text = file.read_text()
    if text.count(mutant.before) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.file} must hold its text once, not {text.count(mutant.before)} times"
        )
    file.write_text(text.replace(mutant.before, mutant.after))


def build(folder: Path, cxx: str) -> Path:
    """The stress program on the core in this folder, quickly rather than fast."""
    core = sorted(p for p in (folder / "csrc").glob("*.cc") if not p.name.startswith("bindings"))
    harness = sorted(p for p in HARNESS.glob("*.cc") if p.stem not in PROGRAMS)
    unit = folder / "unit.cc"
    unit.write_text("".join(f'#include "{p}"\n' for p in [*core, *harness, HARNESS / "stress.cc"]))
    out = folder / "stress"
    flags = ["-std=c++20", "-O0", "-w", f"-I{folder / 'csrc'}", f"-I{HARNESS}", "-pthread"]
    subprocess.run([cxx, *flags, str(unit), "-o", str(out)], check=True)
    return out


def operations_until_found(mutant: Mutant, ops: int, seed: int, cxx: str) -> int | None:
    """Operations until a detector spoke, or ``None`` if none did. A crash counts as found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planted(mutant, folder)
        program = build(folder, cxx)
        done = subprocess.run(
            [str(program), "--ops", str(ops), "--seed", str(seed), "--out", str(folder / "found")],
            check=False, capture_output=True, text=True, env={**os.environ, **OPTIONS}, timeout=900,
        )  # fmt: skip
    if done.returncode == 0:
        return None
    match = FOUND.search(done.stdout)
    return int(match[1]) if match else CRASHED


def main() -> int:
    """Run every mutant, or those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run; all by default")
    parser.add_argument("--ops", type=int, default=200_000, help="operations before giving up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    args = parser.parse_args()
    mutants = [m for m in CORE if not args.names or m.name in args.names]
    found: dict[str, int | None] = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = {
            pool.submit(operations_until_found, m, args.ops, args.seed, args.cxx): m.name
            for m in mutants
        }
        for run in concurrent.futures.as_completed(runs):
            found[runs[run]] = run.result()
            print(f"{runs[run]:45} {found[runs[run]]}", flush=True)
    survivors = sorted(name for name, ops in found.items() if ops is None)
    counts = sorted(ops for ops in found.values() if ops is not None)
    print(
        f"{len(counts)} of {len(found)} found, median {statistics.median(counts or [0]):,.0f}, most {max(counts or [0]):,} operations"
    )
    for name in survivors:
        print(f"survived: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
