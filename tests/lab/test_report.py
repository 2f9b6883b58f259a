"""Printed output: plain lines for programs, and JSON that is the same in every run."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich import box
from rich.table import Table

from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.report import (
    Provenance,
    as_json,
    environment,
    print_facts,
    print_study,
    print_table,
)
from blockmgr.lab.study import Study, parse_capacities, study
from blockmgr.lab.workloads import generate

PROVENANCE = Provenance(command="blockmgr replay --seed 1", seed=1)


class Terminal(StringIO):
    """A file that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def outcome() -> Study:
    trace = generate("chat", 1, conversations=10)
    return study(trace, parse_capacities("50%,800"), ReplayConfig(block_size=8))


def test_the_table_is_plain_aligned_lines_without_a_terminal(outcome: Study) -> None:
    file = StringIO()

    print_study(outcome, file)

    title, heading, *rows = file.getvalue().splitlines()
    assert title.startswith("chat: 48 requests, ")
    assert heading.split()[:4] == ["capacity", "blocks", "hit", "rate"]
    assert heading.endswith("host us/step")
    assert [row.split()[0] for row in rows] == ["50%", "800", "unbounded"]
    assert len({row.index("%", 12) for row in rows}) == 1
    assert file.getvalue().isascii()
    assert all(line == line.rstrip() for line in file.getvalue().splitlines())

    for row, result in zip(rows, outcome.results, strict=False):
        assert row.split()[1:4] == [
            f"{result.num_blocks:,}",
            f"{result.hit_rate:.2%}",
            f"{result.evictions:,}",
        ]
    assert rows[-1].split() == ["unbounded", f"{outcome.attainable.hit_rate:.2%}"]


def test_rejected_requests_get_a_column_of_their_own() -> None:
    trace = generate("chat", 1, conversations=2)
    file = StringIO()
    print_study(study(trace, parse_capacities("9,100%"), ReplayConfig()), file)
    _, heading, small, large, _ = file.getvalue().splitlines()
    assert heading.split()[-1] == "rejected"
    assert small.split()[-1] == str(len(trace.requests))
    assert large.split()[-1] == "0"


@pytest.mark.parametrize("columns", ["80", "30"])
def test_no_terminal_is_too_narrow_for_the_numbers(
    outcome: Study, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", columns)
    file = Terminal()
    print_study(outcome, file)
    for result in outcome.results:
        assert f"{result.hit_rate:.2%}" in file.getvalue()
        assert f"{result.evictions:,}" in file.getvalue()
    assert "…" not in file.getvalue()


def test_a_terminal_gets_colour_unless_it_said_no(
    outcome: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()

    print_study(outcome, coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    print_study(outcome, plain)

    assert "\x1b[1;36m" in coloured.getvalue()
    assert "\x1b" not in plain.getvalue()
    for result in outcome.results:
        assert f"{result.hit_rate:.2%}" in plain.getvalue()


def test_json_holds_every_count_and_nothing_that_changes_by_itself(outcome: Study) -> None:
    text = as_json(outcome, PROVENANCE)

    document = json.loads(text)
    assert json.dumps(document, indent=2, sort_keys=True) == text
    assert "host" not in text
    assert document["seed"] == 1
    assert document["command"] == "blockmgr replay --seed 1"
    assert document["attainable"]["hit_rate"] == outcome.attainable.hit_rate
    assert document["working_set_blocks"] == outcome.attainable.working_set_blocks
    assert document["config"]["block_size"] == 8
    for entry, result in zip(document["results"], outcome.results, strict=True):
        assert entry["hit_tokens"] == result.hit_tokens
        assert entry["evictions"] == result.evictions
        assert entry["hit_rate"] == result.hit_rate
    assert [entry["capacity"] for entry in document["results"]] == ["50%", "800"]


def test_the_environment_names_versions_extras_and_device() -> None:
    facts = dict(environment())
    for name in ("blockmgr", "python", "platform", "numpy", "xxhash", "torch", "triton", "device"):
        assert facts[name]
    assert "click" in facts["extra cli"]


def test_the_environment_names_the_compiler_and_vllm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "own-c++"
    compiler.write_text("#!/bin/sh\necho 'own compiler 1.2'; echo more\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert dict(environment())["compiler"] == "own compiler 1.2"
    monkeypatch.setenv("CXX", "a-compiler-that-does-not-exist")
    facts = dict(environment())
    assert facts["compiler"] == "not installed; a build from source needs one"
    assert facts["vllm"]


def test_the_environment_says_how_to_get_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockmgr.lab.report.EXTRAS", {"plot": ("a-package-that-does-not-exist",)})
    hint = "in a clone of blockmgr: pip install '.[plot]'"
    expected = f"a-package-that-does-not-exist not installed; {hint}"
    file = StringIO()

    print_facts(environment(), file)

    assert dict(environment())["extra plot"] == expected
    # Brackets are markup for rich, and would disappear.
    assert expected in file.getvalue()
    assert len(file.getvalue().splitlines()) == len(environment())


@pytest.mark.parametrize("columns", [79, 80, 81])
def test_a_table_that_only_fits_without_its_edge_is_drawn_without_it(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """A table as wide as that of a sweep: 81 columns with an edge, 79 without."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", str(columns))
    table = Table(box=box.SIMPLE, padding=0)
    table.add_column("two\nlines")
    table.add_column("x" * 73)
    table.add_row("1", "2")
    file = Terminal()
    print_table(table, file)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == ["two"] or lines[1].split() == ["two"]
    assert any("─" in line for line in lines)
