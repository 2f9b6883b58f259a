"""One trace on fleets of several sizes and routers, with the same total number of blocks.

The replicas of a ``Split`` either prefill or decode, with transfers of K/V between them.

::

    arrival ──► router ──► prefill replica ──► decode router ──► decode replica ──► end
                           waits for room,     first token       waits for room,
                           computes what is                      receives what is
                           not cached there                      not cached there, generates

* A prefill replica computes one prompt after another (``blockmgr.lab.fleet``). It holds the
  blocks of a prompt for the time of the first-token model without waiting. Then they stay cached
  there. It has no outputs, so the next turn of a conversation computes the previous answer.
* A decode replica holds blocks of the prompt and of the outputs during the transfer of K/V and for
  the service time after that. Its cached part of a prompt needs no transfer.
* A prefill replica does not wait for a decode replica without room: no block is held in between.

Each half is a separate fleet: the second half does not affect the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from blockmgr.lab.fleet import (
    FleetCounts,
    FleetOptions,
    FleetResult,
    best_hit_rate,
    fleet,
    name_of,
    over_mean,
    prefills,
    serve,
    setting_of,
)
from blockmgr.lab.routers import BY_EVENTS
from blockmgr.lab.routing import AT_ONCE, Delivery
from blockmgr.lab.study import attainable
from blockmgr.lab.sweep import largest_request_blocks
from blockmgr.lab.trace import Trace
from blockmgr.lab.workers import workers_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.lab.fleet import Prefills, Served
    from blockmgr.lab.replay import Progress, ReplayConfig, ReplayResult
    from blockmgr.lab.replays import Replays
    from blockmgr.lab.request import Request
    from blockmgr.lab.routing import RouterFactory
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.workers import RayCluster

__all__ = [
    "ApartResult",
    "FleetRow",
    "Size",
    "Split",
    "best_apart_hit_rate",
    "fleet_apart",
    "fleets",
]

NOTHING: Final = "\N{EN DASH}"


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
        setting, num_blocks, config, router, busy_ms=prefill_ms, progress=progress
    )
    if not served:
        raise ValueError(f"num_blocks must hold a request of {trace.name}, got {num_blocks}")
    computed = prefills(setting.trace, served, split.prefill, model)
    handed_over = _in_order_of_handover(trace, served, computed)
    later = replace(setting, trace=handed_over, num_replicas=split.decode)
    blocks = num_blocks if chosen.decode_blocks is None else chosen.decode_blocks
    decoded, started = serve(later, blocks, config, chosen.decode_router, busy_ms=decode_ms)
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


Size = int | Split
"""Replicas of a fleet: their number, or the number of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """A fleet of one size with one router.

    Attributes:
        replicas: Number of replicas of both kinds.
        num_blocks: Blocks of each replica.
        router: Name of the router.
        result: The counts of the fleet; None if a replica is smaller than the largest request.
        best_hit_rate: Upper bound for any routing with this number of blocks; None if ``result`` is
            None, and with reuse of parts of blocks or groups of layers, for which none is known.
        delivery: Delivery of events to the router; None for a router without events.
        split: Numbers of replicas that prefill and that decode; None if each does both.
    """

    replicas: int
    num_blocks: int
    router: str
    result: FleetResult | ApartResult | None
    best_hit_rate: float | None
    delivery: Delivery | None = None
    split: Split | None = None

    @property
    def size(self) -> Size:
        """The size as requested."""
        return self.replicas if self.split is None else self.split

    @property
    def line(self) -> str:
        """A key of rows that differ only in size: label, and fraction that decodes."""
        if self.split is None:
            return self.label
        return f"{self.label}, {Fraction(self.split.decode, self.replicas)} decode"

    @property
    def as_plain(self) -> dict[str, Any]:
        """The row for a JSON document; without counts if a replica is too small."""
        entry: dict[str, Any] = {
            "replicas": self.replicas,
            "num_blocks": self.num_blocks,
            "router": self.router,
            "best_hit_rate": self.best_hit_rate,
        }
        if self.result is not None:
            entry |= {
                "hit_rate": self.result.hit_rate,
                "imbalance": self.result.imbalance,
                "prefill_load": self.result.prefill_load,
                "first_token_mean_ms": self.result.first_token_mean_ms,
                "first_token_p99_ms": self.result.first_token_quantile(0.99),
            }
        return entry

    @property
    def cells(self) -> list[str]:
        """Its counts for a table; none if a replica is too small.

        Hit rate, its bound, imbalance, prefill load, time to first token in milliseconds (mean and
        99 %), and the requests that waited.
        """
        found, best = self.result, self.best_hit_rate
        if found is None:
            return []
        return [
            f"{found.hit_rate:.2%}",
            NOTHING if best is None else f"{best:.2%}",
            f"{found.imbalance:.2f}",
            NOTHING if found.prefill_load is None else f"{found.prefill_load:.2f}",
            f"{found.first_token_mean_ms:,.0f}",
            f"{found.first_token_quantile(0.99):,.0f}",
            f"{found.waited:,}",
        ]

    @property
    def label(self) -> str:
        """The router, with the delivery of events if that was not perfect."""
        how = "" if self.delivery is None else self.delivery.label
        return f"{self.router}, {how}" if how else self.router


def fleets(
    trace: Trace,
    sizes: Sequence[Size],
    capacity: Capacity,
    config: ReplayConfig,
    *,
    routers: Sequence[str | tuple[str, Delivery]],
    options: FleetOptions | None = None,
    jobs: int | RayCluster = 1,
    progress: Progress | None = None,
) -> tuple[FleetRow, ...]:
    """Replay ``trace`` on fleets of all ``sizes`` with all ``routers``: by size, then by router.

    Args:
        trace: The requests.
        sizes: Numbers of replicas, or of those that prefill and those that decode; each once.
        capacity: Total blocks of each fleet, split evenly and rounded down.
        config: Config of each replica's replay.
        routers: Names of routers; with a delivery, such as ``("events", Delivery(delay_ms=500))``,
            this replaces that of ``options``.
        options: The other options; None for ``FleetOptions()``.
        jobs: Number of processes, or a cluster, as in ``sweep``.
        progress: Called once for each request of each fleet.

    Raises:
        ValueError: As in ``fleet``; or no size has replicas that are large enough for every
            request.
        ChildProcessError: A process was killed three times while no task ended.
        ClusterLostError: The cluster does not answer, or has stopped answering.
        MissingExtraError: The extra ``ray`` or ``events`` is needed and not installed.
    """
    blocks = capacity.blocks(attainable(trace, config).working_set_blocks)
    each = {size: blocks // _total(size) for size in sizes}
    fitting = _fitting(trace, each, blocks, config)
    chosen = options or FleetOptions()
    routes = [
        (each, chosen.delivery if each == BY_EVENTS else None) if isinstance(each, str) else each
        for each in routers
    ]
    told = progress or _ignore

    def tell_all() -> None:
        for _ in trace.requests:
            told()

    # Only this process can report progress for each request; others report whole fleets.
    inside, advance = (told, _ignore) if jobs == 1 else (None, tell_all)
    tasks = []
    for size, (router, delivery) in product(fitting, routes):
        how = replace(chosen, delivery=delivery or AT_ONCE)
        tasks.append((_fleet, size, (each[size], config, router), how, inside))
    with workers_on(trace, jobs) as workers:
        bounds: list[float | None] = [None] * len(fitting)
        if not (config.min_partial_tokens or config.groups):
            bounds = workers.run([(_best, size, each[size], config) for size in fitting], _ignore)
        found = iter(workers.run(tasks, advance))
    best = dict(zip(fitting, bounds, strict=True))
    return tuple(
        FleetRow(
            replicas=_total(size),
            num_blocks=each[size],
            router=router,
            result=next(found) if size in best else None,
            best_hit_rate=best.get(size),
            delivery=delivery,
            split=size if isinstance(size, Split) else None,
        )
        for size, (router, delivery) in product(each, routes)
    )


def _fitting(trace: Trace, each: dict[Size, int], blocks: int, config: ReplayConfig) -> list[Size]:
    """The sizes whose replicas are large enough for every request: at least one."""
    least = largest_request_blocks(trace, config)
    fitting = [size for size, num_blocks in each.items() if num_blocks >= least]
    if not fitting:
        few = min(map(_total, each))
        raise ValueError(
            f"capacity must be at least {least * few} blocks for {few} replicas, "
            f"since the largest request of {trace.name} takes {least}, got {blocks}"
        )
    return fitting


def _total(size: Size) -> int:
    return sum(size) if isinstance(size, Split) else size


def _best(replays: Replays, size: Size, num_blocks: int, config: ReplayConfig) -> float:
    if isinstance(size, Split):
        return best_apart_hit_rate(replays.trace, size.prefill, num_blocks, config)
    return best_hit_rate(replays.trace, size, num_blocks, config)


def _fleet(
    replays: Replays,
    size: Size,
    pool: tuple[int, ReplayConfig, str],
    options: FleetOptions,
    progress: Progress | None,
) -> FleetResult | ApartResult:
    how: dict[str, Any] = {"options": options, "progress": progress}
    if isinstance(size, Split):
        return fleet_apart(replays.trace, size, *pool, **how)
    return fleet(replays.trace, size, *pool, **how)


def _ignore() -> None:
    """Without a progress callback."""
