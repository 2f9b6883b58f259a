"""A replay stopped in the middle, to inspect the manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.lab.replay import EventLoop, Progress, ReplayConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blockmgr.lab.trace import Trace
    from blockmgr.manager import BlockManager

__all__ = ["Moment", "replay_until"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A replay after one of its steps.

    Attributes:
        manager: The manager after the step.
        step: Number of the step, from 1.
        time_ms: Time of the step in simulated milliseconds.
        names: The request number, from 1, and the sample of each running sequence, by handle and in
            order of admission.
        waiting: Requests that have arrived and are not admitted yet.
    """

    manager: BlockManager
    step: int
    time_ms: int
    names: Mapping[int, str]
    waiting: int


def replay_until(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    step: int,
    *,
    progress: Progress | None = None,
) -> Moment:
    """``replay``, stopped after the given step.

    A step is an instant of simulated time at which requests were admitted or ended.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of the replay.
        step: Number of the step, in ``[1, ReplayResult.steps]``.
        progress: Called once for each request reached.

    Raises:
        ValueError: The replay has no such step, or the trace cannot be cut into blocks of
            ``config.block_size``.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    loop = EventLoop(trace, num_blocks, config, progress=progress, stop_after=step)
    steps = loop.run().steps
    if step > steps:
        raise ValueError(f"step must be at most {steps}, the last of this replay, got {step}")
    names = {}
    for number, handles in loop.running():
        for sample, handle in enumerate(handles, start=1):
            of_several = f", sample {sample}" if len(handles) > 1 else ""
            names[handle] = f"request {number}{of_several}"
    return Moment(
        manager=loop.manager,
        step=steps,
        time_ms=loop.time_ms,
        names=names,
        waiting=loop.num_waiting,
    )
