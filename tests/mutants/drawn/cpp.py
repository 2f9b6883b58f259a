"""The places in a C++ file that can be mutated, according to its grammar.

tree-sitter parses the file. Left out: comments, string literals, the argument of a ``throw``,
static assertions, preprocessor lines, and code that the parser does not understand (macros between
string literals, bit-fields with a default); ``not_understood`` counts those lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from tests.mutants.drawn.site import Site, numbered, site

Change = tuple[int, int, bytes]

RELATIONS = {
    b"<": b"<=", b"<=": b"<", b">": b">=", b">=": b">", b"==": b"!=", b"!=": b"==",
}  # fmt: skip
ORDERED = {b"<", b"<=", b">", b">="}
SUMS = {b"+": b"-", b"-": b"+", b"+=": b"-=", b"-=": b"+="}
LOGIC = {b"&&": b"||", b"||": b"&&"}
STEPS = {b"++": b"--", b"--": b"++"}
LIMITS = {b"min": b"max", b"max": b"min"}
SKIPPED = {
    "comment", "string_literal", "raw_string_literal", "concatenated_string", "char_literal",
    "static_assert_declaration", "preproc_include", "preproc_def", "preproc_function_def",
    "preproc_call", "preproc_defined", "throw_statement", "attribute_declaration", "ERROR",
}  # fmt: skip
SIGNATURE = b"nb::sig("
SCOPES = {"class_specifier", "struct_specifier", "enum_specifier"}


@cache
def parser() -> Parser:
    return Parser(Language(tree_sitter_cpp.language()))


def text(node: Node) -> bytes:
    assert node.text is not None
    return node.text


def replaced(node: Node, by: bytes) -> Change:
    return node.start_byte, node.end_byte, by


def of_operator(node: Node, table: dict[bytes, bytes]) -> Iterator[Change]:
    """The operator of a binary expression, an assignment or an update."""
    operator = node.child_by_field_name("operator")
    if operator is not None and text(operator) in table:
        yield replaced(operator, table[text(operator)])


def relation(node: Node) -> Iterator[Change]:
    if node.type == "binary_expression":
        yield from of_operator(node, RELATIONS)


def arithmetic(node: Node) -> Iterator[Change]:
    if node.type in ("binary_expression", "assignment_expression"):
        yield from of_operator(node, SUMS)


def logic(node: Node) -> Iterator[Change]:
    if node.type == "binary_expression":
        yield from of_operator(node, LOGIC)


def step(node: Node) -> Iterator[Change]:
    if node.type == "update_expression":
        yield from of_operator(node, STEPS)


def constant(node: Node) -> Iterator[Change]:
    """Replaces a number by one more and by one less."""
    if node.type == "number_literal":
        yield replaced(node, b"(" + text(node) + b" + 1)")
        yield replaced(node, b"(" + text(node) + b" - 1)")


def bound(node: Node) -> Iterator[Change]:
    """Changes the right side of a comparison by one, unless it is a number."""
    operator = node.child_by_field_name("operator")
    right = node.child_by_field_name("right")
    if node.type != "binary_expression" or operator is None or right is None:
        return
    if text(operator) in ORDERED and right.type != "number_literal":
        yield replaced(right, b"((" + text(right) + b") + 1)")
        yield replaced(right, b"((" + text(right) + b") - 1)")


def condition(node: Node) -> Iterator[Change]:
    """Negates a condition."""
    if node.type in ("for_statement", "conditional_expression"):
        value = node.child_by_field_name("condition")
    elif node.type == "condition_clause":
        value = node.child_by_field_name("value")
    else:
        return
    if value is not None and value.type != "declaration":
        yield replaced(value, b"!(" + text(value) + b")")


def statement(node: Node) -> Iterator[Change]:
    """Drops a call, an assignment, an increment or a throw."""
    if node.type == "throw_statement" or (
        node.type == "expression_statement"
        and node.named_child_count
        and node.named_children[0].type
        in ("call_expression", "assignment_expression", "update_expression")
    ):
        yield replaced(node, b";")


def jump(node: Node) -> Iterator[Change]:
    """Drops a break, a continue, or a return that is followed by more of the function."""
    leaves = node.type in ("break_statement", "continue_statement")
    if leaves or (node.type == "return_statement" and followed(node)):
        yield replaced(node, b";")


def followed(node: Node) -> bool:
    """Whether a statement comes after this one or after one around it, in the same function."""
    while node.type not in ("function_definition", "lambda_expression"):
        parent = node.parent
        if parent is None:
            return False
        siblings = [child for child in parent.named_children if child.type != "comment"]
        if parent.type in ("compound_statement", "case_statement") and siblings[-1] != node:
            return True
        node = parent
    return False


def boolean(node: Node) -> Iterator[Change]:
    if node.type in ("true", "false"):
        yield replaced(node, b"false" if node.type == "true" else b"true")


def arguments(node: Node) -> Iterator[Change]:
    """Swaps two adjacent arguments of a call; the compiler refuses different types.

    Annotations of the extension's functions are left out, because their order is irrelevant.
    """
    if node.type != "argument_list":
        return
    given = [child for child in node.named_children if child.type != "comment"]
    for one, other in pairwise(given):
        if text(one).startswith(SIGNATURE) or text(other).startswith(SIGNATURE):
            continue
        between = text(node)[one.end_byte - node.start_byte : other.start_byte - node.start_byte]
        if text(one) != text(other):
            yield one.start_byte, other.end_byte, text(other) + between + text(one)


def limit(node: Node) -> Iterator[Change]:
    if node.type in ("identifier", "field_identifier") and text(node) in LIMITS:
        yield replaced(node, LIMITS[text(node)])


OPERATORS: dict[str, Callable[[Node], Iterator[Change]]] = {
    operator.__name__: operator
    for operator in (
        relation, arithmetic, logic, step, constant, bound, condition, statement, jump, boolean,
        arguments, limit,
    )
}  # fmt: skip


def function_of(node: Node) -> str:
    """Names of the classes and functions around a node, as far as the file has them."""
    names: list[str] = []
    above: Node | None = node
    while above is not None:
        if above.type == "function_definition":
            declarator = above.child_by_field_name("declarator")
            while declarator is not None and declarator.type != "function_declarator":
                inner = declarator.child_by_field_name("declarator")
                declarator = inner or next(iter(declarator.named_children), None)
            name = declarator and declarator.child_by_field_name("declarator")
            names.append(text(name).decode() if name else "?")
        elif above.type in SCOPES and (name := above.child_by_field_name("name")):
            names.append(text(name).decode())
        above = above.parent
    return "::".join(reversed(names))


def walk(node: Node) -> Iterator[Node]:
    """Every node that may contain sites, outer ones first."""
    if node.is_missing:
        return
    yield node
    if node.type in SKIPPED:
        return
    skipped = node.child_by_field_name("condition") if node.type.startswith("preproc_") else None
    for child in node.children:
        if child != skipped:
            yield from walk(child)


def sites(path: Path, root: Path) -> list[Site]:
    """All sites of a file, in order."""
    source = path.read_bytes()
    file = str(path.relative_to(root))
    found = [
        site(source, file, function_of(node), name, change)
        for node in walk(parser().parse(source).root_node)
        if node.type == "throw_statement" or node.type not in SKIPPED
        for name, operator in OPERATORS.items()
        for change in operator(node)
    ]
    return numbered(sorted(found, key=lambda one: (one.start, one.end, one.operator, one.text)))


def not_understood(path: Path) -> int:
    """Lines of the file that its parser does not understand."""
    lines: set[int] = set()
    for node in walk(parser().parse(path.read_bytes()).root_node):
        if node.type == "ERROR":
            lines.update(range(node.start_point.row, node.end_point.row + 1))
    return len(lines)
