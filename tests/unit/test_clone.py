"""A program started in a clone finds the sources, which have no compiled core."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import blockmgr
from blockmgr import _core

SOURCES = Path(blockmgr.__file__).parent
VERSION = blockmgr.__version__


def clone(folder: Path, version: str = VERSION) -> Path:
    """A clone without build results."""
    names = shutil.ignore_patterns("*.so", "csrc", "__pycache__")
    shutil.copytree(SOURCES, folder / "blockmgr", ignore=names)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "blockmgr"\nversion = "{version}"\n')
    return folder


def installed(folder: Path, version: str = VERSION) -> Path:
    """A folder in which ``pip install .`` has installed the package."""
    (folder / "blockmgr").mkdir(parents=True)
    for path in (Path(str(_core.__file__)), SOURCES / "_core.pyi"):
        shutil.copy(path, folder / "blockmgr")
    (folder / "blockmgr" / "__init__.py").write_text("raise AssertionError('not these')\n")
    information = folder / f"blockmgr-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: blockmgr\nVersion: {version}\n")
    return folder


def run(clone: Path, site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the clone, with the packages at ``site`` and no editable install."""
    # -S: the environment of the tests may be an editable install, whose hooks would come first.
    others = [path for path in sys.path if path.endswith("site-packages")]
    start = (
        f"import sys; sys.path.insert(0, ''); sys.path += [{str(site)!r}, *{others!r}]\n"
        "import importlib.metadata\n"
        "import runpy\n"
    )
    return subprocess.run(
        [sys.executable, "-S", "-c", start + words[0], *words[1:]],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_sources_work_with_the_core_that_is_installed(tmp_path: Path) -> None:
    here, site = clone(tmp_path / "clone"), installed(tmp_path / "site")
    program = (
        "import blockmgr, blockmgr._core\n"
        "manager = blockmgr.BlockManager(8, 4)\n"
        "print(manager.admit([1, 2, 3]), blockmgr.__file__, blockmgr._core.__file__)\n"
    )
    done = run(here, site, program)
    assert done.stderr == ""
    handle, package, core = done.stdout.split()
    assert int(handle) >= 0
    assert Path(package).parent == here / "blockmgr"
    assert Path(core).parent == site / "blockmgr"


def test_its_modules_run_as_programs(tmp_path: Path) -> None:
    here, site = clone(tmp_path / "clone"), installed(tmp_path / "site")
    program = (
        "sys.argv[1:] = ['doctor']\n"
        "runpy.run_module('blockmgr', run_name='__main__', alter_sys=True)\n"
    )
    done = run(here, site, program)
    assert done.returncode == 0, done.stderr
    assert "blockmgr" in done.stdout


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_another_version_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    here, site = clone(tmp_path / "clone", "9.9.9"), installed(tmp_path / "site")
    told = last_line(run(here, site, "import blockmgr"))
    assert told == (
        f"ImportError: blockmgr {VERSION} is installed in {site / 'blockmgr'}, and these sources "
        f"are 9.9.9; run: {sys.executable} -m pip install '{here}'"
    )


def test_a_core_with_other_functions_is_refused(tmp_path: Path) -> None:
    here, site = clone(tmp_path / "clone"), installed(tmp_path / "site")
    with (here / "blockmgr" / "_core.pyi").open("a") as stub:
        stub.write("def another() -> None: ...\n")
    told = last_line(run(here, site, "import blockmgr"))
    assert "from sources whose _core has other functions; run: " in told


@pytest.mark.parametrize("without", ["package", "core"])
def test_without_a_core_one_line_names_the_command(tmp_path: Path, without: str) -> None:
    here, site = clone(tmp_path / "clone"), tmp_path / "site"
    if without == "core":
        installed(site)
        for path in (site / "blockmgr").glob("_core*.so"):
            path.unlink()
    program = (
        "sys.path = [p for p in sys.path if not p.endswith('site-packages')]\n"
        "try:\n"
        "    import blockmgr\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = run(here, site, program)
    expected = {"package": "is not installed in this env", "core": "without its _core"}[without]
    assert expected in done.stdout, done.stderr
    assert done.stdout.endswith(f"run: {sys.executable} -m pip install '{here}'\n")
    assert done.stdout.count("\n") == 1
