"""Counts cached pages that no prompt can find any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from xxhash import xxh3_128_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.hybrid.prompts import Prompt
    from benchmarks.hybrid.shapes import Shape

__all__ = ["Side", "needed_pages"]


class Side(Protocol):
    """A manager that serves prompts one at a time."""

    def run(self, prompt: Prompt) -> tuple[int, list[int]] | None:
        """Tokens found, and where forwards ended; ``None`` if the prompt does not fit."""

    def live_ends(self, prompt: Prompt, ends: Sequence[int]) -> list[int]:
        """Which of these lengths a prompt finds that diverges from this one there."""

    def num_cached(self) -> int:
        """Pages with content."""


def needed_pages(
    side: Side, shape: Shape, stopped: Iterable[tuple[Prompt, Sequence[int]]], unit: int = 1
) -> int:
    """Pages that can still be found: those that boundaries need.

    A page that several boundaries need counts once. Each boundary has its own copy of a page that
    it ends in.

    Args:
        side: The manager, which is not changed.
        shape: What it holds.
        stopped: Prompts, each with the numbers of tokens after which a forward stopped.
        unit: Boundaries are searched only at multiples of this number of tokens.
    """
    attention: set[bytes] = set()
    windows: set[bytes] = set()
    states: set[bytes] = set()
    for prompt, stops in stopped:
        ends = sorted({stop // unit * unit for stop in stops} - {0})
        for end in side.live_ends(prompt, ends):
            pages = _paths(prompt[:end], shape.page)
            attention.update(pages)
            if shape.num_windows:
                windows.update(pages[max(0, end - shape.width + 1) // shape.page :])
            states.add(pages[-1])
    return len(attention) + shape.num_windows * len(windows) + shape.num_states * len(states)


def _paths(prompt: Prompt, size: int) -> list[bytes]:
    """A name for each page, which stands for all tokens up to its end."""
    path, names = b"", []
    for start in range(0, len(prompt), size):
        path = xxh3_128_digest(path + prompt[start : start + size].tobytes())
        names.append(path)
    return names
