"""The orders of eviction with which ``benchmarks.sessions`` measures what names are worth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.judge import by_ids
from benchmarks.sessions import AGES, ByRank, Facts, Order, gains, ranks
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.trace import HashedPrompt, Request, Trace

BINS = len(AGES)
CONFIG = ReplayConfig(block_size=16, min_service_ms=0, service_ms_per_token=0)


def trace_of(*prompts: tuple[int, list[int]]) -> Trace:
    """Requests at these seconds, of these ids of 16 tokens."""
    requests = [
        Request(
            arrival_ms=1000 * second,
            prompt=HashedPrompt(np.array(ids), 16 * len(ids) + 1, 16),
            num_output_tokens=0,
            outputs=(),
            namespace=b"",
        )
        for second, ids in prompts
    ]
    return Trace("prompts", tuple(requests))


@pytest.fixture(scope="module")
def chat() -> Trace:
    return by_ids("chat")


def test_blocks_that_return_sooner_have_the_higher_rank() -> None:
    returned, stopped = np.zeros((3, BINS)), np.zeros((3, BINS))
    returned[0, 2] = stopped[0, 2] = returned[1, 9] = stopped[1, 9] = 1000
    stopped[2, -1] = 1000
    soon, late, never = ranks(returned, stopped)[:, 0]
    assert soon > late > never > 0


def test_a_rank_is_the_most_returns_in_a_second_from_now() -> None:
    returned, stopped = np.zeros((1, BINS)), np.zeros((1, BINS))
    returned[0, 2] = stopped[0, 2] = returned[0, 3] = stopped[0, 3] = 1e9
    # Half of the blocks return in the third bin and half in the fourth, on average in its middle.
    time = AGES[2] + 0.75 * (AGES[3] - AGES[2]) + 0.25 * (AGES[4] - AGES[3])
    assert ranks(returned, stopped)[0, 0] == pytest.approx(1 / time)


def test_blocks_whose_time_has_passed_have_a_low_rank() -> None:
    returned, stopped = np.zeros((2, BINS)), np.zeros((2, BINS))
    returned[0, 2] = 900
    returned[1, 9] = stopped[1, 9] = stopped[0, 2] = 1000
    stopped[0, -1] = 100
    index = ranks(returned, stopped)
    assert index[0, 2] > index[1, 2]
    assert index[0, 5] < index[1, 5]


def test_an_order_by_age_alone_is_lru(chat: Trace) -> None:
    facts = Facts(chat, CONFIG)
    by_age = Order(np.zeros_like(facts.by_all()), [-np.arange(BINS, dtype=float)[None, :]])
    for blocks in (400, 2000):
        found = replay(chat, blocks, replace(CONFIG, eviction=partial(ByRank, facts, by_age)))
        lru = replay(chat, blocks, CONFIG)
        assert (found.hit_tokens, found.evictions) == (lru.hit_tokens, lru.evictions)


def test_the_use_of_a_block_follows_from_earlier_prompts() -> None:
    trace = trace_of((0, [1, 2]), (1, [1, 2, 3]), (2, [1, 4]), (3, [1, 2, 3, 5]))
    facts = Facts(trace, CONFIG)
    assert facts.turns.tolist() == [1, 2, 1, 3]
    new, found, shared = range(3)
    uses = [[facts.use(number, depth) for depth in range(2)] for number in range(4)]
    assert uses == [[new, new], [found, found], [shared, new], [shared, found]]
    assert facts.use(3, 2) == found
    assert facts.use(3, 3) == new


def test_what_is_learned_depends_on_the_past_only(chat: Trace) -> None:
    half = replace(chat, requests=chat.requests[: len(chat.requests) // 2 // 8 * 8])
    whole = replace(chat, requests=chat.requests[: 2 * len(half.requests)])
    learned = []
    for trace, times in ((half, 8), (whole, 16)):
        facts = Facts(trace, CONFIG)
        learned.append(Order.counted(facts, facts.by_turn_and_use(), times).ranks)
    assert len(learned[1]) == 16
    # A visit's weight is a share of the mean, in which the later ones count.
    for before, after in zip(*learned, strict=False):
        assert np.allclose(before, after, rtol=0.1)
    assert not np.allclose(learned[0][0], learned[0][-1], rtol=0.1)


def test_no_order_finds_more_than_the_optimum(chat: Trace) -> None:
    pools = list(gains(chat, [0.01, 2, 10]))
    assert [found["share"] for found, _ in pools] == [2, 10]
    for found, gap in pools:
        for name in ("session", "learned", "fitted"):
            assert found[name] < gap
        assert 0 < found["learned"] < found["fitted"]
