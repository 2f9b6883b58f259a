"""No two files of the package import each other, directly or through others.

Import-linter's ``acyclic_siblings`` leaves out circles through the ``__init__`` of a package.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter

import pytest

grimp = pytest.importorskip("grimp", reason="needs import-linter: pip install --group lint")

# grimp sees no compiled module, so it takes the package for it.
CORE = re.compile(r"from blockmgr import _core|from blockmgr\._core import")


def imports() -> dict[str, set[str]]:
    """What each module imports, names of types included."""
    graph = grimp.build_graph("blockmgr", cache_dir=None)

    def is_core(importer: str, imported: str) -> bool:
        found = graph.get_import_details(importer=importer, imported=imported)
        return all(CORE.match(one["line_contents"]) for one in found)

    return {
        module: {
            other
            for other in graph.find_modules_directly_imported_by(module)
            if not is_core(module, other)
        }
        for module in graph.modules
    }


def circle(imports: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, each imported by the one before it; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])[::-1]
    return []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}) == []
    found = circle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()})
    assert found in (["b", "c", "b"], ["c", "b", "c"])


def test_no_imports_go_in_a_circle() -> None:
    assert circle(imports()) == []
