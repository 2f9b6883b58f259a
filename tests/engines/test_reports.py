"""Reports of vLLM's users about hybrid models: what the second of two prompts finds.

vLLM's scheduler runs them with its own manager and with ours. The workers remember what every slot
holds, so a prompt that finds what is not its own fails. Run where vLLM is installed
(``tests/engines/run``); elsewhere it is skipped.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: see tests/engines/run")

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from tests.engines import world
from tests.engines.layers import FULL, Layers

MODEL = os.environ.get("BLOCKMGR_TINY_MODEL", "")
pytestmark = pytest.mark.skipif(not MODEL, reason="BLOCKMGR_TINY_MODEL names no model")
STATES = (*FULL, *[Layers("state")] * 3)
GEMMA_4 = (Layers("full", 0, 2), *[Layers("window", 1024)] * 5)
PARTS = {"min_partial_tokens": 1}
ENDS = {**PARTS, "prompt_end_stop": 1}
RANDOM = random.Random(1)
TOKENS = [RANDOM.randrange(world.VOCABULARY) for _ in range(8192)]


def sent_again(length: int, then: int = 0) -> list[list[int]]:
    """A prompt, and the same one with some tokens behind it."""
    return [TOKENS[:length], TOKENS[: length + then]]


def edited(length: int, kept: int) -> list[list[int]]:
    """A prompt, and one with as many of its tokens and others behind them."""
    return [TOKENS[:length], [*TOKENS[:kept], *TOKENS[length : length + 50]]]


# Groups, smallest block, drafts of a draft head, prompts; tokens found by vLLM's manager, by ours,
# and by ours with these options.
WORLDS: dict[str, tuple[Any, int, int, list[list[int]], int, int, dict[str, int], int]] = {
    "#54360, 3,784 tokens": (STATES, 2144, 2, sent_again(3784), 0, 2144, ENDS, 3782),
    "#54360, 7,542 tokens": (STATES, 2144, 2, sent_again(7542), 4288, 6432, ENDS, 7540),
    "#45238, with drafts": (STATES, 896, 2, sent_again(2528), 896, 1792, ENDS, 2526),
    "#51198": (STATES, 528, 0, sent_again(561, 20), 528, 528, ENDS, 560),
    "#40696": (STATES, 528, 0, sent_again(500, 20), 0, 0, ENDS, 499),
    "#57613": (GEMMA_4, 16, 0, edited(4100, 4090), 0, 4064, PARTS, 4090),
}


@pytest.mark.parametrize("report", list(WORLDS))
def test_the_second_prompt_finds_what_every_group_can_give_it(
    report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, size, drafts, prompts, theirs, ours, options, best = WORLDS[report]
    monkeypatch.setattr(world, "MODEL_LENGTH", 10_000)

    def found(given: dict[str, int] | None) -> int:
        settings = world.Settings(
            0,
            MODEL,
            options=None if given is None else {"debug": 1, **given},
            block_size=size,
            num_blocks=4000,
            budget=8192,
            layers=layers,
            drafts=drafts,
            eagle=drafts > 0,
            interval=0,  # vLLM's default
        )
        return found_by_the_last(world.World(settings), prompts)

    assert [found(None), found({}), found(options)] == [theirs, ours, best]


def found_by_the_last(one: Any, prompts: list[list[int]]) -> int:
    before = 0
    for number, tokens in enumerate(prompts):
        before = one.tally.cached
        params = SamplingParams(max_tokens=3)
        request = Request(str(number), tokens, params, None, block_hasher=one.hasher)
        one.scheduler.add_request(request)
        while one.scheduler.has_unfinished_requests():
            one.step()
        while one.pending:
            one.report()
    assert not one.tally.wrong
    return int(one.tally.cached - before)
