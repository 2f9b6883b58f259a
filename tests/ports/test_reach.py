"""Ports use the core only through the public calls."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PORTS = Path(__file__).parents[2] / "blockmgr" / "ports"
MODULES = sorted(path.relative_to(PORTS).as_posix() for path in PORTS.rglob("*.py"))


def nodes(module: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse((PORTS / module).read_text(encoding="utf-8")))]


def imported(module: str) -> set[str]:
    """The last part of each name that a module imports."""
    found = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
            found.add((node.module or "").rpartition(".")[2])
    return found


@pytest.mark.parametrize("module", MODULES)
def test_no_port_imports_the_core(module: str) -> None:
    assert "_core" not in imported(module)


@pytest.mark.parametrize("module", MODULES)
def test_no_port_reaches_the_core_through_what_is_public(module: str) -> None:
    """For example through ``pool._core``."""
    reached = {node.attr for node in nodes(module) if isinstance(node, ast.Attribute)}
    assert "_core" not in reached
