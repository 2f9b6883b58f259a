"""Computes how many blocks a job needs when it is alone in the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blockmgr.groups import ChunkedAttention, FullAttention, RecurrentState, SlidingWindow

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
    columns = -(-written // size)
    shared = prompt // size
    if config.groups:
        return _needed_by_groups(config, columns, shared, apart)
    needed = shared + apart * (columns - shared)
    if config.prefix_caching and config.dedup == "append_only":
        # A block that continues the cached twin of its own parent keeps that twin in use: this can
        # happen for the last block of a resumed sequence, and for regrown beams.
        needed += 1 if apart == 1 else 1 + apart * (columns - shared)
    return needed


def _needed_by_groups(config: ManagerConfig, columns: int, shared: int, apart: int) -> int:
    size = config.block_size
    starts = np.arange(columns) * size
    # A chunk of the prompt may shrink to one token.
    alone = sum(_held(kind, starts, size) for kind in config.groups)
    most = int(np.max(alone))
    if apart == 1:
        return most
    # Beams diverge at the end of the prompt, all in one step after a preemption.
    own = apart * (columns - shared)
    states = sum(isinstance(kind, RecurrentState) for kind in config.groups)
    sharing = sum(
        int(_held(kind, np.array([shared * size]), size)[0]) - 1 + own
        for kind in config.groups
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
    size = config.block_size
    if not num_tokens:
        return 0
    last = np.array([num_tokens - 1])
    kinds = config.groups or (FullAttention(),)
    return sum(int(_held(kind, last, size)[0]) for kind in kinds)
