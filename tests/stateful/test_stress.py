"""The stress program: a short run of each profile, repeatable by seed, and failure files."""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blockmgr import BlockManager
from blockmgr.config import EVICTION_POLICIES
from blockmgr.errors import TraceFormatError
from tests.specification.blocks import Block
from tests.specification.leaves import ModelLeaves
from tests.stress import __main__ as program
from tests.stress import command
from tests.stress.profiles import PROFILES
from tests.stress.run import Failure, Plan, stress
from tests.stress.shrink import read_case, shrink

OUTCOMES_WANTED = {
    ("admit", "OutOfBlocksError"),
    ("admit", "OutOfSequencesError"),
    ("admit", "NeverFitsError"),
    ("append", "OutOfBlocksError"),
    ("append", "SequenceStateError"),
    ("commit", "ValueError"),
    ("copies_aborted", "done"),
    ("complete", "done"),
    ("decode", "OutOfBlocksError"),
    ("decode", "SequenceStateError"),
    ("fork", "OutOfSequencesError"),
    ("free", "UnknownSequenceError"),
    ("preempt", "SequenceStateError"),
    ("reparent", "done"),
    ("reserve", "OutOfBlocksError"),
    ("resume", "OutOfBlocksError"),
    ("take_copies", "StepError"),
    ("take_remaps", "done"),
    ("truncate", "ValueError"),
}


class Forgetful(ModelLeaves):
    """Never copies a shared block before a write."""

    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        return num_tokens


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the command on a manager with or without a bug."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str, manager: Any = BlockManager) -> int:
        monkeypatch.setattr(command, "Plan", functools.partial(Plan, manager=manager))
        return program.main(list(args))

    return run


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_random_operations_agree_with_the_model_and_leave_memory_right(profile: str) -> None:
    outcome = stress(Plan(ops=400, seed=1, profiles=[profile]))
    assert outcome.ops[profile] == 400


@pytest.mark.parametrize("profile", sorted(set(PROFILES) - {"huge"}))
def test_random_operations_leave_books_and_memory_right(profile: str) -> None:
    outcome = stress(Plan(ops=500, seed=2, profiles=[profile], detectors="IK"))
    assert (outcome.ops[profile], outcome.lock_step) == (500, 0)


@pytest.mark.parametrize("eviction", EVICTION_POLICIES[1:])
def test_random_operations_agree_with_the_model_under_every_policy(eviction: str) -> None:
    """Also checks books and memory, in the profiles with most evictions and most tails."""
    for profile in ("balanced", "tiny_pool", "wide", "swarm"):
        outcome = stress(Plan(ops=300, seed=1, profiles=[profile], options={"eviction": eviction}))
        assert (outcome.ops[profile], outcome.lock_step) == (300, 300)


def test_every_call_meets_every_ordinary_refusal() -> None:
    profiles = ["balanced", "admission", "aborts", "tiny_pool"]
    outcome = stress(Plan(ops=8_000, seed=1, profiles=profiles, detectors="IK"))
    assert set(outcome.calls) >= OUTCOMES_WANTED


def test_one_seed_gives_the_same_bytes_and_another_seed_others(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for seed in ("5", "5", "6"):
        assert run("--seed", seed, "--ops", "300", "--profile", "balanced") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].splitlines()[-1] != texts[2].splitlines()[-1]


def test_what_another_process_finds_is_reported_like_ones_own(run: Any) -> None:
    assert run("--ops", "400", "--jobs", "2", "--profile", "tiny_pool") == 0
    args = ["--ops", "4000", "--jobs", "2", "--profile", "beam_storm"]
    assert run(*args, manager=Forgetful) == 1


def test_a_failing_run_is_cut_down_and_can_be_run_again(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--profile", "balanced", "--seed", "2", "--ops", "20000", "--out", "kept.jsonl"]
    assert run(*args, manager=Forgetful) == 1
    assert "--replay kept.jsonl" in capsys.readouterr().out
    case = read_case(Path("kept.jsonl"))
    assert 0 < len(case.records) < 12
    assert run("--replay", "kept.jsonl", manager=Forgetful) == 1
    assert run("--replay", "kept.jsonl") == 0


def test_no_operation_of_a_cut_down_run_can_be_left_out() -> None:
    with pytest.raises(Failure) as failure:
        stress(Plan(ops=20_000, seed=2, profiles=["balanced"], manager=Forgetful))
    from dataclasses import replace

    from tests.stress.run import violation_of

    def fails(records: Any) -> bool:
        return violation_of(replace(failure.value.case, records=records), Forgetful) is not None

    kept = shrink(failure.value.case.records, fails)
    assert fails(kept)
    assert not any(fails(kept[:i] + kept[i + 1 :]) for i in range(len(kept)))


def test_shrinking_keeps_exactly_what_is_needed() -> None:
    records = [{"op": str(i)} for i in range(100)]

    def fails(some: Any) -> bool:
        return {"3", "50", "97"} <= {record["op"] for record in some}

    assert [record["op"] for record in shrink(records, fails)] == ["3", "50", "97"]


def test_shrinking_tries_no_operations_twice_in_a_row() -> None:
    """Not even if the last operation was unnecessary, after which nothing is left to remove."""
    tried = []

    def fails(some: Any) -> bool:
        tried.append([record["op"] for record in some])
        return "0" in tried[-1]

    assert shrink([{"op": str(i)} for i in range(8)], fails) == [{"op": "0"}]
    assert all(before != after for before, after in pairwise(tried))
    assert len(tried) < 16


@pytest.mark.parametrize(
    "args",
    [
        ["--profile", "nothing"],
        ["--ops", "0"],
        ["--jobs", "0"],
        ["--minutes", "-1"],
        ["--detectors", "X"],
        ["--replay", "missing.jsonl"],
    ],
)
def test_wrong_usage_ends_in_exit_code_two(run: Any, args: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(*args)
    assert exit_.value.code == 2


@pytest.mark.parametrize("text", ["", "{}", "no json", json.dumps({"format": "another"})])
def test_a_file_that_holds_no_run_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "case.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"case\.jsonl holds no run"):
        read_case(path)


def test_time_ends_a_run_however_many_operations_are_left(run: Any) -> None:
    assert run("--ops", "1000000000", "--minutes", "0.0001", "--profile", "tiny_pool") == 0


def test_a_line_of_a_run_that_is_too_long_is_refused_before_it_is_read_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("{}\n" + "1" * 200)
    with pytest.raises(TraceFormatError, match=":2:101: found a line of more than 100 bytes"):
        read_case(path, max_line_bytes=100)
