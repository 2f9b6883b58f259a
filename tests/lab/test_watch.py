"""A watched replay has the counts of an unwatched one, and accounts for every block."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.watch import watch
from blockmgr.lab.workloads import WORKLOADS, generate
from tests.lab.worlds import conversations

if TYPE_CHECKING:
    from tests.lab.conftest import MakeRequest, MakeTrace

ONE_AT_A_TIME = ReplayConfig(block_size=2, min_service_ms=0, service_ms_per_token=0)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("block_size", [16, 64])
def test_every_hit_and_every_eviction_is_seen(name: str, block_size: int) -> None:
    trace = generate(name, 2)
    config = ReplayConfig(block_size=block_size)
    blocks = 64_000 // block_size

    seen = watch(trace, blocks, config, frames=20, age_bounds_ms=(1000, 60_000))

    assert seen.result == replay(trace, blocks, config)
    assert seen.result.evictions == len(seen.lifetimes_ms) > 0
    assert len(seen.idle_ms) == len(seen.uses) == len(seen.lifetimes_ms)
    assert len(seen.reuse_gaps_ms) == seen.result.hit_tokens // block_size
    assert np.all(seen.idle_ms <= seen.lifetimes_ms)
    assert np.all(seen.idle_ms >= 0)
    unused = seen.uses == 0
    assert np.array_equal(seen.idle_ms[unused], seen.lifetimes_ms[unused])


def test_every_eviction_is_seen_in_tables_that_never_change() -> None:
    """A twin of a cached block is freed, not evicted."""
    for seed in range(60):
        trace = conversations(Random(seed), 8)
        config = ReplayConfig(block_size=2, dedup="append_only", min_service_ms=seed % 3)
        seen = watch(trace, 20, config, frames=5, age_bounds_ms=(3,))

        assert seen.result == replay(trace, 20, config)
        assert seen.result.evictions == len(seen.lifetimes_ms)
        for frame in seen.frames:
            assert frame.shared + frame.alone + sum(frame.idle) + frame.free == 20


def test_frames_are_the_whole_pool_and_in_order(make_trace: MakeTrace) -> None:
    trace = generate("chat", 2, conversations=20)
    seen = watch(trace, 900, ReplayConfig(), frames=30, age_bounds_ms=(5000,))

    times = [frame.time_ms for frame in seen.frames]
    assert 10 < len(times) <= 30
    assert times == sorted(set(times))
    for frame in seen.frames:
        assert frame.shared + frame.alone + sum(frame.idle) + frame.free == 900
        assert len(frame.idle) == 2
    assert any(frame.shared for frame in seen.frames)
    assert any(frame.idle[1] for frame in seen.frames)


def test_gaps_lifetimes_and_uses_worked_by_hand(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    """A pool of three blocks of two tokens; prompts of two full blocks and a last token."""
    a, b = [1, 1, 1, 1, 9], [2, 2, 2, 2, 9]
    trace = make_trace(
        make_request(a, arrival_ms=0),
        make_request(a, arrival_ms=70),  # finds both blocks, 70 after they were computed
        make_request(b, arrival_ms=100),  # takes all three
        make_request(b, arrival_ms=130),
    )

    seen = watch(trace, 3, ONE_AT_A_TIME)

    assert seen.reuse_gaps_ms.tolist() == [70, 70, 30, 30]
    assert seen.asked_gaps_ms.tolist() == [70, 70, 30, 30]
    assert seen.lifetimes_ms.tolist() == [100, 100]
    assert seen.idle_ms.tolist() == [30, 30]
    assert seen.uses.tolist() == [1, 1]
    assert seen.frames == ()


def test_what_was_evicted_is_asked_for_and_not_found(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    a, b = [1, 1, 1, 1, 9], [2, 2, 2, 2, 9]
    trace = make_trace(
        make_request(a, arrival_ms=0),
        make_request(b, arrival_ms=100),  # takes the three blocks of the pool
        make_request(a, arrival_ms=250),
    )
    seen = watch(trace, 3, ONE_AT_A_TIME)
    assert seen.asked_gaps_ms.tolist() == [250, 250]
    assert seen.reuse_gaps_ms.tolist() == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_gap_is_found_more_often_than_it_is_asked_for(name: str) -> None:
    """In a pool so small that requests wait, so that look-ups are later than arrivals."""
    trace = generate(name, 2)
    small = watch(trace, 700, ReplayConfig())
    asked, found = (Counter(gaps.tolist()) for gaps in (small.asked_gaps_ms, small.reuse_gaps_ms))
    assert found <= asked
    if name != "parallel-sampling":  # whose prompts do not repeat
        assert small.result.waited
        assert found != asked

    ample = watch(trace, unbounded(trace, ReplayConfig()).working_set_blocks, ReplayConfig())
    assert np.array_equal(ample.asked_gaps_ms, ample.reuse_gaps_ms)


def test_an_output_lives_from_the_end_of_its_request(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    config = ReplayConfig(block_size=2, min_service_ms=0, service_ms_per_token=10)
    trace = make_trace(
        make_request([1, 1], arrival_ms=0, outputs=[[5, 5, 5]]),  # ends at 30
        make_request([1, 1, 5, 5, 9], arrival_ms=100),
    )
    assert watch(trace, 8, config).reuse_gaps_ms.tolist() == [100, 70]


def test_parts_of_blocks_are_refused(make_trace: MakeTrace) -> None:
    with pytest.raises(ValueError, match=r"min_partial_tokens must be 0 .* got 1"):
        watch(make_trace([1, 2, 3]), 3, ReplayConfig(block_size=2, min_partial_tokens=1))
