"""Beam search on block tables: the results of transformers, and copies only of tails."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import pytest

from tests.ports.engine_models import (
    MIXED,
    NEW_TOKENS,
    STOPS,
    beam_truth,
    engine_of,
    prompts_of,
    tokens_of,
)

import torch  # isort: skip  (engine_models skips this file where there is none)

from tests.ports.engine_models import model_of  # isort: skip


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -0.7])
@pytest.mark.parametrize("num_beams", [1, 2, 4, 8])
def test_lengths_and_stopping_are_those_of_generate(
    num_beams: int, length_penalty: float, early_stopping: bool | Literal["never"]
) -> None:
    # Enough stop tokens that beams of all lengths end.
    stops = tuple(range(10, 24))
    how: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    found = engine_of("Qwen3").beam_search(
        MIXED[:3], num_beams, NEW_TOKENS, num_return=num_beams, stop_token_ids=stops, **how
    )
    assert tokens_of(found) == beam_truth("Qwen3", MIXED[:3], num_beams, eos_token_id=stops, **how)


def test_beams_do_end_at_different_lengths() -> None:
    """The assumption of the test above."""
    found = engine_of("Qwen3").beam_search(
        MIXED[:3], 8, NEW_TOKENS, num_return=8, stop_token_ids=range(10, 24)
    )
    samples = [sample for each in found for sample in each.samples]
    assert len({len(sample.tokens) for sample in samples}) > 2
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}


def test_scores_are_those_of_generate() -> None:
    prompt = torch.tensor([MIXED[2]])
    with torch.no_grad():
        expected = model_of("Llama").generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            num_beams=4,
            num_return_sequences=4,
            length_penalty=0.5,
            output_scores=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
    [found] = engine_of().beam_search(
        [MIXED[2]], 4, NEW_TOKENS, num_return=4, length_penalty=0.5, stop_token_ids=[]
    )
    scores = [sample.score for sample in found.samples]
    assert scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-5)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_eight_beams_hold_one_prompt_and_eight_tails(block_size: int) -> None:
    [prompt] = prompts_of(512, seed=2)
    num_beams, new_tokens = 8, 16
    engine = engine_of(block_size=block_size, num_blocks=2 * 8 * 560 // block_size)
    found = engine.beam_search([prompt], num_beams, new_tokens, stop_token_ids=STOPS)
    assert tokens_of(found) == [
        each[:1] for each in beam_truth("Llama", [prompt], num_beams, max_new_tokens=new_tokens)
    ]
    columns = -(-(512 + new_tokens - 1) // block_size)
    tails = num_beams * -(-new_tokens // block_size)
    report = engine.report()
    print(
        f"block size {block_size}: {report.peak_blocks} blocks held; one sequence {columns}, "
        f"eight tails {tails}; eight private copies {report.peak_unshared_blocks}"
    )
    assert report.peak_blocks < 1.3 * (columns + tails)
    assert report.peak_unshared_blocks == num_beams * columns
    # A beam copies at most the block that it writes next.
    assert report.copied_tokens <= report.copies * (block_size - 1)
    assert report.copies <= (num_beams - 1) * new_tokens
    if block_size == 1:
        assert report.copies == 0


def test_one_beam_is_greedy_search() -> None:
    [found] = engine_of().beam_search([MIXED[1]], 1, NEW_TOKENS)
    [greedy] = engine_of().generate([MIXED[1]])
    assert found.tokens == greedy.tokens[:NEW_TOKENS]


def test_the_best_beams_come_first_and_as_many_as_asked_for() -> None:
    all_beams = beam_truth("Llama", MIXED, 4)
    for num_return in (1, 3):
        found = engine_of().beam_search(
            MIXED, 4, NEW_TOKENS, num_return=num_return, stop_token_ids=STOPS
        )
        assert tokens_of(found) == [each[:num_return] for each in all_beams]


def test_beams_of_a_second_search_find_the_prompt() -> None:
    engine = engine_of(block_size=4)
    first, second = (engine.beam_search(MIXED, 4, NEW_TOKENS) for _ in range(2))
    assert tokens_of(first) == tokens_of(second)
    assert [each.num_cached_tokens for each in second] == [
        (len(prompt) - 1) // 4 * 4 for prompt in MIXED
    ]


def test_searches_and_samples_take_turns_on_one_cache() -> None:
    engine = engine_of(min_partial_tokens=1)
    for num_beams, _ in itertools.product((2, 8), range(2)):
        found = engine.beam_search(
            MIXED, num_beams, NEW_TOKENS, num_return=num_beams, stop_token_ids=STOPS
        )
        assert tokens_of(found) == beam_truth("Llama", MIXED, num_beams)
        engine.generate(MIXED)
    engine.manager.check_invariants()
