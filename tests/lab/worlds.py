"""Traces so small that in nearly every one prefixes collide and blocks run out."""

from __future__ import annotations

from random import Random

import numpy as np

from blockmgr.lab.runs import NO_RUN, References
from blockmgr.lab.trace import Request, Tokens, Trace


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
