"""One trace on fleets of several sizes and routers, with the same total number of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.fleet import FleetOptions, FleetResult, Size, Split, best_hit_rate, fleet, total
from blockmgr.lab.routers import BY_EVENTS
from blockmgr.lab.routing import AT_ONCE, Delivery
from blockmgr.lab.study import attainable
from blockmgr.lab.sweep import largest_request_blocks
from blockmgr.lab.workers import workers_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.replay import Progress, ReplayConfig
    from blockmgr.lab.replays import Replays
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.trace import Trace
    from blockmgr.lab.workers import RayCluster

__all__ = ["FleetRow", "fleets"]

NOTHING: Final = "\N{EN DASH}"


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
    result: FleetResult | None
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
    each = {size: blocks // total(size) for size in sizes}
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
            replicas=total(size),
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
        few = min(map(total, each))
        raise ValueError(
            f"capacity must be at least {least * few} blocks for {few} replicas, "
            f"since the largest request of {trace.name} takes {least}, got {blocks}"
        )
    return fitting


def _best(replays: Replays, size: Size, num_blocks: int, config: ReplayConfig) -> float:
    return best_hit_rate(replays.trace, size, num_blocks, config)


def _fleet(
    replays: Replays,
    size: Size,
    pool: tuple[int, ReplayConfig, str],
    options: FleetOptions,
    progress: Progress | None,
) -> FleetResult:
    return fleet(replays.trace, size, *pool, options=options, progress=progress)


def _ignore() -> None:
    """Without a progress callback."""
