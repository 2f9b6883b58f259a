"""The three kinds of mutants: how each is drawn, built and hunted."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.core.__main__ import CORE as SOURCES
from tests.mutants.drawn import cpp, python
from tests.mutants.drawn.chosen import MISREAD, tests_of
from tests.mutants.drawn.harness import (
    BRIEF,
    LONG,
    SANITIZED,
    SANITIZERS,
    Check,
    DoesNotCompile,
    Harness,
)
from tests.mutants.drawn.package import Package
from tests.mutants.drawn.site import Site
from tests.mutants.drawn.verdicts import KILLED, REFUSED, SAME, SURVIVED, Result
from tests.mutants.python import ROOT

CULPRIT = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
HALVES = ("core", "bindings", "python")
State = tuple[str, str]  # and the run that killed it


def all_sites(half: str) -> list[Site]:
    """All sites for mutants of this kind."""
    if half == "python":
        return [
            one for path in python.modules(ROOT / "blockmgr") for one in python.sites(path, ROOT)
        ]
    files = sorted(p for p in SOURCES.glob("*/*") if p.suffix in (".cc", ".h"))
    wanted = [p for p in files if (p.parent.name == "bindings") == (half == "bindings")]
    return [one for path in wanted for one in cpp.sites(path, ROOT)]


class Hunt:
    """Builds mutants in a folder and runs the tests that must find them."""

    def __init__(self, folder: Path, cxx: str, jobs: int, checks: Iterable[Check] = LONG) -> None:
        self._folder = folder
        self._checks = tuple(checks)
        self._harness = Harness(folder / "harness", cxx, jobs)
        self._sanitized = Harness(folder / "sanitized", cxx, jobs, SANITIZERS)
        self._package = Package(folder / "package", cxx)
        self._sanitized_package = Package(folder / "sanitized-package", cxx, SANITIZERS)
        self._prepared: set[str] = set()

    def result(self, site: Site, half: str) -> Result:
        """Builds and tests a mutant; returns the result."""
        started = time.monotonic()
        folder = self._folder / "mutant"
        folder.mkdir()
        hunts: dict[str, Callable[[Site, Path], State]] = {
            "core": self._core,
            "harness": self._in_harness,
            "bindings": self._bindings,
            "python": self._python,
        }
        try:
            state, by = hunts[half](site, folder)
        except DoesNotCompile:
            state, by = REFUSED, ""
        shutil.rmtree(folder)
        seconds = round(time.monotonic() - started, 1)
        return Result(site.name, half, site.operator, site.line, state, by, seconds)

    def _in_harness(self, site: Site, folder: Path) -> State:
        self._once("harness", self._prepare_harness)
        built = self._harness.plant(site, folder)
        for checks in (BRIEF, self._checks):
            if found := self._harness.first_found(built, checks):
                (program, options), outcome = found
                return KILLED, f"{program} {options}: {outcome.how}"
        return SURVIVED, ""

    def _core(self, site: Site, folder: Path) -> State:
        state, by = self._in_harness(site, folder)
        if state != SURVIVED:
            return state, by
        self._once("extension", self._prepare_extension)
        changed = folder / "changed.o"
        extension = self._package.extension(site, folder, changed if changed.exists() else None)
        state, by = self._with_tests(site, {"_core.abi3.so": extension})
        if state != SURVIVED:
            return state, by
        if self._harness.is_the_same(site, folder):
            return SAME, ""
        return self._under_sanitizers(site, folder / "sanitized")

    def _under_sanitizers(self, site: Site, folder: Path) -> State:
        self._once("sanitized", lambda: self._sanitized.prepare(SANITIZED))
        folder.mkdir()
        built = self._sanitized.plant(site, folder)
        if found := self._sanitized.first_found(built, SANITIZED):
            return KILLED, f"stress under sanitizers: {found[1].how}"
        return SURVIVED, ""

    def _bindings(self, site: Site, folder: Path) -> State:
        self._once("extension", self._prepare_extension)
        extension = self._package.extension(site, folder)
        state, by = self._with_tests(site, {"_core.abi3.so": extension})
        if state != SURVIVED:
            return state, by
        if self._package.is_the_same(site, folder):
            return SAME, ""
        return self._with_sanitized_tests(site, folder / "sanitized")

    def _with_sanitized_tests(self, site: Site, folder: Path) -> State:
        """Runs tests under sanitizers, which notice accesses beyond an argument."""
        self._once("sanitized package", self._prepare_sanitized_package)
        folder.mkdir()
        package = self._sanitized_package
        extension = package.extension(site, folder)
        if found := package.first_found(MISREAD, {"_core.abi3.so": extension}):
            return KILLED, f"{found[0]} under sanitizers: {found[1].how}"
        return SURVIVED, ""

    def _python(self, site: Site, folder: Path) -> State:
        self._once("package", self._package.prepare)
        changed = python.planted(site, (ROOT / site.file).read_text())
        try:
            compile(changed, site.file, "exec")
        except SyntaxError as error:
            raise DoesNotCompile from error
        return self._with_tests(site, {site.file.removeprefix("blockmgr/"): changed})

    def _with_tests(self, site: Site, replaced: Mapping[str, str | Path]) -> State:
        tests = tests_of(site.file)
        self._package.check_clean(tests)
        if found := self._package.first_found(tests, replaced):
            chosen, outcome = found
            culprit = CULPRIT.search(outcome.said)
            return KILLED, f"{culprit[1] if culprit else chosen}: {outcome.how}"
        return SURVIVED, ""

    def _prepare_harness(self) -> None:
        self._harness.prepare((*BRIEF, *self._checks))

    def _prepare_extension(self) -> None:
        self._once("harness", self._prepare_harness)
        self._once("package", self._package.prepare)
        self._package.prepare_extension(self._harness.core)

    def _prepare_sanitized_package(self) -> None:
        self._once("sanitized", lambda: self._sanitized.prepare(SANITIZED))
        package = self._sanitized_package
        package.prepare()
        package.prepare_extension(self._sanitized.core)
        # The installed extension has no sanitizers, so an unchanged one is built and tested first.
        package.replace_extension()
        package.check_clean(MISREAD)

    def _once(self, what: str, prepare: Callable[[], None]) -> None:
        if what not in self._prepared:
            try:
                prepare()
            except DoesNotCompile as error:
                raise ValueError(f"{what}: does not compile without a bug\n{error}") from error
            self._prepared.add(what)
