"""How ports reach the core: through the calls that every caller has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PORTS = Path(__file__).parents[2] / "blockmgr" / "ports"
MODULES = sorted(path.relative_to(PORTS).as_posix() for path in PORTS.rglob("*.py"))

# Each makes a change of the core and one of its own within one instruction. What is public is
# Python, in which an exception from outside could come between the two.
REACHING = {
    *("aphrodite/caching.py", "aphrodite/moves.py", "aphrodite/pool_allocator.py"),
    *("aphrodite/pool_plans.py", "aphrodite/tracking.py", "commits.py"),
    *("nano_vllm/manager.py", "nano_vllm/tables.py"),
    *("radix/manager.py", "radix/paged.py", "radix/tree.py"),
    *("slots/allocator.py", "slots/prefixes.py", "tgi/allocator.py"),
}


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


def test_only_ports_that_change_two_books_at_once_reach_the_core() -> None:
    """And each of these does: one that no longer does is taken off the list."""
    reaching = {
        module
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and node.attr == "_core"
    }
    assert reaching == REACHING
