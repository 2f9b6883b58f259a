"""Bugs that only Python tests find, planted in the core and in the bindings."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutants.anchor import CSRC, planted
from tests.mutants.mutant import Mutant
from tests.mutants.python import failures

ROOT = Path(__file__).parents[2]


class ExtensionBuild:
    """A copy of the package, and an incremental build of its extension."""

    def __init__(self, folder: Path) -> None:
        self._sources = folder / "sources"
        self._build = folder / "build"
        self.folder = folder / "tree"
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "csrc")
        shutil.copytree(ROOT / "blockmgr", self.folder / "blockmgr", ignore=ignored)
        shutil.copytree(CSRC, self._sources)
        for part in ("tests", "pyproject.toml"):
            (self.folder / part).symlink_to(ROOT / part)
        options = {
            "BLOCKMGR_IN_PARTS": "ON",
            "BLOCKMGR_TESTING": "ON",
            "CMAKE_BUILD_TYPE": "None",
            "Python_EXECUTABLE": sys.executable,
        }
        defined = [f"-D{name}={value}" for name, value in options.items()]
        where = ["-S", str(self._sources), "-B", str(self._build)]
        self._run("cmake", "-G", "Ninja", *where, *defined)
        self._run("cmake", "--build", str(self._build))

    def plant(self, mutant: Mutant) -> None:
        """Builds the extension with this bug and without earlier ones."""
        original, changed = planted(mutant)
        file = self._sources / original.relative_to(CSRC)
        file.write_bytes(changed)
        try:
            self._run("cmake", "--build", str(self._build))
        finally:
            shutil.copyfile(original, file)
        for extension in self._build.glob("_core*.so"):
            shutil.copy(extension, self.folder / "blockmgr" / extension.name)

    def tests_that_find(self, mutant: Mutant) -> tuple[int | None]:
        """The number of its tests that fail with the bug; ``None``: it survived."""
        self.plant(mutant)
        return (failures(mutant, self.folder),)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr}")
