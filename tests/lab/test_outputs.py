"""Outputs of which a trace has only the length: they take room, and no prompt finds them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.optimum import optimum
from blockmgr.lab.references import references
from blockmgr.lab.replay import ReplayConfig, held_blocks, replay
from blockmgr.lab.trace import HashedPrompt, Request, Trace
from tests.lab.worlds import ONE_AT_A_TIME


def request(arrival_ms: int, ids: list[int], num_tokens: int, output: int) -> Request:
    prompt = HashedPrompt(np.array(ids, dtype=np.int64), num_tokens)
    return Request(arrival_ms=arrival_ms, prompt=prompt, num_output_tokens=output)


def conversations(random: Random) -> Trace:
    """Prompts with ids that continue each other, as in a recorded trace."""
    requests, chains, fresh, now = [], [[]], iter(range(10**6)), 0
    for _ in range(random.randint(2, 12)):
        ids = list(random.choice(chains))
        ids += [next(fresh) for _ in range(random.randint(0 if ids else 1, 2))]
        chains.append(ids)
        # A partial last id is a different id when the prompt continues.
        cut = random.choice((0, 0, 1, 37, 500))
        if cut:
            ids = [*ids[:-1], next(fresh)]
        now += random.choice((0, 1, 400))
        output = random.choice((0, 1, 2, 100, 511, 512, 513, 1500))
        requests.append(request(now, ids, 512 * len(ids) - cut, output))
    return Trace("conversations", tuple(requests))


@pytest.mark.parametrize("block_size", [128, 512])
def test_the_curve_the_bound_and_the_unbounded_pool_are_those_of_a_replay(block_size: int) -> None:
    random = Random(block_size)
    for _ in range(40):
        trace = conversations(random)
        config = ReplayConfig(
            block_size=block_size,
            min_service_ms=random.choice((0, 500)),
            service_ms_per_token=random.choice((0, 1)),
        )
        curve = hit_rate_curve(trace, config)
        stream = references(trace, config)
        assert stream.column("held_blocks").tolist() == [
            held_blocks(each, config) for each in trace.requests
        ]
        for blocks in range(curve.exact_from, curve.exact_from + 20):
            result = replay(trace, blocks, config)
            assert (result.waited, result.hit_tokens) == (0, curve.hit_tokens_at(blocks))
            assert result.hit_tokens <= optimum(trace, blocks, config).hit_tokens
        best = unbounded(trace, config)
        ample = replay(trace, best.working_set_blocks, config)
        assert (ample.evictions, ample.waited) == (0, 0)
        assert ample.hit_tokens == best.hit_tokens == curve.hit_tokens[-1]


def test_outputs_take_room_that_prompts_would_have_found_blocks_in() -> None:
    trace = Trace(
        "test",
        (request(0, [1], 512, 1025), request(10, [2], 512, 0), request(20, [1, 3], 1024, 0)),
    )
    hold = replace(ONE_AT_A_TIME, block_size=512)
    none = replace(hold, outputs="none")
    # The first holds its prompt, two blocks of output, and one for its last token.
    assert [held_blocks(each, hold) for each in trace.requests] == [4, 1, 2]
    assert [held_blocks(each, none) for each in trace.requests] == [1, 1, 2]
    assert unbounded(trace, hold).full_blocks == unbounded(trace, none).full_blocks + 2
    # The output takes the rest of the four blocks; its tail is evicted first.
    assert replay(trace, 4, hold).hit_tokens == replay(trace, 4, none).hit_tokens == 512
    assert replay(trace, 4, hold).evictions > replay(trace, 4, none).evictions == 0
    with pytest.raises(ValueError, match="at least 4"):
        hit_rate_curve(trace, hold).hit_rate_at(3)


def test_nobody_finds_an_output_that_was_made_up() -> None:
    trace = Trace("test", tuple(request(n, [1], 512, 600) for n in range(5)))
    config = replace(ONE_AT_A_TIME, block_size=16)
    result = replay(trace, 1000, config)
    assert result.hit_tokens == 4 * 496
    assert result.deduplicated == 4  # the last block of each prompt, no block of an output


def test_outputs_whose_tokens_are_known_are_the_same_in_both_ways() -> None:
    output = np.arange(40, dtype=np.uint32)
    first = Request(
        arrival_ms=0,
        prompt=np.arange(100, 140, dtype=np.uint32),
        num_output_tokens=40,
        outputs=(output,),
    )
    trace = Trace("test", (first, replace(first, arrival_ms=9)))
    none = replace(ONE_AT_A_TIME, outputs="none")
    assert replay(trace, 9, ONE_AT_A_TIME) == replay(trace, 9, none)
    assert hit_rate_curve(trace, ONE_AT_A_TIME).as_json() == hit_rate_curve(trace, none).as_json()


def test_what_becomes_of_outputs_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="outputs must be one of hold, none, got 'keep'"):
        ReplayConfig(outputs="keep")  # type: ignore[arg-type]
