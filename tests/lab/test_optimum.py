"""The optimum equals an exhaustive search, and no replay exceeds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.optimum import Optimum, optima_of, optimum
from blockmgr.lab.references import references
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate
from tests.lab.brute_force import (
    Use,
    farthest_first_hits,
    hits_with_company,
    lru_hits,
    most_hits,
    unbounded_hits,
    uses,
)
from tests.lab.conftest import MakeRequest, MakeTrace
from tests.lab.worlds import conversations, prompts

RULES = ("ids", "served", "manager")


def worlds(
    seed: int, count: int, rule: str, *, most: tuple[int, int], room: int, widest: int = 2
) -> Iterator[tuple[Trace, ReplayConfig, list[Use], int, Random]]:
    """Random prompts: as a trace, as uses, and a pool with some room beside the largest."""
    random = Random(seed)
    for _ in range(count):
        trace, size = prompts(random, *most), random.randint(1, widest)
        known = list(uses(trace, size, rule))
        blocks = max(1, *(use.held for use in known)) + random.randrange(room)
        yield trace, ReplayConfig(block_size=size), known, blocks, random


@pytest.mark.parametrize("rule", ["ids", "served"])
def test_it_is_what_trying_every_eviction_finds(rule: str) -> None:
    below_unbounded = 0
    for trace, config, known, blocks, _ in worlds(5, 2000, rule, most=(7, 6), room=4):
        best = optimum(trace, blocks, config, rule)  # type: ignore[arg-type]
        assert best.hit_blocks == most_hits(known, blocks)
        below_unbounded += best.hit_blocks < unbounded_hits(known)
    assert below_unbounded > 100  # worlds in which a useful block had to be evicted


def test_for_the_manager_it_is_at_most_one_block_above_in_one_world_of_hundreds() -> None:
    above: Counter[int] = Counter()
    for trace, config, known, blocks, _ in worlds(6, 3000, "manager", most=(7, 6), room=4):
        best = optimum(trace, blocks, config)
        above[best.hit_blocks - most_hits(known, blocks)] += 1
    assert min(above) == 0
    assert max(above) <= 1
    assert above[0] > 0.995 * above.total()


def test_a_twin_that_only_leads_to_others_is_what_the_bound_forgets(make_trace: MakeTrace) -> None:
    # [1] and [1 2] are cached. The prompt [1] computes its block again, so the bound gives that
    # slot to [3], which comes back as well; a pool must keep [1] to keep [1 2].
    trace = make_trace([1, 2, 3], [4, 5], [1], [4, 5, 6], [1, 2, 3])
    known = list(uses(trace, 1, "manager"))
    gaps = {
        blocks: optimum(trace, blocks, ReplayConfig(block_size=1)).hit_blocks
        - most_hits(known, blocks)
        for blocks in range(3, 9)
    }
    assert set(gaps.values()) <= {0, 1}


@pytest.mark.parametrize("rule", RULES)
def test_it_counts_what_a_naive_simulation_counts(rule: str) -> None:
    for trace, config, known, blocks, _ in worlds(7, 500, rule, most=(30, 12), room=9, widest=3):
        best = optimum(trace, blocks, config, rule)  # type: ignore[arg-type]
        assert best.hit_blocks == farthest_first_hits(known, blocks)
        assert lru_hits(known, blocks) <= best.hit_blocks <= unbounded_hits(known)


def test_no_order_of_eviction_exceeds_it_with_or_without_company() -> None:
    reached = 0
    for trace, config, known, blocks, random in worlds(8, 1500, "manager", most=(9, 8), room=6):
        best = optimum(trace, blocks, config).hit_blocks
        for company in (1, 4):
            lasts = [random.randint(1, company) for _ in known]
            found = hits_with_company(known, blocks, lasts, random.randrange)
            assert found <= best
            reached += found == best > 0
    assert reached > 100


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_no_replay_exceeds_it_with_outputs_samples_and_requests_that_wait(dedup: str) -> None:
    random = Random(9)
    waited = 0
    for _ in range(250):
        trace = conversations(random, 14)
        config = ReplayConfig(
            block_size=random.choice((1, 2, 3)),
            min_service_ms=random.choice((0, 3)),
            service_ms_per_token=random.choice((0, 2)),
            max_seqs=random.choice((2, 3, 1024)),
            dedup=dedup,  # type: ignore[arg-type]
        )
        sizes = range(1, 30, 3)
        bounds = optima_of(references(trace, config), sizes, config)
        for blocks, best in zip(sizes, bounds, strict=True):
            result = replay(trace, blocks, config)
            assert result.hit_tokens <= best.hit_tokens
            assert result.query_tokens == best.query_tokens
            waited += result.waited
    assert waited > 1000


def test_a_pool_that_never_evicts_finds_what_an_unbounded_one_finds() -> None:
    trace = generate("chat", seed=1, conversations=30)
    config = ReplayConfig(min_service_ms=0, service_ms_per_token=0)
    all_of_it = unbounded(trace, config)
    best = optimum(trace, all_of_it.working_set_blocks, config)
    assert (best.hit_tokens, best.hit_rate) == (all_of_it.hit_tokens, all_of_it.hit_rate)


def test_a_larger_pool_never_finds_less() -> None:
    trace = generate("agent", seed=1, agents=8)
    config = ReplayConfig(block_size=64)
    stream = references(trace, config)
    rates = [optima_of(stream, [blocks], config)[0].hit_rate for blocks in range(100, 1500, 100)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_a_request_larger_than_the_pool_is_missed_as_in_a_replay(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 1], [2] * 9, [1, 1], [1, 1])
    config = ReplayConfig(block_size=1, min_service_ms=0)
    assert optimum(trace, 4, config) == Optimum(
        num_blocks=4, query_blocks=11, hit_blocks=2, query_tokens=15, hit_tokens=2
    )
    assert replay(trace, 4, config).rejected == 1


def test_a_request_with_more_samples_than_rows_is_missed(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    trace = make_trace(
        make_request([1, 1, 1], outputs=[[2], [3]]), make_request([1, 1, 1], arrival_ms=9)
    )
    assert optimum(trace, 9, ReplayConfig(block_size=1, max_seqs=1)).hit_blocks == 0
    assert optimum(trace, 9, ReplayConfig(block_size=1, max_seqs=2)).hit_blocks == 2


def test_what_it_cannot_bound_is_refused(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2])
    with pytest.raises(ValueError, match="num_blocks must be at least 1, got 0"):
        optimum(trace, 0, ReplayConfig())
    with pytest.raises(ValueError, match="min_partial_tokens must be 0 to count whole blocks"):
        optimum(trace, 9, ReplayConfig(min_partial_tokens=4))
