"""The data of a report, and how it is gathered; other modules draw and write it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from blockmgr.explain import MissReason
from blockmgr.lab.fleet import FleetOptions
from blockmgr.lab.fleets import FleetRow, fleets
from blockmgr.lab.misses import misses
from blockmgr.lab.replay_config import HINT_MODELS
from blockmgr.lab.replays import Replays
from blockmgr.lab.routers import ROUTERS
from blockmgr.lab.study import Capacity, parse_capacities, working_set_blocks
from blockmgr.lab.sweep import check_pool, largest_request_blocks, num_tasks, sweep
from blockmgr.lab.workers import workers_on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blockmgr.lab.attainable import Attainable
    from blockmgr.lab.curve import Curve
    from blockmgr.lab.misses import MissTable
    from blockmgr.lab.models import Model
    from blockmgr.lab.replay import ReplayConfig, ReplayResult
    from blockmgr.lab.replay_config import HintName
    from blockmgr.lab.sweep import Advance, Sweep, SweepRow
    from blockmgr.lab.tiered import ReplayTier
    from blockmgr.lab.trace import Trace

__all__ = ["CAPACITIES", "Extent", "Outcome", "Report", "gather", "num_steps"]

FOUND: Final = "found"
MEANINGS: Final = MappingProxyType(
    {
        MissReason.CACHING_OFF: "nothing was looked for",
        MissReason.TOO_LARGE: "the request was rejected",
        MissReason.LAST_TOKEN: "in the block with the last token, which is always computed",
        MissReason.PARTIAL_BLOCK: "at the end of the prompt, and only whole blocks are shared",
        MissReason.NOT_COMMITTED: "in the blocks of a running request",
        MissReason.GROUP: "cached, but not in every group of layers",
        MissReason.EVICTED: "an unbounded pool would have found them",
        MissReason.OTHER_EXTRAS: "cached with other extra keys",
        MissReason.OTHER_NAMESPACE: "cached for another tenant or adapter",
        MissReason.DIVERGED: "a cached block has the same first tokens, then differs",
        MissReason.NEVER_SEEN: "no earlier prompt had this prefix",
        MissReason.NOT_REMEMBERED: "never cached, or evicted too long ago",
    }
)
"""The meaning of each reason for a miss in a few words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of some prompt tokens.

    Attributes:
        name: Name in two or three words.
        meaning: Meaning in one sentence.
        tokens: Number of tokens.
        reason: Reason for the miss, or None if they were found.
    """

    name: str
    meaning: str
    tokens: int
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The scope of a report besides policies and pool sizes.

    Attributes:
        warmup: Requests at the start that fill the pool and are not counted.
        replicas: Sizes of fleets, each with as many blocks in total as the pool in detail; empty
            for none.
        routers: Names of the routers of these fleets.
        seed: Seed of random routers.
        model: The model with these groups of layers, to show bytes in addition to blocks.
    """

    warmup: int = 0
    replicas: tuple[int, ...] = ()
    routers: tuple[str, ...] = tuple(ROUTERS)
    seed: int = 0
    model: Model | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Report:
    """All data of a report.

    Attributes:
        trace: Name of the trace.
        requests: Requests in it.
        span_ms: Simulated time from the first to the last arrival.
        config: Config of the replay.
        capacity: The pool in detail, as requested.
        sweep: Every policy at every pool size.
        misses: Missed prompt tokens of the pool in detail, by reason.
        curve: Hit rate of LRU at every pool size; None with groups of layers.
        full_attention: With states, the counts for full attention alone.
        fleet: The same blocks as fleets behind routers, if requested.
        hinted: LRU at every pool size with what clients say, by the name of the model of hints;
            empty if the trace names no sessions.
        tiered: LRU at every pool size with the requested tiers; empty without.
        extent: The other requested parts.
        command: The command that repeats the report.
    """

    trace: str
    requests: int
    span_ms: int
    config: ReplayConfig
    capacity: Capacity
    sweep: Sweep
    misses: MissTable
    curve: Curve | None = None
    full_attention: Attainable | None = None
    fleet: tuple[FleetRow, ...] = ()
    hinted: Mapping[HintName, tuple[SweepRow, ...]] = field(default_factory=dict)
    tiered: tuple[SweepRow, ...] = ()
    extent: Extent = field(default_factory=Extent)
    command: str = ""

    @property
    def attainable(self) -> Attainable:
        """The counts of an unbounded pool."""
        return self.sweep.rows[0].attainable

    @property
    def result(self) -> ReplayResult:
        """The pool in detail, under LRU."""
        return self.row("lru", self.capacity).result

    @property
    def bound_of_all(self) -> float:
        """The hit rate that no pool of any size exceeds."""
        return (self.full_attention or self.attainable).hit_rate

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of all prompt tokens in the pool in detail.

        First the hits, then evictions, then the other reasons, those with the most tokens first.
        """
        found = [Outcome(FOUND, "served from the pool", self.misses.hit_tokens)]
        missed = []
        for why, tokens in self.misses.missed_tokens.items():
            grouped = why is MissReason.GROUP
            name = f"refused by {self.misses.refusing}" if grouped else why.value
            missed.append(Outcome(name, MEANINGS[why], tokens, why))
        missed.sort(key=lambda outcome: (outcome.reason is not MissReason.EVICTED, -outcome.tokens))
        return (*found, *missed)

    @property
    def tiers(self) -> tuple[ReplayTier, ...]:
        """The requested tiers."""
        counted = self.tiered[0].result.by_tier if self.tiered else None
        return () if counted is None else tuple(counts.tier for counts in counted.tiers)

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies, in order."""
        return tuple(dict.fromkeys(row.policy for row in self.sweep.rows))

    @property
    def capacities(self) -> tuple[Capacity, ...]:
        """Pool sizes at which policies were compared, smallest first."""
        found = {row.result.num_blocks: row.capacity for row in self.sweep.rows}
        return tuple(found[blocks] for blocks in sorted(found))

    def row(self, policy: str, capacity: Capacity) -> SweepRow:
        """The row of one policy at one pool size.

        Raises:
            KeyError: It was not replayed.
        """
        for row in self.sweep.rows:
            if (row.policy, row.capacity) == (policy, capacity):
                return row
        raise KeyError((policy, capacity.text))

    def bound(self, capacity: Capacity) -> float:
        """The upper bound of the hit rate for any eviction order in a pool of this size.

        With groups of layers, there is no bound for a single size; then it is that of an unbounded
        pool, or of full attention alone if there are states.
        """
        best = self.row("lru", capacity).optimum
        if best is not None:
            return best.hit_rate
        return self.bound_of_all

    @property
    def summary(self) -> str:
        """The summary of the report in a few sentences."""
        blocks, rate = self.result.num_blocks, self.result.hit_rate
        share = f", {self.capacity.text} of the working set,"
        if isinstance(self.capacity.value, int):
            share = ""
        said = [
            f"A pool of {blocks:,} blocks{share} finds {rate:.1%} of the prompt tokens under LRU."
        ]
        bound, most = self.bound(self.capacity), self.attainable.hit_rate
        if self.config.groups:
            said.append(f"No pool of any size finds more than {bound:.1%}.")
        else:
            said.append(
                f"No order of eviction could find more than {bound:.1%} in it, "
                f"and no pool of any size more than {most:.1%}."
            )
        twice, half = 2 * blocks, blocks // 2
        curve = self.curve
        if curve is not None and half >= curve.longest_request_blocks:
            said.append(
                f"Twice the blocks would find {curve.hit_rate_at(twice):.1%}, "
                f"half of them {curve.hit_rate_at(half):.1%}."
            )
        refused = self.misses.missed_tokens.get(MissReason.GROUP, 0)
        if refused:
            said.append(
                f"{self.misses.refusing} refused {refused / self.misses.query_tokens:.1%} of them, "
                "which full attention had."
            )
        return " ".join(said)


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
    lru = Replays(trace, asked.warmup)
    curve = None if config.groups else lru.curve(alone)
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
        full_attention=lru.full_attention(alone) if config.has_states else None,
        fleet=_fleet(trace, capacity, alone, asked, step),
        hinted=dict(zip(hints, again, strict=False)),
        tiered=again[-1] if config.tiers else (),
        extent=asked,
    )


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
