"""One trace on fleets of several sizes, with several routers, in as many blocks altogether."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.lab.delivery import AT_ONCE, Delivery
from blockmgr.lab.fleet import FirstToken, FleetResult, best_hit_rate, fleet
from blockmgr.lab.routers import BY_EVENTS
from blockmgr.lab.study import attainable
from blockmgr.lab.sweep import largest_request_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blockmgr.lab.replay import Progress, ReplayConfig
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.trace import Trace

__all__ = ["FleetRow", "fleets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """A fleet of one size with one router.

    Attributes:
        replicas: How many there are.
        num_blocks: Blocks of each.
        router: Name of the router.
        result: What the fleet counted; None if a replica is smaller than the largest request.
        best_hit_rate: What no routing exceeds in as many blocks; None where ``result`` is, or with
            reuse of parts of blocks, which no bound on whole blocks holds for.
        delivery: How events reached the router; None for a router that reads none.
    """

    replicas: int
    num_blocks: int
    router: str
    result: FleetResult | None
    best_hit_rate: float | None
    delivery: Delivery | None = None

    @property
    def label(self) -> str:
        """The router, and how events reached it if any was late or lost."""
        how = "" if self.delivery is None else self.delivery.label
        return f"{self.router}, {how}" if how else self.router


def fleets(
    trace: Trace,
    sizes: Sequence[int],
    capacity: Capacity,
    config: ReplayConfig,
    *,
    routers: Sequence[str],
    seed: int = 0,
    load_weight: float = 0.25,
    deliveries: Sequence[Delivery] = (AT_ONCE,),
    first_token: FirstToken | None = None,
    progress: Progress | None = None,
) -> tuple[FleetRow, ...]:
    """Replay ``trace`` on fleets of all ``sizes`` with all ``routers``: by size, then by router.

    The router ``events`` has a row for each of ``deliveries``.

    Args:
        trace: The requests.
        sizes: Numbers of replicas.
        capacity: Blocks of each fleet altogether, split evenly and rounded down.
        config: How each replica replays.
        routers: Names of routers.
        seed: Of routers that draw.
        load_weight: What ``prefix-minus-load`` and ``events`` make of the load.
        deliveries: How events reach the router ``events``, at least one way.
        first_token: Model of the time to first token.
        progress: Called once for each request of each fleet.

    Raises:
        ValueError: As ``fleet`` does; there is no delivery; or no size leaves a replica large
            enough for every request.
    """
    if not deliveries:
        raise ValueError("deliveries must hold at least one, got 0")
    blocks = capacity.blocks(attainable(trace, config).working_set_blocks)
    least = largest_request_blocks(trace, config)
    if all(blocks // size < least for size in sizes):
        raise ValueError(
            f"capacity must be at least {least * min(sizes)} blocks for {min(sizes)} replicas, "
            f"since the largest request of {trace.name} takes {least}, got {blocks}"
        )
    rows = []
    for size in sizes:
        each = blocks // size
        fits = each >= least
        best = None
        if fits and not config.min_partial_tokens:
            best = best_hit_rate(trace, size, each, config)
        for router, delivery in _ways(routers, deliveries):
            result = None
            if fits:
                result = fleet(
                    trace,
                    size,
                    each,
                    config,
                    router,
                    seed=seed,
                    load_weight=load_weight,
                    delivery=delivery,
                    first_token=first_token,
                    progress=progress,
                )
            rows.append(
                FleetRow(
                    replicas=size,
                    num_blocks=each,
                    router=router,
                    result=result,
                    best_hit_rate=best,
                    delivery=delivery,
                )
            )
    return tuple(rows)


def _ways(
    routers: Sequence[str], deliveries: Sequence[Delivery]
) -> Iterator[tuple[str, Delivery | None]]:
    """Each router, the one by events once for each delivery."""
    for router in routers:
        if router == BY_EVENTS:
            yield from ((router, delivery) for delivery in deliveries)
        else:
            yield router, None
