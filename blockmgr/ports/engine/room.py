"""Computes how many blocks a job needs when it is alone in the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blockmgr.groups import (
    ChunkedAttention,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    sizes_of,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.config import ManagerConfig
    from blockmgr.groups import Group

__all__ = ["blocks_held", "blocks_needed"]


def blocks_needed(config: ManagerConfig, prompt: int, written: int, apart: int) -> int:
    """The most blocks that a prompt and its continuations hold at any time.

    Args:
        config: Config of the manager.
        prompt: Tokens of the prompt.
        written: Written tokens of the longest sequence.
        apart: Number of sequences, which share only the prompt.
    """
    size = config.block_size
    if config.groups:
        return _needed_by_groups(config, prompt, written, apart)
    columns, shared = -(-written // size), prompt // size
    needed = shared + apart * (columns - shared)
    if config.prefix_caching and config.dedup == "append_only":
        # A block that continues the cached twin of its own parent keeps that twin in use: this can
        # happen for the last block of a resumed sequence, and for regrown beams.
        needed += 1 if apart == 1 else 1 + apart * (columns - shared)
    return needed


def _needed_by_groups(config: ManagerConfig, prompt: int, written: int, apart: int) -> int:
    sizes = sizes_of(config.groups, config.block_size)
    kinds = list(zip(config.groups, sizes, strict=True))
    # A chunk of the prompt may shrink to one token.
    starts = np.arange(0, written, min(sizes))
    most = int(np.max(sum(_held(kind, starts, size) for kind, size in kinds)))
    if apart == 1:
        return most
    # Beams diverge at the end of the prompt, all in one step after a preemption. They share whole
    # blocks of the manager.
    shared = prompt // config.block_size * config.block_size
    states = sum(isinstance(kind, RecurrentState) for kind in config.groups)
    sharing = sum(
        int(_held(kind, np.array([shared]), size)[0])
        - 1
        + apart * (-(-written // size) - shared // size)
        for kind, size in kinds
        if not isinstance(kind, RecurrentState)
    )
    # The copy of a state also needs its source.
    return max(most, sharing + (apart + 1) * states)


def _held(kind: Group, positions: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Blocks of a group, for each of these positions of the next token."""
    if isinstance(kind, RecurrentState):
        return np.ones_like(positions)
    first = np.zeros_like(positions)
    if isinstance(kind, SlidingWindow):
        first = np.maximum(0, positions - kind.width + 1)
    if isinstance(kind, ChunkedAttention):
        first = positions - positions % kind.width
    return positions // size + 1 - first // size


def blocks_held(config: ManagerConfig, num_tokens: int) -> int:
    """Blocks that a sequence of this many written tokens holds, shared or not."""
    if not num_tokens:
        return 0
    last = np.array([num_tokens - 1])
    kinds = config.groups or (FullAttention(),)
    sizes = sizes_of(config.groups, config.block_size)
    return sum(int(_held(kind, last, n)[0]) for kind, n in zip(kinds, sizes, strict=True))
