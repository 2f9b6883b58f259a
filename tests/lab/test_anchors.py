"""Exact counts of an independent simulator on a production trace.

The trace is Mooncake's ``conversation_trace.jsonl`` (FAST'25 release). It is not part of this
repository; without it these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.trace import HashedPrompt, Request, Trace, read_trace

REPOSITORY = Path(__file__).resolve().parents[2]
CONVERSATION = REPOSITORY.parent / "shared" / "traces" / "conversation_trace.jsonl"

pytestmark = pytest.mark.skipif(
    not CONVERSATION.exists(), reason=f"needs the Mooncake trace at {CONVERSATION}"
)

ONE_AT_A_TIME = ReplayConfig(
    block_size=512, min_service_ms=0, service_ms_per_token=0, outputs="none"
)


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


def test_the_trace_is_the_one_the_counts_are_of(conversation: Trace) -> None:
    assert len(conversation.requests) == 12_031
    ids = [request.prompt.ids for request in conversation.requests]  # type: ignore[union-attr]
    assert sum(map(len, ids)) == 288_500
    assert len(np.unique(np.concatenate(ids))) == 182_790


def test_the_unbounded_rate(conversation: Trace, whole_ids: Trace) -> None:
    # Look-ups less distinct blocks: 288,500 - 182,790.
    assert unbounded(whole_ids, ONE_AT_A_TIME).hit_tokens == 512 * 105_710
    # Only full blocks, and the last token is recomputed.
    assert unbounded(conversation, ONE_AT_A_TIME).hit_tokens == 512 * 105_592
    assert unbounded(conversation, ReplayConfig(outputs="none")).hit_rate == pytest.approx(
        0.37362, abs=5e-6
    )


@pytest.mark.parametrize(
    ("blocks", "hits"),
    [(1827, 15_136), (3655, 22_865), (9139, 56_479), (18_279, 80_466), (36_558, 99_632)],
)
def test_lru_hits_one_request_at_a_time(whole_ids: Trace, blocks: int, hits: int) -> None:
    # One block more than in the simulator: the prompt's last token takes one while it runs.
    assert replay(whole_ids, blocks + 1, ONE_AT_A_TIME).hit_tokens == 512 * hits


@pytest.mark.parametrize(
    ("blocks", "hits"),
    [(1827, 15_134), (3655, 22_861), (9139, 56_475), (18_279, 80_462), (36_558, 99_630)],
)
def test_a_partial_block_is_handed_out_first(whole_ids: Trace, blocks: int, hits: int) -> None:
    assert replay(whole_ids, blocks, ONE_AT_A_TIME).hit_tokens == 512 * hits
