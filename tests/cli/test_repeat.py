"""The command that each run prints to repeat it: it runs, and gives the same."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

SMALL = ("--workload", "parallel-sampling", "--seed", "3")
SHAPE = ("--layers", "2", "--kv-heads", "2", "--head-size", "64", "--dtype", "bfloat16")
COMMANDS = {
    "replay": ("replay", *SMALL, "--capacity", "10%,300", "--eviction", "arc"),
    "sweep": ("sweep", *SMALL, "--capacities", "20%,1500", "--policies", "lru,arc", "--jobs", "1"),
    "fleet": ("fleet", *SMALL, "--replicas", "2", "--capacity", "30%", "--jobs", "1"),
    "plan": ("plan", *SMALL, "--hit-rate", "20%", "--block-size", "16,64", *SHAPE),
    "explain": ("explain", *SMALL, "--capacity", "20%"),
    "show": ("show", *SMALL, "--at", "1/3"),
    "workload": ("workload", "chat", "--seed", "3"),
}


def without_times(text: str) -> list[str]:
    """The lines of a table without columns of host time, which differ."""
    return [
        " ".join(word for word in line.split() if "." not in word) for line in text.splitlines()
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_on_stderr_repeats_the_run(run: Run, name: str) -> None:
    first = run(*COMMANDS[name])
    assert first.exit_code == 0, first.stderr
    command = shlex.split(first.stderr.partition("repeat with: ")[2].splitlines()[0])
    assert command[:2] == ["blockmgr", name]
    again = run(*command[1:])
    assert again.exit_code == 0, again.stderr
    assert without_times(again.stdout) == without_times(first.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_in_the_json_repeats_the_run(run: Run, name: str) -> None:
    first = json.loads(run(*COMMANDS[name], "--json").stdout)
    command = shlex.split(first["command"])
    again = run(*command[1:])
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout) == first


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_report_is_repeated_into_the_same_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[Any, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "a page.html"
    first = run("report", *SMALL, "--policies", "lru", "-o", page, "--jobs", "1", *more)
    assert first.exit_code == 0, first.stderr
    command = shlex.split(first.stderr.partition("repeat with: ")[2].splitlines()[0])
    written = page.read_bytes()
    page.unlink()
    again = run(*command[1:])
    assert again.exit_code == 0, again.stderr
    assert again.stdout == first.stdout
    assert page.read_bytes() == written


def test_the_report_on_sessions_is_repeated(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": turn, "input_length": 512 * turn, "session_id": name, "output_length": 1}
        | {"hash_ids": [*range(100 * name, 100 * name + turn)]}
        for turn in range(1, 9)
        for name in range(5)
    ]
    (tmp_path / "named.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--policies", "lru", "--block-size", "512", "--hints", "tool", "--json")
    first = run("report", "named.jsonl", *options, "--capacity", "30%", "-o", "page.html")
    assert first.exit_code == 0, first.stderr
    written = (tmp_path / "page.html").read_bytes()
    assert b'id="sessions"' in written
    again = run(*shlex.split(json.loads(first.stdout)["command"])[1:])
    assert again.exit_code == 0, again.stderr
    assert (tmp_path / "report.html").read_bytes() == written


def test_the_command_on_a_page_writes_the_same_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ("report", *SMALL, "--policies", "lru", "--jobs", "1", "--json")
    shown = json.loads(run(*args, "-o", "first.html").stdout)["command"]
    again = run(*shlex.split(shown)[1:])
    assert again.exit_code == 0, again.stderr
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "first.html").read_bytes()
