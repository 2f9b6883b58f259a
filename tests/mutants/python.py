"""Bugs of the Python layer: planted in a copy of the package, whose tests are run."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.anchor import PACKAGE, planted
from tests.mutants.core import ENDLESS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
# A bug that makes a test endless is found: the test uses up its processor time, or it waits. A busy
# machine alone must not look like either.
MOST_PROCESSOR_SECONDS = 120
MOST_SECONDS = 1200

# An editable install finds the package in its source folder before any path is searched. The module
# sitecustomize runs when an interpreter starts, in the processes that tests start, too.
AT_START = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header")


def use_package_of(folder: Path) -> dict[str, str]:
    """The environment in which Python and its child processes import this folder's package."""
    (folder / "sitecustomize.py").write_text(AT_START, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def copied(mutant: Mutant, folder: Path) -> None:
    """Copies the package with the bug, and the installed extension."""
    package = folder / "blockmgr"
    shutil.copytree(PACKAGE, package)
    original, changed = planted(mutant)
    (package / original.relative_to(PACKAGE)).write_bytes(changed)
    # Copies only the extension: the installed package would otherwise be found first.
    import blockmgr._core

    extension = Path(blockmgr._core.__file__)
    shutil.copy(extension, package / extension.name)


def tests_that_find(mutant: Mutant) -> tuple[int | None]:
    """The number of Python tests that fail with the bug; ``None``: it survived."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(mutant, folder)
        for part in ("tests", "pyproject.toml"):
            (folder / part).symlink_to(ROOT / part)
        return (failures(mutant, folder),)


def limit_processor_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_SECONDS, MOST_PROCESSOR_SECONDS + 1))


def failures(mutant: Mutant, folder: Path) -> int | None:
    """The number of its tests that fail with this folder's package; ``None``: it survived."""
    try:
        done = subprocess.run(
            [*PYTEST, *mutant.tests],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=MOST_SECONDS,
            preexec_fn=limit_processor_time,
            env={**os.environ, **use_package_of(folder)},
        )
    except subprocess.TimeoutExpired:
        return ENDLESS
    if done.returncode == 0:
        return None
    if done.returncode == -signal.SIGXCPU:
        return ENDLESS
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        return 1  # a wrong address crashes the test that finds it
    failed = re.search(r"(\d+) (?:failed|errors?)", done.stdout)
    if failed is None:
        raise ValueError(f"{mutant.name}: its tests did not run\n{done.stdout}{done.stderr}")
    return int(failed[1])
