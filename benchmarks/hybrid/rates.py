"""Cells of the comparison: one trace, one shape and one capacity, with each manager."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.hybrid.audit import needed_pages
from benchmarks.hybrid.ours import Ours
from benchmarks.hybrid.prompts import unbounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.hybrid.audit import Side
    from benchmarks.hybrid.prompts import Prompt
    from benchmarks.hybrid.shapes import Shape

__all__ = ["PERCENTS", "Rate", "cells", "replay"]

PERCENTS = (2, 5, 10, 20, 50)


@dataclass(frozen=True, slots=True)
class Rate:
    """One manager in one cell.

    Attributes:
        setting: Its settings.
        hit_rate: Tokens found over tokens of all prompts.
        refused: Prompts that it could not run.
        outside: Share of its cached pages that no prompt can find at the end.
        unfilled: Share of its cached bytes past the last token of an attention page, at the end;
            ``None`` where it is not known.
        seconds: Processor time.
    """

    setting: str
    hit_rate: float
    refused: int
    outside: float
    unfilled: float | None
    seconds: float


def replay(side: Side, setting: str, shape: Shape, prompts: Sequence[Prompt], unit: int) -> Rate:
    """Runs all prompts through a manager, one at a time."""
    start = time.process_time()
    query = hit = refused = 0
    stopped: list[tuple[Prompt, list[int]]] = []
    for prompt in prompts:
        query += len(prompt)
        result = side.run(prompt)
        if result is None:
            refused += 1
            continue
        hit += result[0]
        stopped.append((prompt, [*result[1], len(prompt) - 1]))
    seconds = time.process_time() - start
    cached = side.num_cached()
    needed = needed_pages(side, shape, stopped, unit)
    unfilled = side.unfilled() if isinstance(side, Ours) else None
    outside = max(0.0, 1 - needed / cached) if cached else 0.0
    return Rate(setting, hit / query, refused, outside, unfilled, seconds)


def cells(
    name: str,
    prompts: Sequence[Prompt],
    shape: Shape,
    theirs: Callable[[Shape, int], Iterator[tuple[Side, str, int]]],
    *,
    evictions: Sequence[str] = ("lru",),
    percents: Sequence[int] = PERCENTS,
) -> Iterator[dict[str, Any]]:
    """What each manager finds, at every capacity that holds the largest prompt.

    Args:
        name: Name of the trace.
        prompts: Its prompts, in order.
        shape: Shape of the model.
        theirs: Makes the other systems' managers for a pool: the manager, its setting, and the
            multiples of tokens at which it can find anything.
        evictions: Our orders of eviction.
        percents: Capacities, in percent of the bytes of a manager that never evicts.
    """
    whole = unbounded(prompts, shape)
    longest = max(map(len, prompts))
    for percent in percents:
        pages = whole.pages * percent // 100
        cell = {"trace": name, "shape": shape.name, "percent": percent, "pages": pages}
        cell |= {"unbounded": whole.hit_rate, "shared": whole.shared_rate}
        if pages < shape.pages_for(longest):
            yield cell | {"ours": [], "vllm": []}
            continue
        ours = [
            replay(Ours(shape, pages, longest, eviction=order), order, shape, prompts, 1)
            for order in evictions
        ]
        others = [
            replay(side, setting, shape, prompts, unit)
            for side, setting, unit in theirs(shape, pages)
        ]
        yield cell | {"ours": [asdict(rate) for rate in ours], "vllm": [asdict(r) for r in others]}
