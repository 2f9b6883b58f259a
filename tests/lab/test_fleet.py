"""Fleets: one replica equals a replay, routers keep their rules, no fleet beats its bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from blockmgr.lab.fleet import FleetOptions, FleetResult, PrefillModel, best_hit_rate, fleet
from blockmgr.lab.replay import ReplayConfig, held_blocks, replay
from blockmgr.lab.routers import ROUTERS, router_of
from blockmgr.lab.routing import Arrival, Setting, View
from blockmgr.lab.trace import Request, Trace
from blockmgr.lab.workloads import generate
from tests.lab import worlds
from tests.lab.conftest import MakeTrace

CONFIG = ReplayConfig(block_size=2)
CHAT = generate("chat", 3, conversations=40, system_tokens=64, think_s=4)


def counts(result: Any) -> dict[str, Any]:
    found = asdict(result)
    del found["host_s"]
    return found


@pytest.fixture(scope="module")
def replays() -> list[tuple[Trace, int, ReplayConfig, dict[str, Any]]]:
    """Traces, pools and options, and what a replay counts."""
    # Service times so short that requests end between arrivals.
    quick = replace(CONFIG, min_service_ms=3, service_ms_per_token=2)
    configs = CONFIG, quick, replace(quick, hints="truth", min_partial_tokens=1)
    traces = [worlds.conversations(Random(seed), 14) for seed in range(30)]
    return [
        (trace, blocks, config, counts(replay(trace, blocks, config)))
        for trace, blocks, config in itertools.product(traces, (4, 9, 40), configs)
    ]


@pytest.mark.parametrize("router", ROUTERS)
def test_one_replica_is_a_replay_whatever_the_router(
    router: str, replays: list[tuple[Trace, int, ReplayConfig, dict[str, Any]]]
) -> None:
    for trace, blocks, config, found in replays:
        [only] = fleet(trace, 1, blocks, config, router).prefill
        assert counts(only) == found


@pytest.mark.parametrize("router", ROUTERS)
def test_every_request_is_served_once_and_no_fleet_beats_its_bound(router: str) -> None:
    config = ReplayConfig(block_size=16)
    least = max(held_blocks(request, config) for request in CHAT.requests)
    for replicas in (2, 5):
        result = fleet(CHAT, replicas, least + 200, config, router)
        assert sum(one.requests for one in result.replicas) == len(CHAT.requests)
        asked = sum(one.query_tokens for one in result.replicas)
        assert asked == sum(request.num_prompt_tokens for request in CHAT.requests)
        assert result.hit_rate <= best_hit_rate(CHAT, replicas, least + 200, config)
        assert result.imbalance >= 1
        assert len(result.first_token_ms) == len(CHAT.requests) - result.rejected
        assert counts(fleet(CHAT, replicas, least + 200, config, router).replicas[0]) == counts(
            result.replicas[0]
        )


def test_a_result_names_its_router() -> None:
    def first(setting: Setting) -> Any:
        del setting
        return lambda _arrival, _views: 0

    blocks = 400
    assert fleet(CHAT, 2, blocks, ReplayConfig(block_size=16), "random").router == "random"
    assert fleet(CHAT, 2, blocks, ReplayConfig(block_size=16), first).router == "first"
    nameless = partial(first)
    assert fleet(CHAT, 2, blocks, ReplayConfig(block_size=16), nameless).router == "own"


class Fake:
    """A replica with a fixed number of requests and of cached tokens."""

    def __init__(self, num_requests: int, cached: int) -> None:
        self.num_requests = num_requests
        self.cached = cached

    def cached_tokens(self, _: Arrival) -> int:
        return self.cached


def chosen(name: str, *views: tuple[int, int], count: int = 1, **more: Any) -> list[int]:
    trace = worlds.prompts(Random(1), 9, 9)
    router = router_of(name, Setting(trace=trace, block_size=2, **more))
    prompt = np.zeros(10, dtype=np.uint32)
    request = Request(arrival_ms=0, prompt=prompt, num_output_tokens=0)
    fakes: Sequence[View] = [Fake(*view) for view in views]
    return [router(Arrival(1, request, prompt), fakes) for _ in range(count)]


def test_routers_choose_as_they_say() -> None:
    assert chosen("round-robin", (9, 0), (0, 9), (0, 0), count=5) == [0, 1, 2, 0, 1]
    assert chosen("least-loaded", (3, 9), (1, 0), (1, 9)) == [1]
    assert chosen("longest-prefix", (0, 2), (9, 8), (3, 8)) == [2]
    # Shares 0.2 and 0.8, loads 0 and 9 over a mean of 4.5.
    assert chosen("prefix-minus-load", (0, 2), (9, 8), load_weight=0.25) == [1]
    assert chosen("prefix-minus-load", (0, 2), (9, 8), load_weight=0.4) == [0]
    drawn = chosen("random", (0, 0), (0, 0), count=200)
    assert 60 < sum(drawn) < 140
    assert drawn != chosen("random", (0, 0), (0, 0), count=200, seed=1)


def placed(trace: Trace, replicas: int, router: str) -> list[int]:
    places: list[int] = []

    def noting(setting: Setting) -> Callable[[Arrival, Sequence[View]], int]:
        inner = router_of(router, setting)

        def choose(arrival: Arrival, views: Sequence[View]) -> int:
            places.append(inner(arrival, views))
            return places[-1]

        return choose

    fleet(trace, replicas, 4000, ReplayConfig(block_size=16), noting)
    return places


def test_a_session_stays_where_it_began_and_few_move_when_a_replica_comes() -> None:
    def first_of(request: Request) -> bytes:
        return request.tokens()[64:80].tobytes()  # of the first question

    before, after = placed(CHAT, 4, "session"), placed(CHAT, 5, "session")
    homes: dict[bytes, set[int]] = {}
    for request, place in zip(CHAT.requests, before, strict=True):
        homes.setdefault(first_of(request), set()).add(place)
    assert {len(places) for places in homes.values()} == {1}
    assert len({place for places in homes.values() for place in places}) == 4
    moved = {new for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {4}


def test_prefix_routing_finds_what_round_robin_does_not() -> None:
    config = ReplayConfig(block_size=16)
    rates = {name: fleet(CHAT, 4, 3000, config, name).hit_rate for name in ROUTERS}
    assert rates["longest-prefix"] > rates["round-robin"] + 0.1
    assert rates["session"] > rates["round-robin"] + 0.1


def test_time_to_first_token_is_the_wait_and_what_is_computed(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [7, 8, 9])
    model = PrefillModel(ms_per_token=2, overhead_ms=10)
    instant = replace(CONFIG, min_service_ms=0)
    # Prompts of 5, 1 and 3 tokens to compute come at 0, 1 and 2 ms: prefills begin at 0, 10 and 12.
    result = fleet(trace, 1, 9, instant, options=FleetOptions(first_token=model))
    assert result.first_token_ms.tolist() == [20, 9 + 12, 10 + 16]
    assert result.first_token_quantile(0.5) == 21
    assert result.prefill_loads == (18 / 2,)
    # Two blocks of three: the second prompt waits until the first has ended.
    crowded = fleet(trace, 1, 3, CONFIG, options=FleetOptions(first_token=model))
    assert crowded.first_token_ms.tolist()[1] == 499 + 12
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got 2"):
        result.first_token_quantile(2)


def test_a_fleet_of_unequal_replicas_says_so(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2, 3], [4, 5, 6])
    result: FleetResult = fleet(trace, 2, 9, CONFIG, lambda _: lambda _arrival, _views: 1)
    assert [one.requests for one in result.replicas] == [0, 2]
    assert result.imbalance == 2


def test_a_request_that_fits_no_replica_is_rejected(make_trace: MakeTrace) -> None:
    result = fleet(make_trace([1, 2, 3], list(range(50))), 2, 3, CONFIG)
    assert result.rejected == 1
    assert len(result.first_token_ms) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"router": "nearest"}, "router must be one of random, .*, got 'nearest'"),
        ({"router": lambda _: lambda _a, _v: 7}, r"router must choose from \[0, 2\), got 7"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(
    make_trace: MakeTrace, changes: dict[str, Any], message: str
) -> None:
    good: dict[str, Any] = {"replicas": 2, "num_blocks": 9, "config": CONFIG}
    with pytest.raises(ValueError, match=message):
        fleet(make_trace([1, 2, 3]), **{**good, **changes})


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FleetOptions, "load_weight"),
        (FleetOptions, "send_ms_per_token"),
        (PrefillModel, "ms_per_token"),
        (PrefillModel, "overhead_ms"),
    ],
)
def test_options_of_a_fleet_out_of_bounds_are_refused(
    kind: type[Any], name: str, value: float
) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be in \[0, 2147483647\], got {value}"):
        kind(**{name: value})


def test_replicas_compute_prompts_one_after_another_and_beside_each_other(
    make_trace: MakeTrace,
) -> None:
    trace = make_trace([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16])
    model = PrefillModel(ms_per_token=1, overhead_ms=10)
    one, two = (
        fleet(trace, n, 40, CONFIG, options=FleetOptions(first_token=model)) for n in (1, 2)
    )
    # At 0, 1, 2 and 3 ms: each takes 4 ms of a replica, and the fixed part takes none of it.
    assert one.first_token_ms.tolist() == [14, 14 + 3, 14 + 6, 14 + 9]
    assert sorted(two.first_token_ms.tolist()) == [14, 14, 14 + 2, 14 + 2]
    assert one.prefill_load == 16 / 3
    assert two.prefill_loads == (8 / 3, 8 / 3)


def test_a_model_of_the_first_token_gets_the_whole_wait(make_trace: MakeTrace) -> None:
    waits: list[float] = []

    def model(wait_ms: float, computed: int) -> float:
        waits.append(wait_ms)
        return wait_ms + 7 * computed

    fleet(make_trace([1, 2, 3], [4, 5, 6]), 1, 9, CONFIG, options=FleetOptions(first_token=model))
    assert max(waits) == 20
    # Below the capacity of a replica, nobody waits for another prefill.
    waits.clear()
    slow = replace(make_trace([1, 2, 3], [4, 5, 6]))
    apart = Trace(
        "apart", tuple(replace(r, arrival_ms=100 * i) for i, r in enumerate(slow.requests))
    )
    assert (
        fleet(apart, 1, 9, CONFIG, options=FleetOptions(first_token=model)).prefill_load == 42 / 100
    )
    assert set(waits) == {0}


def test_requests_that_all_arrive_at_once_have_no_load(make_trace: MakeTrace) -> None:
    found = make_trace([1, 2, 3], [4, 5, 6])
    trace = Trace("at once", tuple(replace(r, arrival_ms=0) for r in found.requests))
    assert fleet(trace, 1, 9, CONFIG).prefill_load is None
