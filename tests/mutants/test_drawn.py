"""Random mutants: the possible changes, their order, and what counts as found."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_cpp", reason="dependency group test-mutants")
pytest.importorskip("cosmic_ray", reason="dependency group test-mutants")

from tests.mutants.drawn import cpp, python
from tests.mutants.drawn.chosen import tests_of as chosen_tests
from tests.mutants.drawn.outcome import run
from tests.mutants.drawn.site import Site, drawn
from tests.mutants.drawn.verdicts import (
    FILE,
    KILLED,
    SAME,
    SURVIVED,
    Result,
    Verdict,
    balance,
    read,
)

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "blockmgr" / "csrc"


def sites_of(text: str, folder: Path, name: str = "code.cc") -> list[Site]:
    file = folder / name
    file.write_text(text)
    return (cpp if name.endswith(".cc") else python).sites(file, folder)


def bodies(text: str, operator: str, folder: Path) -> set[str]:
    """All results of applying an operator to the body of a function."""
    before, after = b"void f() { ", b" }"
    source = before + text.encode() + after
    found = sites_of(source.decode(), folder)
    return {
        one.planted(source)[len(before) : -len(after)].decode()
        for one in found
        if one.operator == operator
    }


@pytest.mark.parametrize(
    ("operator", "body", "mutants"),
    [
        ("relation", "a = b < c;", {"a = b <= c;"}),
        ("relation", "a = b == c;", {"a = b != c;"}),
        ("arithmetic", "a = b + c;", {"a = b - c;"}),
        ("arithmetic", "a += b;", {"a -= b;"}),
        ("constant", "a = 7;", {"a = (7 + 1);", "a = (7 - 1);"}),
        ("bound", "a = b < c;", {"a = b < ((c) + 1);", "a = b < ((c) - 1);"}),
        ("bound", "a = b < 7;", set()),
        ("logic", "a = b && c;", {"a = b || c;"}),
        ("condition", "if (a) b();", {"if (!(a)) b();"}),
        ("condition", "for (; a; ++b) c();", {"for (; !(a); ++b) c();"}),
        ("condition", "a = b ? c : d;", {"a = !(b) ? c : d;"}),
        ("statement", "a(b);", {";"}),
        ("statement", "int a = b; a = c; ++a;", {"int a = b; ; ++a;", "int a = b; a = c; ;"}),
        ("statement", "throw a;", {";"}),
        ("jump", "if (a) return; b();", {"if (a) ; b();"}),
        ("jump", "if (a) { b(); return; }", set()),
        ("jump", "while (a) break;", {"while (a) ;"}),
        ("jump", "while (a) { continue; }", {"while (a) { ; }"}),
        ("boolean", "a = true;", {"a = false;"}),
        ("arguments", "a(b, c, d);", {"a(c, b, d);", "a(b, d, c);"}),
        ("arguments", "a(b, b);", set()),
        ("limit", "a = std::min(b, c);", {"a = std::max(b, c);"}),
        ("step", "++a;", {"--a;"}),
    ],
)
def test_an_operator_of_cpp_makes_these_and_no_others(
    operator: str, body: str, mutants: set[str], tmp_path: Path
) -> None:
    assert bodies(body, operator, tmp_path) == mutants


@pytest.mark.parametrize(
    "text",
    [
        "// a < 1 && b",
        "/* f(1, 2); */",
        'const char* a = "1 < 2";',
        "const char a = '1';",
        "static_assert(sizeof(int) == 4);",
        '#include "a1.h"',
        "#define A 1",
        "#if A == 1\n#endif",
        'void f() { if (a) throw Error("at " + b(1, 2)); }',
    ],
)
def test_what_does_not_run_has_no_place_for_a_mutant(text: str, tmp_path: Path) -> None:
    left = [
        one for one in sites_of(text, tmp_path) if one.operator not in ("condition", "statement")
    ]
    assert left == []


def test_a_mutant_of_several_lines_leaves_the_lines_below_where_they_were(tmp_path: Path) -> None:
    source = b"void f() {\n  g(a,\n    b);\n  h();\n}\n"
    [dropped] = [
        one
        for one in sites_of(source.decode(), tmp_path)
        if one.operator == "statement" and "g(" in one.before
    ]
    assert dropped.planted(source) == b"void f() {\n  ;\n\n  h();\n}\n"


def test_names_hold_the_function_and_the_text_and_no_line_number(tmp_path: Path) -> None:
    text = "namespace n {\nstruct S {\n  int f() const { return a + b; }\n};\n}\n"
    [before] = [s for s in sites_of(text, tmp_path) if s.operator == "arithmetic"]
    [after] = [s for s in sites_of("\n\n" + text, tmp_path) if s.operator == "arithmetic"]
    assert before.name == (
        "code.cc::S::f [arithmetic] int f() const { return a + b; } => "
        "int f() const { return a - b; }"
    )
    assert (after.name, after.line) == (before.name, before.line + 2)


def test_the_same_text_twice_has_two_names(tmp_path: Path) -> None:
    found = sites_of("void f() {\n  ++a;\n  ++a;\n}\n", tmp_path)
    assert len({one.name for one in found}) == len(found) == 4


CODE = "int f() {\n  int a = b + c;\n  if (a < d) e(a, d);\n  return a - 1;\n}\n"


def test_a_seed_draws_the_same_mutants_again_and_another_seed_others(tmp_path: Path) -> None:
    found = sites_of(CODE, tmp_path)
    once, again, other = ([s.name for s in drawn(found, seed)] for seed in (1, 1, 2))
    assert once == again != other
    assert sorted(once) == sorted(other) == sorted(one.name for one in found)


def test_no_line_is_drawn_again_before_all_others(tmp_path: Path) -> None:
    lines = [one.line for one in islice(drawn(sites_of(CODE, tmp_path), 5), 3)]
    assert sorted(lines) == [2, 3, 4]


def test_a_change_elsewhere_leaves_the_order_as_it_was(tmp_path: Path) -> None:
    more = "int g() {\n  return h(1, 2) + 3;\n}\n"
    alone = [one.name for one in drawn(sites_of(CODE, tmp_path), 3)]
    beside = [one.name for one in drawn(sites_of(more + CODE, tmp_path), 3)]
    assert [name for name in beside if "::f " in name] == alone


def test_every_mutant_of_the_core_changes_its_file_and_has_a_name_of_its_own() -> None:
    names = set()
    total = 0
    for path in sorted(CSRC.glob("*/*.cc"))[::4] + sorted(CSRC.glob("*/*.h"))[::5]:
        source = path.read_bytes()
        for one in cpp.sites(path, ROOT):
            changed = one.planted(source)
            assert changed != source
            assert changed.count(b"\n") == source.count(b"\n")
            names.add(one.name)
            total += 1
    assert len(names) == total


def test_the_parser_understands_all_of_the_core_and_nearly_all_of_the_bindings() -> None:
    lost = {path: cpp.not_understood(path) for path in CSRC.glob("*/*.*")}
    # Signatures made of string literals and macros; in headers, a bit-field with a default.
    assert not [
        path
        for path in lost
        if lost[path] and path.suffix == ".cc" and path.parent.name != "bindings"
    ]
    assert sum(lost.values()) < 80


def test_python_is_mutated_where_it_runs(tmp_path: Path) -> None:
    text = (
        '__all__ = ["f"]\n'
        "def f(a: int | None, *, b: int = 1) -> int | None:\n"
        '    """One + one."""\n'
        "    return a + b\n"
    )
    found = sites_of(text, tmp_path, "code.py")
    assert {one.line for one in found} == {2, 4}
    sums = [one for one in found if one.line == 4]
    assert {one.operator for one in sums} == {"ReplaceBinaryOperator"}
    assert "return a - b" in {python.planted(one, text).splitlines()[3].strip() for one in sums}


def test_an_overload_is_for_type_checkers_alone(tmp_path: Path) -> None:
    text = "@overload\ndef f(a): ...\n@cache\ndef f(a): ...\n"
    assert {(one.line, one.operator) for one in sites_of(text, tmp_path, "code.py")} == {
        (3, "RemoveDecorator")
    }


def test_every_module_has_tests_that_exist() -> None:
    for path in [*python.modules(ROOT / "blockmgr"), *CSRC.glob("*/*.cc"), *CSRC.glob("*/*.h")]:
        for entry in (tests := chosen_tests(str(path.relative_to(ROOT)))):
            files = [word.split("=")[-1] for word in entry.split() if word != "--deselect"]
            assert all((ROOT / file).exists() for file in files), entry
        assert tests


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("pass", ""),
        ("raise SystemExit(1)", "failed"),
        ("import os; os.abort()", "crashed"),
        ("while True: pass", "endless"),
    ],
)
def test_a_run_says_how_a_bug_was_found(program: str, how: str, tmp_path: Path) -> None:
    outcome = run([sys.executable, "-c", program], 1, 1 << 30, tmp_path)
    assert (outcome.how, outcome.found) == (how, bool(how))


def test_a_run_that_says_nothing_of_the_bug_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ended with 7"):
        run([sys.executable, "-c", "raise SystemExit(7)"], 1, 1 << 30, tmp_path)


def result(name: str, state: str) -> Result:
    return Result(name, "core", "relation", 1, state)


def test_the_rate_leaves_out_what_is_equivalent_and_what_does_not_compile() -> None:
    found = balance(
        [
            *(result(f"k{i}", KILLED) for i in range(3)),
            result("same", SAME),
            result("like", SURVIVED),
            result("gap", SURVIVED),
            result("new", SURVIVED),
        ],
        {"like": Verdict("equivalent", "it is"), "gap": Verdict("missed", "so far")},
    )
    assert (found.equivalent, found.missed, found.unjudged) == (["like"], ["gap"], ["new"])
    assert (found.killed, found.counted, found.rate) == (3, 5, 0.6)


def test_a_verdict_on_a_mutant_that_is_killed_is_reported() -> None:
    found = balance([result("k", KILLED)], {"k": Verdict("equivalent", "a reason")})
    assert found.misjudged == ["k"]


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ('name = "a"\nverdict = "equivalent"', "a name, a verdict and why"),
        ('name = "a"\nverdict = "equivalent"\nwhy = " "', "a name, a verdict and why"),
        ('name = "a"\nverdict = "perhaps"\nwhy = "b"', "verdict is 'perhaps'"),
    ],
)
def test_a_verdict_says_why(entry: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "survivors.toml"
    file.write_text(f"[[survivor]]\n{entry}\n")
    with pytest.raises(ValueError, match=match):
        read(file)


def test_the_verdicts_in_the_tree_can_be_read() -> None:
    assert all(verdict.why for verdict in read(FILE).values())
