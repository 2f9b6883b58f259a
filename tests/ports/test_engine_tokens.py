"""A real model on shared blocks gives the tokens of ``model.generate``.

Greedy, sampled and beam search, for prompts of mixed length in one batch, in every state of the
cache: cold, warm or off, in a pool that preempts all the time, and with prefill in chunks of any
size.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.ports.engine_models import (
    MIXED,
    NEW_TOKENS,
    STOPS,
    Tokens,
    beam_truth,
    engine_of,
    greedy_truth,
    model_of,
    prompts_of,
    sampled_truth,
    tokens_of,
)

import torch  # isort: skip  (engine_models skips this file where there is none)

from blockmgr.ports.engine import Engine, Sampling

GREEDY = Sampling(max_new_tokens=NEW_TOKENS)
SAMPLED = Sampling(max_new_tokens=NEW_TOKENS, temperature=0.9, top_k=30, top_p=0.95, seed=3)
BLOCK_SIZES = (1, 4, 16, 32)
ARCHITECTURES = ("Llama", "Qwen3")


def check(engine: Engine, name: str, *, beams: tuple[int, ...] = (2, 4, 8)) -> None:
    """Runs everything on one engine, whose cache is warm from the second run on."""
    assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth(name, MIXED)
    assert tokens_of(engine.generate(MIXED, SAMPLED)) == sampled_truth(name, MIXED)
    for num_beams in beams:
        found = engine.beam_search(
            MIXED, num_beams, NEW_TOKENS, num_return=num_beams, stop_token_ids=STOPS
        )
        assert tokens_of(found) == beam_truth(name, MIXED, num_beams)
    engine.manager.check_invariants()
    assert engine.manager.handles() == []


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tokens_are_those_of_generate(name: str, block_size: int) -> None:
    check(engine_of(name, block_size=block_size), name)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_a_cache(name: str, block_size: int) -> None:
    engine = engine_of(name, block_size=block_size, prefix_caching=False)
    check(engine, name)
    assert engine.report().hit_tokens == 0


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_with_a_warm_cache(name: str, block_size: int) -> None:
    engine = engine_of(name, block_size=block_size)
    check(engine, name)
    before = engine.report().hit_tokens
    check(engine, name)
    assert engine.report().hit_tokens > before


def smallest_pool(block_size: int, num_beams: int, *, twins: bool = False) -> int:
    """Blocks that the largest prompt and its beams need when they are alone."""
    needed = []
    for prompt in MIXED:
        columns = -(-(len(prompt) + NEW_TOKENS - 1) // block_size)
        shared = len(prompt) // block_size
        apart = num_beams * (columns - shared)
        kept = 0 if not twins else 1 if num_beams == 1 else 1 + apart
        needed.append(shared + apart + kept)
    return max(needed)


@pytest.mark.parametrize("options", [{}, {"prefix_caching": False}, {"chunk_size": 3}], ids=str)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_in_a_pool_so_small_that_it_preempts_all_the_time(
    block_size: int, options: dict[str, Any]
) -> None:
    engine = engine_of(block_size=block_size, num_blocks=smallest_pool(block_size, 1), **options)
    for _ in range(2):
        assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth("Llama", MIXED)
        assert tokens_of(engine.generate(MIXED, SAMPLED)) == sampled_truth("Llama", MIXED)
    engine.manager.check_invariants()
    if block_size < 32:  # with 32, a prompt has the pool to itself from the start
        assert engine.report().preemptions > 3


@pytest.mark.parametrize("options", [{}, {"prefix_caching": False}, {"chunk_size": 3}], ids=str)
@pytest.mark.parametrize("num_beams", [2, 4, 8])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_beams_in_a_pool_so_small_that_it_preempts(
    block_size: int, num_beams: int, options: dict[str, Any]
) -> None:
    num_blocks = smallest_pool(block_size, num_beams)
    # A budget below the size of a resumed search, so that it resumes over several steps.
    budget = {"max_batch_tokens": 32}
    engine = engine_of(block_size=block_size, num_blocks=num_blocks, **budget, **options)
    found = engine.beam_search(
        MIXED, num_beams, NEW_TOKENS, num_return=num_beams, stop_token_ids=STOPS
    )
    assert tokens_of(found) == beam_truth("Llama", MIXED, num_beams)
    engine.manager.check_invariants()
    if num_beams == 4:
        assert engine.report().preemptions > 1


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 7, 8, 13, 16, 17, 39, 40, 41])
def test_prefill_in_chunks_of_any_size(chunk_size: int) -> None:
    check(engine_of(chunk_size=chunk_size), "Llama", beams=(4,))


def test_a_budget_that_holds_one_token_of_each_sequence() -> None:
    check(engine_of("Qwen3", max_seqs=8, max_batch_tokens=8), "Qwen3")


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_equal_prompts_end_with_equal_blocks(dedup: str, block_size: int) -> None:
    engine = engine_of(block_size=block_size, dedup=dedup)
    twins = [MIXED[2], MIXED[2], MIXED[4], MIXED[2]]
    expected = greedy_truth("Llama", twins)
    assert tokens_of(engine.generate(twins, GREEDY)) == expected
    assert engine.report().deduplicated_blocks > 0
    assert tokens_of(engine.generate(twins, GREEDY)) == expected
    check(engine, "Llama", beams=(4,))


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
@pytest.mark.parametrize("options", [{}, {"chunk_size": 9}, {"max_batch_tokens": 32}], ids=str)
def test_committed_before_the_forward(dedup: str, options: dict[str, Any]) -> None:
    """Prompts of one step find each other and read what the same forward writes."""
    engine = engine_of(dedup=dedup, early_commit=True, **options)
    twins = [MIXED[4], MIXED[4], MIXED[4][:37]]
    assert tokens_of(engine.generate(twins, GREEDY)) == greedy_truth("Llama", twins)
    assert engine.report().hit_tokens > 0
    check(engine, "Llama", beams=(4,))


@pytest.mark.parametrize("early_commit", [False, True])
@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_twins_in_the_smallest_pool(dedup: str, early_commit: bool) -> None:
    twins = [MIXED[4], MIXED[4], MIXED[2], MIXED[4][:37]]
    num_blocks = smallest_pool(4, 4, twins=dedup == "append_only")
    engine = engine_of(num_blocks=num_blocks, dedup=dedup, early_commit=early_commit)
    for _ in range(2):
        assert tokens_of(engine.generate(twins, GREEDY)) == greedy_truth("Llama", twins)
        found = engine.beam_search(
            twins, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS, length_penalty=1.0
        )
        assert tokens_of(found) == beam_truth("Llama", twins, 4)
    assert engine.report().preemptions > 0


@pytest.mark.parametrize("min_partial_tokens", [1, 3])
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_parts_of_blocks_are_reused(block_size: int, min_partial_tokens: int) -> None:
    engine = engine_of(block_size=block_size, min_partial_tokens=min_partial_tokens)
    base = MIXED[4]
    prompts = [[*base[: n - 1], 11] for n in (32, 16, 24, 39, 8)]
    for prompt in prompts:  # one after another, so that each finds the earlier ones
        assert tokens_of(engine.generate([prompt], GREEDY)) == greedy_truth("Llama", [prompt])
    assert engine.manager.stats().partial_hit_tokens > 0
    assert engine.report().copies > 0
    check(engine, "Llama", beams=(4,))


@pytest.mark.parametrize(
    "options", [{}, {"min_partial_tokens": 1}, {"prefix_caching": False}], ids=str
)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_a_conversation_of_several_turns_is_sent_again(
    block_size: int, options: dict[str, Any]
) -> None:
    engine = engine_of(block_size=block_size, **options)
    [history, *turns] = prompts_of(21, 5, 6, 9, seed=4)
    hits = []
    for turn in turns:
        [generation] = engine.generate([history], GREEDY)
        assert [generation.tokens] == greedy_truth("Llama", [history])[0]
        hits.append(generation.num_cached_tokens)
        history = [*history, *generation.tokens, *turn]
    assert hits[0] == 0
    if options.get("prefix_caching", True):
        assert hits[2] >= hits[1]
        assert hits[2] > 0
    if options.get("min_partial_tokens"):
        # The whole previous turn except its last token, which was sampled but never written.
        assert hits[2] == len(history) - len(turns[2]) - NEW_TOKENS - len(turns[1]) - 1


def test_left_padded_batches_of_generate_say_the_same() -> None:
    """Compares with ``generate`` on one batch, which pads short prompts on the left."""
    model = model_of("Llama")
    width = max(len(prompt) for prompt in MIXED)
    rows = torch.tensor([[0] * (width - len(p)) + p for p in MIXED])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in MIXED])
    batch = {"attention_mask": mask, "max_new_tokens": NEW_TOKENS, "do_sample": False}
    with torch.no_grad():
        greedy = model.generate(rows, pad_token_id=0, **batch)[:, width:].tolist()
        beams = model.generate(rows, pad_token_id=0, num_beams=4, **batch)[:, width:].tolist()
    engine = engine_of()
    assert [each.tokens for each in engine.generate(MIXED, GREEDY)] == greedy
    assert [each.tokens for each in engine.beam_search(MIXED, 4, NEW_TOKENS)] == beams


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_truth_does_not_hang_on_rounding(name: str) -> None:
    double = {"dtype": torch.float64}
    assert greedy_truth(name, MIXED) == greedy_truth(name, MIXED, **double)
    for num_beams in (2, 4, 8):
        assert beam_truth(name, MIXED, num_beams) == beam_truth(name, MIXED, num_beams, **double)


def test_different_samplings_side_by_side() -> None:
    hows = [GREEDY, SAMPLED, Sampling(max_new_tokens=5, temperature=1.4, seed=8), GREEDY]
    found = tokens_of(engine_of().generate(MIXED[:4], hows))
    assert found == [
        *greedy_truth("Llama", MIXED[:1]),
        *sampled_truth("Llama", MIXED[1:2]),
        *sampled_truth(
            "Llama", MIXED[2:3], seed=8, temperature=1.4, top_k=0, top_p=1.0, max_new_tokens=5
        ),
        *greedy_truth("Llama", MIXED[3:4]),
    ]


def tokens_for(truths: Tokens) -> int:
    return sum(len(sample) for each in truths for sample in each)


def test_sharing_computes_less_than_no_sharing() -> None:
    shared, alone = engine_of(), engine_of(prefix_caching=False)
    for engine in (shared, alone):
        for _ in range(2):
            engine.generate(MIXED, GREEDY)
    all_tokens = 2 * (sum(map(len, MIXED)) + (NEW_TOKENS - 1) * len(MIXED))
    assert alone.report().computed_tokens == all_tokens
    assert shared.report().computed_tokens == all_tokens - shared.report().hit_tokens
    assert shared.report().generated_tokens == 2 * tokens_for(greedy_truth("Llama", MIXED))
