"""Builds the core without Python, and runs it: ``python -m tests.core stress --seed 1``.

What follows the name of a program goes to the program. ``--sanitize address`` (with undefined
behaviour) or ``thread`` goes before the name; ``--cxx clang++`` names another compiler. The fuzz
target takes libFuzzer's options with clang, and files or folders to run once with any other.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "blockmgr" / "csrc"
PROGRAMS = ("stress", "fuzz", "exhaustive", "threads", "ids", "faults", "books")
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Werror"]
SANITIZERS = {
    "none": ["-O2"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def core_files(suffix: str) -> list[Path]:
    """Those of every room of the core but the bindings."""
    return sorted(path for path in CORE.glob(f"*/*{suffix}") if path.parent.name != "bindings")


def sources(program: str) -> list[Path]:
    """The core as one unit, the harness, and the program."""
    harness = sorted(path for path in HERE.glob("*.cc") if path.stem not in PROGRAMS)
    return [*core_files(".cc"), *harness, HERE / f"{program}.cc"]


def fuzzing_flags(cxx: str) -> list[str]:
    """LibFuzzer where there is one; elsewhere a main that runs each input once."""
    return ["-fsanitize=fuzzer"] if "clang" in Path(cxx).name else ["-DBLOCKMGR_FUZZ_MAIN"]


def policies() -> str:
    """Names of the eviction policies, read off the source: what is built may not be installed."""
    module = ast.parse((CORE.parent / "config.py").read_text())
    [names] = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EVICTION_POLICIES"
    ]
    return ",".join(f'"{name}"' for name in ast.literal_eval(names))


def newest(paths: list[Path]) -> float:
    return max(path.stat().st_mtime for path in paths)


def build(program: str, sanitize: str, cxx: str, folder: Path) -> Path:
    """Compiles what is out of date; returns the program."""
    out = folder / f"{program}-{sanitize}-{Path(cxx).name}"
    files = sources(program)
    headers = [*core_files(".h"), *HERE.glob("*.h")]
    if out.exists() and out.stat().st_mtime > newest([*files, *headers]):
        return out
    folder.mkdir(parents=True, exist_ok=True)
    unit = out.with_suffix(".cc")
    unit.write_text("".join(f'#include "{path}"\n' for path in files))
    names = f"-DBLOCKMGR_POLICIES={policies()}"
    flags = ["-std=c++20", "-g", names, *WARNINGS, *SANITIZERS[sanitize], f"-I{CORE}", f"-I{HERE}"]
    if program == "fuzz":
        flags += fuzzing_flags(cxx)
    if program in ("faults", "exhaustive"):
        flags.append("-Wl,--wrap=calloc")
    if program in ("books", "exhaustive"):
        flags.append("-fno-access-control")
    subprocess.run([cxx, *flags, str(unit), "-pthread", "-o", str(out)], check=True)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.core", description=__doc__)
    parser.add_argument("--sanitize", choices=sorted(SANITIZERS), default="none")
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--build-folder", type=Path, default=HERE.parents[1] / "build" / "core")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="for the program")
    args = parser.parse_args()
    if shutil.which(args.cxx) is None:
        parser.error(f"no compiler is called {args.cxx}")
    program = build(args.program, args.sanitize, args.cxx, args.build_folder)
    if args.build_only:
        print(program)
        return 0
    environment = {**OPTIONS, **os.environ}
    return subprocess.run([str(program), *args.rest], check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
