"""The prompts of a trace, and the bytes that all of them take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.lab.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from benchmarks.hybrid.shapes import Shape

    Prompt = npt.NDArray[np.uint32]

__all__ = ["NO_TOKEN", "Unbounded", "prompts_of", "unbounded"]

UNIT = 64
NO_TOKEN = np.uint32(2**32 - 2)  # no prompt has it


def prompts_of(path: str | Path, num_requests: int) -> list[Prompt]:
    """The first prompts of a trace, each cut to whole ids.

    The last id of a prompt stands for fewer tokens and occurs nowhere else, so the trace does not
    tell how the next turn of a conversation continues there.
    """
    trace = read_trace(path)
    size = trace.tokens_per_id
    cut = []
    for request in list(trace.requests)[:num_requests]:
        tokens = request.tokens()
        if len(tokens) >= size:
            cut.append(tokens[: len(tokens) // size * size])
    return cut


@dataclass(frozen=True, slots=True)
class Unbounded:
    """A manager that caches at boundaries and never evicts, in units of 64 tokens.

    Attributes:
        pages: Its bytes, in pages of the shape.
        hit_rate: Tokens found over tokens of all prompts.
        shared_rate: Share of the tokens that are a common prefix with an earlier prompt.
    """

    pages: int
    hit_rate: float
    shared_rate: float


def unbounded(prompts: Sequence[Prompt], shape: Shape) -> Unbounded:
    """What a manager that caches at boundaries keeps and finds if it never evicts.

    Boundaries are the end of a prompt, its last unit that another prompt can use, and the end of
    what it shares with the prompts before.
    """
    children: dict[tuple[int, bytes], int] = {}  # (node, tokens of a unit): node after it
    boundaries: set[int] = set()
    windows: set[int] = set()
    query = hit = shared = 0
    for prompt in prompts:
        path, known, found = [0], 0, 0
        for start in range(0, len(prompt) - UNIT + 1, UNIT):
            key = (path[-1], prompt[start : start + UNIT].tobytes())
            there = key in children
            path.append(children.setdefault(key, len(children) + 1))
            if there and known == start and start + UNIT < len(prompt):
                known = start + UNIT
                found = known if path[-1] in boundaries else found
        last = (len(prompt) - 1) // UNIT
        for depth in {known // UNIT, last, len(prompt) // UNIT} - {0}:
            boundaries.add(path[depth])
            first = max(0, depth * UNIT - shape.width + 1) // UNIT
            windows.update(path[first + 1 : depth + 1] if shape.num_windows else ())
        query, hit, shared = query + len(prompt), hit + found, shared + known
    tokens = UNIT * (len(children) + shape.num_windows * len(windows))
    pages = -(-tokens // shape.page) + shape.num_states * len(boundaries)
    return Unbounded(pages, hit / query, shared / query)
