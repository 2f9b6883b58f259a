"""The check of instruction counts, tested on given counts without valgrind."""

from __future__ import annotations

import json

import pytest

from benchmarks.instructions import __main__ as guard
from benchmarks.instructions.counted import Count


def counts(**numbers: float) -> list[Count]:
    return [Count(name, number, "block") for name, number in numbers.items()]


@pytest.mark.parametrize("instructions", [98.1, 100, 101.9])
def test_a_count_within_two_percent_is_no_fault(instructions: float) -> None:
    assert guard.compare({"match": 100}, counts(match=instructions)) == []


def test_a_count_that_grew_is_named_with_both_numbers() -> None:
    [fault] = guard.compare({"match": 100, "free": 10}, counts(match=103, free=10))
    assert fault == "'match' grew 100.0 to 103.0, +3.0%"


def test_a_count_that_fell_is_a_fault_too_until_it_is_recorded() -> None:
    [fault] = guard.compare({"match": 100}, counts(match=97))
    assert "'match' fell" in fault


def test_a_case_without_a_counterpart_is_a_fault() -> None:
    faults = guard.compare({"match": 100}, counts(free=10))
    assert faults == ["'match' is kept, and not counted", "'free' is counted, and not kept"]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Runs the check on made-up counts of one toolchain, with a separate file."""
    path = tmp_path / "kept.json"
    monkeypatch.setattr(guard, "KEPT", path)

    def run(toolchain: str, match: float, *arguments: str) -> int:
        monkeypatch.setattr(guard, "part", lambda _: (toolchain, ["-O3"], counts(match=match)))
        monkeypatch.setattr("sys.argv", ["instructions", "--part", "core", *arguments])
        return guard.main()

    run("g++ 12", 100, "--record")
    assert json.loads(path.read_text())["core"]["g++ 12"]["counts"] == {"match": 100}
    return run


def test_check_passes_what_was_recorded(kept) -> None:
    assert kept("g++ 12", 100, "--check") == 0


def test_check_fails_on_growth(kept, capsys: pytest.CaptureFixture[str]) -> None:
    assert kept("g++ 12", 110, "--check") == 1
    assert "grew" in capsys.readouterr().err


def test_without_check_growth_is_only_shown(kept) -> None:
    assert kept("g++ 12", 110) == 0


def test_check_fails_loudly_where_no_counts_are_kept(
    kept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kept("g++ 15", 100, "--check") == 1
    error = capsys.readouterr().err
    assert "no counts of core are kept for g++ 15" in error
    assert "g++ 12" in error


def test_recording_for_one_compiler_keeps_the_others(kept) -> None:
    kept("g++ 15", 120, "--record")
    assert kept("g++ 12", 100, "--check") == 0
    assert kept("g++ 15", 120, "--check") == 0
