"""The timed scheduler step does the same work on every side."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from benchmarks import step
from benchmarks.peers.nano_vllm import NanoVllm

SHAPE = step.Shape(
    num_seqs=64, num_arrivals=5, num_second=2, num_shared=4, shared_tokens=64, num_tokens=128
)
NUM_TURNS = 60


class NanoSide:
    """A second side without dependencies; second samples are admitted as the same prompt."""

    def __init__(self, shape: step.Shape) -> None:
        self.name = "nano-vllm"
        self.peer = NanoVllm("tuned")
        self.num_blocks = shape.num_blocks
        self.cache = self.peer.open(shape.num_blocks)
        self.requests: list[Any] = []
        self.hit_tokens = 0

    def ready(self, turn: step.Turn) -> step.Turn:
        return turn

    def step(self, turn: step.Turn, clock: step.Clock) -> None:
        for i in turn.ended.tolist():
            self.cache.free(self.requests[i])
        self.requests = [self.requests[i] for i in turn.kept.tolist()]
        self.cache.step(self.requests, self.peer.prompt(turn.tokens))
        prompts = [self.peer.prompt(prompt) for prompt in turn.prompts]
        # It caches on admission, so the system prompts are found in the same step as with ours.
        self.hit_tokens += sum(map(self.cache.match, prompts))
        self.requests += [self.cache.admit(prompt) for prompt in prompts]
        self.requests += [self.cache.admit(prompts[i]) for i in turn.second]
        clock.mark("admit")

    def counts(self) -> step.Counts:
        return step.Counts(
            hit_tokens=self.hit_tokens,
            copies=0,
            used_blocks=self.num_blocks - self.cache.num_free(),
            lengths=[len(request.tokens) // 4 for request in self.requests],
            widths=[len(request.table) for request in self.requests],
        )


def played(*sides: Any) -> None:
    step.run(list(sides), SHAPE, warm=0, timed=NUM_TURNS, burst=5)


def test_another_manager_finds_and_holds_the_same_blocks_in_the_same_steps() -> None:
    sides = [step.Ours(SHAPE), NanoSide(SHAPE)]
    played(*sides)
    counts = step.check(sides)
    assert counts.hit_tokens > 0
    assert counts.copies > 0
    assert len(counts.lengths) == SHAPE.num_seqs
    assert sides[0].manager.stats().evicted_blocks > 0


@pytest.mark.parametrize("field", ["hit_tokens", "used_blocks", "lengths", "widths"])
def test_a_side_that_did_other_work_is_found_out(field: str) -> None:
    class Cheat(step.Ours):
        def counts(self) -> step.Counts:
            counts = super().counts()
            value = getattr(counts, field)
            return replace(counts, **{field: value[:-1] if isinstance(value, list) else value + 1})

    sides = [step.Ours(SHAPE), Cheat(SHAPE)]
    played(*sides)
    with pytest.raises(AssertionError):
        step.check(sides)


def test_every_second_sample_that_decodes_has_one_block_copied() -> None:
    side = step.Ours(SHAPE)
    copies = 0
    samples: set[int] = set()
    for turn in islice(step.turns(SHAPE), NUM_TURNS):
        kept = set(side.handles[turn.kept].tolist())
        copies += len(samples & kept)  # ... which its first step copies
        # Where the parent ended before that step, the sample writes in place.
        copies -= sum(parent not in kept and sample in kept for parent, sample in parents(side))
        side.step(turn, step.Clock())
        samples = set(side.samples)
        assert side.num_copies == copies


def parents(side: step.Ours) -> list[tuple[int, int]]:
    """The sequences forked in the last step, and their forks."""
    tokens = {h: side.manager.sequence(h).tokens.tobytes() for h in side.handles.tolist()}
    return [
        (parent, sample)
        for sample in side.samples
        for parent in side.handles.tolist()
        if parent not in side.samples and tokens[parent] == tokens[sample]
    ]


def test_a_row_of_the_table_that_is_wrong_is_found_out() -> None:
    side = step.Ours(SHAPE)
    played(side)
    side.counts()
    side.rows[[0, 1]] = side.rows[[1, 0]]
    with pytest.raises(AssertionError):
        side.counts()


def test_the_batch_fills_up_and_then_keeps_its_size() -> None:
    num_running = 0
    shared = None
    for turn in islice(step.turns(SHAPE), NUM_TURNS):
        assert np.array_equal(np.sort(np.append(turn.ended, turn.kept)), np.arange(num_running))
        assert len(turn.tokens) == len(turn.kept)
        shared = shared or [prompt[: SHAPE.shared_tokens] for prompt in turn.prompts]
        assert all(len(prompt) % step.BLOCK_SIZE for prompt in turn.prompts)
        num_running = len(turn.kept) + len(turn.prompts) + len(turn.second)
        assert num_running <= SHAPE.num_seqs
    assert num_running == SHAPE.num_seqs
    assert shared is not None
    last = [prompt[: SHAPE.shared_tokens].tobytes() for prompt in turn.prompts]
    assert {head.tobytes() for head in shared} & set(last)


def test_times_of_phases_add_up_and_the_table_has_a_row_for_each() -> None:
    side = step.Ours(SHAPE)
    [steps] = step.run([side], SHAPE, warm=0, timed=10, burst=5)
    result = step.summary(side, steps)
    assert set(result["phases_median_us"]) == set(step.PHASES)
    assert result["steps"] == 10
    assert result["minimum_us"] <= result["median_us"]
    assert result["median_us"] <= sum(max(s[p] for s in steps) for p in step.PHASES) * 1e6
    assert step.table([result, result]).row_count == len(step.PHASES) + 4


def test_the_command_writes_what_it_found(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    arguments = ["step", "--seqs", "64", "--steps", "5", "--warm-up", "0", "--results"]
    monkeypatch.setattr("sys.argv", [*arguments, str(tmp_path)])
    monkeypatch.setattr(step, "SIDES", {"blockmgr": step.Ours})
    step.main()
    [path] = tmp_path.iterdir()
    document = json.loads(path.read_text(encoding="utf-8"))
    [result] = document["results"]
    assert result["side"].startswith("blockmgr")
    assert document["checked"]["hit_tokens"] > 0
    assert "whole step" in capsys.readouterr().out
