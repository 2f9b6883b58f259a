"""The pool over time by group of layers, from a replay that samples its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.blocks import BlockState
from blockmgr.lab.replay import EventLoop

if TYPE_CHECKING:
    from blockmgr.lab.replay import Progress, ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = ["DueFrames", "GroupFrame", "group_frames"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFrame:
    """The pool at one instant. All numbers are blocks, and their sum is the pool.

    Attributes:
        time_ms: Time in simulated milliseconds.
        used: Blocks in use, for each distinct group, in the order of ``ReplayConfig.groups``.
        cached: Idle blocks, for each distinct group.
        free: Free blocks.
    """

    time_ms: int
    used: tuple[int, ...]
    cached: tuple[int, ...]
    free: int


def group_frames(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    frames: int,
    *,
    progress: Progress | None = None,
) -> tuple[GroupFrame, ...]:
    """``replay``, with samples of the pool.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of the replay, with groups of layers.
        frames: Number of samples, spread evenly over the trace, at least 1.
        progress: Called once for each request.

    Raises:
        ValueError: ``config`` has no groups, ``frames`` is below 1, or the trace cannot be cut into
            blocks of ``config.block_size``.

    Cost: That of ``replay``, and O(num_blocks) per frame.
    """
    if not config.groups:
        raise ValueError("groups must not be empty to look at a pool by group")
    if frames < 1:
        raise ValueError(f"frames must be at least 1, got {frames}")
    loop = _Looking(trace, num_blocks, config, progress, frames)
    loop.run()
    return tuple(loop.frames)


class DueFrames:
    """The times at which to sample a pool, spread evenly over the arrivals of a trace."""

    def __init__(self, trace: Trace, frames: int) -> None:
        first, last = trace.requests[0].arrival_ms, trace.requests[-1].arrival_ms
        due = np.linspace(first, last, frames) if frames else np.zeros(0)
        self._due = [int(instant) for instant in reversed(due)]

    def reached(self, now: int) -> bool:
        """Whether a sample is due; several that are due at once are one."""
        count = len(self._due)
        while self._due and now >= self._due[-1]:
            self._due.pop()
        return len(self._due) < count


class _Looking(EventLoop):
    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        config: ReplayConfig,
        progress: Progress | None,
        frames: int,
    ) -> None:
        super().__init__(trace, num_blocks, config, progress=progress)
        self._due = DueFrames(trace, frames)
        kinds = list(dict.fromkeys(config.groups))
        # By position in the configuration: the index of the distinct group.
        self._kind = np.array([kinds.index(group) for group in config.groups])
        self._num_kinds = len(kinds)
        self.frames: list[GroupFrame] = []

    def _count_step(self, now: int) -> None:
        super()._count_step(now)
        if self._due.reached(now):
            self.frames.append(self._frame(now))

    def _frame(self, now: int) -> GroupFrame:
        blocks = self.manager.blocks()
        used = np.isin(blocks.state, (BlockState.OWNED, BlockState.CACHED))
        idle = blocks.state == BlockState.IDLE
        by_kind = [
            np.bincount(self._kind[blocks.group[chosen]], minlength=self._num_kinds).tolist()
            for chosen in (used, idle)
        ]
        return GroupFrame(
            time_ms=now,
            used=tuple(by_kind[0]),
            cached=tuple(by_kind[1]),
            free=blocks.count(BlockState.FREE),
        )
