"""A plan gives the smallest pool that reaches a hit rate, checked by replays around it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from blockmgr import FullAttention, SlidingWindow
from blockmgr.lab.planning import LARGE_STEP, Plan, kv_bytes_per_token, plan
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import attainable
from blockmgr.lab.trace import Request, Trace
from blockmgr.lab.workloads import generate
from blockmgr.shapes import ELEMENTS

ALONE = ReplayConfig(block_size=16, min_service_ms=0, service_ms_per_token=0)
RATES = (Fraction(1, 2), Fraction(7, 10))
SIZES = (16, 64)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(
        "shared-prompt", 3, requests=200, system_prompts=12, system_tokens=1000, output_tokens=1
    )


@pytest.fixture(scope="module")
def answers(trace: Trace) -> Plan:
    return plan(
        trace, RATES, [replace(ALONE, block_size=size) for size in SIZES], bytes_per_token=1000
    )


def test_a_pool_as_planned_reaches_the_rate_and_one_block_less_does_not(
    trace: Trace, answers: Plan
) -> None:
    for row in answers.rows:
        assert row.num_blocks is not None
        config = ReplayConfig(block_size=row.block_size, min_service_ms=0, service_ms_per_token=0)
        assert replay(trace, row.num_blocks, config).hit_rate >= row.hit_rate
        assert replay(trace, row.num_blocks - 1, config).hit_rate < row.hit_rate


def test_each_answer_stands_beside_its_own_replay(trace: Trace) -> None:
    served = ReplayConfig(block_size=16)
    [row] = plan(trace, RATES[:1], served).rows
    assert row.num_blocks is not None
    assert row.replayed == replay(trace, row.num_blocks, served)


def test_memory_is_blocks_times_tokens_times_bytes(answers: Plan) -> None:
    for row in answers.rows:
        assert row.num_blocks is not None
        assert row.num_bytes == row.num_blocks * row.block_size * 1000
        assert row.gib == row.num_bytes / 2**30


def test_the_cheapest_block_size_holds_the_fewest_tokens(answers: Plan) -> None:
    for rate in RATES:
        tokens = {row.num_tokens for row in answers.rows if row.hit_rate == rate}
        assert answers.cheapest(rate).num_tokens == min(t for t in tokens if t is not None)


def test_a_rate_above_the_attainable_one_is_refused_and_the_attainable_one_is_not(
    trace: Trace,
) -> None:
    best = attainable(trace, ALONE)
    with pytest.raises(ValueError, match="hit rate must be at most ") as refused:
        plan(trace, [Fraction(99, 100)], ALONE)

    most = str(refused.value).partition("at most ")[2].partition("%")[0]
    assert float(most) / 100 == pytest.approx(best.hit_rate, abs=1e-4)
    assert plan(trace, [Fraction(most) / 100], ALONE).rows[0].num_blocks


def test_a_block_size_that_cannot_reach_the_rate_says_so_beside_one_that_can(
    trace: Trace,
) -> None:
    fine, coarse = (attainable(trace, ReplayConfig(block_size=size)) for size in (16, 512))
    between = Fraction(fine.hit_tokens + coarse.hit_tokens, 2 * fine.query_tokens)

    answers = plan(trace, [between], [replace(ALONE, block_size=size) for size in (512, 16)])

    assert [row.num_blocks is None for row in answers.rows] == [True, False]
    assert answers.rows[0].replayed is answers.rows[0].num_bytes is answers.rows[0].gib is None
    assert answers.cheapest(between).block_size == 16


def test_bytes_of_a_token_are_those_of_the_tensors() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from blockmgr.kv import ModelShape

    for name, element in ELEMENTS.items():
        dtype = getattr(torch, name)
        assert dtype.itemsize == element.itemsize
        shape = ModelShape(num_layers=3, num_kv_heads=5, head_dim=7, dtype=dtype)
        assert kv_bytes_per_token(3, 5, 7, name) == shape.bytes_per_token


def test_with_several_groups_a_rate_is_met_closely_or_lies_inside_a_step() -> None:
    alternating = tuple(
        Request(
            arrival_ms=60_000 * number,
            prompt=np.arange(64 * (number % 3), 64 * (number % 3) + 65, dtype=np.uint32),
            num_output_tokens=0,
        )
        for number in range(30)
    )
    groups = (FullAttention(), SlidingWindow(32))
    config = ReplayConfig(block_size=16, groups=groups)
    steps = 0
    for trace in (Trace("alternating", alternating), generate("parallel-sampling", 0)):
        for rate in (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5)):
            [row] = plan(trace, [rate], config).rows
            assert row.replayed is not None
            assert row.num_blocks is not None
            assert row.replayed.hit_rate >= rate
            if row.replayed.hit_rate - float(rate) > LARGE_STEP and row.smaller is not None:
                steps += 1
                assert row.smaller.num_blocks == row.num_blocks - 1
                assert row.smaller.hit_rate < rate
    assert steps > 0
