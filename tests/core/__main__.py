"""Builds the core without Python, and runs it: ``python -m tests.core stress --seed 1``.

Arguments after the name of a program go to the program. ``--sanitize address`` (which includes
undefined behaviour) or ``--sanitize thread`` goes before the name; ``--cxx clang++`` selects
another compiler. Built with clang, the fuzz target takes libFuzzer's options; built with any other
compiler, it takes files or folders and runs each once.
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
PROGRAMS = ("stress", "fuzz", "exhaustive", "threads", "ids", "faults", "books", "hostile")
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Werror"]
SANITIZERS = {
    "none": ["-O2"],
    # A null pointer and an access behind an object end the program without a check of their own,
    # which would take a fifth of the build.
    "address": [
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize=null,object-size",
        "-fno-sanitize-recover=all",
    ],
    "thread": ["-O1", "-fsanitize=thread"],
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def core_files(suffix: str) -> list[Path]:
    """The sources of every folder of the core except the bindings."""
    return sorted(path for path in CORE.glob(f"*/*{suffix}") if path.parent.name != "bindings")


def harness_files() -> list[Path]:
    """The source files that all programs share."""
    return sorted(path for path in HERE.glob("*.cc") if path.stem not in PROGRAMS)


def sources(program: str) -> list[Path]:
    """The core, the harness, and the program."""
    return [*core_files(".cc"), *harness_files(), HERE / f"{program}.cc"]


def fuzzing_flags(cxx: str) -> list[str]:
    """Links libFuzzer if the compiler has it, otherwise a main that runs each input once."""
    return ["-fsanitize=fuzzer"] if "clang" in Path(cxx).name else ["-DBLOCKMGR_FUZZ_MAIN"]


def policies() -> str:
    """Names of the eviction policies, read from the source: the package may not be installed."""
    module = ast.parse((CORE.parent / "config.py").read_text())
    [names] = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EVICTION_POLICIES"
    ]
    return ",".join(f'"{name}"' for name in ast.literal_eval(names))


def build(program: str, sanitize: str, cxx: str, folder: Path) -> Path:
    """Compiles the files that are out of date; returns the program.

    The core and the harness are one unit, which takes most of the build time. All programs of one
    compiler and sanitizer link this unit, except libFuzzer's, which instruments the core.
    """
    kind = f"{sanitize}-{Path(cxx).name}"
    out = folder / f"{program}-{kind}"
    headers = [*core_files(".h"), *HERE.glob("*.h")]
    names = f"-DBLOCKMGR_POLICIES={policies()}"
    flags = ["-std=c++20", "-g1", names, *WARNINGS, *SANITIZERS[sanitize], f"-I{CORE}", f"-I{HERE}"]
    shared = folder / f"core-{kind}.o"
    if program == "fuzz":
        flags += fuzzing_flags(cxx)
        if "-fsanitize=fuzzer" in flags:
            shared = folder / f"core-fuzz-{kind}.o"
    folder.mkdir(parents=True, exist_ok=True)
    common = [*core_files(".cc"), *harness_files()]
    if out_of_date(shared, [*common, *headers]):
        unit = shared.with_suffix(".cc")
        unit.write_text("".join(f'#include "{path}"\n' for path in common))
        subprocess.run([cxx, *flags, "-c", str(unit), "-o", str(shared)], check=True)
    own = HERE / f"{program}.cc"
    if out_of_date(out, [shared, own, *headers]):
        if program in ("faults", "exhaustive"):
            flags.append("-Wl,--wrap=calloc")
        if program in ("books", "exhaustive"):
            flags.append("-fno-access-control")
        command = [cxx, *flags, str(own), str(shared), "-pthread", "-o", str(out)]
        subprocess.run(command, check=True)
    return out


def out_of_date(made: Path, sources: list[Path]) -> bool:
    """Whether the file is missing, or older than one of its sources."""
    return not made.exists() or made.stat().st_mtime <= max(
        path.stat().st_mtime for path in sources
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.core", description=__doc__)
    parser.add_argument("--sanitize", choices=sorted(SANITIZERS), default="none")
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--build-folder", type=Path, default=HERE.parents[1] / "build" / "core")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="arguments of the program")
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
