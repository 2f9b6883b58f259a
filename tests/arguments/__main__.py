"""Tests arguments on an extension built with sanitizers: ``python -m tests.arguments``.

The package is built in a temporary folder. AddressSanitizer and UndefinedBehaviorSanitizer cover
the core and the bindings, where arguments are read and their buffers written. Then the tests run in
an interpreter that loads the sanitizer first and allocates every object through it. Needs Linux,
``g++`` with its sanitizers, and pytest. Arguments after ``--`` go to pytest. Exit code 0 if every
test passed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ("tests/arguments", "tests/unit/test_bad_input.py", "tests/unit/test_wrong_calls.py")
# The second library is for C++ exceptions: the sanitizer looks for it when it is loaded.
LIBRARIES = ("libasan.so", "libstdc++.so.6")
OPTIONS = {
    # An interpreter exits with much of its memory unfreed. A length beyond any memory is an
    # argument that must be refused like any other.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "PYTHONMALLOC": "malloc",
}

# An editable install finds the package in its source folder before any path is searched. The
# module sitecustomize runs when an interpreter starts, in the processes that tests start, too.
# Torch is left out: under a sanitizer it takes longer to load than everything else takes to run.
AT_START = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.modules["torch"] = None
"""
RUN = """
import os, sys
import blockmgr, pytest
assert blockmgr.__file__.startswith(os.environ["PYTHONPATH"]), blockmgr.__file__
# A sanitizer's report must not be lost in the captured output of an endless test.
options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--capture=sys"]
sys.exit(pytest.main([*options, *sys.argv[1:]]))
"""


def build(folder: Path) -> None:
    """Installs the package, built with sanitizers, into the folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    if importlib.util.find_spec("scikit_build_core"):
        command.append("--no-build-isolation")
    settings = {
        "cmake.define.BLOCKMGR_SANITIZE": "ON",
        "cmake.define.BLOCKMGR_TESTING": "ON",
        "cmake.build-type": "RelWithDebInfo",  # otherwise the names of functions are stripped
        "build-dir": str(folder / "build"),
        "install.strip": "false",
    }
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    subprocess.run([*command, "--target", str(folder / "package"), str(ROOT)], check=True)


def library(name: str, cxx: str) -> str:
    """The path of the compiler's library."""
    command = [cxx, f"-print-file-name={name}"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        raise SystemExit(f"{cxx} has no {name}")
    return str(Path(found).resolve())


def run(folder: Path, cxx: str, arguments: list[str]) -> int:
    """Runs the tests on the build; 0 if all passed."""
    for part in ("tests", "pyproject.toml"):
        if not (folder / part).exists():
            (folder / part).symlink_to(ROOT / part)
    (folder / "package" / "sitecustomize.py").write_text(AT_START, encoding="utf-8")
    environment = {
        **os.environ,
        **OPTIONS,
        "PYTHONPATH": str(folder / "package"),
        "LD_PRELOAD": " ".join(library(name, cxx) for name in LIBRARIES),
    }
    command = [sys.executable, "-c", RUN, *(arguments or TESTS)]
    return int(subprocess.run(command, check=False, cwd=folder, env=environment).returncode != 0)


def main() -> int:
    """Build, then run."""
    parser = argparse.ArgumentParser(prog="python -m tests.arguments", description=__doc__)
    parser.add_argument(
        "--cxx", default=os.environ.get("CXX", "g++"), help="compiler with the sanitizers"
    )
    parser.add_argument("--keep", type=Path, help="build in this folder and keep it")
    parser.add_argument("pytest", nargs="*", help="tests to run and options of pytest")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        build(folder.resolve())
        return run(folder.resolve(), args.cxx, args.pytest)
    finally:
        if not args.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
