"""Seeded generators of requests that share prompts like real traffic.

The same name, parameters and seed give the same trace. Arrivals are a Poisson process. Lengths
called ``..._tokens`` are means: each length is uniform between half and one and a half times the
mean, so that prefixes end anywhere in a block; system prompts and tool lists, which a service
repeats word for word, have exactly the given length. Outputs are known, so a replay computes and
caches them, and prompts that continue an answer find it.

Tokens are uniform over the vocabulary: two texts that are not copies of each other share a prefix
only by chance.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from blockmgr.lab.trace import Request, Tokens, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "NAMES",
    "VARIANTS",
    "WORKLOADS",
    "Agent",
    "Chat",
    "FewShot",
    "ParallelSampling",
    "SharedPrompt",
    "TreeOfThought",
    "Workload",
    "generate",
]

VOCABULARY: Final = 128_000
# The next turn of a conversation waits for the answer, at the replay's default pace.
MS_PER_OUTPUT_TOKEN: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameters:
    """The base of all parameter records, which checks that every number is above 0."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) <= 0:
                raise ValueError(f"{item.name} must be above 0, got {getattr(self, item.name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrompt(_Parameters):
    """Many short questions under a few long system prompts, some far more popular than others.

    Attributes:
        requests: Questions in all.
        system_prompts: Different system prompts; the k-th is asked with a weight of 1/k.
        system_tokens: Length of a system prompt, in tokens.
        question_tokens: Mean length of a question, in tokens.
        output_tokens: Mean length of an answer, in tokens.
        requests_per_s: Mean arrivals per second.

    Source: lengths of SGLang's ``generated-shared-prefix`` benchmark.
    """

    requests: int = 1024
    system_prompts: int = 64
    system_tokens: int = 2048
    question_tokens: int = 128
    output_tokens: int = 256
    requests_per_s: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot(_Parameters):
    """Questions after worked examples: an instruction, some of a task's examples, a question.

    Every request of a task begins with the same instruction. Examples of the task follow in random
    order, so prompts diverge at different examples.

    Attributes:
        requests: Questions in all.
        tasks: Different instructions, each with examples of its own.
        examples: Number of examples of a task.
        shots: Examples in a prompt.
        instruction_tokens: Length of an instruction, in tokens.
        example_tokens: Mean length of an example, in tokens.
        question_tokens: Mean length of a question, in tokens.
        output_tokens: Mean length of an answer, in tokens.
        requests_per_s: Mean arrivals per second.
    """

    requests: int = 1024
    tasks: int = 16
    examples: int = 5
    shots: int = 5
    instruction_tokens: int = 256
    example_tokens: int = 160
    question_tokens: int = 64
    output_tokens: int = 32
    requests_per_s: float = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(_Parameters):
    """Conversations: each turn sends everything said so far and one question more.

    Attributes:
        conversations: Conversations in all; all begin with the same system prompt.
        turns: Mean turns of a conversation.
        system_tokens: Length of the system prompt, in tokens.
        question_tokens: Mean length of a question, in tokens.
        answer_tokens: Mean length of an answer, in tokens.
        think_s: Mean time between an answer and the next question, in seconds.
        conversations_per_s: Mean number of conversations started per second.
    """

    conversations: int = 200
    turns: int = 5
    system_tokens: int = 512
    question_tokens: int = 96
    answer_tokens: int = 256
    think_s: float = 20.0
    conversations_per_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(_Parameters):
    """Agents in a loop: act, read what the tool answered, act again, with all of it as prompt.

    Attributes:
        agents: Agents in all; all begin with the same tools.
        steps: Mean actions of an agent.
        tools_tokens: Length of the system prompt with its tools, in tokens.
        task_tokens: Mean length of a task, in tokens.
        action_tokens: Mean length of an action, in tokens.
        observation_tokens: Mean length of a tool's answer, in tokens.
        tool_s: Mean time of a tool call, in seconds.
        agents_per_s: Mean agents started per second.
    """

    agents: int = 64
    steps: int = 16
    tools_tokens: int = 2048
    task_tokens: int = 256
    action_tokens: int = 64
    observation_tokens: int = 384
    tool_s: float = 2.0
    agents_per_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOfThought(_Parameters):
    """Searches: from each kept path several thoughts are sampled, then the best are kept.

    Attributes:
        problems: Searches in all; all begin with the same instruction.
        depth: Thoughts on a finished path.
        branches: Thoughts sampled from each kept path, as forks of one prompt.
        kept: Paths kept after each level.
        instruction_tokens: Length of the instruction, in tokens.
        problem_tokens: Mean length of a problem, in tokens.
        thought_tokens: Mean length of a thought, in tokens.
        scoring_s: Time between two levels, in seconds.
        problems_per_s: Mean searches started per second.

    Source: Yao et al., "Tree of Thoughts", NeurIPS 2023.
    """

    problems: int = 48
    depth: int = 4
    branches: int = 4
    kept: int = 3
    instruction_tokens: int = 512
    problem_tokens: int = 128
    thought_tokens: int = 96
    scoring_s: float = 1.0
    problems_per_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSampling(_Parameters):
    """Several answers to each prompt: the prompt is computed once and forked.

    Attributes:
        requests: Prompts in all; all begin with the same system prompt.
        samples: Answers to each prompt.
        system_tokens: Length of the system prompt, in tokens.
        question_tokens: Mean length of a question, in tokens.
        output_tokens: Mean length of an answer, in tokens.
        requests_per_s: Mean arrivals per second.
    """

    requests: int = 256
    samples: int = 4
    system_tokens: int = 512
    question_tokens: int = 256
    output_tokens: int = 192
    requests_per_s: float = 2.0


class _Draws:
    """All random choices of a workload, from one seeded generator."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def text(self, length: int) -> Tokens:
        return self._generator.integers(0, VOCABULARY, size=length, dtype=np.uint32)

    def about(self, mean: int) -> int:
        """A random length from half to one and a half times ``mean``, at least 1."""
        return max(1, int(self._generator.integers(mean - mean // 2, mean + mean // 2 + 1)))

    def text_about(self, mean: int) -> Tokens:
        return self.text(self.about(mean))

    def pause_ms(self, mean_s: float) -> int:
        return round(1000 * self._generator.exponential(mean_s))

    def arrivals_ms(self, count: int, per_s: float) -> list[int]:
        gaps = self._generator.exponential(1000 / per_s, size=count)
        return [int(arrival) for arrival in np.cumsum(gaps)]

    def ranks(self, count: int, ranks: int) -> list[int]:
        """``count`` draws from ``0 … ranks - 1``, with weight 1/k for the k-th value."""
        weights = 1 / np.arange(1, ranks + 1)
        drawn = self._generator.choice(ranks, size=count, p=weights / weights.sum())
        return [int(rank) for rank in drawn]

    def order(self, count: int, of: int) -> list[int]:
        """``count`` different numbers below ``of``, in random order."""
        return [int(number) for number in self._generator.permutation(of)[:count]]


def _shared_prompt(p: SharedPrompt, draws: _Draws) -> list[Request]:
    systems = [draws.text(p.system_tokens) for _ in range(p.system_prompts)]
    arrivals = draws.arrivals_ms(p.requests, p.requests_per_s)
    return [
        _request(
            arrival,
            (systems[rank], draws.text_about(p.question_tokens)),
            draws.text_about(p.output_tokens),
        )
        for arrival, rank in zip(arrivals, draws.ranks(p.requests, p.system_prompts), strict=True)
    ]


def _few_shot(p: FewShot, draws: _Draws) -> list[Request]:
    tasks = [
        (
            draws.text(p.instruction_tokens),
            [draws.text_about(p.example_tokens) for _ in range(p.examples)],
        )
        for _ in range(p.tasks)
    ]
    requests = []
    for arrival in draws.arrivals_ms(p.requests, p.requests_per_s):
        instruction, examples = tasks[draws.order(1, p.tasks)[0]]
        chosen = [examples[number] for number in draws.order(p.shots, p.examples)]
        prompt = (instruction, *chosen, draws.text_about(p.question_tokens))
        requests.append(_request(arrival, prompt, draws.text_about(p.output_tokens)))
    return requests


def _chat(p: Chat, draws: _Draws) -> list[Request]:
    system = draws.text(p.system_tokens)
    requests = []
    for begin in draws.arrivals_ms(p.conversations, p.conversations_per_s):
        said, now = [system], begin
        for _ in range(draws.about(p.turns)):
            said.append(draws.text_about(p.question_tokens))
            answer = draws.text_about(p.answer_tokens)
            requests.append(_request(now, said, answer))
            said.append(answer)
            now += MS_PER_OUTPUT_TOKEN * len(answer) + draws.pause_ms(p.think_s)
    return requests


def _agent(p: Agent, draws: _Draws) -> list[Request]:
    tools = draws.text(p.tools_tokens)
    requests = []
    for begin in draws.arrivals_ms(p.agents, p.agents_per_s):
        seen, now = [tools, draws.text_about(p.task_tokens)], begin
        for _ in range(draws.about(p.steps)):
            action = draws.text_about(p.action_tokens)
            requests.append(_request(now, seen, action))
            seen += [action, draws.text_about(p.observation_tokens)]
            now += MS_PER_OUTPUT_TOKEN * len(action) + draws.pause_ms(p.tool_s)
    return requests


def _tree_of_thought(p: TreeOfThought, draws: _Draws) -> list[Request]:
    instruction = draws.text(p.instruction_tokens)
    requests = []
    for begin in draws.arrivals_ms(p.problems, p.problems_per_s):
        paths, now = [[instruction, draws.text_about(p.problem_tokens)]], begin
        for _ in range(p.depth):
            grown, longest = [], 0
            for path in paths:
                thoughts = [draws.text_about(p.thought_tokens) for _ in range(p.branches)]
                requests.append(_request(now, path, *thoughts))
                grown += [[*path, thought] for thought in thoughts]
                longest = max(longest, *map(len, thoughts))
            paths = [grown[number] for number in draws.order(p.kept, len(grown))]
            now += MS_PER_OUTPUT_TOKEN * longest + round(1000 * p.scoring_s)
    return requests


def _parallel_sampling(p: ParallelSampling, draws: _Draws) -> list[Request]:
    system = draws.text(p.system_tokens)
    requests = []
    for arrival in draws.arrivals_ms(p.requests, p.requests_per_s):
        prompt = (system, draws.text_about(p.question_tokens))
        outputs = [draws.text_about(p.output_tokens) for _ in range(p.samples)]
        requests.append(_request(arrival, prompt, *outputs))
    return requests


def _request(
    arrival_ms: int, prompt: list[Tokens] | tuple[Tokens, ...], *outputs: Tokens
) -> Request:
    return Request(
        arrival_ms=arrival_ms,
        prompt=np.concatenate(prompt),
        num_output_tokens=max(map(len, outputs)),
        outputs=outputs,
    )


P = TypeVar("P", bound=_Parameters)


@dataclass(frozen=True, slots=True)
class Workload(Generic[P]):
    """A generator and its default parameters.

    Attributes:
        parameters: The default parameters; their type defines the settings.
        requests: Function that draws the requests, in any order.
    """

    parameters: P
    requests: Callable[[P, _Draws], list[Request]]

    @property
    def summary(self) -> str:
        """One sentence that describes the workload."""
        return (type(self.parameters).__doc__ or "").partition("\n")[0]


WORKLOADS: Final[Mapping[str, Workload[Any]]] = MappingProxyType(
    {
        "shared-prompt": Workload(SharedPrompt(), _shared_prompt),
        "few-shot": Workload(FewShot(), _few_shot),
        "chat": Workload(Chat(), _chat),
        "agent": Workload(Agent(), _agent),
        "tree-of-thought": Workload(TreeOfThought(), _tree_of_thought),
        "parallel-sampling": Workload(ParallelSampling(), _parallel_sampling),
    }
)
"""Every generator by name, with its default parameters."""

VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, float]]]] = MappingProxyType(
    {
        "shared-prompt-4000": ("shared-prompt", {"requests": 4000}),
        "few-shot-4000": ("few-shot", {"requests": 4000}),
        "chat-1500": ("chat", {"conversations": 1500}),
        "chat-slow": ("chat", {"conversations": 1000, "think_s": 120, "conversations_per_s": 2}),
        "agent-300": ("agent", {"agents": 300}),
    }
)
"""Workloads with other parameters, for the documentation: name, generator, changes."""

NAMES: Final = (*WORKLOADS, *VARIANTS)
"""The names that ``generate`` accepts."""


def generate(name: str, seed: int, **changes: float) -> Trace:
    """The trace of the workload ``name``, with some of its parameters changed.

    Args:
        name: A key of ``WORKLOADS`` or of ``VARIANTS``.
        seed: At least 0. The same seed gives the same trace with the same NumPy.
        changes: Parameters by name, as in the workload's parameter record.

    Raises:
        ValueError: No workload has that name, or a value is out of its bounds.
        TypeError: The workload has no such parameter.

    Cost: O(tokens) time and memory.

    >>> trace = generate("chat", seed=0, conversations=2)
    >>> trace.requests[0].num_samples
    1
    """
    if name not in NAMES:
        raise ValueError(f"workload must be one of {', '.join(NAMES)}, got {name!r}")
    generator, others = VARIANTS.get(name, (name, {}))
    workload = WORKLOADS[generator]
    parameters = type(workload.parameters)(**{**asdict(workload.parameters), **others, **changes})
    requests = workload.requests(parameters, _Draws(seed))
    # Stable, so that simultaneous requests keep the order in which they were drawn.
    return Trace(name, tuple(sorted(requests, key=lambda request: request.arrival_ms)))
