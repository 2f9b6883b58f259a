"""A fleet whose replicas either prefill or decode, with transfers of K/V between them.

::

    arrival ──► router ──► prefill replica ──► decode router ──► decode replica ──► end
                           waits for room,     first token       waits for room,
                           computes what is                      receives what is
                           not cached there                      not cached there, generates

* A prefill replica computes one prompt after another (``blockmgr.lab.prefill``). It holds the
  blocks of a prompt for the time of the first-token model without waiting. Then they stay cached
  there. It has no outputs, so the next turn of a conversation computes the previous answer.
* A decode replica holds blocks of the prompt and of the outputs during the transfer of K/V and for
  the service time after that. Its cached part of a prompt needs no transfer.
* A prefill replica does not wait for a decode replica without room: no block is held in between.

Each half is a separate fleet: the second half does not affect the first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blockmgr.lab.fleet import (
    FleetCounts,
    FleetOptions,
    best_hit_rate,
    name_of,
    over_mean,
    serve,
    setting_of,
)
from blockmgr.lab.prefill import prefills
from blockmgr.lab.trace import Trace

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.lab.prefill import Prefills
    from blockmgr.lab.replay import Clock, Progress, ReplayConfig, ReplayResult
    from blockmgr.lab.replica import Served
    from blockmgr.lab.request import Request
    from blockmgr.lab.routing import RouterFactory

__all__ = ["ApartResult", "Split", "best_apart_hit_rate", "fleet_apart"]


class Split(NamedTuple):
    """The replicas of a fleet that prefill or decode."""

    prefill: int
    """Number of prefill replicas."""
    decode: int
    """Number of decode replicas."""

    def __str__(self) -> str:
        return f"{self.prefill}+{self.decode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartResult(FleetCounts):
    """The counts of a fleet whose replicas prefill or decode.

    Attributes:
        decode_router: Router of prefilled requests.
        prefill: The counts of each prefill replica: prompts without outputs.
        decode: The counts of each decode replica; its hit tokens were not transferred.
        handover_ms: Time from the first token to the start of decoding, with wait and transfer, of
            each decoded request in the order of admission: ``float64[m]``.
    """

    decode_router: str
    prefill: tuple[ReplayResult, ...]
    decode: tuple[ReplayResult, ...]
    handover_ms: npt.NDArray[np.float64]

    @property
    def prefilling(self) -> tuple[ReplayResult, ...]:
        """The counts of the prefill replicas."""
        return self.prefill

    @property
    def of_all(self) -> tuple[ReplayResult, ...]:
        """The counts of the prefill and decode replicas."""
        return self.prefill + self.decode

    @property
    def decode_imbalance(self) -> float:
        """Requests of the busiest decode replica over their mean."""
        return over_mean([result.requests for result in self.decode])

    @property
    def handover_mean_ms(self) -> float:
        """Mean time from the first token to the start of decoding; 0 if nothing was decoded."""
        return float(self.handover_ms.mean()) if len(self.handover_ms) else 0.0

    @property
    def sent_tokens(self) -> int:
        """Tokens whose K/V was transferred."""
        return sum(result.query_tokens - result.hit_tokens for result in self.decode)


def fleet_apart(
    trace: Trace,
    split: Split,
    num_blocks: int,
    config: ReplayConfig,
    router: str | RouterFactory = "prefix-minus-load",
    *,
    options: FleetOptions | None = None,
    progress: Progress | None = None,
    clock: Clock = time.thread_time,
) -> ApartResult:
    """Replay ``trace`` on separate prefill and decode replicas.

    Args:
        trace: The requests.
        split: Numbers of prefill and of decode replicas, each at least 1.
        num_blocks: Blocks in the pool of each prefill replica.
        config: Config of each replica's replay.
        router: Router of prompts.
        options: The other options, for both routers; None for ``FleetOptions()``.
        progress: Called once for each prefilled or rejected request.
        clock: Measures the host cost.

    Raises:
        ValueError: A number is out of bounds, there is no such router, no request fits a prefill
            replica, ``config`` has groups of layers (a transfer would need more than K/V), or the
            trace cannot be cut into blocks of ``config.block_size``.
        MissingExtraError: As in ``fleet``.
    """
    _check(split, config)
    chosen = options or FleetOptions()
    model, send_ms_per_token = chosen.first_token, chosen.send_ms_per_token

    def prefill_ms(_: Request, computed: int) -> int:
        return round(model(0, computed))

    def decode_ms(request: Request, sent: int) -> int:
        return config.service_ms(request) + round(send_ms_per_token * sent)

    setting = setting_of(_prompts(trace), config, split.prefill, chosen)
    prefilled, served = serve(
        setting, num_blocks, config, router, busy_ms=prefill_ms, progress=progress, clock=clock
    )
    if not served:
        raise ValueError(f"num_blocks must hold a request of {trace.name}, got {num_blocks}")
    computed = prefills(setting.trace, served, split.prefill, model)
    handed_over = _in_order_of_handover(trace, served, computed)
    later = replace(setting, trace=handed_over, num_replicas=split.decode)
    blocks = num_blocks if chosen.decode_blocks is None else chosen.decode_blocks
    decoded, started = serve(
        later, blocks, config, chosen.decode_router, busy_ms=decode_ms, clock=clock
    )
    return ApartResult(
        router=name_of(router),
        decode_router=name_of(chosen.decode_router),
        prefill=prefilled,
        decode=decoded,
        first_token_ms=computed.first_token_ms,
        handover_ms=np.array(
            [one.wait_ms + send_ms_per_token * one.num_computed_tokens for one in started],
            dtype=np.float64,
        ),
        prefill_loads=computed.loads,
    )


def _check(split: Split, config: ReplayConfig) -> None:
    for name, count in split._asdict().items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if config.groups:
        raise ValueError(
            f"groups must be empty for prefill and decode apart, got {len(config.groups)}"
        )


def _in_order_of_handover(trace: Trace, served: list[Served], computed: Prefills) -> Trace:
    """The prefilled requests, each with the end of its prefill as arrival."""
    done = sorted(
        (one.now_ms - one.wait_ms + round(time), one.number)
        for one, time in zip(served, computed.first_token_ms.tolist(), strict=True)
    )
    arrived = (replace(trace.requests[number - 1], arrival_ms=at) for at, number in done)
    return Trace(trace.name, tuple(arrived))


def best_apart_hit_rate(trace: Trace, prefill: int, num_blocks: int, config: ReplayConfig) -> float:
    """An upper bound for all routers and policies of prefill replicas, like ``best_hit_rate``.

    Raises:
        ValueError: As in ``optimum``.
    """
    return best_hit_rate(_prompts(trace), prefill, num_blocks, config)


def _prompts(trace: Trace) -> Trace:
    """The requests without their outputs."""
    alone = (replace(request, outputs=(), num_output_tokens=0) for request in trace.requests)
    return Trace(trace.name, tuple(alone))
