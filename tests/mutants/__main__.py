"""Plants each bug and counts the calls until it is found: ``python -m tests.mutants``.

A bug of the core is compiled into a copy of it, without Python (see ``tests.core``), and that is
stressed. A bug of the Python layer is planted in a copy of the package, and its tests are run. A
mutant that survives makes the exit code 1; so does one whose text the code no longer has.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.core.__main__ import CORE as SOURCES
from tests.core.__main__ import HERE as HARNESS
from tests.core.__main__ import PROGRAMS
from tests.mutants.catalogue import CORE, PYTHON, Mutant

FOUND = re.compile(r"after (\d+) operations")
CRASHED = 0
MOST_MEMORY = 4 << 30  # a bug may ask for all there is
MOST_SECONDS = 600  # or never end
ROOT = HARNESS.parents[1]


def planted(mutant: Mutant, source: Path, folder: Path) -> Path:
    """A copy of these sources with the bug in it."""
    copy = folder / source.name
    shutil.copytree(source, copy)
    file = copy / mutant.file
    text = file.read_text()
    if text.count(mutant.before) != 1:
        times = text.count(mutant.before)
        raise ValueError(f"{mutant.name}: {mutant.file} holds its text {times} times, not once")
    file.write_text(text.replace(mutant.before, mutant.after))
    return copy


def build(core: Path, folder: Path, cxx: str) -> Path:
    """The stress program on this core, built quickly rather than fast."""
    files = sorted(p for p in core.glob("*.cc") if not p.name.startswith("bindings"))
    files += sorted(p for p in HARNESS.glob("*.cc") if p.stem not in PROGRAMS)
    unit = folder / "unit.cc"
    unit.write_text("".join(f'#include "{p}"\n' for p in [*files, HARNESS / "stress.cc"]))
    out = folder / "stress"
    flags = ["-std=c++20", "-O0", "-w", f"-I{core}", f"-I{HARNESS}", "-pthread"]
    subprocess.run([cxx, *flags, str(unit), "-o", str(out)], check=True)
    return out


def calls_until_found(mutant: Mutant, ops: int, seed: int, cxx: str) -> int | None:
    """Calls until a detector spoke, ``CRASHED``, or ``None`` if the bug survived."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(planted(mutant, SOURCES, folder), folder, cxx)
        options = ["--ops", str(ops), "--seed", str(seed), "--out", str(folder / "found")]
        try:
            done = subprocess.run(
                [str(program), *options],
                check=False,
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS,
                preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (MOST_MEMORY,) * 2),
            )
        except subprocess.TimeoutExpired:
            return CRASHED
    if done.returncode == 0:
        return None
    match = FOUND.search(done.stdout)
    return int(match[1]) if match else CRASHED


def tests_that_find(mutant: Mutant) -> int | None:
    """How many tests of the Python layer fail under the bug; ``None``: it survived."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planted(mutant, ROOT / "blockmgr", folder)
        # The installed extension, without the package around it, which would be found first.
        import blockmgr._core

        extension = Path(blockmgr._core.__file__)
        shutil.copy(extension, folder / "blockmgr" / extension.name)
        for part in ("tests", "pyproject.toml"):
            (folder / part).symlink_to(ROOT / part)
        done = subprocess.run(
            [sys.executable, "-c", BARE, *mutant.tests],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=MOST_SECONDS,
            env={**os.environ, "MUTANT": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    if done.returncode == 0:
        return None
    failed = re.search(r"(\d+) (?:failed|errors?)", done.stdout)
    if failed is None:
        raise ValueError(f"{mutant.name}: its tests did not run\n{done.stdout}{done.stderr}")
    return int(failed[1])


# An installation for development finds the package where it is developed, before any path is
# tried.
BARE = """
import os, sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path[:0] = [os.environ["MUTANT"]]
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", *sys.argv[1:]]))
"""


def main() -> int:
    """Run every mutant, or those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run; all by default")
    parser.add_argument("--ops", type=int, default=200_000, help="calls before giving up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    args = parser.parse_args()
    wanted = [m for m in (*CORE, *PYTHON) if not args.names or m.name in args.names]
    found: dict[Mutant, int | None] = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = {
            pool.submit(tests_that_find, m)
            if m in PYTHON
            else pool.submit(calls_until_found, m, args.ops, args.seed, args.cxx): m
            for m in wanted
        }
        for run in concurrent.futures.as_completed(runs):
            mutant = runs[run]
            found[mutant] = run.result()
            unit = "tests" if mutant in PYTHON else "calls"
            print(f"{mutant.name:45} {found[mutant]} {unit}", flush=True)
    survivors = sorted(mutant.name for mutant, count in found.items() if count is None)
    calls = [n for mutant, n in found.items() if mutant in CORE and n]
    print(f"{len(found) - len(survivors)} of {len(found)} planted bugs found")
    if calls:
        print(f"in the core after {statistics.median(calls):,.0f} calls (median)")
    for name in survivors:
        print(f"survived: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
