"""Where a planted bug goes: a function, found by its name in all files, and a pattern in it.

So code may move to another file, or be formatted again, without an edit of a planted bug.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tree_sitter import Query, QueryCursor

from tests.mutants.drawn.cpp import function_of, parser
from tests.mutants.mutant import Mutant

PACKAGE = Path(__file__).parents[2] / "blockmgr"
CSRC = PACKAGE / "csrc"
TOKEN = re.compile(rb"\w+|[^\w\s]")
WORD = re.compile(rb"\w")
# Between two tokens, the code may have any white space, and comments to the end of a line.
GAP = {True: rb"(?:\s|#[^\n]*\n)*", False: rb"(?:\s|//[^\n]*\n)*"}
Span = tuple[Path, int, int]


def cpp_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """All functions of a file, such as ``Pool::forget``, with their first byte and their end."""
    grammar = parser()
    assert grammar.language is not None
    query = Query(grammar.language, "(function_definition) @function")
    found = QueryCursor(query).captures(grammar.parse(path.read_bytes()).root_node)
    for node in found.get("function", []):
        yield function_of(node), node.start_byte, node.end_byte


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """All functions and classes of a module, such as ``EventStream.take``."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, above: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{above}.{child.name}" if above else child.name
                assert child.end_lineno is not None
                yield name, starts[child.lineno - 1], starts[child.end_lineno]
            yield from visit(child, name)

    return visit(ast.parse(source), "")


@cache
def functions(python: bool) -> dict[str, list[Span]]:
    """All functions of the package's Python, or of its C++, by name; overloads have one name."""
    paths = PACKAGE.rglob("*.py") if python else (*CSRC.rglob("*.h"), *CSRC.rglob("*.cc"))
    found: dict[str, list[Span]] = defaultdict(list)
    for path in sorted(paths):
        for name, start, end in (python_functions if python else cpp_functions)(path):
            found[name].append((path, start, end))
    return found


def expression(pattern: str, python: bool) -> re.Pattern[bytes]:
    """Matches the tokens of this pattern, whatever white space and comments are between them."""
    gap = GAP[python]
    tokens = TOKEN.findall(pattern.encode())
    return re.compile(gap.join(rb"\b%b\b" % t if WORD.match(t) else re.escape(t) for t in tokens))


def matches(function: str, pattern: str, python: bool) -> list[Span]:
    """Every occurrence of the pattern in functions of this name."""
    wanted = expression(pattern, python)
    return [
        (path, *one.span())
        for path, start, end in functions(python).get(function, [])
        for one in wanted.finditer(path.read_bytes(), start, end)
    ]


def planted(mutant: Mutant) -> tuple[Path, bytes]:
    """The file in which the bug is planted, and its content with the bug."""
    found = matches(mutant.function, mutant.before, mutant.python)
    if len(found) != 1:
        where = f"{mutant.function} has {mutant.before!r}"
        raise ValueError(f"{mutant.name}: {where} {len(found)} times, not once")
    path, start, end = found[0]
    source = path.read_bytes()
    return path, source[:start] + mutant.after.encode() + source[end:]
