"""When the first token of each request comes, if a replica computes its prompts one after another.

A replica is a queue of prefills in the order of admission. Only the time that depends on computed
tokens occupies it: the fixed part of a request passes beside other prefills. The times are computed
from an ended replay, so they do not change which blocks a replica holds, or for how long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.lab.replica import Served
    from blockmgr.lab.trace import Trace

__all__ = ["USUAL_PREFILL", "FirstToken", "PrefillModel", "Prefills", "prefills"]

FirstToken = Callable[[float, int], float]
"""Milliseconds to the first token, from the time that a request waited for blocks and for the
prefills before it, and from its computed tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillModel:
    """A model of prefill: a constant time per token.

    Attributes:
        ms_per_token: Time per computed prompt token.
        overhead_ms: Time of a request without computed tokens.
    """

    ms_per_token: float = 0.1
    overhead_ms: float = 20.0

    def __call__(self, wait_ms: float, num_computed_tokens: int) -> float:
        """Milliseconds from arrival to the first token."""
        return wait_ms + self.overhead_ms + self.ms_per_token * num_computed_tokens


USUAL_PREFILL: Final = PrefillModel()


@dataclass(frozen=True, slots=True)
class Prefills:
    """Times of the prefills of a fleet.

    Attributes:
        first_token_ms: Time to first token of each request, in the order of admission:
            ``float64[n]`` on the host.
        loads: Prefill of each replica over the time in which the trace arrives. Above 1, more is
            asked of a replica than it can compute: its queue grows to the end of the trace, and
            times to first token say how long the trace is. Empty if all requests arrive at once.
    """

    first_token_ms: npt.NDArray[np.float64]
    loads: tuple[float, ...]


def prefills(
    trace: Trace, served: Sequence[Served], num_replicas: int, model: FirstToken
) -> Prefills:
    """The prefills of ``served``, all admitted requests of ``trace`` in the order of admission."""
    idle_at, busy_ms = [0.0] * num_replicas, [0.0] * num_replicas
    times = np.empty(len(served), dtype=np.float64)
    for i, one in enumerate(served):
        start = max(float(one.now_ms), idle_at[one.replica])
        work = model(0, one.num_computed_tokens) - model(0, 0)
        idle_at[one.replica] = start + work
        busy_ms[one.replica] += work
        times[i] = model(one.wait_ms + start - one.now_ms, one.num_computed_tokens)
    span = trace.requests[-1].arrival_ms - trace.requests[0].arrival_ms
    return Prefills(times, tuple(busy / span for busy in busy_ms) if span > 0 else ())
