"""Exact counts of replays, of the optimum and of the curve on a production trace.

The numbers of the tables come from an independent simulator; the naive simulations of
``brute_force`` reproduce every count. The trace is Mooncake's ``conversation_trace.jsonl`` (FAST'25
release). It is not part of this repository; without it these tests are skipped. At 16 tokens a
block the naive simulations take minutes, so their counts are recorded here; ``python -m
benchmarks.yardsticks TRACE --check``, which ``tests/nightly`` runs, reproduces them at more
capacities. Simulators of ids have no outputs, so the replays here have none.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.optimum import optima_of
from blockmgr.lab.references import Rule, references
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.trace import HashedPrompt, Request, Trace, read_trace
from tests.lab.brute_force import farthest_first_hits, lru_hits, unbounded_hits, uses

REPOSITORY = Path(__file__).resolve().parents[2]
CONVERSATION = REPOSITORY.parent / "shared" / "traces" / "conversation_trace.jsonl"

pytestmark = pytest.mark.skipif(
    not CONVERSATION.exists(), reason=f"needs the Mooncake trace at {CONVERSATION}"
)

# 1, 2, 5, 10, 20 and 50 % of the 182,790 distinct ids.
CAPACITIES = (1827, 3655, 9139, 18_279, 36_558, 91_395)
# LRU blocks, LRU tokens, optimum blocks.
IDS = {
    1827: (15_136, 7_745_782, 69_181),
    3655: (22_865, 11_698_647, 89_980),
    9139: (56_479, 28_900_677, 105_710),
    18_279: (80_466, 41_178_281, 105_710),
    36_558: (99_632, 50_988_054, 105_710),
    91_395: (104_759, 53_611_499, 105_710),
}
# The same if only blocks that a prompt may be served are cached.
SERVED = {
    1827: (15_230, 7_797_760, 69_138),
    3655: (23_768, 12_169_216, 89_910),
    9139: (58_567, 29_986_304, 105_584),
    18_279: (81_755, 41_858_560, 105_584),
    36_558: (100_999, 51_711_488, 105_584),
    91_395: (104_744, 53_628_928, 105_584),
}
# LRU blocks of a pool from which the last token of each prompt takes a block while it runs.
LESS = {1827: 15_134, 3655: 22_861, 9139: 56_475, 18_279: 80_462, 36_558: 99_630}
AT_512 = ReplayConfig(block_size=512, min_service_ms=0, service_ms_per_token=0, outputs="none")
AT_16 = ReplayConfig(block_size=16, min_service_ms=0, service_ms_per_token=0, outputs="none")


@pytest.fixture(scope="module")
def conversation() -> Trace:
    return read_trace(CONVERSATION)


@pytest.fixture(scope="module")
def whole_ids(conversation: Trace) -> Trace:
    """Every id as a full block, so that each can hit; a unique token ends each prompt."""
    requests = []
    for number, request in enumerate(conversation.requests):
        assert isinstance(request.prompt, HashedPrompt)
        ids = request.prompt.ids
        own = np.array([2**31 + number], dtype=np.uint32)
        blocks = HashedPrompt(ids, 512 * len(ids)).expand()
        requests.append(
            Request(
                arrival_ms=request.arrival_ms,
                prompt=np.concatenate((blocks, own)),
                num_output_tokens=request.num_output_tokens,
            )
        )
    return Trace("whole ids", tuple(requests))


def test_an_id_of_this_trace_names_its_prefix(conversation: Trace) -> None:
    before: dict[int, int] = {}
    count = 0
    for request in conversation.requests:
        ids = request.prompt.ids.tolist()  # type: ignore[union-attr]
        count += len(ids)
        for parent, own in zip((-1, *ids), ids, strict=False):
            assert before.setdefault(own, parent) == parent
    assert (len(conversation.requests), count, len(before)) == (12_031, 288_500, 182_790)


def test_the_unbounded_rate(conversation: Trace, whole_ids: Trace) -> None:
    # Look-ups less distinct blocks: 288,500 - 182,790.
    assert unbounded(whole_ids, AT_512).hit_tokens == 512 * 105_710
    # Only full blocks, and the last token is recomputed.
    assert unbounded(conversation, AT_512).hit_tokens == 512 * 105_592
    rate = unbounded(conversation, ReplayConfig(outputs="none")).hit_rate
    assert rate == pytest.approx(0.37362, abs=5e-6)


@pytest.mark.parametrize("blocks", LESS)
def test_lru_hits_of_the_manager_one_request_at_a_time(whole_ids: Trace, blocks: int) -> None:
    # One block more than in the simulator: the prompt's last token takes one while it runs.
    assert replay(whole_ids, blocks + 1, AT_512).hit_tokens == 512 * IDS[blocks][0]
    assert replay(whole_ids, blocks, AT_512).hit_tokens == 512 * LESS[blocks]


@pytest.mark.parametrize(("rule", "table"), [("ids", IDS), ("served", SERVED)])
def test_every_count_of_the_tables(
    conversation: Trace, rule: Rule, table: dict[int, tuple[int, int, int]]
) -> None:
    curve = hit_rate_curve(conversation, AT_512, rule)
    stream = references(conversation, AT_512, rule)
    found = {
        blocks: (
            curve.hit_blocks_at(blocks),
            curve.hit_tokens_at(blocks),
            optima_of(stream, [blocks], AT_512)[0].hit_blocks,
        )
        for blocks in CAPACITIES
    }
    assert found == table


@pytest.mark.parametrize("rule", ["ids", "served", "manager"])
def test_naive_simulations_count_the_same_at_512_tokens_a_block(
    conversation: Trace, rule: Rule
) -> None:
    known = list(uses(conversation, 512, rule))
    curve = hit_rate_curve(conversation, AT_512, rule)
    stream = references(conversation, AT_512, rule)
    assert curve.hit_blocks[-1] == unbounded_hits(known)
    assert optima_of(stream, [10**6], AT_512)[0].hit_blocks == unbounded_hits(known)
    for blocks in CAPACITIES:
        assert curve.hit_blocks_at(blocks) == lru_hits(known, blocks)
        [best] = optima_of(stream, [blocks], AT_512)
        assert best.hit_blocks == farthest_first_hits(known, blocks)


def test_the_manager_replayed_at_512_tokens_a_block_is_on_the_curve(conversation: Trace) -> None:
    curve = hit_rate_curve(conversation, AT_512)
    assert curve.longest_request_blocks == 247
    assert curve.hit_tokens[-1] == unbounded(conversation, AT_512).hit_tokens
    for blocks in (247, 248, 1827, 18_279):
        assert replay(conversation, blocks, AT_512).hit_tokens == curve.hit_tokens_at(blocks)


def test_the_manager_with_requests_that_overlap_is_on_the_curve(conversation: Trace) -> None:
    config = ReplayConfig(block_size=512, outputs="none")
    curve, stream = hit_rate_curve(conversation, config), references(conversation, config)
    for blocks in (curve.exact_from, *CAPACITIES[1:]):
        result = replay(conversation, blocks, config)
        assert (result.waited, result.hit_tokens) == (0, curve.hit_tokens_at(blocks))
        assert result.hit_tokens <= optima_of(stream, [blocks], config)[0].hit_tokens
    assert replay(conversation, curve.exact_from - 1, config).waited > 0


def test_every_count_at_16_tokens_a_block(conversation: Trace) -> None:
    """The naive simulations take minutes for these counts: see ``benchmarks.yardsticks``."""
    curve = hit_rate_curve(conversation, AT_16)
    stream = references(conversation, AT_16)
    one, ten = 56_629, 566_291  # per cent of 5,662,916 distinct blocks
    assert stream.query_blocks == 9_043_202
    assert curve.hit_blocks[-1] == 3_381_090
    assert curve.hit_blocks_at(ten) == 2_560_128
    optimum = [optima_of(stream, [blocks], AT_16)[0].hit_blocks for blocks in (one, ten)]
    assert optimum == [2_182_605, 3_381_090]
