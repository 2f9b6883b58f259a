"""Separate prefill and decode: two fleets in a row, and the transfer between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from blockmgr.groups import FullAttention, SlidingWindow
from blockmgr.lab.fleet import FleetOptions, PrefillModel, Split, best_hit_rate, fleet
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.routers import ROUTERS
from blockmgr.lab.trace import Request, Trace
from blockmgr.lab.workloads import generate
from tests.lab import worlds

CONFIG = ReplayConfig(block_size=2, min_service_ms=100, service_ms_per_token=0)
CHAT = generate("chat", 3, conversations=40, system_tokens=64, think_s=4)


def request(arrival_ms: int, *tokens: int, outputs: int = 0) -> Request:
    prompt = np.array(tokens, dtype=np.uint32)
    return Request(arrival_ms=arrival_ms, prompt=prompt, num_output_tokens=outputs)


def test_a_request_is_prefilled_and_then_handed_over() -> None:
    trace = Trace(
        "two", (request(0, 1, 2, 3, 4, 5, outputs=3), request(50, 1, 2, 3, 4, 6, 7, outputs=3))
    )
    model = PrefillModel(ms_per_token=2, overhead_ms=10)
    options = FleetOptions(send_ms_per_token=3, first_token=model)
    found = fleet(trace, Split(1, 1), 20, CONFIG, options=options)
    # Five tokens are computed, then the two that are not cached; equally many are sent.
    assert found.first_token_ms.tolist() == [20, 14]
    assert found.handover_ms.tolist() == [15, 6]
    assert found.sent_tokens == 7
    [prefill], [decode] = found.prefill, found.decode
    assert (prefill.hit_tokens, decode.hit_tokens) == (4, 4)
    # Outputs take no room in the prefill replica, and its two requests run one after the other.
    assert (prefill.peak_used_blocks, decode.peak_used_blocks) == (3, 2 + 2 + 3)


@pytest.mark.parametrize(
    ("blocks", "decode_blocks", "send_ms", "first_token_ms", "handover_ms"),
    [
        # The first request holds its blocks during the transfer and its service time.
        (9, 3, 5, [10, 10], [15, 15 + 100 + 15]),
        (3, 9, 0, [10, 20], [0, 0]),
    ],
    ids=["decode", "prefill"],
)
def test_a_full_replica_that_decodes_delays_decoding_and_one_that_prefills_the_first_token(
    blocks: int,
    decode_blocks: int,
    send_ms: float,
    first_token_ms: list[int],
    handover_ms: list[int],
) -> None:
    trace = Trace("two", (request(0, 1, 2, 3), request(0, 7, 8, 9)))
    model = PrefillModel(ms_per_token=0, overhead_ms=10)
    options = FleetOptions(
        decode_blocks=decode_blocks, send_ms_per_token=send_ms, first_token=model
    )
    found = fleet(trace, Split(1, 1), blocks, CONFIG, options=options)
    assert found.first_token_ms.tolist() == first_token_ms
    assert found.handover_ms.tolist() == handover_ms
    assert found.waited == 1


def test_handovers_come_in_the_order_in_which_prompts_are_done() -> None:
    order: list[int] = []

    def noting(_: Any) -> Callable[..., int]:
        def choose(arrival: Any, _views: Any) -> int:
            order.append(len(arrival.tokens))
            return 0

        return choose

    trace = Trace("three", (request(0, *range(40)), request(1, *range(100, 104))))
    options = FleetOptions(decode_router=noting)
    fleet(trace, Split(2, 1), 40, CONFIG, "round-robin", options=options)
    assert order == [4, 40]


@pytest.mark.parametrize("router", ROUTERS)
def test_every_request_passes_both_halves_and_no_fleet_beats_its_bound(router: str) -> None:
    config = ReplayConfig(block_size=16)
    options = FleetOptions(decode_router=router, seed=1)
    found = fleet(CHAT, Split(2, 3), 700, config, router, options=options)
    count = len(CHAT.requests)
    assert sum(one.requests for one in found.prefill) == count
    assert sum(one.requests for one in found.decode) == count
    assert len(found.first_token_ms) == len(found.handover_ms) == count
    assert found.rejected == 0
    assert found.hit_rate <= best_hit_rate(CHAT, Split(2, 3), 700, config)
    assert found.imbalance >= 1
    assert found.decode_imbalance >= 1


def test_one_replica_that_prefills_at_once_is_a_replay_of_prompts_alone() -> None:
    at_once = FleetOptions(first_token=PrefillModel(ms_per_token=0, overhead_ms=0))
    for seed in range(30):
        trace = worlds.conversations(Random(seed), 14)
        bare = tuple(replace(one, outputs=(), num_output_tokens=0) for one in trace.requests)
        found = fleet(trace, Split(1, 1), 40, CONFIG, options=at_once)
        # Everything happens at the time of arrival, so the second half is a replay as well.
        instant = replace(CONFIG, min_service_ms=0)
        expected = (
            replay(Trace("bare", bare), 40, instant),
            replay(trace, 40, CONFIG),
        )
        for one, other in zip((*found.prefill, *found.decode), expected, strict=True):
            assert {**asdict(one), "host_s": 0} == {**asdict(other), "host_s": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": Split(0, 1)}, "prefill must be at least 1, got 0"),
        ({"replicas": Split(1, 0)}, "decode must be at least 1, got 0"),
        ({"router": "nearest"}, "router must be one of random, .*, got 'nearest'"),
        (
            {"options": FleetOptions(decode_router="nearest")},
            "router must be one of random, .*, got 'nearest'",
        ),
        ({"num_blocks": 1}, "num_blocks must hold a request of prompts, got 1"),
        (
            {"config": replace(CONFIG, groups=(FullAttention(), SlidingWindow(2)))},
            "groups must be empty for prefill and decode apart, got 2",
        ),
    ],
)
def test_a_fleet_apart_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    trace = Trace("prompts", (request(0, *range(8)),))
    good: dict[str, Any] = {"replicas": Split(1, 1), "num_blocks": 9, "config": CONFIG}
    with pytest.raises(ValueError, match=message):
        fleet(trace, **{**good, **changes})
