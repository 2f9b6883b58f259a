"""Warm-up requests fill the pool and are not counted; the others keep their counts."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

from blockmgr import FullAttention, RecurrentState, SlidingWindow
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.misses import misses
from blockmgr.lab.replay import EventLoop, ReplayConfig, held_blocks
from blockmgr.lab.replays import Replays, curve_after, first_requests, warmup_requests
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.sweep import sweep
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate
from tests.lab.brute_force import most_hits, uses
from tests.lab.worlds import conversations, prompts

ONE_AT_A_TIME = ReplayConfig(block_size=4, min_service_ms=0, service_ms_per_token=0)


class Noted(EventLoop):
    """A replay that records what each request found, by its number."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.found: dict[int, int] = {}
        self._current = 0

    def _admit(self, waiting: Any, now: int) -> bool:
        self._current = waiting.number
        return super()._admit(waiting, now)

    def _start(self, request: Any, tokens: Any) -> list[int]:
        handles = super()._start(request, tokens)
        if handles:
            self.found[self._current] = self.manager.sequence(handles[0]).num_cached_tokens
        return handles


def least(trace: Trace, config: ReplayConfig) -> int:
    return max(held_blocks(request, config) for request in trace.requests)


@pytest.mark.parametrize(
    "groups", [(), (FullAttention(), SlidingWindow(3)), (FullAttention(), RecurrentState())]
)
def test_a_replay_counts_what_the_later_requests_found(groups: tuple[Any, ...]) -> None:
    random = Random(3)
    for _ in range(60):
        trace = conversations(random, 16)
        config = ReplayConfig(
            block_size=random.choice((1, 2, 3)),
            min_service_ms=random.choice((0, 4)),
            service_ms_per_token=random.choice((0, 2)),
            max_seqs=random.choice((3, 1024)),
            groups=groups,
        )
        warm = random.randrange(len(trace.requests))
        blocks = least(trace, config) + random.randrange(6)
        loop = Noted(trace, blocks, config)
        loop.run()

        counted = Replays(trace, warm).replay(blocks, config)

        assert counted.requests == len(trace.requests) - warm
        assert counted.hit_tokens == sum(n for i, n in loop.found.items() if i > warm)
        asked = sum(request.num_prompt_tokens for request in trace.requests[warm:])
        assert counted.query_tokens == asked
        table = misses(trace, blocks, config, warmup=warm)
        assert (table.query_tokens, table.hit_tokens) == (asked, counted.hit_tokens)
        assert sum(table.missed_tokens.values()) == asked - counted.hit_tokens


def test_the_optimum_is_what_trying_every_eviction_finds_for_the_later_requests() -> None:
    random = Random(11)
    for _ in range(400):
        trace = prompts(random, 7, 6)
        config = replace(ONE_AT_A_TIME, block_size=random.choice((1, 2)))
        warm = random.randrange(len(trace.requests))
        known = list(uses(trace, config.block_size, "manager"))
        blocks = least(trace, config) + random.randrange(4)
        # Hits of a request that is not counted have no value.
        counted = [use if i >= warm else use._replace(looked_up=0) for i, use in enumerate(known)]

        [best] = Replays(trace, warm).optima([blocks], config)

        assert best is not None
        assert 0 <= best.hit_blocks - most_hits(counted, blocks) <= 1
        result = Replays(trace, warm).replay(blocks, config)
        assert result.hit_tokens <= best.hit_tokens
        assert result.query_tokens == best.query_tokens


def test_an_unbounded_pool_after_a_warm_up_is_its_whole_less_the_beginning() -> None:
    trace = generate("chat", 3, conversations=20)
    warm = len(trace.requests) // 2
    found = Replays(trace, warm).attainable(ONE_AT_A_TIME)
    whole = unbounded(trace, ONE_AT_A_TIME)
    before = unbounded(first_requests(trace, warm), ONE_AT_A_TIME)
    assert found.hit_tokens == whole.hit_tokens - before.hit_tokens
    assert found.working_set_blocks == whole.working_set_blocks


def test_a_curve_after_a_warm_up_is_the_replays_at_every_size() -> None:
    trace = generate("chat", 3, conversations=12)
    warm = 20
    curve = curve_after(
        hit_rate_curve(trace, ONE_AT_A_TIME),
        hit_rate_curve(first_requests(trace, warm), ONE_AT_A_TIME),
    )
    replays = Replays(trace, warm)
    for blocks in np.geomspace(curve.longest_request_blocks, 4000, 12).astype(int).tolist():
        assert curve.hit_tokens_at(blocks) == replays.replay(blocks, ONE_AT_A_TIME).hit_tokens
    assert np.all(np.diff(curve.capacities) > 0)


def test_a_sweep_after_a_warm_up_compares_like_with_like() -> None:
    trace = generate("chat", 3, conversations=30)
    [size] = parse_capacities("20%")
    sweeps = [
        sweep(trace, [size], ONE_AT_A_TIME, policies=("lru", "arc"), warmup=40, jobs=jobs)
        for jobs in (1, 2)
    ]
    assert sweeps[0] == sweeps[1]
    asked = sum(request.num_prompt_tokens for request in trace.requests[40:])
    for row in sweeps[0].rows:
        best = row.optimum
        assert best is not None
        assert row.result.query_tokens == best.query_tokens == asked
        assert row.result.hit_tokens <= best.hit_tokens <= row.attainable.hit_tokens


@pytest.mark.parametrize("share", [Fraction(1), Fraction(3, 2)])
def test_a_warm_up_of_all_requests_is_refused(share: Fraction) -> None:
    trace = generate("chat", 3, conversations=2)
    with pytest.raises(ValueError, match=r"warmup must be in \[0%, 100%\)"):
        warmup_requests(trace, share)
    with pytest.raises(ValueError, match=r"warmup must be in \[0, "):
        Replays(trace, len(trace.requests))
