"""A sweep: every row equals a separate replay, for any number of processes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from blockmgr.lab.optimum import optimum
from blockmgr.lab.planning import plan
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import attainable, parse_capacities
from blockmgr.lab.sweep import Sweep, largest_request_blocks, num_tasks, sweep
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate

CONFIG = ReplayConfig(min_service_ms=0, service_ms_per_token=0)
CAPACITIES = parse_capacities("20%,700")
SIZES = (8, 16)
CONFIGS = [replace(CONFIG, block_size=size) for size in SIZES]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate("chat", 3, conversations=12)


@pytest.fixture(scope="module")
def outcome(trace: Trace) -> Sweep:
    return sweep(trace, CAPACITIES, CONFIGS)


def test_each_row_is_what_a_replay_by_itself_counts(trace: Trace, outcome: Sweep) -> None:
    assert len(outcome.rows) == len(SIZES) * len(CAPACITIES)
    for row in outcome.rows:
        config = replace(CONFIG, block_size=row.block_size, eviction=row.policy)
        ceiling = attainable(trace, config)
        blocks = row.capacity.blocks(ceiling.working_set_blocks)
        assert row.result == replay(trace, blocks, config)
        assert row.attainable == ceiling
        assert row.optimum.hit_tokens == optimum(trace, blocks, config).hit_tokens


def test_rows_come_by_block_size_then_capacity(outcome: Sweep) -> None:
    places = [(row.block_size, row.capacity.text) for row in outcome.rows]
    assert places == [(8, "20%"), (8, "700"), (16, "20%"), (16, "700")]


def test_advance_is_called_once_for_each_piece_of_work(trace: Trace) -> None:
    calls: list[None] = []
    sweep(trace, CAPACITIES, CONFIGS, advance=lambda: calls.append(None))
    assert len(calls) == num_tasks(policies=1, capacities=2, configs=2)


def test_no_row_beats_the_optimum_or_an_unbounded_pool(outcome: Sweep) -> None:
    for row in outcome.rows:
        assert row.result.hit_tokens <= row.optimum.hit_tokens <= row.attainable.hit_tokens


def test_lru_closes_none_of_its_own_gap(outcome: Sweep) -> None:
    assert {row.gap_closed for row in outcome.rows} <= {0.0, None}
    assert 0.0 in {row.gap_closed for row in outcome.rows}


def test_a_pool_below_the_largest_request_is_refused_with_the_smallest_that_is_not(
    trace: Trace,
) -> None:
    least = largest_request_blocks(trace, CONFIG)
    with pytest.raises(ValueError, match=f"at least {least} blocks .* got {least - 1}"):
        sweep(trace, parse_capacities(f"{least - 1}"), CONFIG)

    assert not sweep(trace, parse_capacities(f"{least}"), CONFIG).rows[0].result.rejected


def test_a_gap_of_next_to_nothing_has_no_share_that_is_closed(outcome: Sweep) -> None:
    row = outcome.rows[0]
    assert row.baseline is not None
    query = row.result.query_tokens
    for gap, expected in ((0, None), (query // 10_001, None), (query // 100, -1.0)):
        optimum = replace(row.optimum, hit_tokens=row.baseline.hit_tokens + gap)
        result = replace(row.result, hit_tokens=row.baseline.hit_tokens - gap)
        closed = replace(row, optimum=optimum, result=result).gap_closed
        assert closed == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("policies", [("lru",), ("arc",)])
def test_hints_are_compared_with_lru_that_nobody_told_anything(
    trace: Trace, policies: tuple[str, ...]
) -> None:
    calls: list[None] = []
    hinted = replace(CONFIG, hints="truth")
    sizes = parse_capacities("20%,30%")
    found = sweep(trace, sizes, hinted, policies=policies, advance=lambda: calls.append(None))
    assert len(calls) == num_tasks(policies=1, capacities=2, hints="truth")
    for row in found.rows:
        unhinted = replay(trace, row.result.num_blocks, CONFIG)
        assert row.baseline == unhinted
        gap = row.optimum.hit_tokens - unhinted.hit_tokens
        gained = row.result.hit_tokens - unhinted.hit_tokens
        assert row.gap_closed == pytest.approx(gained / gap)
    assert any(row.result != row.baseline for row in found.rows)


def test_without_lru_and_without_hints_nothing_is_compared(trace: Trace) -> None:
    found = sweep(trace, parse_capacities("20%"), CONFIG, policies=("arc",))
    assert [(row.baseline, row.gap_closed) for row in found.rows] == [(None, None)]


def test_the_share_that_is_suggested_is_enough(trace: Trace) -> None:
    with pytest.raises(ValueError, match=r"got 0\.1%") as refused:
        sweep(trace, parse_capacities("0.1%"), CONFIG)

    share = str(refused.value).partition("(")[2].partition(")")[0]
    assert sweep(trace, parse_capacities(share), CONFIG).rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"policies": ("fifo",)}, "eviction must be one of lru"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_bad_arguments_are_named(
    trace: Trace, change: dict[str, object], message: str, jobs: int
) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(trace, CAPACITIES, CONFIG, **{"jobs": jobs, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "config must be a config or several, got none"),
        ([CONFIG, CONFIG], "configs must differ, got one of them twice"),
        ([CONFIG, replace(CONFIG)], "configs must differ, got one of them twice"),
    ],
)
def test_several_configs_differ(trace: Trace, configs: list[ReplayConfig], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(trace, CAPACITIES, configs)
    with pytest.raises(ValueError, match=message):
        plan(trace, [Fraction(1, 10)], configs)
