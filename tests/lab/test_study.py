"""Several capacities at once: how they are written, resolved and compared."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import Capacity, attainable, parse_capacities, parse_share, study
from blockmgr.lab.workloads import generate


def test_capacities_are_shares_or_blocks() -> None:
    assert parse_capacities("5%, 12.5%,4096") == (
        Capacity("5%", Fraction(1, 20)),
        Capacity("12.5%", Fraction(1, 8)),
        Capacity("4096", 4096),
    )


def test_a_share_is_rounded_down_to_no_less_than_one_block() -> None:
    one_percent, all_of_it, blocks = parse_capacities("1%,100%,7")
    assert one_percent.blocks(182_790) == 1827
    assert one_percent.blocks(99) == 1
    assert all_of_it.blocks(99) == 99
    assert blocks.blocks(99) == 7


@pytest.mark.parametrize("text", ["", "0", "0%", "-5%", "-1", "ten", "1.5", "1/0%", "5%,,7", "%"])
def test_what_is_no_capacity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="capacity must be a percentage such as 10%, or blocks"):
        parse_capacities(text)


def test_a_share_may_be_written_in_percent() -> None:
    assert parse_share("30%") == parse_share("0.3") == Fraction(3, 10)


@pytest.mark.parametrize("text", ["", "-1%", "101%", "1.5", "x", "1/0"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="share must be in"):
        parse_share(text)


def test_a_study_is_one_replay_a_capacity() -> None:
    trace = generate("chat", 1, conversations=10)
    config = ReplayConfig(block_size=8)
    capacities = parse_capacities("100%,20%,90")

    outcome = study(trace, capacities, config)

    best = attainable(trace, config)
    assert outcome.attainable == best
    assert outcome.capacities == capacities
    sizes = [best.working_set_blocks, best.working_set_blocks // 5, 90]
    assert outcome.results == tuple(replay(trace, blocks, config) for blocks in sizes)
    assert outcome.results[0].hit_rate == best.hit_rate
    assert float(outcome.lowest_hit_rate) == min(r.hit_rate for r in outcome.results)


def test_the_attainable_rate_with_parts_of_blocks_is_above_that_without() -> None:
    trace = generate("chat", 1, conversations=10)
    whole, parts = (
        attainable(trace, ReplayConfig(block_size=64, min_partial_tokens=least)) for least in (0, 1)
    )
    assert whole.hit_tokens < parts.hit_tokens
    assert whole.working_set_blocks == parts.working_set_blocks
