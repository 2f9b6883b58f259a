"""Every command with a result can print it as JSON, and its help fits 80 columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockmgr.cli import cli
from tests.cli.conftest import Run

SMALL = ("parallel-sampling", "--capacity", "20%")
RUNS = {
    "doctor": ((), {"blockmgr", "python"}),
    "explain": (SMALL, {"query_tokens"}),
    "replay": (SMALL, {"results", "config"}),
    "show": (SMALL, {"blocks_by_state", "sequences", "hit_rate", "command"}),
    "sweep": (("parallel-sampling", "--capacities", "20%", "--jobs", "1"), {"results"}),
    "workload": (("few-shot",), {"requests"}),
}
HAVE_TESTS_OF_THEIR_OWN = {"fleet", "generate", "plan"}
NO_RESULT = {"index"}  # it runs a server


@pytest.mark.parametrize("name", RUNS)
def test_a_result_is_json_with_its_facts(run: Run, name: str) -> None:
    words, facts = RUNS[name]
    result = run(name, *words, "--json")
    assert result.exit_code == 0, result.stderr
    assert facts <= set(json.loads(result.stdout))


def test_the_numbers_of_a_report_are_json(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    where = ("--jobs", "1", "-o", tmp_path / "page.html", "--policies", "lru")
    result = run("report", "parallel-sampling", "--capacities", "20%", *where, "--json")
    assert result.exit_code == 0, result.stderr
    assert {"results", "outcomes"} <= set(json.loads(result.stdout))


def test_every_command_has_the_option() -> None:
    has = {
        name
        for name, command in cli.commands.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert has == set(cli.commands) - NO_RESULT
    assert has == {*RUNS, *HAVE_TESTS_OF_THEIR_OWN, "report"}


@pytest.mark.parametrize("name", ["", *cli.commands, "index serve"])
def test_help_fits_80_columns(run: Run, name: str) -> None:
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
