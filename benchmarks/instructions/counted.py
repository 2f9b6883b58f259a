"""Builds the counted programs, runs them under callgrind and reads the counts.

Counts must depend on nothing but the code. So every run has a fixed environment, which keeps the
stack in place, and glibc uses only functions that every x86-64 processor has. Otherwise its choice
of a copy function depends on the processor, and callgrind counts each byte of some of them.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["Count", "calls", "core", "python", "toolchain"]

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
CORE = REPOSITORY / "blockmgr" / "csrc"
BUILD = REPOSITORY / "build" / "instructions"
# Names of glibc 2.33 and later, then of earlier ones; glibc ignores an unknown name.
ANY_PROCESSOR = "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM"


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions for one unit of what a case counts."""

    name: str
    instructions: float
    unit: str


def toolchain() -> str:
    """What counts depend on: the compiler, the C library and the processor's instruction set."""
    version = _output([_compiler(), "-dumpfullversion", "-dumpversion"])
    return (
        f"{Path(_compiler()).name} {version}, {' '.join(platform.libc_ver())}, {os.uname().machine}"
    )


def python() -> str:
    """The interpreter, on which counts through the bindings depend as well."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def flags() -> list[str]:
    """The compiler flags of the wheel: those of a CMake release, and those of the core."""
    text = (CORE / "CMakeLists.txt").read_text(encoding="utf-8")
    [own] = re.findall(r"target_compile_options\(blockmgr_core PRIVATE\s+([^)]*)\)", text)
    optimize = re.findall(r"set\(BLOCKMGR_OPTIMIZE ([^)]*)\)", text)[0]  # as users build it
    own = own.replace("${BLOCKMGR_OPTIMIZE}", optimize)
    return ["-std=gnu++20", "-O3", "-DNDEBUG", "-fPIC", *own.split()]


def core() -> list[Count]:
    """Counts of the core without Python; the digest function is left out."""
    return _run([str(_build_core())])


def calls() -> list[Count]:
    """Counts of calls from Python, including the interpreter's work and the digest."""
    command = [sys.executable, "-X", "frozen_modules=on", "-P", str(HERE / "calls.py")]
    return _run([*command, str(_build_marks())])


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def _policies() -> str:
    # Read from the source: the build under test may differ from the installed package.
    module = ast.parse((CORE.parent / "config.py").read_text(encoding="utf-8"))
    [names] = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EVICTION_POLICIES"
    ]
    return ",".join(f'"{name}"' for name in ast.literal_eval(names))


def _build_core() -> Path:
    """The core as one unit, as in the wheel, and the program beside it."""
    unit = BUILD / "unit.cc"
    sources = sorted(path for path in CORE.glob("*/*.cc") if path.parent.name != "bindings")
    BUILD.mkdir(parents=True, exist_ok=True)
    unit.write_text("".join(f'#include "{path}"\n' for path in sources), encoding="utf-8")
    objects = [BUILD / "unit.o", BUILD / "core.o"]
    names = f"-DBLOCKMGR_POLICIES={_policies()}"
    for source, target in zip((unit, HERE / "core.cc"), objects, strict=True):
        _compile([*flags(), names, f"-I{CORE}", "-c", str(source), "-o", str(target)])
    program = BUILD / "core"
    _compile([*map(str, objects), "-o", str(program)])
    return program


def _build_marks() -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    library = BUILD / "marks.so"
    _compile(["-O2", "-fPIC", "-shared", str(HERE / "marks.cc"), "-o", str(library)])
    return library


def _compile(arguments: list[str]) -> None:
    subprocess.run([_compiler(), *arguments], check=True)


def _run(command: list[str]) -> list[Count]:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit("valgrind is not installed, but counting needs it")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = ["--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}"]
        # Nothing that differs between folders may reach the program: its path, its working folder
        # and its environment are fixed.
        environment = {"GLIBC_TUNABLES": ANY_PROCESSOR, "PYTHONHASHSEED": "0"}
        result = subprocess.run(
            [valgrind, "-q", *options, *command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        lines = [line.split("\t") for line in result.stdout.splitlines()]
        return [
            Count(name, _instructions(out.with_name(f"out.{part}"), name) / int(number), unit)
            for part, (name, number, unit) in enumerate(lines, start=1)
        ]


def _instructions(dump: Path, name: str) -> int:
    text = dump.read_text(encoding="utf-8")
    assert f"desc: Trigger: Client Request: {name}\n" in text, f"{dump} is not that of {name}"
    [total] = re.findall(r"^summary: (\d+)$", text, flags=re.MULTILINE)
    return int(total)
