"""Bugs of the core: planted, compiled and stressed.

Everything is compiled once with optimisation and precompiled headers. For a mutant, only the file
with the bug is recompiled, without optimisation; for a bug in a header, everything.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.core.__main__ import CORE as SOURCES
from tests.core.__main__ import HERE as HARNESS
from tests.core.__main__ import core_files, policies, sources
from tests.mutants.anchor import planted
from tests.mutants.mutant import Mutant

FOUND = re.compile(r"after (\d+) operations")
CRASHED = 0  # the number of calls is unknown
ENDLESS = -1
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}
MOST_MEMORY = 1 << 30  # a bug may try to allocate everything
# Limits on processor time, because a bug may cause an endless loop: the unchanged core must make
# this many calls a second, and a mutant may be SLOWER times slower than that.
LEAST_CALLS = 20_000
SLOWER = 3
FAST, QUICK = "-O1", "-O0"
# Files of the harness that belong to other programs.
OTHERS = ("canonical.cc", "operations.cc", "group_board.cc")
MOVES = 64  # per configuration: another one may show the bug


class Workshop:
    """A folder with the stress program in parts, each of which can be replaced."""

    def __init__(self, folder: Path, cxx: str, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        self._folder = folder
        self._cxx = cxx
        self._pool = pool
        self._flags = ["-std=c++20", "-w", f"-DBLOCKMGR_POLICIES={policies()}"]
        self._objects: dict[Path, Path] = {}

    def prepare(self) -> None:
        """Compiles everything without a bug."""
        headers = [*core_files(".h"), *(HARNESS / name for name in ("play.h", "pool_play.h"))]
        for level in (FAST, QUICK):
            common = self._common(level)
            common.parent.mkdir()
            common.write_text("".join(f'#include "{path}"\n' for path in headers))
            options = [level, "-x", "c++-header", str(common), "-o", f"{common}.gch"]
            self._run(*options, include=SOURCES)
        compiled = {
            path: self._pool.submit(self._compile, path, self._folder / object_name(path), FAST)
            for path in sources("stress")
            if path.name not in OTHERS
        }
        self._objects = {path: run.result() for path, run in compiled.items()}

    def check_clean(self, calls: Mapping[tuple[str, int], int]) -> None:
        """Raises unless the unchanged core passes the mutants' runs, in far less time.

        Args:
            calls: By profile and seed, the most calls after which a bug was found.
        """
        program = self._folder / "clean"
        self._link(self._objects.values(), program)
        runs = {
            (profile, seed): self._pool.submit(stress, program, most, seed, profile)
            for (profile, seed), most in calls.items()
        }
        for which, run in runs.items():
            violation = run.result()
            if violation == ENDLESS:
                raise ValueError(f"{which} makes fewer than {LEAST_CALLS:,} calls a second")
            if violation is not None:
                raise ValueError(f"{which} finds a violation without a bug, call {violation}")

    def calls_until_found(
        self, mutant: Mutant, ops: int, seeds: Iterable[int]
    ) -> tuple[int | None, ...]:
        """For each seed, the calls until a violation; ``None`` if there was none."""
        folder = self._folder / mutant.name
        folder.mkdir()
        program = folder / "stress"
        original, changed = planted(mutant)
        build = self._build_whole if original.suffix == ".h" else self._build
        build(original, changed, folder, program)
        found: list[int | None] = []
        for seed in seeds:
            # With a bug that never ends, other seeds would run equally long for the same result.
            if found[-1:] == [ENDLESS]:
                found.append(ENDLESS)
            else:
                found.append(stress(program, ops * mutant.times, seed, mutant.profile, SLOWER))
        shutil.rmtree(folder)
        return tuple(found)

    def _build(self, original: Path, bytes_with_bug: bytes, folder: Path, program: Path) -> None:
        changed = folder / original.name
        changed.write_bytes(bytes_with_bug)
        objects = {**self._objects, original: self._compile(changed, folder / "changed.o", QUICK)}
        self._link(objects.values(), program)

    def _build_whole(
        self, original: Path, bytes_with_bug: bytes, folder: Path, program: Path
    ) -> None:
        """Builds one unit in which the header with the bug is found before the original."""
        changed = folder / original.relative_to(SOURCES)
        changed.parent.mkdir()
        changed.write_bytes(bytes_with_bug)
        unit = folder / "unit.cc"
        parts = (path for path in sources("stress") if path.name not in OTHERS)
        unit.write_text("".join(f'#include "{path}"\n' for path in parts))
        found_first = [FAST, f"-I{folder}", str(unit), "-pthread", "-o", str(program)]
        self._run(*found_first, include=SOURCES)

    def _common(self, level: str) -> Path:
        return self._folder / level[1:] / "common.h"

    def _compile(self, source: Path, out: Path, level: str) -> Path:
        common = str(self._common(level))
        self._run(level, "-include", common, "-c", str(source), "-o", str(out), include=SOURCES)
        return out

    def _link(self, objects: Iterable[Path], program: Path) -> None:
        command = [self._cxx, *map(str, objects), "-pthread", "-o", str(program)]
        subprocess.run(command, check=True)

    def _run(self, *arguments: str, include: Path) -> None:
        folders = [f"-I{include}", f"-I{HARNESS}"]
        subprocess.run([self._cxx, *self._flags, *arguments, *folders], check=True)


def object_name(source: Path) -> str:
    """The name of an object file: two folders may have source files of the same name."""
    return f"{source.parent.name}-{source.stem}.o"


def bounded(seconds: int) -> None:
    """Limits the memory and processor time of a mutant."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def stress(program: Path, ops: int, seed: int, profile: str, slower: int = 1) -> int | None:
    """Calls until a violation, ``CRASHED``, ``ENDLESS``, or ``None`` if the bug survived.

    Raises ValueError if the program ended in any other way, which tells nothing about the bug.
    """
    options = {"ops": ops, "seed": seed, "profile": profile, "moves": MOVES, "out": os.devnull}
    done = subprocess.run(
        [str(program), *(word for k, v in options.items() for word in (f"--{k}", str(v)))],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: bounded(slower * max(ops // LEAST_CALLS, 1)),
    )
    if done.returncode == 0:
        return None
    if match := FOUND.search(done.stdout):
        return int(match[1])
    if done.returncode == -signal.SIGXCPU:
        return ENDLESS
    if done.returncode in CRASHES:
        return CRASHED
    raise ValueError(f"{program} ended with {done.returncode}\n{done.stdout}{done.stderr}")
