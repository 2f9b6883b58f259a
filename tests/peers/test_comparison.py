"""The comparison with peers that need no separate environment, and the page made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.measure import repeat_command
from benchmarks.peers import facts, page
from benchmarks.peers.adapter import Operation
from benchmarks.peers.registry import load
from benchmarks.peers.results import Result
from benchmarks.peers.rows import TINY
from benchmarks.peers.runner import Run
from benchmarks.peers.turns import Effort, WrongWorkError, time_in_turns

NAMES = ["blockmgr", "blockmgr from lists", "mini-sglang, tuned", "nano-vllm, tuned"]
ONCE = Effort(rounds=1, burst=2, seconds=1, warm_up=1)


@pytest.fixture(scope="module")
def peers() -> list[Any]:
    found = [peer for _, peer in load(NAMES)]
    assert not [peer for peer in found if isinstance(peer, ImportError)]
    return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of three turns with a common prefix, in Mooncake's format."""
    lines = []
    for talk in range(12):
        ids = [0]
        for turn in range(3):
            ids = [*ids, 100 * (talk + 1) + turn]
            record = {"timestamp": len(lines), "input_length": 512 * len(ids) - 7}
            lines.append(json.dumps(record | {"output_length": 1, "hash_ids": ids}))
    path = tmp_path_factory.mktemp("trace") / "talks.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def document(peers: list[Any], trace: Path) -> dict[str, Any]:
    run = Run(peers, TINY, ONCE, lambda line: None)
    versions = {"python": "3", "blockmgr": "0"}
    return {
        "command": "python -m benchmarks.peers --tiny",
        "machine": {
            "processor": "P",
            "processors": 1,
            "system": "S",
            "load_average": 0.0,
            "versions": versions,
        },
        "peers": [peer.name for peer in peers],
        "left_out": [{"peer": "other", "reason": "cannot be imported: no module"}],
        "rows": run.rows(),
        "scattered": run.scattered(),
        "growth": run.growth(60.0),
        "replay": run.replay(trace, 20),
        "seconds": 1,
    }


def cells_of(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    parts = ("rows", "scattered", "growth", "replay")
    return [(row["row"], cell) for part in parts for row in document[part] for cell in row["cells"]]


def test_every_row_does_its_work_or_says_why_not(
    peers: list[Any], document: dict[str, Any]
) -> None:
    known = {reason for peer in peers for reason in peer.cannot.values()}
    for row, cell in cells_of(document):
        assert cell.get("min_ns", 0) > 0 or cell["reason"] in known, (row, cell)


def test_blockmgr_is_timed_at_every_row(document: dict[str, Any]) -> None:
    ours = [cell for _, cell in cells_of(document) if cell["peer"] == document["peers"][0]]
    assert all("min_ns" in cell for cell in ours)
    assert len(document["rows"]) == 16
    assert len(document["growth"]) == 6 * len(TINY.growth_blocks)


def test_systems_find_the_same_in_a_trace(document: dict[str, Any]) -> None:
    for row in document["replay"]:
        rates = {cell["peer"]: cell["hit_rate"] for cell in row["cells"] if "hit_rate" in cell}
        assert len(rates) >= 3
        assert max(rates.values()) - min(rates.values()) < 0.05
        assert max(rates.values()) > 0.1


class Lying:
    """blockmgr with one method that does not do its work."""

    cannot: ClassVar[dict[str, str]] = {}
    name = "lying"

    def __init__(self, honest: Any, method: str, lie: Any) -> None:
        self._honest, self._method, self._lie = honest, method, lie

    def prompt(self, tokens: Any) -> Any:
        return self._honest.prompt(tokens)

    def open(self, *args: Any, **options: Any) -> Any:
        cache = self._honest.open(*args, **options)
        honest = getattr(cache, self._method)
        setattr(cache, self._method, lambda *given: self._lie(honest, *given))
        return cache


@pytest.mark.parametrize(
    ("method", "lie", "operations"),
    [
        ("match", lambda honest, prompt: honest(prompt) - 16, {"match", "admit", "free"}),
        ("free", lambda honest, request: None, {"free"}),
        ("step", lambda honest, batch, tokens: None, {"decode", "copy on write"}),
        ("copies", lambda honest: honest() + 1, {"copy on write"}),
        ("fork", lambda honest, request, count: honest(request, count - 1), {"fork"}),
        ("admit", lambda honest, prompt: honest(prompt[: len(prompt) // 2]), {"cold admit"}),
    ],
)
def test_a_system_that_does_not_do_the_work_fails(
    peers: list[Any], method: str, lie: Any, operations: set[str]
) -> None:
    rows = Run([Lying(peers[0], method, lie)], TINY, ONCE, lambda line: None).rows()
    failed = {row["operation"] for row in rows if "WrongWork" in row["cells"][0].get("reason", "")}
    assert operations <= failed


def test_a_system_that_fails_leaves_the_others_timed() -> None:
    class Case:
        def __init__(self, result: int) -> None:
            self.result = result

        def prepare(self) -> Any:
            return int, (self.result,)

        def done(self, result: int) -> None:
            if result:
                raise WrongWorkError("no")

        def finish(self) -> None: ...

    timings = time_in_turns({"good": Case(0), "bad": Case(1)}, ONCE)
    assert timings["good"].repetitions == 2
    assert isinstance(timings["bad"], WrongWorkError)


def test_what_a_system_cannot_do_is_never_called(peers: list[Any]) -> None:
    class Incapable(Lying):
        cannot: ClassVar[dict[str, str]] = dict.fromkeys(Operation, "it cannot")

        def open(self, *args: Any, **options: Any) -> Any:
            raise AssertionError("opened")

    run = Run([peers[0], Incapable(peers[0], "", None)], TINY, ONCE, lambda line: None)
    reasons = {row["cells"][1]["reason"] for row in [*run.rows(), *run.scattered()]}
    assert reasons == {"it cannot"}


def test_the_page_has_every_row_system_and_reason(tmp_path: Path, document: dict[str, Any]) -> None:
    (tmp_path / "machine-0-peers.json").write_text(json.dumps(document), encoding="utf-8")
    step = {"command": "c", "results": [{"side": "S", "median_us": 12.5, "minimum_us": 11.25}]}
    (tmp_path / "machine-0-step.json").write_text(json.dumps(step), encoding="utf-8")
    memory = {"weights": [{"what": "a block", "bytes": 158.75, "budget": None}]}
    (tmp_path / "machine-0-memory.json").write_text(json.dumps(memory), encoding="utf-8")
    arguments = {"requests": 3, "seqs": 2, "blocks": 40, "tokens": 8, "rounds": 1}
    engines = {"vllm": "0", "trace": "talks", "arguments": arguments, "command": "c"}
    engines["machine"] = {"versions": {"blockmgr": "0"}}
    rows = {"vLLM": {"total (ms)": 1234.5}, "blockmgr": {"total (ms)": 67.25}}
    (tmp_path / "machine-0-engines.json").write_text(json.dumps({**engines, "rows": rows}), "utf-8")
    text = page.page(tmp_path)
    assert "| vLLM | 1,234 |\n| blockmgr | 67.2 |" in text
    assert "| S | 12.5 | 11.2 |" in text
    assert "| a block | 158.8 | \u2013 |" in text
    for row, cell in cells_of(document):
        assert row in text
        if "reason" in cell:
            assert cell["reason"] in text
    assert "cannot be imported: no module" in text
    assert "nan" not in text.replace("nano", "")


def test_the_command_of_a_result_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--rounds", "2", "--traces", "/a/b c.jsonl", "/a/d", "--results", "/d"]
    wanted = "python -m benchmarks.peers --rounds 2 --traces 'b c.jsonl' d"
    monkeypatch.setattr("sys.argv", ["-m", *given])
    assert repeat_command("benchmarks.peers") == wanted


def test_a_row_less_than_twice_as_fast_is_named_with_its_ratio() -> None:
    def row(key: str, ours: float, theirs: float) -> dict[str, Any]:
        cells = [
            {"peer": "blockmgr 1", "min_ns": ours, "median_ns": ours},
            {"peer": "blockmgr 1, from lists", "min_ns": 0.1, "median_ns": 0.1},
            {"peer": "A Rust tree", "min_ns": theirs, "median_ns": theirs},
        ]
        return {"key": key, "row": key, "operation": "match", "unit": "block", "cells": cells}

    rows = [row("match/usual", 10.0, 15.0), row("other", 10.0, 20.0)]
    result = Result({"rows": rows, "scattered": [], "replay": [], "growth": []})
    gaps = list(facts.gaps(result))
    assert [gap[:3] for gap in gaps] == [("match/usual", "A Rust tree", "1.50")]
    (_, ahead), _, (_, tree), (_, scattered_tree), _ = facts.comparisons(result)
    assert ahead == "blockmgr is at least 2 times as fast in 1 of 2 rows, and slower in 0"
    assert tree == "the tree takes 1.50 (match/usual) to 2.00 (other) times as long"
    assert scattered_tree == "not measured"
    limits = {key: f"{limit:,} ns" for _, key, limit in facts.BUDGETS}
    warm, cold, *_ = facts.budgets(result)
    assert warm[1:] == ("10.0 ns", limits["match/usual"])
    assert cold[1:] == ("not measured", limits["cold"])
    scattered = [row("match/usual/scattered", 10.0, 9.0)]
    result = Result({"rows": rows, "scattered": scattered, "replay": [], "growth": []})
    (_, ahead), _, _, (_, scattered_tree), _ = facts.comparisons(result)
    assert ahead.endswith("in 1 of 3 rows, and slower in 1")
    assert "0.90 (match/usual/scattered)" in scattered_tree
