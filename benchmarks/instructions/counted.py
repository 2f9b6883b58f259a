"""Builds what is counted, runs it under callgrind, and reads the counts.

Counts must be those of the code and of nothing else, so every run has an environment of its own,
which moves no stack, and glibc is told to use the functions that every x86-64 has: which of its
copies it takes otherwise depends on the processor, and that of the larger ones counts each byte.
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
# Of glibc 2.33 and newer, then older ones; a name that is unknown is ignored.
ANY_PROCESSOR = "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM"


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions for one of what a case counts."""

    name: str
    instructions: float
    unit: str


def toolchain() -> str:
    """The compiler, the C library and the processor's instruction set: what counts depend on."""
    version = _output([_compiler(), "-dumpfullversion", "-dumpversion"])
    return (
        f"{Path(_compiler()).name} {version}, {' '.join(platform.libc_ver())}, {os.uname().machine}"
    )


def python() -> str:
    """The interpreter, which counts through the bindings depend on as well."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def flags() -> list[str]:
    """Those of the wheel: what CMake adds to a release, and what the core asks for."""
    text = (CORE / "CMakeLists.txt").read_text(encoding="utf-8")
    [own] = re.findall(r"target_compile_options\(blockmgr_static PRIVATE\s+([^)]*)\)", text)
    optimize = re.findall(r"set\(BLOCKMGR_OPTIMIZE ([^)]*)\)", text)[0]  # as users build it
    own = own.replace("${BLOCKMGR_OPTIMIZE}", optimize)
    return ["-std=gnu++20", "-O3", "-DNDEBUG", "-fPIC", *own.split()]


def core() -> list[Count]:
    """Counts of the core without Python; the digest function is left out."""
    return _run([str(_build_core())])


def calls() -> list[Count]:
    """Counts of calls from Python, the interpreter's work and the digest included."""
    command = [sys.executable, "-X", "frozen_modules=on", "-P", str(HERE / "calls.py")]
    return _run([*command, str(_build_marks())])


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def _policies() -> str:
    # Read off the source: what is built here need not be what is installed.
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
        raise SystemExit("valgrind is not installed: counts cannot be taken without it")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = ["--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}"]
        # Everything that could differ from one folder to the next is taken from the program: where
        # it lies, where it runs, and its environment.
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
