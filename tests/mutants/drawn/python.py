"""The places in a Python module that can be mutated, with the operators of cosmic-ray.

Left out: annotations, docstrings, ``__all__``, code for type checkers only, kernels, which Python
does not run, code that draws pictures, whose appearance no test fixes, ports of engines that are
not installed, and swaps of ``is`` with ``==``, which are equal for ``None`` and enumerations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

from tests.mutants.drawn.site import Site, numbered, on_one_line

LEFT_OUT = (
    "kv/copy_kernels.py",
    "kv/write_triton.py",
    "lab/page/",
    "lab/block_map.py",
    "lab/plot.py",
)
# Ports whose tests need the engine, except for these modules.
ENGINES = {
    "ports/vllm/": ("vllm", "ports/vllm/options.py"),
    "ports/sglang/": ("sglang", "ports/sglang/keys.py"),
}
SAME = re.compile(r"_(Is|IsNot)_(Eq|NotEq)$|_(Eq|NotEq)_(Is|IsNot)$")
FAMILY = re.compile(r"core/(Replace(?:Binary|Comparison|Unary)Operator)?(.*)")


@cache
def operators() -> dict[str, Operator]:
    """Operators by cosmic-ray's name, without those that need arguments."""
    found = {name: get_operator(name) for name in sorted(operator_names())}
    return {
        name: kind()
        for name, kind in found.items()
        if not kind.arguments() and not SAME.search(name)
    }


def modules(package: Path) -> list[Path]:
    """All modules except kernels, pictures and ports of missing engines."""
    found = {p.relative_to(package).as_posix(): p for p in sorted(package.rglob("*.py"))}
    return [p for name, p in found.items() if not name.startswith(LEFT_OUT) and has_engine(name)]


def has_engine(name: str) -> bool:
    """Whether this module's tests can be run here."""
    return all(
        not name.startswith(folder) or name == alone or find_spec(engine) is not None
        for folder, (engine, alone) in ENGINES.items()
    )


def silent(tree: ast.Module) -> set[tuple[int, int]]:
    """Starts of all expressions that are never evaluated, as lines and columns."""
    unread: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            unread.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            unread += [node.returns] if node.returns else []
            unread += [d for d in node.decorator_list if ast.unparse(d) == "overload"]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            unread += [node.test, *node.body]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            unread.append(node)
    return {spot for node in unread for spot in spots(node)}


def spots(node: ast.AST) -> Iterator[tuple[int, int]]:
    """Lines and columns that an expression covers."""
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    for line in range(node.lineno, node.end_lineno + 1):
        first = node.col_offset if line == node.lineno else 0
        last = node.end_col_offset if line == node.end_lineno else 200
        for column in range(first, last):
            yield line, column


def below(start: tuple[int, int]) -> tuple[int, int]:
    return start[0], start[1] + 1


def functions(tree: ast.Module) -> dict[int, str]:
    """The name of the innermost function or class around each line."""
    names: dict[int, str] = {}

    def visit(node: ast.AST, above: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{above}.{child.name}" if above else child.name
                assert child.end_lineno is not None
                for line in range(child.lineno, child.end_lineno + 1):
                    names[line] = name
            visit(child, name)

    visit(tree, "")
    return names


def sites(path: Path, root: Path) -> list[Site]:
    """All sites of a module, in order."""
    source = path.read_text()
    lines = source.splitlines()
    tree = ast.parse(source)
    unread, around = silent(tree), functions(tree)
    file = str(path.relative_to(root))
    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name, operator in operators().items():
        match = FAMILY.fullmatch(name)
        assert match is not None
        family = match[1] or match[2]
        places = (place for node in nodes for place in operator.mutation_positions(node))
        for occurrence, (start, _) in enumerate(places):
            # The position of a decorator is its at sign, one column before that in the syntax tree.
            if start in unread or (name.endswith("RemoveDecorator") and below(start) in unread):
                continue
            line = start[0]
            before = on_one_line(lines[line - 1].encode())
            after = name.removeprefix("core/")
            position = (line, start[1], occurrence)
            found.append(
                (
                    position,
                    Site(
                        file,
                        around.get(line, ""),
                        family,
                        line,
                        occurrence,
                        0,
                        name.encode(),
                        before,
                        after,
                    ),
                )
            )
    found.sort(key=lambda entry: (entry[0][:2], entry[1].after, entry[0]))
    return numbered(one for _, one in found)


def planted(site: Site, source: str) -> str:
    """The module with the change."""
    changed = mutate_code(source, operators()[site.text.decode()], site.start)
    if changed is None:
        raise ValueError(f"{site.name}: no such place")
    return str(changed)
