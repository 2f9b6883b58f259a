"""Small worlds that reproduce what users reported to vLLM about hybrid models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.hybrid.ours import Ours
from benchmarks.hybrid.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.hybrid.audit import Side
    from benchmarks.hybrid.prompts import Prompt

__all__ = ["WORLDS", "World", "compare", "found_by", "shown"]


@dataclass(frozen=True, slots=True)
class World:
    """Prompts in order, and the pool they run in.

    Attributes:
        report: Number of the issue in github.com/vllm-project/vllm.
        told: What the issue says.
        shape: Shape of the model.
        pages: Pages of the pool.
        prompts: Makes the prompts.
    """

    report: int
    told: str
    shape: Shape
    pages: int
    prompts: Callable[[], list[Prompt]]


def _tokens(rng: np.random.Generator, number: int) -> Prompt:
    return rng.integers(0, 1 << 17, number, dtype=np.uint32)


def _shared_then_own(shared: int, own: int, prefixes: int, prompts: int) -> list[Prompt]:
    """Prompts that start with a set of prefixes in turn and continue with their own tokens."""
    rng = np.random.default_rng(0)
    begins = [_tokens(rng, shared) for _ in range(prefixes)]
    return [np.concatenate([begins[i % prefixes], _tokens(rng, own)]) for i in range(prompts)]


def _shape(page: int, windows: int = 0, width: int = 0, states: int = 0) -> Shape:
    return Shape("", page, windows, width, states, 16 if states else 0, "")


WORLDS = (
    World(
        53749,
        "32 prompts share 1,920 tokens, less than a page of 2,096, and go on with 600 of their own",
        _shape(2096, states=1),
        400,
        lambda: _shared_then_own(1920, 600, 1, 32),
    ),
    World(
        45238,
        "64 prompts with one of 8 prefixes of 1,500 tokens and 700 of their own, pages of 528",
        _shape(528, states=3),
        2000,
        lambda: _shared_then_own(1500, 700, 8, 64),
    ),
    World(
        48435,
        "4 sessions take turns, each its 16,384 tokens and 200 fresh ones, with windows of 1,024",
        _shape(64, windows=5, width=1024),
        2400,
        lambda: _shared_then_own(16384, 200, 4, 16),
    ),
    World(
        42948,
        "one session sends its 12,288 tokens 12 times, with 7,000 fresh ones after them",
        _shape(64, windows=2, width=128),
        1500,
        lambda: _shared_then_own(12288, 7000, 1, 12),
    ),
)


def found_by(side: Side, prompts: list[Prompt]) -> tuple[int, int]:
    """The number of prompts that find something, and the tokens that all prompts find."""
    found = [result[0] for result in map(side.run, prompts) if result is not None]
    return sum(number > 0 for number in found), sum(found)


def compare(world: World, *, with_vllm: bool) -> dict[str, Any]:
    """What each manager finds in a world."""
    prompts = world.prompts()
    ours = Ours(world.shape, world.pages, max(map(len, prompts)))
    rows = {"blockmgr": found_by(ours, prompts)}
    if with_vllm:
        from benchmarks.hybrid.vllm_side import Vllm, settings_of

        for setting in settings_of(world.shape):
            side = Vllm(world.shape, world.pages, setting)
            rows[f"vLLM, {setting}"] = found_by(side, prompts)
    return {
        "report": world.report,
        "told": world.told,
        "prompts": len(prompts),
        "found": {name: {"prompts": some, "tokens": all_} for name, (some, all_) in rows.items()},
    }


def shown(row: dict[str, Any]) -> str:
    """A row as one line."""
    found = "; ".join(
        f"{name}: {each['prompts']} prompts, {each['tokens']:,} tokens"
        for name, each in row["found"].items()
    )
    return f"#{row['report']}, {row['told']}: {found}"
