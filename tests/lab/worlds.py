"""Traces so small that in nearly every one prefixes collide, and what tests ask of any trace."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.runs import NO_RUN, References
from blockmgr.lab.trace import HashedPrompt, Request, Tokens, Trace

ONE_AT_A_TIME = ReplayConfig(min_service_ms=0, service_ms_per_token=0)


def hashed(*prompts: tuple[list[int], int], size: int = 512, outputs: int = 0) -> Trace:
    """Prompts of these ids and lengths, one millisecond after another."""
    requests = (
        Request(
            arrival_ms=number,
            prompt=HashedPrompt(np.array(ids, dtype=np.uint64), num_tokens, size),
            num_output_tokens=outputs,
        )
        for number, (ids, num_tokens) in enumerate(prompts)
    )
    return Trace("hashed", tuple(requests))


def as_tokens(trace: Trace) -> Trace:
    """The same requests with tokens instead of ids."""
    requests = (replace(request, prompt=request.tokens()) for request in trace.requests)
    return Trace(trace.name, tuple(requests))


def facts(request: Request) -> tuple[int, int, int]:
    """Its arrival, and the lengths of its prompt and of its output."""
    return request.arrival_ms, request.num_prompt_tokens, request.num_output_tokens


def prompts_of(trace: Trace) -> list[list[int]]:
    return [request.tokens().tolist() for request in trace.requests]


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces have equal requests."""
    first, second = (
        [
            (facts(r), r.tokens().tolist(), [o.tolist() for o in r.outputs], r.namespace)
            for r in trace.requests
        ]
        for trace in (one, other)
    )
    return first == second


def tokens(random: Random, most: int, least: int = 1) -> Tokens:
    """A few tokens with two possible values."""
    values = [random.randrange(2) for _ in range(random.randint(least, most))]
    return np.array(values, dtype=np.uint32)


def prompts(random: Random, most_requests: int, most_tokens: int) -> Trace:
    """Prompts without outputs, one after another."""
    requests = [
        Request(
            arrival_ms=number,
            prompt=tokens(random, most_tokens),
            num_output_tokens=0,
            namespace=random.choice((b"", b"", b"a")),
        )
        for number in range(random.randint(2, most_requests))
    ]
    return Trace("prompts", tuple(requests))


def conversations(random: Random, most_requests: int) -> Trace:
    """Prompts with any number of outputs, some at the same instant."""
    requests, now = [], 0
    for _ in range(random.randint(1, most_requests)):
        now += random.choice((0, 1, 5))
        outputs = tuple(tokens(random, 5, 0) for _ in range(random.choice((0, 0, 1, 1, 2, 3))))
        requests.append(
            Request(
                arrival_ms=now,
                prompt=tokens(random, 9),
                num_output_tokens=max(map(len, outputs), default=random.randrange(4)),
                outputs=outputs,
                namespace=random.choice((b"", b"a")),
            )
        )
    return Trace("conversations", tuple(requests))


def nodes(stream: References, run: int) -> list[int]:
    """The blocks from a root to the end of ``run``: equal numbers are equal prefixes."""
    last = np.cumsum(stream.length)
    found: list[int] = []
    while run != NO_RUN:
        found[:0] = range(int(last[run] - stream.length[run]), int(last[run]))
        run = int(stream.parent[run])
    return found
