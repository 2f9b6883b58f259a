"""The curve gives the result of a replay at every capacity in one pass."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.curve import Curve, hit_rate_curve
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.workloads import generate
from tests.lab.brute_force import lru_hits, uses
from tests.lab.conftest import MakeTrace
from tests.lab.worlds import ONE_AT_A_TIME, conversations, prompts


@pytest.mark.parametrize("rule", ["ids", "served", "manager"])
def test_it_is_the_naive_lru_at_every_capacity(rule: str) -> None:
    random = Random(10)
    for _ in range(300):
        trace, size = prompts(random, 30, 12), random.choice((1, 2, 3))
        known = list(uses(trace, size, rule))
        config = replace(ONE_AT_A_TIME, block_size=size)
        curve = hit_rate_curve(trace, config, rule)  # type: ignore[arg-type]
        longest = max(1, *(use.held for use in known))
        assert curve.longest_request_blocks == curve.exact_from == longest
        for blocks in range(longest, longest + 30):
            assert curve.hit_blocks_at(blocks) == lru_hits(known, blocks)


def test_it_is_the_replay_at_every_capacity_one_request_at_a_time() -> None:
    random = Random(11)
    for _ in range(250):
        trace = conversations(random, 14)
        config = replace(ONE_AT_A_TIME, block_size=random.choice((1, 2, 3)))
        curve = hit_rate_curve(trace, config)
        for blocks in range(curve.longest_request_blocks, curve.longest_request_blocks + 25):
            assert curve.hit_tokens_at(blocks) == replay(trace, blocks, config).hit_tokens


def test_it_is_the_replay_wherever_no_request_waits_for_blocks() -> None:
    random = Random(12)
    waits_below = 0
    for _ in range(300):
        trace = conversations(random, 14)
        config = ReplayConfig(
            block_size=random.choice((1, 2, 3)),
            min_service_ms=random.choice((0, 3)),
            service_ms_per_token=random.choice((0, 2)),
            max_seqs=random.choice((3, 1024, 1024)),
        )
        curve = hit_rate_curve(trace, config)
        for blocks in range(curve.exact_from, curve.exact_from + 15):
            result = replay(trace, blocks, config)
            assert curve.hit_tokens_at(blocks) == result.hit_tokens
            assert not result.waited or config.max_seqs == 3
        if curve.exact_from > curve.longest_request_blocks:
            waits_below += replay(trace, curve.exact_from - 1, config).waited > 0
    assert waits_below > 100


@pytest.mark.parametrize("workload", ["chat", "tree-of-thought"])
def test_it_is_the_replay_of_a_workload_with_concurrency(workload: str) -> None:
    trace = generate(workload, seed=3)
    config = ReplayConfig(block_size=32)
    curve = hit_rate_curve(trace, config)
    for blocks in (curve.exact_from, 3 * curve.exact_from // 2, 4 * curve.exact_from):
        result = replay(trace, blocks, config)
        assert (result.waited, result.hit_tokens) == (0, curve.hit_tokens_at(blocks))
    assert curve.unbounded_hit_rate == unbounded(trace, config).hit_rate
    assert curve.hit_rate_at(curve.exact_from) < curve.unbounded_hit_rate


def test_a_partial_tail_makes_the_pool_one_block_smaller_for_a_moment(
    make_trace: MakeTrace,
) -> None:
    # [1 1] [2 2] fill two blocks; the third prompt holds one full block and, for a moment, one
    # more token. At three blocks that token pushes [1 1] out.
    trace = make_trace([1, 1], [2, 2], [3, 3, 3], [1, 1, 1])
    config = replace(ONE_AT_A_TIME, block_size=2)
    curve = hit_rate_curve(trace, config)
    assert [curve.hit_tokens_at(blocks) for blocks in (2, 3, 4)] == [0, 0, 2]


def test_a_block_computed_again_beside_its_twin_pushes_out_what_is_older(
    make_trace: MakeTrace,
) -> None:
    # The second [2 2] takes a block until its commit finds the cached one.
    trace = make_trace([1, 1], [2, 2], [2, 2], [1, 1, 1])
    curve = hit_rate_curve(trace, replace(ONE_AT_A_TIME, block_size=2))
    assert [curve.hit_tokens_at(blocks) for blocks in (2, 3)] == [0, 2]


def test_a_hit_rate_leads_to_the_smallest_capacity_that_has_it() -> None:
    curve = hit_rate_curve(generate("chat", seed=1, conversations=40), ONE_AT_A_TIME)
    lowest = curve.longest_request_blocks
    rates = [curve.hit_rate_at(blocks) for blocks in range(lowest, int(curve.capacities[-1]) + 1)]
    assert rates == sorted(rates)
    for blocks, rate in enumerate(rates, start=lowest):
        assert curve.blocks_for(rate) == lowest + rates.index(rate)
        assert curve.hit_rate_at(curve.blocks_for(rate)) == rate
        if blocks > lowest + 400:
            break
    assert curve.blocks_for(0.0) == lowest
    assert curve.blocks_for(curve.unbounded_hit_rate) == lowest + rates.index(rates[-1])
    halfway = (rates[0] + rates[-1]) / 2
    blocks = curve.blocks_for(halfway)
    assert curve.hit_rate_at(blocks - 1) < halfway <= curve.hit_rate_at(blocks)
    assert curve.hit_rate_at(10**9) == curve.unbounded_hit_rate


def test_what_no_capacity_reaches_is_refused_with_what_is_attainable(make_trace: MakeTrace) -> None:
    curve = hit_rate_curve(make_trace([1] * 4, [1] * 4), replace(ONE_AT_A_TIME, block_size=1))
    assert curve.unbounded_hit_rate == 3 / 8
    with pytest.raises(ValueError, match=r"hit_rate must be in \[0, 0.375000\], the attainable"):
        curve.blocks_for(0.3751)
    with pytest.raises(ValueError, match=r"got -0.1"):
        curve.blocks_for(-0.1)
    with pytest.raises(ValueError, match=r"got nan"):
        curve.blocks_for(float("nan"))


def test_a_pool_below_the_longest_request_is_refused_with_the_nearest_one(
    make_trace: MakeTrace,
) -> None:
    curve = hit_rate_curve(make_trace([1] * 9), replace(ONE_AT_A_TIME, block_size=2))
    for ask in (curve.hit_rate_at, curve.hit_tokens_at, curve.hit_blocks_at):
        with pytest.raises(ValueError, match=r"num_blocks must be at least 5, .*, got 4"):
            ask(4)
    assert curve.hit_rate_at(5) == 0


def test_replays_that_no_list_describes_are_refused(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2])
    with pytest.raises(ValueError, match="min_partial_tokens must be 0"):
        hit_rate_curve(trace, ReplayConfig(min_partial_tokens=1))
    with pytest.raises(ValueError, match="dedup must be 'remap'"):
        hit_rate_curve(trace, ReplayConfig(dedup="append_only"))


def test_a_curve_survives_json(make_trace: MakeTrace) -> None:
    curve = hit_rate_curve(make_trace([1] * 9, [1] * 9), replace(ONE_AT_A_TIME, block_size=2))
    record = json.loads(json.dumps(curve.as_json()))
    lists = {"capacities", "hit_blocks", "hit_tokens"}
    again = Curve(
        **{k: np.array(v, dtype=np.int64) if k in lists else v for k, v in record.items()}
    )
    assert again.as_json() == curve.as_json()
    assert again.hit_tokens_at(7) == curve.hit_tokens_at(7) == 8
