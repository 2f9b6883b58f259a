"""Prompts through ``BlockManager``, one at a time, as an engine would run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.hybrid.prompts import NO_TOKEN
from benchmarks.hybrid.shapes import MAX_BATCHED_TOKENS
from blockmgr import BlockManager, BlockState, NeverFitsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.hybrid.prompts import Prompt
    from benchmarks.hybrid.shapes import Shape

__all__ = ["Ours"]


class Ours:
    """A manager with the groups of a shape. The engine stops where ``stops`` says."""

    def __init__(
        self, shape: Shape, num_pages: int, longest: int, *, eviction: str = "lru", fewest: int = 16
    ) -> None:
        self.shape = shape
        self.manager = BlockManager(
            num_pages + 1,
            shape.page,
            max_seqs=2,
            max_blocks_per_seq=-(-longest // shape.page) + 1,
            groups=shape.groups,
            min_partial_tokens=fewest,
            eviction=eviction,
            null_block=True,
        )

    def run(self, prompt: Prompt) -> tuple[int, list[int]] | None:
        """Tokens found, and where its forwards ended; ``None`` if it can never fit."""
        manager, total = self.manager, len(prompt)
        match = manager.match(prompt)
        slots = min(total, match.num_cached_tokens + MAX_BATCHED_TOKENS)
        try:
            handle = manager.admit(prompt, num_slots=slots)
        except NeverFitsError:
            return None
        found = end = manager.sequence(handle).num_computed_tokens
        ends: list[int] = []
        while end < total:
            end = min([*manager.stops(handle), total, end + MAX_BATCHED_TOKENS])
            manager.reserve(handle, end)
            self._resolve_copies()
            manager.commit(handle, end)
            ends.append(end)
        self._resolve_copies()
        manager.free(handle)
        manager.take_remaps()
        return found, ends

    def _resolve_copies(self) -> None:
        self.manager.copies_applied(self.manager.take_copies().ticket)

    def live_ends(self, prompt: Prompt, ends: Sequence[int]) -> list[int]:
        """Which of these lengths a prompt finds that diverges from this one there."""
        parting = [np.append(prompt[:end], NO_TOKEN) for end in ends]
        return [
            end
            for end, tokens in zip(ends, parting, strict=True)
            if self.manager.match(tokens).num_cached_tokens == end
        ]

    def num_cached(self) -> int:
        """Pages with content that prompts can find."""
        return self.manager.stats().cached_blocks

    def unfilled(self) -> float:
        """Share of the cached bytes that are unfilled: attention pages, past their last token."""
        blocks, size = self.manager.blocks(), self.shape.page
        cached = np.isin(blocks.state, (BlockState.CACHED, BlockState.IDLE))
        attention = cached & (blocks.group >= 0) & (blocks.group <= self.shape.num_windows)
        rest = int((size - blocks.num_tokens[attention].astype(np.int64)).sum())
        return rest / (size * max(1, int(cached.sum())))
