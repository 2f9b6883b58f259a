"""Bugs of the Python layer: planted in a copy of the package, whose tests are run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.catalogue import Mutant
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


def tests_that_find(mutant: Mutant) -> tuple[int | None]:
    """How many tests of the Python layer fail under the bug; ``None``: it survived."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package = folder / "blockmgr"
        shutil.copytree(ROOT / "blockmgr", package)
        (package / mutant.file).write_text(planted(mutant, package / mutant.file))
        # The installed extension, without the package around it, which would be found first.
        import blockmgr._core

        extension = Path(blockmgr._core.__file__)
        shutil.copy(extension, package / extension.name)
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
    failed = re.search(r"(\d+) (?:failed|errors?)", done.stdout)
    if failed is None:
        raise ValueError(f"{mutant.name}: its tests did not run\n{done.stdout}{done.stderr}")
    return (int(failed[1]),)
