"""The miss table: every missed token has one reason, and the stated savings are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockmgr import FullAttention, RecurrentState, SlidingWindow
from blockmgr.explain import MissReason
from blockmgr.groups import Group
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.misses import explain_request, misses
from blockmgr.lab.replay import EventLoop, Limits, ReplayConfig, replay
from blockmgr.lab.study import full_attention, working_set_blocks
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate
from tests.lab.conftest import MakeRequest, MakeTrace

ONE_AT_A_TIME = ReplayConfig(block_size=16, min_service_ms=0, service_ms_per_token=0)


@pytest.fixture(scope="module")
def chat() -> Trace:
    trace = generate("chat", seed=3)
    return replace(trace, requests=trace.requests[:150])


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    "config",
    [
        ONE_AT_A_TIME,
        ReplayConfig(),
        ReplayConfig(dedup="append_only"),
        ReplayConfig(min_partial_tokens=4),
        ReplayConfig(block_size=64),
    ],
    ids=["one at a time", "overlapping", "append only", "parts", "large blocks"],
)
def test_every_missed_token_has_one_reason(chat: Trace, config: ReplayConfig, share: float) -> None:
    num_blocks = int(share * unbounded(chat, config).working_set_blocks)
    table = misses(chat, num_blocks, config)
    result = replay(chat, num_blocks, config)
    assert (table.query_tokens, table.hit_tokens) == (result.query_tokens, result.hit_tokens)
    assert sum(table.missed_tokens.values()) == result.query_tokens - result.hit_tokens
    assert list(table.missed_tokens) == [r for r in MissReason if r in table.missed_tokens]
    assert all(table.missed_tokens.values())


@pytest.mark.parametrize("more", [0, 1, 7, 50, 400, 3000])
def test_so_many_more_blocks_save_so_many_tokens(chat: Trace, more: int) -> None:
    num_blocks = 200
    table = misses(chat, num_blocks, ONE_AT_A_TIME)
    larger = replay(chat, num_blocks + more, ONE_AT_A_TIME)
    assert table.saved(more) == larger.hit_tokens - table.hit_tokens


def test_what_was_evicted_is_what_an_unbounded_pool_finds_besides(chat: Trace) -> None:
    table = misses(chat, 200, ONE_AT_A_TIME)
    evicted = table.missed_tokens[MissReason.EVICTED]
    assert table.hit_tokens + evicted == unbounded(chat, ONE_AT_A_TIME).hit_tokens
    assert table.saved(table.more_blocks_for(1)) == evicted
    half = table.more_blocks_for(0.5)
    assert table.saved(half) * 2 >= evicted > table.saved(half - 1) * 2
    assert table.more_blocks_for(0) == 0


@pytest.mark.parametrize("groups", [(SlidingWindow(64),), (RecurrentState(),) * 2])
def test_with_groups_what_full_attention_would_find_is_found_refused_or_evicted(
    groups: tuple[Group, ...],
) -> None:
    trace = generate("few-shot", seed=3, requests=150)
    config = replace(ONE_AT_A_TIME, groups=(FullAttention(), *groups))
    num_blocks = working_set_blocks(trace, config) // 5
    table = misses(trace, num_blocks, config)
    result = replay(trace, num_blocks, config)
    assert (table.query_tokens, table.hit_tokens) == (result.query_tokens, result.hit_tokens)
    assert sum(table.missed_tokens.values()) == result.query_tokens - result.hit_tokens
    refused, evicted = (table.missed_tokens[r] for r in (MissReason.GROUP, MissReason.EVICTED))
    assert table.hit_tokens + refused + evicted == full_attention(trace, config).hit_tokens
    assert MissReason.NOT_REMEMBERED not in table.missed_tokens
    assert result.by_group is not None
    assert refused == result.by_group.refused_tokens > 0
    assert table.refusing == repr(groups[0])
    assert not len(table.more_blocks)


def test_one_request_with_groups_names_what_was_evicted() -> None:
    trace = generate("few-shot", seed=3, requests=80)
    config = replace(ONE_AT_A_TIME, groups=(FullAttention(), SlidingWindow(64)))
    num_blocks = working_set_blocks(trace, config) // 5
    table = misses(trace, num_blocks, config)
    tokens = dict.fromkeys(MissReason, 0)
    for number in range(1, 81):
        found = explain_request(trace, num_blocks, config, number)
        edges = [found.num_cached_tokens, *(miss.stop for miss in found.misses)]
        assert [miss.start for miss in found.misses] == edges[:-1]
        for miss in found.misses:
            tokens[miss.reason] += miss.num_tokens
    assert {reason: count for reason, count in tokens.items() if count} == table.missed_tokens


def test_no_other_reason_than_these_in_a_pool_that_never_evicts(chat: Trace) -> None:
    ample = unbounded(chat, ONE_AT_A_TIME).working_set_blocks
    table = misses(chat, ample, ONE_AT_A_TIME)
    assert MissReason.EVICTED not in table.missed_tokens
    assert len(table.more_blocks) == 0
    assert (table.saved(10), table.more_blocks_for(1)) == (0, 0)


def test_a_request_larger_than_the_pool_is_missed_for_that(
    make_trace: MakeTrace,
) -> None:
    trace = make_trace([1, 2, 3], list(range(40)), [1, 2, 3])
    table = misses(trace, 5, replace(ONE_AT_A_TIME, block_size=2))
    assert table.missed_tokens == {MissReason.TOO_LARGE: 40, MissReason.LAST_TOKEN: 2} | {
        MissReason.NEVER_SEEN: 2
    }
    assert next(iter(table.missed_tokens)) is MissReason.TOO_LARGE


def test_tenants_with_the_same_prompts_show_as_other_namespaces(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    trace = make_trace(
        make_request([1, 2, 3, 4, 5]),
        make_request([1, 2, 3, 4, 5], arrival_ms=1, namespace=b"tenant"),
    )
    table = misses(trace, 20, replace(ONE_AT_A_TIME, block_size=2))
    assert table.missed_tokens[MissReason.OTHER_NAMESPACE] == 4


def test_one_request_is_explained_as_it_was_when_it_came(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2, 3], [1, 2, 9], [5, 6, 7])
    config = replace(ONE_AT_A_TIME, block_size=2)
    reasons = [explain_request(trace, 8, config, number).reason for number in (1, 2, 3)]
    assert reasons == [MissReason.NEVER_SEEN, MissReason.LAST_TOKEN, MissReason.NEVER_SEEN]


@pytest.mark.parametrize("number", [0, 4])
def test_a_request_that_is_not_there_is_refused(make_trace: MakeTrace, number: int) -> None:
    trace = make_trace([1], [2], [3])
    with pytest.raises(ValueError, match=r"request must be in \[1, 3\]"):
        explain_request(trace, 8, ONE_AT_A_TIME, number)


def test_a_request_that_never_fits_is_refused(make_trace: MakeTrace) -> None:
    trace = make_trace([1], list(range(100)))
    with pytest.raises(ValueError, match="request 2 needs 7 blocks"):
        explain_request(trace, 3, ONE_AT_A_TIME, 2)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_out_of_range_is_refused(chat: Trace, share: float) -> None:
    table = misses(replace(chat, requests=chat.requests[:5]), 200, ONE_AT_A_TIME)
    with pytest.raises(ValueError, match="share must be in"):
        table.more_blocks_for(share)


def remembering(trace: Trace, blocks: int) -> Limits:
    return replace(Limits.of(trace, ONE_AT_A_TIME), ghost_blocks=blocks)


def test_the_curve_of_a_live_manager_is_the_curve_of_the_trace(chat: Trace) -> None:
    """Compares a manager's curve after the trace with the offline curve and with replays."""
    offline = hit_rate_curve(chat, ONE_AT_A_TIME)
    loop = EventLoop(chat, 300, ONE_AT_A_TIME, limits=remembering(chat, 20_000))
    result = loop.run()
    online = loop.manager.hit_rate_curve()
    assert online.query_tokens == offline.query_tokens
    assert online.hit_tokens[300] == result.hit_tokens
    assert online.hit_tokens[-1] == offline.hit_tokens[-1]
    for size in range(offline.exact_from, 20_000, 97):
        assert online.hit_tokens[size] == offline.hit_tokens_at(size)
    for size in (150, 299, 301, 600, 1200, 5000):
        assert online.hit_tokens[size] == replay(chat, size, ONE_AT_A_TIME).hit_tokens


def test_the_difference_of_two_curves_is_what_came_between(chat: Trace) -> None:
    first = replace(chat, requests=chat.requests[:70])
    loops = [EventLoop(t, 300, ONE_AT_A_TIME, limits=remembering(t, 900)) for t in (first, chat)]
    for loop in loops:
        loop.run()
    early, late = (loop.manager.hit_rate_curve() for loop in loops)
    window = late - early
    assert window.query_tokens == sum(r.num_prompt_tokens for r in chat.requests[70:])
    assert (window.hit_tokens == late.hit_tokens - early.hit_tokens).all()
    assert (window.hit_tokens >= 0).all()
