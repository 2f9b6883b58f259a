"""Mutants of the package: runs the tests of the changed file on a copy of the package.

A mutant of a module replaces that module in the copy. A mutant of the core or of the bindings
replaces the extension, for which only the file with the bug is recompiled, or every file that
includes a changed header.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.arguments.__main__ import LIBRARIES, OPTIONS, library
from tests.core.__main__ import CORE as SOURCES
from tests.mutants.core import object_name
from tests.mutants.drawn.harness import QUICK, DoesNotCompile, within
from tests.mutants.drawn.outcome import Outcome, run
from tests.mutants.drawn.site import Site
from tests.mutants.python import PYTEST, ROOT, use_package_of

MOST_MEMORY = 24 << 30  # torch reserves much more address space than it uses
ANY_MEMORY = resource.RLIM_INFINITY  # sanitizers reserve more address space than there is memory
SLOWER = 5
SECONDS = 30  # of processor time that every run of tests may take
REFUSALS = (1, 2, 3, 4)  # exit codes of pytest: a test failed, or an import did
# Programs that tests start must also find the copy, not the editable install, which comes first.
FIRST = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


class Package:
    """A folder with the package, in which a module or the extension can be replaced.

    Args:
        folder: Path of the copy, which is created.
        cxx: The compiler.
        sanitizers: Its options for them. With any, tests run in an interpreter that loads them.
    """

    def __init__(self, folder: Path, cxx: str, sanitizers: Sequence[str] = ()) -> None:
        self.folder = folder
        self._cxx = cxx
        self._sanitizers = tuple(sanitizers)
        self._loaded = (
            {
                **OPTIONS,
                "LD_PRELOAD": " ".join(library(name, cxx) for name in LIBRARIES),
            }
            if sanitizers
            else {}
        )
        self._seconds: dict[str, float] = {}
        self._objects: dict[Path, Path] = {}
        self._extension = folder / "blockmgr" / "_core.abi3.so"

    def prepare(self) -> None:
        """Copies the package with the installed extension."""
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "csrc")
        self.folder.mkdir(exist_ok=True)
        shutil.copytree(ROOT / "blockmgr", self.folder / "blockmgr", ignore=ignored)
        (self.folder / "blockmgr" / "csrc").symlink_to(SOURCES)
        for part in ROOT.iterdir():
            if part.name != "blockmgr" and not part.name.startswith("."):
                (self.folder / part.name).symlink_to(part)
        (self.folder / "sitecustomize.py").write_text(FIRST)
        import blockmgr._core

        shutil.copy(blockmgr._core.__file__, self._extension)

    def prepare_extension(self, core: Mapping[Path, Path]) -> None:
        """Compiles the bindings, for mutants of the bindings and of the core."""
        common = self.folder / "objects" / "common.h"
        common.parent.mkdir()
        common.write_text(f'#include "{SOURCES / "bindings" / "bindings.h"}"\n')
        self._compile(common, Path(f"{common}.gch"), "-x", "c++-header")
        for source in sorted(SOURCES.glob("bindings/*.cc")):
            out = common.parent / object_name(source)
            self._objects[source] = self._compile(source, out, "-include", str(common))
        self._objects.update(core)

    def replace_extension(self) -> None:
        """Replaces the installed extension by the compiled one."""
        self._extension.unlink()
        parts = [*map(str, self._objects.values()), "-o", str(self._extension)]
        subprocess.run([self._cxx, "-shared", *self._sanitizers, *parts], check=True)

    def first_found(
        self, tests: Iterable[str], replaced: Mapping[str, str | Path]
    ) -> tuple[str, Outcome] | None:
        """The first tests that fail with these files of the package replaced."""
        kept = {name: (self.folder / "blockmgr" / name).read_bytes() for name in replaced}
        try:
            for name, by in replaced.items():
                file = self.folder / "blockmgr" / name
                file.unlink()  # the extension may still be mapped
                file.write_bytes(by.encode() if isinstance(by, str) else by.read_bytes())
            for chosen in tests:
                outcome = self._run(chosen, SECONDS + SLOWER * self._seconds[chosen])
                if outcome.found:
                    return chosen, outcome
        finally:
            for name, content in kept.items():
                file = self.folder / "blockmgr" / name
                file.unlink()
                file.write_bytes(content)
        return None

    def check_clean(self, tests: Iterable[str]) -> None:
        """Raises unless these tests pass without a bug; records how long they take."""
        for chosen in tests:
            if chosen in self._seconds:
                continue
            outcome = self._run(chosen, 3600)
            if outcome.found:
                raise ValueError(f"{chosen} fails without a bug\n{outcome.said}")
            self._seconds[chosen] = outcome.seconds

    def extension(self, site: Site, folder: Path, changed: Path | None = None) -> Path:
        """Builds the extension with a bug, in the bindings or in an already compiled object."""
        original = SOURCES / within(site)
        objects = dict(self._objects)
        planted = site.planted(original.read_bytes())
        if changed is not None:
            objects[original] = changed
        elif original.suffix == ".cc":
            source = folder / original.name
            source.write_bytes(planted)
            common = self.folder / "objects" / "common.h"
            objects[original] = self._compile(source, folder / "changed.o", "-include", str(common))
        else:
            sources = folder / "sources"
            shutil.copytree(SOURCES, sources)
            (sources / within(site)).write_bytes(planted)
            for path in objects:
                if within(site) in included(path):
                    out = folder / object_name(path)
                    own = sources / path.relative_to(SOURCES)
                    objects[path] = self._compile(own, out, folder=sources)
        extension = folder / "_core.abi3.so"
        parts = [*map(str, objects.values()), "-o", str(extension)]
        subprocess.run([self._cxx, "-shared", *self._sanitizers, *parts], check=True)
        return extension

    def is_the_same(self, site: Site, folder: Path) -> bool:
        """Whether the compiler produces the same code for a mutant of the bindings."""
        name = within(site)
        users = (
            [name]
            if name.suffix == ".cc"
            else [
                path.relative_to(SOURCES)
                for path in SOURCES.glob("bindings/*.cc")
                if name in included(path)
            ]
        )
        codes = []
        for which in ("before", "after"):
            sources = folder / which
            shutil.copytree(SOURCES, sources)
            if which == "after":
                (sources / name).write_bytes(site.planted((SOURCES / name).read_bytes()))
            out = sources / "out.o"
            codes.append(
                [self._compile(user, out, "-O2", folder=sources).read_bytes() for user in users]
            )
        return codes[0] == codes[1]

    def _run(self, tests: str, seconds: float) -> Outcome:
        command = [*PYTEST, *tests.split()]
        variables = {
            **use_package_of(self.folder),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / ".hypothesis"),
            **self._loaded,
        }
        most = ANY_MEMORY if self._sanitizers else MOST_MEMORY
        return run(command, seconds, most, self.folder, variables=variables, refusals=REFUSALS)

    def _compile(self, source: Path, out: Path, *options: str, folder: Path | None = None) -> Path:
        import nanobind
        import numpy

        where = (folder or SOURCES, nanobind.include_dir(), numpy.get_include(),
                 sysconfig.get_paths()["include"])  # fmt: skip
        names = ("NB_BACKEND_MODULE=nanobind_backend", "NB_BACKEND_PYPI=nanobind-backend",
                 "Py_LIMITED_API=0x30b0000", "_core_EXPORTS", "NDEBUG")  # fmt: skip
        defined = (f"-D{name}" for name in names)
        flags = ["-std=c++20", "-w", "-fPIC", QUICK, *self._sanitizers, *defined]
        folders = [f"-I{folder}" for folder in where]
        command = [self._cxx, *flags, *folders, *options, "-c", str(source), "-o", str(out)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            raise DoesNotCompile(done.stderr[-2000:])
        return out


def included(source: Path) -> set[Path]:
    """All headers of the core that a file includes directly or indirectly."""
    found: set[Path] = set()
    waiting = [source.relative_to(SOURCES)]
    while waiting:
        for header in INCLUDE.findall((SOURCES / waiting.pop()).read_text()):
            if (name := Path(header)) not in found:
                found.add(name)
                waiting.append(name)
    return found
