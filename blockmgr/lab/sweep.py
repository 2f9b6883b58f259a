"""One trace with several policies, pool sizes and block sizes, on several workers.

Every row has two upper bounds: that of any eviction order in a pool of that size, and an unbounded
pool. Replays use ids if the counts are the same. Workers share no state, so rows do not depend
on their number or their machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.demand import held_blocks
from blockmgr.lab.replay_config import ReplayConfig, different_configs
from blockmgr.lab.replays import Replays
from blockmgr.lab.stored import StoredRequests
from blockmgr.lab.workers import Advance, workers_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.lab.attainable import Attainable
    from blockmgr.lab.optimum import Optimum
    from blockmgr.lab.replay_result import ReplayResult
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.trace import Trace
    from blockmgr.lab.workers import RayCluster

__all__ = [
    "Advance",
    "Sweep",
    "SweepRow",
    "TooSmall",
    "check_pool",
    "largest_request_blocks",
    "num_tasks",
    "sweep",
]

LEAST_GAP: Final = 0.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One policy at one pool size and one block size.

    Attributes:
        policy: Name of the eviction policy.
        block_size: Tokens per block.
        capacity: Pool size as requested.
        result: The counts of the replay.
        optimum: Upper bound for any eviction order in one pool of this size, tiers included, one
            request at a time; None with groups of layers, for which none is known.
        attainable: The counts of an unbounded pool at this block size.
        baseline: The counts of LRU without hints at these sizes; None if not replayed.
    """

    policy: str
    block_size: int
    capacity: Capacity
    result: ReplayResult
    optimum: Optimum | None
    attainable: Attainable
    baseline: ReplayResult | None

    @property
    def gap_closed(self) -> float | None:
        """The fraction of the gap between LRU and the optimum that this row closes; 1 is all.

        None if LRU without hints was not replayed, if there is no optimum, with tiers, which lose
        hits for other reasons, too, or if LRU is within a hundredth of a point of the optimum,
        because a fraction of such a small gap means nothing.
        """
        if self.baseline is None or self.optimum is None or self.result.by_tier is not None:
            return None
        gap = self.optimum.hit_rate - self.baseline.hit_rate
        gained = self.result.hit_rate - self.baseline.hit_rate
        return gained / gap if gap >= LEAST_GAP else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSmall:
    """A pool smaller than the largest request, whose hit rate is not comparable.

    Attributes:
        block_size: Tokens per block.
        capacity: Pool size as requested.
        num_blocks: Pool size in blocks.
        least_blocks: Blocks of the largest request.
    """

    block_size: int
    capacity: Capacity
    num_blocks: int
    least_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All rows by config, pool size and policy, in the requested order.

    Attributes:
        trace: Name of the trace.
        config: The first config, except for the columns of the rows.
        rows: At least one.
        too_small: Requested pools that were not replayed, in the same order.
    """

    trace: str
    config: ReplayConfig
    rows: tuple[SweepRow, ...]
    too_small: tuple[TooSmall, ...] = ()


def largest_request_blocks(trace: Trace, config: ReplayConfig) -> int:
    """Blocks of the largest request of ``trace``, and so of the smallest pool that runs all."""
    requests = trace.requests
    if config.groups or not isinstance(requests, StoredRequests) or not requests.all_hashed:
        return max(held_blocks(request, config) for request in requests)
    holds = config.outputs == "hold"
    longest = max(int((tokens + holds * outputs).max()) for tokens, outputs in requests.lengths())
    return -(-longest // config.block_size)


def num_tasks(*, policies: int, capacities: int, configs: int = 1, hints: object = "none") -> int:
    """The number of calls of ``advance`` by ``sweep``, if no pool is too small."""
    # With hints, the baseline is a separate replay.
    return configs * (2 + capacities * (policies + (hints != "none")))


def sweep(
    trace: Trace,
    capacities: Iterable[Capacity],
    config: ReplayConfig | Sequence[ReplayConfig],
    *,
    policies: Sequence[str] = ("lru",),
    warmup: int = 0,
    jobs: int | RayCluster = 1,
    advance: Advance | None = None,
) -> Sweep:
    """Replay ``trace`` with every config and policy at every pool size.

    Args:
        trace: The requests.
        capacities: Pool sizes; fractions refer to the working set at each block size.
        config: Config of the replays, or several configs that differ in ``block_size`` or
            ``tiers``; ``policies`` replaces their ``eviction``.
        policies: Names of eviction policies, at least one.
        warmup: Requests at the start that fill the pool and are not counted, fewer than there are.
        jobs: Number of processes, at least 1, or a cluster. More than one process, or a cluster,
            needs spawned processes, so the calling program must protect its entry point with
            ``if __name__ == "__main__":``.
        advance: Called ``num_tasks`` times: twice for each config, and once for each replay; less
            often if some pools are too small.

    Raises:
        ValueError: Every pool is smaller than the largest request, ``jobs`` or ``warmup`` is out of
            bounds, there is no such policy, a config is given twice, or the trace cannot be
            cut into blocks of such a size.
        ChildProcessError: A process was killed three times while no task ended.
        ClusterLostError: The cluster does not answer, or has stopped answering.
        MissingExtraError: There is a cluster, and the extra ``ray`` is not installed.
    """
    told = advance or (lambda: None)
    settings = different_configs(config)
    sizes = tuple(capacities)
    with workers_on(trace, jobs, warmup) as workers:
        ceilings = workers.run([(Replays.attainable, setting) for setting in settings], told)
        pools, too_small = _pools(trace, settings, ceilings, sizes)
        tasks: list[tuple[Any, ...]] = [
            (Replays.optima, [pool.all_blocks for pool in pools if pool.config is setting], setting)
            for setting in settings
        ]
        tasks += [
            (Replays.replay, pool.blocks, other)
            for pool in pools
            for other in pool.replayed(policies)
        ]
        found = workers.run(tasks, told)
    bests = [best for group in found[: len(settings)] for best in group]
    results = iter(found[len(settings) :])
    rows: list[SweepRow] = []
    for pool, best in zip(pools, bests, strict=True):
        counted = {other: next(results) for other in pool.replayed(policies)}
        rows += (
            SweepRow(
                policy=policy,
                block_size=pool.config.block_size,
                capacity=pool.capacity,
                result=counted[replace(pool.config, eviction=policy)],
                optimum=best,
                attainable=pool.ceiling,
                baseline=counted.get(replace(pool.config, eviction="lru", hints="none")),
            )
            for policy in policies
        )
    return Sweep(trace=trace.name, config=settings[0], rows=tuple(rows), too_small=tuple(too_small))


@dataclass(frozen=True, slots=True)
class _Pool:
    """A point of the sweep: its config, its unbounded pool, and its pool size."""

    config: ReplayConfig
    ceiling: Attainable
    capacity: Capacity
    blocks: int

    @property
    def all_blocks(self) -> int:
        """Blocks of the pool and of tiers."""
        return self.blocks + sum(tier.num_blocks for tier in self.config.tiers)

    def replayed(self, policies: Sequence[str]) -> list[ReplayConfig]:
        """The configs to replay there, each once; with hints, also LRU without them."""
        configs = [replace(self.config, eviction=policy) for policy in policies]
        if self.config.hints != "none":
            configs.append(replace(self.config, eviction="lru", hints="none"))
        return list(dict.fromkeys(configs))


def _pools(
    trace: Trace,
    settings: Sequence[ReplayConfig],
    ceilings: Sequence[Attainable],
    sizes: Sequence[Capacity],
) -> tuple[list[_Pool], list[TooSmall]]:
    """The points of the sweep in order, and the pools that are too small."""
    pools, too_small = [], []
    for setting, ceiling in zip(settings, ceilings, strict=True):
        least = largest_request_blocks(trace, setting)
        for capacity in sizes:
            blocks = capacity.blocks(ceiling.working_set_blocks)
            if blocks < least:
                place = TooSmall(
                    block_size=setting.block_size,
                    capacity=capacity,
                    num_blocks=blocks,
                    least_blocks=least,
                )
                too_small.append(place)
            else:
                pools.append(_Pool(setting, ceiling, capacity, blocks))
    if not pools:
        check_pool(trace, settings[0], sizes[0], ceilings[0].working_set_blocks)
    return pools, too_small


def check_pool(trace: Trace, config: ReplayConfig, capacity: Capacity, working_set: int) -> None:
    """Refuse a pool that would reject requests, because its hit rate is not comparable.

    Args:
        trace: The requests.
        config: Config of the replay.
        capacity: Pool size as requested.
        working_set: Blocks to which a fraction refers.

    Raises:
        ValueError: It is smaller than the largest request; the message gives a sufficient size.
    """
    blocks = capacity.blocks(working_set)
    least = largest_request_blocks(trace, config)
    if blocks < least:
        raise ValueError(
            f"capacity must be at least {least} blocks ({_rounded_up(least, working_set)}) with "
            f"blocks of {config.block_size}, the largest request of {trace.name}, got "
            f"{capacity.text}" + ("" if capacity.text == str(blocks) else f", {blocks} blocks")
        )


def _rounded_up(blocks: int, working_set: int) -> str:
    """The smallest percentage with two decimals that gives at least this many blocks."""
    return f"{-(-10_000 * blocks // working_set) / 100:g}%"
