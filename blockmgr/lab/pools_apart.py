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
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.lab.fleet import name_of, quantile, serve
from blockmgr.lab.optimum import optimum
from blockmgr.lab.prefill import PrefillModel, prefills
from blockmgr.lab.routing import Setting
from blockmgr.lab.trace import Trace

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.lab.delivery import Delivery
    from blockmgr.lab.prefill import FirstToken, Prefills
    from blockmgr.lab.replay import Clock, Progress, ReplayConfig, ReplayResult
    from blockmgr.lab.replica import Served
    from blockmgr.lab.request import Request
    from blockmgr.lab.routing import RouterFactory

__all__ = ["ApartResult", "best_apart_hit_rate", "fleet_apart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartResult:
    """The counts of a fleet whose replicas prefill or decode.

    Attributes:
        router: Name of the router of prompts.
        decode_router: Router of prefilled requests.
        prefill: The counts of each prefill replica: prompts without outputs.
        decode: The counts of each decode replica; its hit tokens were not transferred.
        first_token_ms: Time to first token of each prefilled request, in the order of admission:
            ``float64[n]`` on the host.
        prefill_loads: Prefill load of each prefill replica, as in ``blockmgr.lab.prefill``.
        handover_ms: Time from the first token to the start of decoding, with wait and transfer, of
            each decoded request, likewise: ``float64[m]``.
    """

    router: str
    decode_router: str
    prefill: tuple[ReplayResult, ...]
    decode: tuple[ReplayResult, ...]
    first_token_ms: npt.NDArray[np.float64]
    handover_ms: npt.NDArray[np.float64]
    prefill_loads: tuple[float, ...] = ()

    @property
    def prefill_load(self) -> float | None:
        """Prefill load of the busiest prefill replica; None if all requests arrive at once."""
        return max(self.prefill_loads, default=None)

    @property
    def hit_rate(self) -> float:
        """Prompt tokens that no replica computed over all prompt tokens, in ``0 … 1``."""
        asked = sum(result.query_tokens for result in self.prefill)
        return sum(result.hit_tokens for result in self.prefill) / asked

    @property
    def imbalance(self) -> float:
        """Computed prompt tokens of the busiest prefill replica over their mean."""
        return _over_mean([result.query_tokens - result.hit_tokens for result in self.prefill])

    @property
    def decode_imbalance(self) -> float:
        """Requests of the busiest decode replica over their mean."""
        return _over_mean([result.requests for result in self.decode])

    @property
    def first_token_mean_ms(self) -> float:
        """Mean time to first token, in milliseconds."""
        return float(self.first_token_ms.mean())

    def first_token_quantile(self, share: float) -> float:
        """Percentile of the time to first token, in milliseconds, for this share of requests.

        Raises:
            ValueError: ``share`` is not in ``[0, 1]``.
        """
        return quantile(self.first_token_ms, share)

    @property
    def handover_mean_ms(self) -> float:
        """Mean time from the first token to the start of decoding; 0 if nothing was decoded."""
        return float(self.handover_ms.mean()) if len(self.handover_ms) else 0.0

    @property
    def sent_tokens(self) -> int:
        """Tokens whose K/V was transferred."""
        return sum(result.query_tokens - result.hit_tokens for result in self.decode)

    @property
    def waited(self) -> int:
        """Late admissions, at prefill and decode replicas."""
        return sum(result.waited for result in self.prefill + self.decode)

    @property
    def rejected(self) -> int:
        """Requests larger than the pool of their replica."""
        return sum(result.rejected for result in self.prefill + self.decode)


def fleet_apart(
    trace: Trace,
    prefill: int,
    decode: int,
    num_blocks: int,
    config: ReplayConfig,
    *,
    router: str | RouterFactory = "prefix-minus-load",
    decode_router: str | RouterFactory = "least-loaded",
    decode_blocks: int | None = None,
    send_ms_per_token: float = 0.0,
    seed: int = 0,
    load_weight: float = 0.25,
    delivery: Delivery | None = None,
    first_token: FirstToken | None = None,
    progress: Progress | None = None,
    clock: Clock = time.thread_time,
) -> ApartResult:
    """Replay ``trace`` on separate prefill and decode replicas.

    Args:
        trace: The requests.
        prefill: Number of prefill replicas, at least 1.
        decode: Number of decode replicas, at least 1.
        num_blocks: Blocks in the pool of each prefill replica.
        config: Config of each replica's replay.
        router: Router of prompts.
        decode_router: Router of prefilled requests.
        decode_blocks: Blocks in the pool of each decode replica; None for ``num_blocks``.
        send_ms_per_token: Transfer time of K/V per token.
        seed: Seed of random routers.
        load_weight: As in ``fleet``.
        delivery: As in ``fleet``, for both routers.
        first_token: Model of the time to first token; ``PrefillModel()`` if None.
        progress: Called once for each prefilled or rejected request.
        clock: Measures the host cost.

    Raises:
        ValueError: A number is out of bounds, there is no such router, no request fits a prefill
            replica, ``config`` has groups of layers (a transfer would need more than K/V), or the
            trace cannot be cut into blocks of ``config.block_size``.
        MissingExtraError: As in ``fleet``.
    """
    _check(prefill, decode, send_ms_per_token, config)
    model = first_token or PrefillModel()

    def prefill_ms(_: Request, computed: int) -> int:
        return round(model(0, computed))

    def decode_ms(request: Request, sent: int) -> int:
        return config.service_ms(request) + round(send_ms_per_token * sent)

    prompts, options = _prompts(trace), {"seed": seed, "load_weight": load_weight}
    setting = Setting.of(prompts, config, prefill, delivery, **options)
    prefilled, served = serve(
        setting, num_blocks, config, router, busy_ms=prefill_ms, progress=progress, clock=clock
    )
    if not served:
        raise ValueError(f"num_blocks must hold a request of {trace.name}, got {num_blocks}")
    computed = prefills(trace, served, prefill, model)
    handed_over = _in_order_of_handover(trace, served, computed)
    later = replace(setting, trace=handed_over, num_replicas=decode)
    blocks = num_blocks if decode_blocks is None else decode_blocks
    decoded, started = serve(later, blocks, config, decode_router, busy_ms=decode_ms, clock=clock)
    return ApartResult(
        router=name_of(router),
        decode_router=name_of(decode_router),
        prefill=prefilled,
        decode=decoded,
        first_token_ms=computed.first_token_ms,
        handover_ms=np.array(
            [one.wait_ms + send_ms_per_token * one.num_computed_tokens for one in started],
            dtype=np.float64,
        ),
        prefill_loads=computed.loads,
    )


def _check(prefill: int, decode: int, send_ms_per_token: float, config: ReplayConfig) -> None:
    for name, count in (("prefill", prefill), ("decode", decode)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if not 0 <= send_ms_per_token < float("inf"):
        raise ValueError(f"send_ms_per_token must be at least 0, got {send_ms_per_token}")
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
    return optimum(_prompts(trace), prefill * num_blocks, config).hit_rate


def _prompts(trace: Trace) -> Trace:
    """The requests without their outputs."""
    return Trace(trace.name, tuple(map(_prompt, trace.requests)))


def _prompt(request: Request) -> Request:
    return replace(request, outputs=(), num_output_tokens=0)


def _over_mean(counts: list[int]) -> float:
    return max(counts) * len(counts) / max(1, sum(counts))
