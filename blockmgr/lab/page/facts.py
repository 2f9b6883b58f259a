"""What a report says: gathered once, drawn and written elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from blockmgr.explain import MissReason
from blockmgr.lab.attainable import Attainable, unbounded
from blockmgr.lab.curve import Curve, hit_rate_curve
from blockmgr.lab.misses import MissTable, misses
from blockmgr.lab.study import Capacity, parse_capacities
from blockmgr.lab.sweep import (
    Sweep,
    SweepRow,
    check_pool,
    largest_request_blocks,
    num_tasks,
    sweep,
)
from blockmgr.lab.watch import Watched, watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.sweep import Advance
    from blockmgr.lab.trace import Trace

__all__ = ["CAPACITIES", "Outcome", "Report", "gather", "num_steps"]

CAPACITIES: Final = "1%,2%,5%,10%,20%,50%"
FRAMES: Final = 120
# Steps of the second kind: the curve, the pool watched, the pool explained.
WATCHES: Final = 3
# What people call a while: ages by which idle blocks are counted.
DURATIONS_S: Final = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600, 900)
LONG_DURATIONS_S: Final = (1200, 1800, 2700, 3600, 5400, 7200, 10_800, 21_600, 43_200, 86_400)
AGES_MS: Final = tuple(1000 * seconds for seconds in DURATIONS_S + LONG_DURATIONS_S)
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
        MissReason.NOT_REMEMBERED: "nothing remembers so far back",
    }
)
"""What each reason to be missed means, in a few words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of some prompt tokens.

    Attributes:
        name: In two or three words.
        meaning: In a sentence.
        tokens: How many.
        reason: Why they were missed, or None if they were found.
    """

    name: str
    meaning: str
    tokens: int
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Report:
    """Everything a report shows.

    Attributes:
        trace: Name of the trace.
        requests: Requests in it.
        span_ms: Simulated time from the first arrival to the last.
        config: How it was replayed.
        capacity: The pool that is looked at in detail, as it was asked for.
        curve: Hit rate of LRU at every pool size.
        sweep: Every policy at every pool size.
        watched: The pool in detail, under LRU.
        misses: Why prompt tokens were missed in the pool in detail.
        command: What repeats the report.
    """

    trace: str
    requests: int
    span_ms: int
    config: ReplayConfig
    capacity: Capacity
    curve: Curve
    sweep: Sweep
    watched: Watched
    misses: MissTable
    command: str

    @property
    def attainable(self) -> Attainable:
        """What an unbounded pool reaches."""
        return self.sweep.rows[0].attainable

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What became of all prompt tokens in the pool in detail; they add up.

        What was found, what was evicted, then the other reasons, the most tokens first.
        """
        missed = self.misses.missed_tokens
        found = Outcome(FOUND, "served from the pool", self.misses.hit_tokens)
        order = sorted(missed, key=lambda why: (why is not MissReason.EVICTED, -missed[why]))
        return (found, *(Outcome(why.value, MEANINGS[why], missed[why], why) for why in order))

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
        """One policy at one pool size.

        Raises:
            KeyError: It was not replayed.
        """
        for row in self.sweep.rows:
            if (row.policy, row.capacity) == (policy, capacity):
                return row
        raise KeyError((policy, capacity.text))

    @property
    def summary(self) -> str:
        """What the report comes to, in a few sentences."""
        blocks = self.watched.result.num_blocks
        rate = self.watched.result.hit_rate
        most = self.attainable.hit_rate
        best = next(row.best for row in self.sweep.rows if row.result.num_blocks == blocks).hit_rate
        share = f", {self.capacity.text} of the working set,"
        if isinstance(self.capacity.value, int):
            share = ""
        said = [
            f"A pool of {blocks:,} blocks{share} finds {rate:.1%} of the prompt tokens under LRU.",
            f"No order of eviction could find more than {best:.1%} in it, "
            f"and no pool of any size more than {most:.1%}.",
        ]
        twice, half = 2 * blocks, blocks // 2
        if half >= self.curve.longest_request_blocks:
            said.append(
                f"Twice the blocks would find {self.curve.hit_rate_at(twice):.1%}, "
                f"half of them {self.curve.hit_rate_at(half):.1%}."
            )
        if len(self.watched.uses):
            unused = float((self.watched.uses == 0).mean())
            said.append(f"Of the blocks that were evicted, {unused:.0%} had never been found.")
        return " ".join(said)


def num_steps(*, policies: int, capacities: int, hints: object = "none") -> int:
    """How often ``gather`` calls ``advance``."""
    places = capacities + 1
    return num_tasks(policies=policies, capacities=places, block_sizes=1, hints=hints) + WATCHES


def gather(
    trace: Trace,
    config: ReplayConfig,
    *,
    capacity: Capacity,
    policies: Sequence[str],
    capacities: Sequence[Capacity] = (),
    jobs: int = 1,
    command: str = "",
    advance: Advance | None = None,
) -> Report:
    """Find out everything a report shows.

    Args:
        trace: The requests.
        config: How to replay; its ``eviction`` gives way to ``policies``.
        capacity: The pool to look at in detail.
        policies: Names of eviction policies; LRU is added, which the others are compared with.
        capacities: Pool sizes to compare policies at; empty for those of ``CAPACITIES`` that hold
            the largest request.
        jobs: Processes at work, at least 1.
        command: What repeats the report.
        advance: Called as work is done, at most ``num_steps`` times.

    Raises:
        ValueError: A pool is smaller than the largest request, there is no such policy, or the
            trace cannot be cut into blocks of ``config.block_size``.
        ChildProcessError: A process was killed.
    """
    step = advance or (lambda: None)
    alone = replace(config, eviction="lru")
    curve = hit_rate_curve(trace, alone)
    step()
    names = tuple(dict.fromkeys(("lru", *policies)))
    sizes = list(capacities) or _default_capacities(trace, alone)
    # As the row that has it writes it: 10% and 10.0% are one pool.
    capacity = next((size for size in sizes if size.equals(capacity)), capacity)
    if capacity not in sizes:
        sizes.append(capacity)
    working_set = unbounded(trace, alone).working_set_blocks
    for size in sizes:
        check_pool(trace, alone, size, working_set)
    outcome = sweep(trace, sizes, alone, policies=names, jobs=jobs, advance=step)
    best = outcome.rows[0].attainable
    span = trace.requests[-1].arrival_ms - trace.requests[0].arrival_ms
    blocks = capacity.blocks(best.working_set_blocks)
    watched = watch(trace, blocks, alone, frames=FRAMES, age_bounds_ms=AGES_MS)
    step()
    missed = misses(trace, blocks, alone)
    step()
    return Report(
        trace=trace.name,
        requests=len(trace.requests),
        span_ms=span,
        config=alone,
        capacity=capacity,
        curve=curve,
        sweep=outcome,
        watched=watched,
        misses=missed,
        command=command,
    )


def _default_capacities(trace: Trace, config: ReplayConfig) -> list[Capacity]:
    least = largest_request_blocks(trace, config)
    working_set = unbounded(trace, config).working_set_blocks
    return [size for size in parse_capacities(CAPACITIES) if size.blocks(working_set) >= least]
