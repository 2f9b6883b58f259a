"""The generators: the same seed gives the same trace, and prompts have the right prefixes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from blockmgr.lab.workloads import VARIANTS, WORKLOADS, generate
from tests.lab.worlds import prompts_of as prompts

if TYPE_CHECKING:
    from blockmgr.lab.trace import Trace

SMALL: dict[str, dict[str, float]] = {
    "shared-prompt": {"requests": 40, "system_prompts": 4},
    "few-shot": {"requests": 40, "tasks": 3},
    "chat": {"conversations": 12},
    "agent": {"agents": 6, "steps": 5},
    "tree-of-thought": {"problems": 4, "depth": 3},
    "parallel-sampling": {"requests": 20},
}


def contents(trace: Trace) -> list[Any]:
    return [
        (
            request.arrival_ms,
            request.tokens().tobytes(),
            [output.tobytes() for output in request.outputs],
        )
        for request in trace.requests
    ]


def test_the_small_traces_of_these_tests_cover_every_workload() -> None:
    assert SMALL.keys() == WORKLOADS.keys()


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_trace_and_another_one_another(name: str) -> None:
    one, again, other = (contents(generate(name, seed, **SMALL[name])) for seed in (3, 3, 4))
    assert one == again
    assert not {prompt for _, prompt, _ in one} & {prompt for _, prompt, _ in other}


@pytest.mark.parametrize("name", SMALL)
def test_lengths_are_what_was_asked_for(name: str) -> None:
    trace = generate(name, 0, **SMALL[name])
    for request in trace.requests:
        assert request.tokens().dtype == np.uint32
        assert request.num_output_tokens == max(map(len, request.outputs))
        assert min(map(len, request.outputs)) >= 1


@pytest.mark.parametrize("name", SMALL)
def test_the_default_parameters_give_a_trace(name: str) -> None:
    assert len(generate(name, 0).requests) >= 100
    assert WORKLOADS[name].summary.endswith(".")


def test_shared_prompt_has_few_beginnings_and_a_favourite() -> None:
    trace = generate("shared-prompt", 0, requests=300, system_prompts=4, system_tokens=50)

    beginnings = Counter(tuple(prompt[:50]) for prompt in prompts(trace))
    questions = {tuple(prompt[50:]) for prompt in prompts(trace)}
    assert len(beginnings) == 4
    # Weights 1, 1/2, 1/3, 1/4: the favourite gets 48 % of the requests.
    assert 0.38 < beginnings.most_common(1)[0][1] / 300 < 0.58
    assert len(questions) == 300


def test_few_shot_prompts_of_a_task_part_at_an_example() -> None:
    trace = generate(
        "few-shot", 0, requests=60, tasks=1, examples=3, shots=2, instruction_tokens=20
    )

    assert len({tuple(prompt[:20]) for prompt in prompts(trace)}) == 1
    # Two of three examples in any order: six prefixes, with three different first examples.
    assert len({tuple(prompt[:21]) for prompt in prompts(trace)}) == 3


@pytest.mark.parametrize(
    ("name", "changes"),
    [("chat", {"conversations": 1, "turns": 9}), ("agent", {"agents": 1, "steps": 8})],
)
def test_a_turn_sends_everything_so_far_and_more(name: str, changes: dict[str, float]) -> None:
    turns = generate(name, 5, **changes).requests
    assert len(turns) > 1
    for before, after in itertools.pairwise(turns):
        said = np.concatenate((before.tokens(), before.outputs[0]))
        assert after.tokens()[: len(said)].tolist() == said.tolist()
        assert after.num_prompt_tokens > len(said)
        assert after.arrival_ms >= before.arrival_ms + 30 * before.num_output_tokens


def test_chats_share_their_system_prompt_alone() -> None:
    trace = generate("chat", 5, conversations=8, turns=1, system_tokens=33)

    assert len({tuple(prompt[:33]) for prompt in prompts(trace)}) == 1
    assert len({tuple(prompt[:40]) for prompt in prompts(trace)}) == 8


def test_thoughts_grow_from_thoughts_that_were_kept() -> None:
    trace = generate("tree-of-thought", 5, problems=1, depth=3, branches=3, kept=2)

    levels: dict[int, list[Any]] = {}
    for request in trace.requests:
        levels.setdefault(request.arrival_ms, []).append(request)
    assert [len(level) for level in levels.values()] == [1, 2, 2]
    assert all(request.num_samples == 3 for request in trace.requests)
    ordered = list(levels.values())
    for above, below in itertools.pairwise(ordered):
        grown = {
            (*request.tokens().tolist(), *thought.tolist())
            for request in above
            for thought in request.outputs
        }
        assert {tuple(request.tokens().tolist()) for request in below} <= grown


def test_parallel_samples_differ_under_one_prompt() -> None:
    trace = generate("parallel-sampling", 0, requests=5, samples=4)
    for request in trace.requests:
        assert request.num_samples == 4
        assert len({output.tobytes() for output in request.outputs}) == 4


def test_an_unknown_workload_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"one of shared-prompt, few-shot, chat.*got 'beam'"):
        generate("beam", 0)


def test_a_parameter_out_of_its_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="turns must be above 0, got 0"):
        generate("chat", 0, turns=0)
    with pytest.raises(TypeError, match="legs"):
        generate("chat", 0, legs=3)


def test_a_variant_is_its_generator_with_other_parameters() -> None:
    for name, (generator, changes) in VARIANTS.items():
        assert changes, name
        number = name.rsplit("-", 1)[-1]
        assert not number.isdigit() or int(number) in changes.values()
        small = {next(iter(changes)): 3}
        one, other = generate(name, 0, **small), generate(generator, 0, **{**changes, **small})
        assert one.name == name
        assert [r.tokens().tolist() for r in one.requests] == [
            r.tokens().tolist() for r in other.requests
        ]
    with pytest.raises(ValueError, match=r"workload must be one of .*chat-slow.*, got 'chat-fast'"):
        generate("chat-fast", 0)
