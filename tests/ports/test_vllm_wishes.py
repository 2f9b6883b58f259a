"""What clients write into ``vllm_xargs`` never stops the engine."""

from __future__ import annotations

import importlib
import json
import logging
import math
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr import Priority
from tests.ports.vllm_modules import make, request, stand_ins, step

PRIORITIES = ("low", "normal", "expected", "high")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 10**400, -(10**400), 0.0, 1.5, 5e-324, 1e300, math.inf,
    -math.inf, math.nan, "", "high", "urgent", "HIGH", "1", "true", "\ud800", "x" * 10_000, b"high",
    [], ["high"], [["high"]], {}, {"a": 1}, (1,), object(), *PRIORITIES,
)  # fmt: skip
NAMES = ("priority", "ttl", "expect_reuse", "prio", "", "\ud800")


class FailingText(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        raise RuntimeError("hashed")


class FailingInt(int):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        raise RuntimeError("hashed")


class FailingFloat(float):
    def __float__(self) -> float:
        raise RuntimeError("converted")


class WithoutText:
    def __repr__(self) -> str:
        raise RuntimeError("printed")


FAILING: tuple[Any, ...] = (
    FailingText("high"), FailingInt(1), FailingFloat(2), WithoutText(), 10**5000, [10**5000],
)  # fmt: skip


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from stand_ins(monkeypatch)


def wishes(retention: bool = True) -> Any:
    return importlib.import_module("blockmgr.ports.vllm.wishes").Wishes(retention)


def wishing(extra: Any, name: str = "first") -> Any:
    served = request(name, list(range(1, 10)))
    served.sampling_params = SimpleNamespace(extra_args=extra)
    return served


def is_valid(name: str, value: Any, priority: Any) -> bool:
    if name == "priority":
        return value in PRIORITIES
    if name == "expect_reuse":
        return isinstance(value, int) and value in (0, 1)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return name == "ttl" and is_number and 0 < value < 10**300 * 1.01 and priority in PRIORITIES


@pytest.mark.parametrize("seed", range(40))
def test_no_value_of_a_wish_stops_the_engine_or_keeps_a_block(seed: int) -> None:
    """Valid wishes among them have their effect; each of the others is counted once."""
    rng = random.Random(seed)
    manager = make(retention=True)
    before, expected = manager.manager.num_available, 0
    for turn in range(20):
        said = {name: rng.choice(VALUES) for name in rng.sample(NAMES, rng.randrange(4))}
        extra: Any = {f"blockmgr_{name}": value for name, value in said.items()}
        expected += sum(not is_valid(n, v, said.get("priority")) for n, v in said.items())
        if rng.random() < 0.2:
            extra, expected = (
                rng.choice(VALUES),
                expected - sum(not is_valid(n, v, said.get("priority")) for n, v in said.items()),
            )
        served = wishing(extra, str(turn))
        step(manager, served)
        manager.free(served)
        assert manager.manager.num_available == before
        manager.manager.check_invariants()
    assert manager.wishes.ignored.total() == expected


@pytest.mark.parametrize("sampling", [None, SimpleNamespace(), SimpleNamespace(extra_args=None)])
def test_a_request_without_wishes_has_none(sampling: Any) -> None:
    served = request("first", [1])
    served.sampling_params = sampling
    assert wishes().of(served) == (None, None, None)


def test_valid_wishes_are_heard() -> None:
    read = wishes()
    extra = {"blockmgr_priority": "high", "blockmgr_ttl": 60, "blockmgr_expect_reuse": 1}
    assert read.of(wishing(json.loads(json.dumps(extra)))) == (Priority.HIGH, 60.0, True)
    assert not read.ignored


def test_what_a_request_says_after_its_admission_has_no_effect() -> None:
    """Its end must not read values that nobody has checked."""
    manager = make(retention=True)
    served = wishing({"blockmgr_priority": "high"})
    step(manager, served)
    served.sampling_params.extra_args["blockmgr_priority"] = ["high"]
    served.sampling_params.extra_args["blockmgr_ttl"] = math.inf
    manager.free(served)
    assert manager.manager.blocks().priority[1:3].tolist() == [Priority.HIGH] * 2


def test_a_time_to_live_without_a_priority_is_counted() -> None:
    read = wishes()
    assert read.of(wishing({"blockmgr_ttl": 60})) == (None, None, None)
    assert read.ignored == {"ttl": 1}


def test_wishes_without_retention_are_counted_and_the_log_says_what_they_need(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read = wishes(retention=False)
    assert read.of(wishing({"blockmgr_priority": "high"})) == (None, None, None)
    assert read.ignored == {"priority": 1}
    assert "needs the option blockmgr.retention" in caplog.text


def test_the_log_names_the_first_ignored_wish_and_then_is_silent_for_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = wishes()
    module = importlib.import_module("blockmgr.ports.vllm.wishes")
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            read.of(wishing({"blockmgr_priority": "urgent\n" * 1000}))
        now[0] = 60.0
        read.of(wishing({"blockmgr_urgent": 1}))
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("blockmgr ignores blockmgr_priority='urgent\\nurg")
    assert first.endswith("it must be one of low, normal, expected, high; 1 wishes ignored so far")
    assert len(first) < 300
    assert "blockmgr_urgent=1" in last
    assert last.endswith("it is no wish of blockmgr; 101 wishes ignored so far")
    assert read.ignored == {"priority": 100, "other": 1}


def test_invented_names_do_not_make_the_counts_grow() -> None:
    read = wishes()
    for number in range(1000):
        read.of(wishing({f"blockmgr_{number}": 1}))
    assert read.ignored == {"other": 1000}


def test_ignored_wishes_are_in_the_line_and_in_the_metrics() -> None:
    manager = make(retention=True)
    step(manager, wishing({"blockmgr_priority": "urgent"}))
    assert manager.report.line().endswith("; wishes of requests ignored: 1 of priority")
    exposition = importlib.import_module("blockmgr.ports.vllm.exposition")
    read = exposition.registry_of(manager.report).get_sample_value
    assert read("blockmgr_ignored_wishes_total", {"wish": "priority"}) == 1


@pytest.mark.parametrize("name", ["priority", "ttl", "expect_reuse"])
@pytest.mark.parametrize("value", FAILING, ids=lambda value: type(value).__name__)
def test_a_value_that_fails_when_it_is_read_or_printed_is_ignored_and_counted(
    name: str, value: Any
) -> None:
    manager = make(retention=True)
    before = manager.manager.num_available
    served = wishing({"blockmgr_priority": "high", f"blockmgr_{name}": value})
    step(manager, served)
    manager.free(served)
    assert manager.manager.num_available == before
    assert manager.wishes.ignored == {name: 1}
