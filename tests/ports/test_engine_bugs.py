"""Planted bugs, each of which changes the model's output.

The bookkeeping can be consistent while the memory is wrong; only a model that reads the memory
shows it. These tests check that the comparison with ``model.generate``, on which
``test_engine_tokens`` and ``test_engine_beam`` rely, fails for each of these bugs and succeeds
without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.ports.engine_models import (
    MIXED,
    NEW_TOKENS,
    STOPS,
    beam_truth,
    engine_of,
    greedy_truth,
    sampled_truth,
    tokens_of,
)

from blockmgr.blocks import CopyPlan  # isort: skip
from blockmgr.ports.engine import Engine  # isort: skip
from blockmgr.ports.engine import Sampling  # isort: skip

Bug = Callable[[pytest.MonkeyPatch, Engine], None]


def skip_one_copy(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """The last copy of each plan is forgotten."""
    copy = engine.model.cache.copy

    def partly(plan: CopyPlan) -> None:
        cut = [column[:-1] for column in (plan.sources, plan.destinations, plan.num_tokens)]
        copy(CopyPlan(plan.ticket, *cut))

    monkeypatch.setattr(engine.model.cache, "copy", partly)


def copy_after_the_forward(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Breaks the order of the step contract: the last sharer has already written."""
    copy, forward = engine.model.cache.copy, engine.model.forward
    held: list[CopyPlan] = []

    def late(batch: Any) -> Any:
        logits = forward(batch)
        copy(held.pop())
        return logits

    monkeypatch.setattr(engine.model.cache, "copy", held.append)
    monkeypatch.setattr(engine.model, "forward", late)


def copy_one_token_too_few(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Does not copy the last token of each block."""
    copy = engine.model.cache.copy

    def shorter(plan: CopyPlan) -> None:
        kept = plan.num_tokens > 1
        columns = plan.sources[kept], plan.destinations[kept], plan.num_tokens[kept] - 1
        copy(CopyPlan(plan.ticket, *columns))

    monkeypatch.setattr(engine.model.cache, "copy", shorter)


def wrong_slot(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Writes the K/V of every forward's last token to the neighbouring slot."""
    forward = engine.model.forward

    def beside(batch: Any) -> Any:
        slots = batch.slots.copy()
        slots[-1] ^= 1
        return forward(replace(batch, slots=slots))

    monkeypatch.setattr(engine.model, "forward", beside)


def wrong_block_table(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Every sequence of a batch reads through the table of the first."""
    forward = engine.model.forward

    def mixed_up(batch: Any) -> Any:
        tables = batch.block_tables.copy()
        tables[1:, :1] = tables[0, :1]
        return forward(replace(batch, block_tables=tables))

    monkeypatch.setattr(engine.model, "forward", mixed_up)


def wrong_position(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Positions count from the start of a chunk."""
    forward = engine.model.forward

    def shifted(batch: Any) -> Any:
        return forward(replace(batch, positions=batch.positions + (batch.positions > 20)))

    monkeypatch.setattr(engine.model, "forward", shifted)


BUGS = (
    skip_one_copy,
    copy_after_the_forward,
    copy_one_token_too_few,
    wrong_slot,
    wrong_block_table,
    wrong_position,
)
COPYING = BUGS[:3]
PROMPTS = MIXED[:5]
SAMPLED = Sampling(max_new_tokens=NEW_TOKENS, temperature=0.9, top_k=30, top_p=0.95, seed=3, n=3)


def says_the_same_with_beams(engine: Engine) -> bool:
    found = engine.beam_search(PROMPTS, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
    return tokens_of(found) == beam_truth("Llama", PROMPTS, 4)


def says_the_same_with_forks(engine: Engine) -> bool:
    found = tokens_of(engine.generate(PROMPTS, SAMPLED))
    by_seed = [sampled_truth("Llama", PROMPTS, seed=3 + i) for i in range(3)]
    return found == [[truth[i][0] for truth in by_seed] for i in range(len(PROMPTS))]


def says_the_same_with_parts_of_blocks(engine: Engine) -> bool:
    base = MIXED[4]
    prompts = [[*base[: n - 1], 11] for n in (31, 15, 23, 38, 7)]
    found = [tokens_of(engine.generate([p], Sampling(max_new_tokens=6)))[0] for p in prompts]
    return found == greedy_truth("Llama", prompts, max_new_tokens=6)


def says_the_same_greedily(engine: Engine) -> bool:
    found = engine.generate(PROMPTS, Sampling(max_new_tokens=NEW_TOKENS))
    return tokens_of(found) == greedy_truth("Llama", PROMPTS)


@pytest.mark.parametrize("bug", BUGS)
def test_beam_search_shows_the_bug(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    engine = engine_of(block_size=16)
    bug(monkeypatch, engine)
    assert not says_the_same_with_beams(engine)


@pytest.mark.parametrize("bug", BUGS)
def test_parallel_samples_show_the_bug(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    engine = engine_of(block_size=16)
    bug(monkeypatch, engine)
    assert not says_the_same_with_forks(engine)


@pytest.mark.parametrize("bug", COPYING)
def test_reused_parts_of_blocks_show_the_bug(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    engine = engine_of(block_size=16, min_partial_tokens=1)
    bug(monkeypatch, engine)
    assert not says_the_same_with_parts_of_blocks(engine)


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in COPYING])
def test_greedy_search_shows_the_bug(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    engine = engine_of(block_size=16)
    bug(monkeypatch, engine)
    assert not says_the_same_greedily(engine)


def test_without_a_bug_all_of_these_agree() -> None:
    assert says_the_same_with_beams(engine_of(block_size=16))
    assert says_the_same_with_forks(engine_of(block_size=16))
    assert says_the_same_with_parts_of_blocks(engine_of(block_size=16, min_partial_tokens=1))
    assert says_the_same_greedily(engine_of(block_size=16))
