"""Every planted bug has its place, and the place is found wherever the code moves."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_cpp", reason="dependency group test-mutants")

from tree_sitter import Node

from tests.mutants import anchor
from tests.mutants.drawn.cpp import parser
from tests.mutants.mutant import Mutant
from tests.mutants.planted import CORE, EXTENSION, GROUPS, PYTHON

ALL = (*CORE, *EXTENSION, *GROUPS, *PYTHON)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_planted_bug_changes_one_place_into_code(mutant: Mutant) -> None:
    path, changed = anchor.planted(mutant)
    assert changed != path.read_bytes()
    if mutant.python:
        ast.parse(changed)
    else:  # the grammar does not understand some lines of the core either
        assert errors(changed) <= errors(path.read_bytes())


@cache
def errors(source: bytes) -> int:
    """The number of places that are no C++, for the parser."""

    def count(node: Node) -> int:
        return (node.is_error or node.is_missing) + sum(map(count, node.children))

    return count(parser().parse(source).root_node)


def test_no_two_planted_bugs_have_one_name() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL)


def found(code: str, function: str, pattern: str, folder: Path, python: bool = False) -> list[str]:
    """What the pattern matches in the functions of this name."""
    (folder / "code").write_text(code)
    read = anchor.python_functions if python else anchor.cpp_functions
    wanted = anchor.expression(pattern, python)
    source = code.encode()
    return [
        one[0].decode()
        for name, start, end in read(folder / "code")
        if name == function
        for one in wanted.finditer(source, start, end)
    ]


def test_a_pattern_is_found_however_the_code_is_wrapped(tmp_path: Path) -> None:
    code = "int S::f() {\n  return g(\n      a,  // first\n      b)\n      .size();\n}\n"
    assert len(found(code, "S::f", "g(a, b).size()", tmp_path)) == 1


def test_a_pattern_is_whole_words(tmp_path: Path) -> None:
    assert found("int f() { return is_used + used_too; }", "f", "used", tmp_path) == []
    assert found("int f() { return isused; }", "f", "is used", tmp_path) == []


def test_a_pattern_is_looked_for_in_its_function_only(tmp_path: Path) -> None:
    code = "int f() { return a; }\nstruct S {\n  int f() { return a; }\n};\nint g() { return a; }"
    assert found(code, "S::f", "return a;", tmp_path) == ["return a;"]


def test_overloads_are_one_function(tmp_path: Path) -> None:
    code = "int f(int a) { return a; }\nint f(long a) { return a + 1; }"
    assert found(code, "f", "return a + 1;", tmp_path) == ["return a + 1;"]
    assert found(code, "f", "return a", tmp_path) == ["return a"] * 2


def test_a_method_of_python_is_found_by_its_class(tmp_path: Path) -> None:
    code = "é = 1\ndef f():\n    a\nclass S:\n    def f(self):\n        a  # why\n        b\n"
    assert found(code, "S.f", "a b", tmp_path, python=True) == ["a  # why\n        b"]


@pytest.mark.parametrize(
    ("function", "before", "times"),
    [("Pool::no_such_function", "return", 0), ("Pool::pin", "no_such_word", 0)],
)
def test_a_bug_without_a_place_is_an_error(function: str, before: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"{times} times, not once"):
        anchor.planted(Mutant("a_bug", function, before, ""))
