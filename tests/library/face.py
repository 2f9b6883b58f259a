"""The C interface from Python, by what its header declares."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

HEADER = (Path(__file__).parents[2] / "blockmgr" / "csrc" / "c" / "blockmgr.h").read_text("utf-8")
TYPES = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "size_t": ctypes.c_size_t}


def struct(name: str) -> type[ctypes.Structure]:
    """A struct of the header."""
    [body] = re.findall(rf"typedef struct {name} {{(.*?)}} {name};", HEADER, re.DOTALL)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    rows: list[tuple[str, Any]] = []
    for kind, stars, field, count in re.findall(
        r"(?:const )?(\w+)\s*(\*?)\s*(\w+)(?:\[(\d+)\])?;", body
    ):
        of_field: Any = ctypes.c_void_p if stars else TYPES.get(kind, ctypes.c_void_p)
        if kind.startswith("uint"):
            of_field = ctypes.c_void_p if stars else getattr(ctypes, f"c_{kind.removesuffix('_t')}")
        rows.append((field, of_field * int(count) if count else of_field))
    return type(name, (ctypes.Structure,), {"_fields_": rows})


def statuses() -> dict[str, int]:
    """The numbers that calls answer, by name without the prefix."""
    found = re.findall(r"\bBLOCKMGR_(\w+) = (\d+)[,\s]", HEADER.split("blockmgr_status;")[1])
    first: dict[str, int] = {}
    for name, number in found:
        first.setdefault(name, int(number))
    return first


def loaded(path: Path) -> ctypes.CDLL:
    """The shared library."""
    library = ctypes.CDLL(str(path))
    library.blockmgr_last_error.restype = ctypes.c_char_p
    return library


def text_of(library: ctypes.CDLL) -> str:
    """The text of the last refusal."""
    text: bytes = library.blockmgr_last_error()
    return text.decode()
