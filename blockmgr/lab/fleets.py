"""One trace on fleets of several sizes and routers, with the same total number of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from blockmgr.lab.delivery import AT_ONCE, Delivery
from blockmgr.lab.fleet import FleetOptions, FleetResult, best_hit_rate, fleet
from blockmgr.lab.pools_apart import ApartResult, Split, best_apart_hit_rate, fleet_apart
from blockmgr.lab.routers import BY_EVENTS
from blockmgr.lab.study import attainable
from blockmgr.lab.sweep import largest_request_blocks
from blockmgr.lab.workers import workers_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blockmgr.lab.replay import Progress, ReplayConfig
    from blockmgr.lab.replays import Replays
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.tasks import Advance, RayCluster, Workers
    from blockmgr.lab.trace import Trace

__all__ = ["FleetRow", "Size", "Split", "fleets"]


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
    routers: Sequence[str],
    deliveries: Sequence[Delivery] = (AT_ONCE,),
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
        routers: Names of routers.
        deliveries: Deliveries of events to the router ``events``, at least one; a row for each.
        options: The other options, except their delivery; None for ``FleetOptions()``.
        jobs: Number of processes, or a cluster, as in ``sweep``.
        progress: Called once for each request of each fleet.

    Raises:
        ValueError: As in ``fleet``; or there is no delivery, or no size has replicas that are large
            enough for every request.
        ChildProcessError: A process was killed three times while no task ended.
        ClusterLostError: The cluster does not answer, or has stopped answering.
        MissingExtraError: The extra ``ray`` or ``events`` is needed and not installed.
    """
    if not deliveries:
        raise ValueError("deliveries must hold at least one, got 0")
    blocks = capacity.blocks(attainable(trace, config).working_set_blocks)
    each = {size: blocks // _total(size) for size in sizes}
    fitting = _fitting(trace, each, blocks, config)
    routes = list(_ways(routers, deliveries))
    chosen = options or FleetOptions()
    tasks = [
        (size, (each[size], config, router), replace(chosen, delivery=delivery or AT_ONCE))
        for size, (router, delivery) in product(fitting, routes)
    ]
    with workers_on(trace, jobs) as workers:
        bounds: list[float | None] = [None] * len(fitting)
        if not (config.min_partial_tokens or config.groups):
            bounds = workers.run([(_best, size, each[size], config) for size in fitting], _ignore)
        found = iter(_run(workers, tasks, progress or _ignore, len(trace.requests), here=jobs == 1))
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


def _run(
    workers: Workers,
    calls: Sequence[tuple[Any, ...]],
    progress: Progress,
    num_requests: int,
    *,
    here: bool,
) -> list[FleetResult | ApartResult]:
    """Run ``_fleet``; only this process can report progress per request."""
    if here:
        return workers.run([(_fleet, *call, progress) for call in calls], _ignore)
    return workers.run(
        [(_fleet, *call) for call in calls], partial(_advance_by, num_requests, progress)
    )


def _best(replays: Replays, size: Size, num_blocks: int, config: ReplayConfig) -> float:
    if isinstance(size, Split):
        return best_apart_hit_rate(replays.trace, size.prefill, num_blocks, config)
    return best_hit_rate(replays.trace, size, num_blocks, config)


def _fleet(
    replays: Replays,
    size: Size,
    pool: tuple[int, ReplayConfig, str],
    options: FleetOptions,
    progress: Progress | None = None,
) -> FleetResult | ApartResult:
    how: dict[str, Any] = {"options": options, "progress": progress}
    if isinstance(size, Split):
        return fleet_apart(replays.trace, size, *pool, **how)
    return fleet(replays.trace, size, *pool, **how)


def _advance_by(count: int, advance: Advance) -> None:
    for _ in range(count):
        advance()


def _ignore() -> None:
    """Without a progress callback."""


def _ways(
    routers: Sequence[str], deliveries: Sequence[Delivery]
) -> Iterator[tuple[str, Delivery | None]]:
    """Each router; ``events`` once for each delivery."""
    for router in routers:
        if router == BY_EVENTS:
            yield from ((router, delivery) for delivery in deliveries)
        else:
            yield router, None
