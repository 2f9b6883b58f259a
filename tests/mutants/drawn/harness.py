"""Mutants of the core: compiled into the programs of ``tests.core``, which need no Python.

Everything is compiled once. For a mutant in a ``.cc`` file, only that file is recompiled; for one
in a header, the core and the programs are compiled as one unit.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.core.__main__ import CORE as SOURCES
from tests.core.__main__ import HERE as HARNESS
from tests.core.__main__ import PROGRAMS, core_files, policies
from tests.mutants.core import object_name
from tests.mutants.drawn.outcome import Outcome, run
from tests.mutants.drawn.site import Site

FAST, QUICK, SHIPPED = "-O1", "-O0", "-O2"
MOST_MEMORY = 1 << 30
SLOWER = 12  # a run counts as endless after this multiple of the unchanged core's time
OPTIONS = {
    "faults": ["-Wl,--wrap=calloc"],
    "exhaustive": ["-Wl,--wrap=calloc", "-fno-access-control"],
    "books": ["-fno-access-control"],
}
BRIEF = (
    ("stress", "--profile groups --ops 20000 --seed 1 --moves 64 --out /dev/null"),
    ("stress", "--ops 20000 --seed 1 --moves 64 --out /dev/null"),
    ("stress", "--ops 60000 --seed 2 --moves 64 --out /dev/null"),
)
LONG = (
    ("books", "--runs 44 --moves 60"),
    ("faults", "--runs 24 --moves 30"),
    ("exhaustive", "5 few"),
    ("exhaustive", "3 all append_only unnamed"),
    ("exhaustive", "4 all groups=window3+state"),
    ("stress", "--profile groups --ops 150000 --seed 4 --moves 64 --out /dev/null"),
    ("stress", "--ops 300000 --seed 3 --moves 64 --out /dev/null"),
)
SANITIZED = (("stress", "--ops 60000 --seed 5 --moves 64 --out /dev/null"),)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
Check = tuple[str, str]


class DoesNotCompile(Exception):
    """The compiler refuses the mutant."""


@dataclass
class Built:
    """A mutant's folder, and its objects and programs built so far."""

    site: Site
    folder: Path
    objects: dict[Path, Path] = field(default_factory=dict)
    """Replace those of the unchanged core."""

    programs: dict[str, Path] = field(default_factory=dict)


def within(site: Site) -> Path:
    """The path of the file relative to the folder of the core."""
    return Path(site.file).relative_to("blockmgr/csrc")


class Harness:
    """A folder with the core and its programs in parts, each of which can be replaced."""

    def __init__(self, folder: Path, cxx: str, jobs: int, sanitizers: Sequence[str] = ()) -> None:
        self.folder = folder
        self._cxx = cxx
        names = f"-DBLOCKMGR_POLICIES={policies()}"
        self._flags = ["-std=c++20", "-w", "-fPIC", names, *sanitizers]
        # Sanitizers reserve more address space than there is memory.
        self._most_memory = resource.RLIM_INFINITY if sanitizers else MOST_MEMORY
        self.core: dict[Path, Path] = {}
        self._others: dict[Path, Path] = {}
        self._mains: dict[str, Path] = {}
        self._seconds: dict[Check, float] = {}
        self._shipped: dict[Path, bytes] = {}
        self._pool = ThreadPoolExecutor(jobs)

    def prepare(self, checks: Iterable[Check]) -> None:
        """Compiles the unchanged core and harness, and checks that they pass these checks."""
        self.folder.mkdir(exist_ok=True)
        headers = core_files(".h")
        for level in (FAST, QUICK):
            common = self.folder / level[1:] / "common.h"
            common.parent.mkdir(parents=True)
            common.write_text("".join(f'#include "{path}"\n' for path in headers))
            self.compile(Path(common), Path(f"{common}.gch"), level, "-x", "c++-header")
        core = core_files(".cc")
        others = sorted(p for p in HARNESS.glob("*.cc") if p.stem not in PROGRAMS)
        mains = [HARNESS / f"{name}.cc" for name in sorted({name for name, _ in checks})]
        done = {
            path: self._pool.submit(self._with_common, path, self.folder / object_name(path), FAST)
            for path in (*core, *others, *mains)
        }
        self.core = {path: done[path].result() for path in core}
        self._others = {path: done[path].result() for path in others}
        self._mains = {path.stem: done[path].result() for path in mains}

        self._check_clean(checks)

    def _check_clean(self, checks: Iterable[Check]) -> None:
        """Raises unless the unchanged core passes; records how long that takes."""
        for check in checks:
            program = self.folder / f"clean-{check[0]}"
            if not program.exists():
                self._link(check[0], [*self.core.values(), self._mains[check[0]]], program)
            outcome = self._run(program, check, 600)
            if outcome.found:
                raise ValueError(f"{check} fails without a bug\n{outcome.said}")
            self._seconds[check] = outcome.seconds

    def plant(self, site: Site, folder: Path) -> Built:
        """Compiles a mutant as far as its first check needs. Raises DoesNotCompile."""
        built = Built(site, folder)
        original = SOURCES / within(site)
        planted = site.planted(original.read_bytes())
        if original.suffix == ".h":
            shutil.copytree(SOURCES, folder / "csrc")
            (folder / "csrc" / within(site)).write_bytes(planted)
            return built
        changed = folder / original.name
        changed.write_bytes(planted)
        built.objects[original] = self._with_common(changed, folder / "changed.o", QUICK)
        return built

    def first_found(self, built: Built, checks: Iterable[Check]) -> tuple[Check, Outcome] | None:
        """The first check that finds the bug."""
        for check in checks:
            program = built.programs.get(check[0]) or self._build(built, check[0])
            slower = SLOWER * (1 if built.objects else 8)  # a unit without optimisation
            outcome = self._run(program, check, 3 + slower * self._seconds[check])
            if outcome.found:
                return check, outcome
        return None

    def is_the_same(self, site: Site, folder: Path) -> bool:
        """Whether the compiler produces the same code for it, with the flags of a release."""
        name = within(site)
        if name not in self._shipped:
            self._shipped[name] = self._code(name, None, folder / "before")
        return self._shipped[name] == self._code(name, site, folder / "after")

    def _code(self, name: Path, site: Site | None, folder: Path) -> bytes:
        shutil.copytree(SOURCES, folder)
        if site is not None:
            source = (SOURCES / name).read_bytes()
            (folder / name).write_bytes(site.planted(source))
        unit = folder / "unit.cc"
        unit.write_text("".join(f'#include "{part}"\n' for part in self._parts(name)))
        self._call(folder, SHIPPED, "-DNDEBUG", "-I.", "-c", "unit.cc", "-o", "unit.o")
        return (folder / "unit.o").read_bytes()

    def compile(self, source: Path, out: Path, level: str, *options: str) -> Path:
        folders = [f"-I{SOURCES}", f"-I{HARNESS}"]
        self._call(self.folder, level, *folders, *options, "-c", str(source), "-o", str(out))
        return out

    def _parts(self, name: Path) -> list[Path]:
        if name.suffix != ".h":
            return [name]
        return [path.relative_to(SOURCES) for path in core_files(".cc")]

    def _with_common(self, source: Path, out: Path, level: str) -> Path:
        common = self.folder / level[1:] / "common.h"
        options = OPTIONS.get(source.stem, []) if source.parent == HARNESS else []
        return self.compile(source, out, level, "-include", str(common), *options)

    def _build(self, built: Built, program: str) -> Path:
        out = built.folder / program
        if built.objects:
            core = [built.objects.get(path, whole) for path, whole in self.core.items()]
            self._link(program, [*core, self._mains[program]], out)
        else:
            unit = out.with_suffix(".cc")
            core = [built.folder / "csrc" / part for part in self._parts(within(built.site))]
            parts = [*core, *self._others, HARNESS / f"{program}.cc"]
            unit.write_text("".join(f'#include "{part}"\n' for part in parts))
            folders = [f"-I{built.folder / 'csrc'}", f"-I{HARNESS}"]
            options = [*folders, *OPTIONS.get(program, []), "-pthread", "-o", str(out)]
            self._call(built.folder, QUICK, str(unit), *options)
        built.programs[program] = out
        return out

    def _link(self, program: str, objects: Iterable[Path], out: Path) -> None:
        parts = [*map(str, objects), *map(str, self._others.values())]
        options = [*OPTIONS.get(program, []), "-pthread", "-o", str(out)]
        subprocess.run([self._cxx, *self._flags, *parts, *options], check=True, cwd=self.folder)

    def _run(self, program: Path, check: Check, seconds: float) -> Outcome:
        return run([program, *check[1].split()], seconds, self._most_memory, program.parent)

    def _call(self, folder: Path, *options: str) -> None:
        command = [self._cxx, *self._flags, *options]
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise DoesNotCompile(done.stderr[-2000:])
