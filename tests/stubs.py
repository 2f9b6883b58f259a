"""The signatures of the extension, as ``blockmgr/_core.pyi`` has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import blockmgr

SOURCES = Path(blockmgr.__file__).parent


def functions(stub: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Each function of a stub, and each method as ``Class.method``."""
    for node in ast.parse(stub).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield f"{node.name}.{method.name}", method


@cache
def parameters() -> dict[str, list[str]]:
    """Names of the parameters of each function of the extension, by its qualified name."""
    stub = (SOURCES / "_core.pyi").read_text(encoding="utf-8")
    return {name: [a.arg for a in node.args.posonlyargs] for name, node in functions(stub)}
