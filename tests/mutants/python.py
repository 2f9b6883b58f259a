"""Bugs of the Python layer, or where it meets the core: planted in a copy, whose tests are run."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.catalogue import EXTENSION, Mutant
from tests.mutants.core import planted

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 120  # none of these bugs makes a test endless

# An installation for development finds the package where it is developed, before any path is
# tried.
BARE = """
import os, sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path[:0] = [os.environ["MUTANT"]]
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", *sys.argv[1:]]))
"""


def copied(mutant: Mutant, folder: Path) -> None:
    """The package with the bug in it, and the installed extension."""
    package = folder / "blockmgr"
    shutil.copytree(ROOT / "blockmgr", package)
    (package / mutant.file).write_text(planted(mutant, package / mutant.file))
    # Without the package around it, which would be found first.
    import blockmgr._core

    extension = Path(blockmgr._core.__file__)
    shutil.copy(extension, package / extension.name)


def built(mutant: Mutant, folder: Path) -> None:
    """The package with an extension that has the bug in it."""
    source = folder / "source"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "blockmgr", source / "blockmgr", ignore=ignored)
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, source / part)
    file = source / "blockmgr" / "csrc" / mutant.file
    file.write_text(planted(mutant, file))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--config-settings=cmake.define.BLOCKMGR_TESTING=ON", "--target"]
    if importlib.util.find_spec("scikit_build_core"):
        command.insert(-1, "--no-build-isolation")
    subprocess.run([*command, str(folder), str(source)], check=True)


def tests_that_find(mutant: Mutant) -> tuple[int | None]:
    """How many tests of the Python layer fail under the bug; ``None``: it survived."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = built if mutant in EXTENSION else copied
        build(mutant, folder)
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
        return (None,)
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        return (1,)  # a bug of addresses ends the test that finds it
    failed = re.search(r"(\d+) (?:failed|errors?)", done.stdout)
    if failed is None:
        raise ValueError(f"{mutant.name}: its tests did not run\n{done.stdout}{done.stderr}")
    return (int(failed[1]),)
