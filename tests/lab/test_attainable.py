"""The rate of an unbounded pool: ids and tokens agree, and every bound on a hit holds."""

from __future__ import annotations

import pytest

from blockmgr.lab.attainable import Attainable, unbounded
from blockmgr.lab.replay import ReplayConfig, replay
from tests.lab.conftest import MakeRequest, MakeTrace
from tests.lab.worlds import hashed


def test_the_same_id_after_another_prefix_is_another_block() -> None:
    trace = hashed(([1, 7], 1024), ([2, 7], 1024), ([1, 7, 3], 1025))
    best = unbounded(trace, ReplayConfig(block_size=512))
    assert best.hit_tokens == 1024
    assert best.full_blocks == 4


def test_the_last_token_is_never_served(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2, 3, 4], [1, 2, 3, 4])
    assert unbounded(trace, ReplayConfig(block_size=2)).hit_tokens == 2
    assert unbounded(trace, ReplayConfig(block_size=1)).hit_tokens == 3


def test_a_prompt_of_one_block_is_looked_up_and_never_found(make_trace: MakeTrace) -> None:
    best = unbounded(make_trace([1, 2], [1, 2]), ReplayConfig(block_size=2))
    assert (best.query_tokens, best.hit_tokens, best.hit_rate) == (4, 0, 0.0)


def test_private_blocks_are_counted_at_their_peak(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    trace = make_trace(
        make_request([1, 2, 3], outputs=[[4, 5]]),  # [3 4] [5 .]: 2 private blocks
        make_request([1, 2, 3], arrival_ms=9),  # [3 .]: 1, while the first still runs
        make_request([1, 2], arrival_ms=10),  # [1 2]: 1, when the first has ended
    )

    best = unbounded(trace, ReplayConfig(block_size=2, min_service_ms=10, service_ms_per_token=0))

    # Distinct full blocks: [1 2], and [3 4], which the output fills.
    assert best == Attainable(query_tokens=8, hit_tokens=2, full_blocks=2, peak_private_blocks=3)
    assert best.working_set_blocks == 5


@pytest.mark.parametrize(("arrival_ms", "found"), [(9, 2), (10, 4)])
def test_an_output_is_found_from_the_end_of_its_request_on(
    make_trace: MakeTrace, make_request: MakeRequest, arrival_ms: int, found: int
) -> None:
    trace = make_trace(
        make_request([1, 2, 3], outputs=[[4, 5]]),  # fills [3 4] until 10
        make_request([1, 2, 3, 4, 6], arrival_ms=arrival_ms),
    )
    config = ReplayConfig(block_size=2, min_service_ms=10, service_ms_per_token=0)
    assert unbounded(trace, config).hit_tokens == replay(trace, 9, config).hit_tokens == found


def test_a_block_size_that_ids_cannot_be_cut_into_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size must divide 512"):
        unbounded(hashed(([1], 5)), ReplayConfig(block_size=48))
