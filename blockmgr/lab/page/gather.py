"""Gathers the data of a report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from blockmgr.lab.curve import Curve, hit_rate_curve
from blockmgr.lab.fleet import FleetOptions
from blockmgr.lab.fleets import FleetRow, fleets
from blockmgr.lab.misses import misses
from blockmgr.lab.page.facts import Extent, Report
from blockmgr.lab.replay_config import HINT_MODELS
from blockmgr.lab.replays import Replays
from blockmgr.lab.study import Capacity, full_attention, parse_capacities, working_set_blocks
from blockmgr.lab.sweep import check_pool, largest_request_blocks, num_tasks, sweep
from blockmgr.lab.warmup import attainable_after, curve_after, first_requests
from blockmgr.lab.workers import workers_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.attainable import Attainable
    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.replay_config import HintName
    from blockmgr.lab.sweep import Advance, Sweep, SweepRow
    from blockmgr.lab.trace import Trace

__all__ = ["CAPACITIES", "gather", "num_steps"]

CAPACITIES: Final = "1%,2%,5%,10%,20%,50%"
# Steps that take all requests: the curve, and the explained pool.
PASSES: Final = 2


def num_steps(
    *,
    policies: int,
    capacities: int,
    hints: object = "none",
    sessions: bool = False,
    tiered: bool = False,
    fleet_requests: int = 0,
) -> int:
    """The number of calls of ``advance`` by ``gather``.

    Args:
        policies: Number of eviction policies, including LRU.
        capacities: Pool sizes.
        hints: Hints of the replay.
        sessions: Whether the trace names sessions.
        tiered: Whether there are tiers.
        fleet_requests: Requests of all fleets together.
    """
    places = capacities + 1
    tasks = num_tasks(policies=policies, capacities=places, hints=hints)
    more = tiered + sessions * len(HINT_MODELS)
    return tasks + PASSES + fleet_requests + more * places


def gather(
    trace: Trace,
    config: ReplayConfig,
    *,
    capacity: Capacity,
    policies: Sequence[str],
    capacities: Sequence[Capacity] = (),
    extent: Extent | None = None,
    jobs: int = 1,
    advance: Advance | None = None,
) -> Report:
    """Gather the data of a report.

    Args:
        trace: The requests.
        config: Config of the replays; ``policies`` replaces its ``eviction``. Its tiers have a
            chapter of their own.
        capacity: The pool to examine in detail.
        policies: Names of eviction policies; LRU is added as the baseline.
        capacities: Pool sizes to compare policies at; empty for those of ``CAPACITIES`` that hold
            the largest request.
        extent: Other parts to cover; by default none.
        jobs: Number of processes, at least 1.
        advance: Called to report progress, at most ``num_steps`` times.

    Raises:
        ValueError: A pool is smaller than the largest request, there is no such policy or router,
            no replica of a fleet holds the largest request, or the trace cannot be cut into blocks
            of ``config.block_size``.
        ChildProcessError: A process was killed three times while no task ended.
    """
    step = advance or (lambda: None)
    asked = extent or Extent()
    alone = replace(config.of_device, eviction="lru")
    curve = _curve(trace, alone, asked.warmup)
    step()
    names = tuple(dict.fromkeys(("lru", *policies)))
    working_set = working_set_blocks(trace, alone)
    sizes = list(capacities) or _default_capacities(trace, alone, working_set)
    # In the spelling of its row: 10% and 10.0% are the same pool.
    capacity = next((size for size in sizes if size.equals(capacity)), capacity)
    if capacity not in sizes:
        sizes.append(capacity)
    for size in sizes:
        check_pool(trace, alone, size, working_set)
    outcome = sweep(
        trace, sizes, alone, policies=names, warmup=asked.warmup, jobs=jobs, advance=step
    )
    hints = _hints(trace, alone)
    others = [replace(alone, hints=name) for name in hints]
    others += [replace(config, eviction="lru")] * bool(config.tiers)
    again = _again(trace, outcome, others, warmup=asked.warmup, jobs=jobs, advance=step)
    blocks = capacity.blocks(working_set)
    missed = misses(trace, blocks, alone, warmup=asked.warmup)
    step()
    return Report(
        trace=trace.name,
        requests=len(trace.requests),
        span_ms=trace.requests[-1].arrival_ms - trace.requests[0].arrival_ms,
        config=alone,
        capacity=capacity,
        curve=curve,
        sweep=outcome,
        misses=missed,
        full_attention=_full_attention(trace, alone, asked.warmup),
        fleet=_fleet(trace, capacity, alone, asked, step),
        hinted=dict(zip(hints, again, strict=False)),
        tiered=again[-1] if config.tiers else (),
        extent=asked,
    )


def _curve(trace: Trace, config: ReplayConfig, warmup: int) -> Curve | None:
    """LRU at every pool size; None with groups of layers, for which there is no curve."""
    if config.groups:
        return None
    whole = hit_rate_curve(trace, config)
    if not warmup:
        return whole
    return curve_after(whole, hit_rate_curve(first_requests(trace, warmup), config))


def _full_attention(trace: Trace, config: ReplayConfig, warmup: int) -> Attainable | None:
    if not config.has_states:
        return None
    whole = full_attention(trace, config)
    if not warmup:
        return whole
    return attainable_after(whole, full_attention(first_requests(trace, warmup), config))


def _fleet(
    trace: Trace, capacity: Capacity, config: ReplayConfig, extent: Extent, step: Advance
) -> tuple[FleetRow, ...]:
    if not extent.replicas:
        return ()
    return fleets(
        trace,
        extent.replicas,
        capacity,
        config,
        routers=extent.routers,
        options=FleetOptions(seed=extent.seed),
        progress=step,
    )


def _hints(trace: Trace, config: ReplayConfig) -> tuple[HintName, ...]:
    """The models of hints to compare, if the trace names sessions."""
    if not trace.names_sessions:
        return ()
    return tuple(
        name
        for name, model in HINT_MODELS.items()
        if name != "none" and not (model.foretells and config.groups)
    )


def _again(
    trace: Trace,
    outcome: Sweep,
    configs: Sequence[ReplayConfig],
    *,
    warmup: int,
    jobs: int,
    advance: Advance,
) -> list[tuple[SweepRow, ...]]:
    """LRU at every pool size of the sweep with other configs."""
    rows = [row for row in outcome.rows if row.policy == "lru"]
    if not configs:
        return []
    tasks = [(Replays.replay, row.result.num_blocks, config) for config in configs for row in rows]
    with workers_on(trace, jobs, warmup) as workers:
        results = iter(workers.run(tasks, advance))
    return [
        tuple(
            replace(row, result=next(results), baseline=row.baseline or row.result) for row in rows
        )
        for _ in configs
    ]


def _default_capacities(trace: Trace, config: ReplayConfig, working_set: int) -> list[Capacity]:
    least = largest_request_blocks(trace, config)
    return [size for size in parse_capacities(CAPACITIES) if size.blocks(working_set) >= least]
