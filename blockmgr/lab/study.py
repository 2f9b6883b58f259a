"""One trace at several capacities, compared with an unbounded pool.

With groups of layers, an unbounded pool evicts no boundary. Windows and chunks are then cached
wherever full attention is, so it finds what full attention alone would find, with that many blocks
per group. A state exists only where a forward ended, so with states, a manager with a large enough
pool is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING, Final

from blockmgr.groups import RecurrentState, extra_blocks_of
from blockmgr.lab.attainable import Attainable, unbounded
from blockmgr.lab.choices import different
from blockmgr.lab.demand import attention_blocks, row_blocks
from blockmgr.lab.replay import Progress, ReplayConfig, ReplayResult, replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = [
    "Capacity",
    "Study",
    "ample_blocks",
    "as_alone",
    "attainable",
    "by_ample_pool",
    "full_attention",
    "parse_capacities",
    "parse_capacity",
    "parse_share",
    "study",
    "working_set_blocks",
]

PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class Capacity:
    """A pool size, as a number of blocks or as a fraction of the working set.

    Attributes:
        text: The user's input, such as ``"10%"`` or ``"4096"``.
        value: Blocks, or the fraction of the working set.
    """

    text: str
    value: int | Fraction

    def blocks(self, working_set_blocks: int) -> int:
        """Blocks in the pool; a fraction is rounded down, but to at least 1."""
        if isinstance(self.value, int):
            return self.value
        return max(1, int(self.value * working_set_blocks))

    def equals(self, other: Capacity) -> bool:
        """Whether both are the same size, whatever the spelling; 100% is not 1 block."""
        return (type(self.value), self.value) == (type(other.value), other.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One trace replayed at several capacities.

    Attributes:
        trace: Name of the trace.
        config: Config of the replays.
        attainable: The counts of an unbounded pool; None if not requested.
        full_attention: With groups that have states, the counts for full attention alone, as if
            there were a state wherever a prompt needs one; else None.
        capacities: Pool sizes in the requested order.
        results: One replay for each capacity.
    """

    trace: str
    config: ReplayConfig
    attainable: Attainable | None
    capacities: tuple[Capacity, ...]
    results: tuple[ReplayResult, ...]
    full_attention: Attainable | None = None

    @property
    def lowest_hit_rate(self) -> Fraction:
        """The lowest hit rate of all results, exactly."""
        return min(Fraction(result.hit_tokens, result.query_tokens) for result in self.results)


def parse_capacities(text: str) -> tuple[Capacity, ...]:
    """Capacities from a list such as ``"5%,10%,4096"``.

    Raises:
        ValueError: An item is neither a percentage nor a number of blocks above 0, or is repeated.

    >>> [capacity.blocks(1000) for capacity in parse_capacities("2.5%,64")]
    [25, 64]
    """
    sizes = (parse_capacity(item.strip()) for item in text.split(","))
    return different("capacities", sizes, lambda size: repr(size.text), Capacity.equals)


def attainable(trace: Trace, config: ReplayConfig) -> Attainable:
    """The counts of an unbounded pool for ``trace``.

    With ``config.min_partial_tokens`` the hits are those of a replay through a pool so large that
    it never evicts; otherwise they are counted without a pool. With groups of layers they are those
    of a manager that keeps every boundary (``blockmgr.lab.study``).

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """
    if config.groups:
        trace.check_block_size(config.block_size, config.min_partial_tokens, any_size=True)
        if config.has_states or not trace.has_whole_ids(config.block_size):
            return by_ample_pool(trace, config)
        return as_alone(attainable(trace, config.of_one_group), config)
    best = unbounded(trace, config)
    if not config.min_partial_tokens:
        return best
    sequences = sum(request.num_samples for request in trace.requests)
    # Each sequence leaves at most one partial tail, so this pool never evicts; with a row for each,
    # none waits.
    ample = replay(trace, best.working_set_blocks + sequences, replace(config, max_seqs=sequences))
    return replace(best, hit_tokens=ample.hit_tokens)


def working_set_blocks(trace: Trace, config: ReplayConfig) -> int:
    """Number of blocks with which a replay neither evicts nor waits, without counting hits.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """
    found = attainable(trace, config) if config.groups else unbounded(trace, config)
    return found.working_set_blocks


def full_attention(trace: Trace, config: ReplayConfig) -> Attainable:
    """The counts of an unbounded pool for full attention alone, a bound for all groups.

    If blocks can end inside the tokens of an id, parts of blocks are found in units of the greatest
    common divisor of both sizes.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """
    alone = config.of_one_group
    if trace.has_whole_ids(config.block_size):
        return attainable(trace, alone)
    finer = gcd(trace.tokens_per_id, config.block_size)
    return unbounded(trace, replace(alone, block_size=finer, min_partial_tokens=0))


def study(
    trace: Trace,
    capacities: Iterable[Capacity],
    config: ReplayConfig,
    *,
    ceiling: bool = True,
    progress: Progress | None = None,
) -> Study:
    """Replay ``trace`` at each capacity, and in an unbounded pool.

    Args:
        trace: The requests.
        capacities: Pool sizes; fractions refer to ``Attainable.working_set_blocks``.
        config: Config of the replay.
        ceiling: Whether to compute the attainable rate. It takes memory for every distinct prefix;
            a replay takes memory for its pool only.
        progress: Called once for each request of each replay.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``, or a capacity is
            a share without ``ceiling``.
    """
    sizes = tuple(capacities)
    for capacity in sizes:
        if not ceiling and not isinstance(capacity.value, int):
            raise ValueError(
                f"capacities must be numbers of blocks without attainable rates "
                f"(--no-attainable), since shares are of the working set, got {capacity.text}"
            )
    best = attainable(trace, config) if ceiling else None
    results = []
    for capacity in sizes:
        blocks = capacity.blocks(best.working_set_blocks if best is not None else 1)
        results.append(replay(trace, blocks, config, progress=progress))
    return Study(
        trace=trace.name,
        config=config,
        attainable=best,
        capacities=sizes,
        results=tuple(results),
        full_attention=full_attention(trace, config) if ceiling and config.has_states else None,
    )


def parse_share(text: str) -> Fraction:
    """A fraction such as ``"30%"`` or ``"0.3"``.

    Raises:
        ValueError: Not a number from 0 to 1, or from 0% to 100%.
    """
    try:
        share = Fraction(text[:-1]) / PERCENT if text.endswith("%") else Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise ValueError(f"share must be in [0, 1] or [0%, 100%], got {text!r}")
    return share


def parse_capacity(text: str) -> Capacity:
    """A pool size such as ``"10%"`` or ``"4096"``.

    Raises:
        ValueError: It is neither a percentage nor a number of blocks above 0.
    """
    value: int | Fraction
    try:
        value = Fraction(text[:-1]) / PERCENT if text.endswith("%") else int(text)
    except (ValueError, ZeroDivisionError):
        value = 0
    if value <= 0:
        raise ValueError(f"capacity must be a percentage such as 10%, or blocks, got {text!r}")
    return Capacity(text, value)


def as_alone(alone: Attainable, config: ReplayConfig) -> Attainable:
    """The counts with windows and chunks, from those of full attention alone."""
    count = attention_blocks(config)
    return replace(
        alone,
        full_blocks=alone.full_blocks * count,
        peak_private_blocks=alone.peak_private_blocks * count,
    )


def ample_blocks(trace: Trace, config: ReplayConfig) -> int:
    """The size of a pool in which a replay never evicts.

    A sequence leaves its attention blocks, and one more for a branch inside a block. It keeps
    states at three stops and at its end, besides the current one.
    """
    states = sum(isinstance(group, RecurrentState) for group in config.groups)
    attention = attention_blocks(config)
    slots = sum(extra_blocks_of(group) for group in config.groups)
    total = 0
    for request in trace.requests:
        blocks = row_blocks(request, config) + 1
        total += request.num_samples * (blocks * attention + 5 * states + slots)
    return total


def by_ample_pool(trace: Trace, config: ReplayConfig) -> Attainable:
    """The counts from a replay without evictions and waits.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """
    sequences = sum(request.num_samples for request in trace.requests)
    ample = replay(trace, ample_blocks(trace, config), replace(config, max_seqs=sequences))
    assert ample.by_group is not None
    assert not ample.evictions
    kept = ample.by_group.cached_blocks_at_end
    # The peak is measured before each forward; a state kept after it takes a block immediately.
    states = sum(isinstance(group, RecurrentState) for group in config.groups)
    return Attainable(
        query_tokens=ample.query_tokens,
        hit_tokens=ample.hit_tokens,
        full_blocks=kept,
        peak_private_blocks=ample.by_group.peak_blocks + states - kept,
    )
