"""The hit rate at every capacity, from one pass over a trace.

Under tail-first LRU, the blocks of a pool are the head of one list that does not depend on the size
of the pool: blocks in use, then idle blocks, the latest released first, and within one release the
block nearest the root first. A pool finds a block if, since its last release, it was always large
enough for all blocks before it in the list plus those that running requests held besides. The
required size is the *stack distance* of the look-up: a look-up with distance ``d`` hits in every
pool of at least ``d`` blocks, so the hits at a capacity are the look-ups with distances up to it.

* The curve is exact for a replay through ``BlockManager`` at every capacity at which no request
  waits for blocks: from ``Curve.exact_from`` on. With a service time of 0 that is every capacity
  that holds the longest request. Below it, waiting requests see another pool, and the curve is an
  estimate.
* Blocks that a request holds only for a time count: its partial last block, the block with its last
  token, which it computes again although it is cached, and blocks for its output. They evict idle
  blocks and are then released, so the pool acts as if it were smaller for that time.
* A release is one entry of the list. It owns a segment of one path, whose distances are
  consecutive, so the cost of a request depends on the releases and runs it crosses, not on its
  blocks.

Source: Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2),
1970.

If no request waits for blocks, all events of a replay are known in advance: requests are admitted
at their arrival, and end after their service time. So the core finds all distances in one pass
through an unbounded pool.

The error of a curve from a sample of blocks has two sources. First, the selected blocks determine
how many misses are counted: blocks are selected independently, so the variance of the scaled count
follows from the misses of each (Horvitz and Thompson). Second, a distance is the scaled number of
distinct sample blocks in between, so the result is that of a slightly larger or smaller pool; the
error is then the slope of the curve times the error in size.

Sources: Horvitz and Thompson, "A generalization of sampling without replacement from a finite
universe", Journal of the American Statistical Association 47, 1952.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from blockmgr.lab.optimum import check_full_blocks_only
from blockmgr.lab.references import Rule, references
from blockmgr.lab.replay_config import check_one_group

if TYPE_CHECKING:
    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.runs import References
    from blockmgr.lab.trace import Trace

__all__ = ["Counts", "Curve", "hit_rate_curve", "sampled_curve"]

Counts = npt.NDArray[np.int64]
"""One number per capacity: ``int64[n]`` on the host."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LookUps:
    """Look-ups of a sample: ranges of blocks, each further from the root than the last one.

    Attributes:
        first: Number of the first block of each range.
        length: Number of its blocks.
        distance: Stack distance of its last block, 2**62 if it was not cached before.
    """

    first: Counts
    length: Counts
    distance: Counts

    def miss_deviation(self, capacities: Counts, rate: float, unit_blocks: int) -> Floats:
        """Standard deviation of the estimated misses, at pool sizes in blocks of the sample.

        Args:
            capacities: Pool sizes in blocks of the sample, ascending: ``int64[n]`` on the host.
            rate: Share of the blocks in the sample.
            unit_blocks: Blocks that are in the sample together or not at all.

        Returns:
            ``float64[n]`` on the host, in blocks of the trace.
        """
        length = self.length
        if not length.sum():
            return np.full(len(capacities), np.inf)
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        units = np.repeat(self.first, length)
        units += within // unit_blocks * unit_blocks
        distances = np.repeat(self.distance - length + 1, length) + within
        # The k-th largest distance of a unit is its k-th miss: k squared less (k - 1) squared more.
        order = np.lexsort((-distances, units))
        begins = np.flatnonzero(np.diff(units[order], prepend=-1))
        counts = np.diff(np.append(begins, len(order)))
        rank = np.arange(len(order)) - np.repeat(begins, counts) + 1
        by_distance = np.argsort(distances[order], kind="stable")
        at = np.searchsorted(distances[order][by_distance], capacities, side="right")
        squares = (2 * rank - 1).astype(np.float64)[by_distance]
        beyond = np.concatenate((np.cumsum(squares[::-1])[::-1], [0.0]))[at]
        # Adds one more typical unit, because a few units may have no misses at all.
        usual = len(order) / len(begins)
        deviation: Floats = np.sqrt((1 - rate) * (beyond + usual**2)) / rate
        return deviation


def half_width(
    sizes: Counts, rates: Floats, deviation: Floats, *, rate: float, unit_blocks: int
) -> Floats:
    """Two standard deviations of the hit rates of a sampled curve.

    Args:
        sizes: Pool sizes, ascending: ``int64[n]`` on the host.
        rates: Hit rate at each size: ``float64[n]``.
        deviation: Deviation of the rates due to the selection of blocks: ``float64[n]``.
        rate: Share of the blocks in the sample.
        unit_blocks: Blocks that are in the sample together or not at all.

    Returns:
        ``float64[n]`` on the host, each at most 1.
    """
    # The number of sample units in a pool varies like a random draw, and is rounded to one.
    away = np.sqrt((1 - rate) * sizes * unit_blocks / rate) + (1 - rate) * unit_blocks / rate
    lower, upper = (np.interp(sizes + sign * away, sizes, rates) for sign in (-1, 1))
    steep = np.maximum(upper - rates, rates - lower)
    width: Floats = np.minimum(1.0, 2 * np.sqrt(deviation**2 + steep**2))
    return width


class StackPass:
    """A replay through an unbounded pool that stores the order of all releases.

    Args:
        columns: The references of the requests.
        max_seqs: Most sequences that run at a time.
        rate: Fraction of the blocks that the runs contain.

    Attributes:
        look_ups: Look-ups of a sample, by block; empty without sampling.
        longest: Blocks of the longest admitted request, at least 1.
        peak: Most blocks that were in use or requested at a time.

    Cost: O((runs + releases crossed) * sqrt(requests)).
    """

    def __init__(self, columns: References, max_seqs: int, rate: float = 1.0) -> None:
        rows = min(max_seqs, len(columns.ends))
        held = columns.column("held_blocks")[columns.column("num_samples") <= rows]
        self.longest = int(held.max(initial=0)) if len(held) else 1
        found = columns.paths().stack_pass(max_seqs, rate)
        self.peak: int = found["peak"]
        # Ranges of consecutive distances, each of which counts as many blocks and tokens.
        self._first, self._last = found["first"], found["last"]
        self._weights = found["blocks"], found["tokens"]
        first_node = np.cumsum(columns.length) - columns.length
        runs = found["runs"]
        self.look_ups = LookUps(first_node[runs], columns.length[runs], found["distances"])

    def points(self, lowest: int) -> tuple[Counts, Counts, Counts]:
        """Capacities from ``lowest`` on at which the slope changes, and the hits there."""
        at = np.concatenate((self._first, self._last + 1, [lowest + 1]))
        order = np.argsort(at, kind="stable")
        at = at[order]
        totals = []
        for weight in self._weights:
            slope = np.cumsum(np.concatenate((weight, -weight, [0]))[order])
            growth = slope[:-1] * np.diff(at)
            totals.append(np.concatenate((np.zeros(1, np.int64), np.cumsum(growth))))
        # Distances [at[i], at[i + 1]) have one slope, so the hits are known at each at[i] - 1.
        keep = (at > lowest) & np.append(at[1:] != at[:-1], True)
        return at[keep] - 1, totals[0][keep], totals[1][keep]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Curve:
    """Hits over capacity. Between two adjacent points hits grow linearly.

    Attributes:
        capacities: Pool sizes in blocks, ascending: ``int64[n]`` on the host.
        hit_blocks: Blocks found at each of them: ``int64[n]``.
        hit_tokens: Tokens found at each of them: ``int64[n]``.
        query_tokens: Prompt tokens of all requests.
        longest_request_blocks: Blocks of the longest request, which is the smallest capacity.
        exact_from: Smallest capacity at which no request waits; from there on the curve is exact.
        sampling_rate: Fraction of the blocks in the sample, 1 for all.
        hit_rate_errors: For a curve from a sample, the error of its hit rates, as two standard
            deviations: ``float64[n]``. None without sampling.
    """

    capacities: Counts
    hit_blocks: Counts
    hit_tokens: Counts
    query_tokens: int
    longest_request_blocks: int
    exact_from: int
    sampling_rate: float = 1.0
    hit_rate_errors: Floats | None = None

    @property
    def unbounded_hit_rate(self) -> float:
        """The hit rate of a pool without evictions and waits.

        A request that has to wait may find blocks that others computed meanwhile, so a small pool
        can find more.
        """
        return int(self.hit_tokens[-1]) / self.query_tokens

    def hit_tokens_at(self, num_blocks: int) -> int:
        """Tokens found in a pool of ``num_blocks`` blocks.

        Raises:
            ValueError: The longest request does not fit.
        """
        return self._one(self.hit_tokens, num_blocks)

    def hit_blocks_at(self, num_blocks: int) -> int:
        """Blocks found in a pool of ``num_blocks`` blocks.

        Raises:
            ValueError: The longest request does not fit.
        """
        return self._one(self.hit_blocks, num_blocks)

    def hit_rate_at(self, num_blocks: int) -> float:
        """Hit tokens over query tokens in a pool of ``num_blocks`` blocks, in ``0 … 1``.

        Raises:
            ValueError: The longest request does not fit.
        """
        return self.hit_tokens_at(num_blocks) / self.query_tokens

    def error_at(self, num_blocks: int) -> float:
        """The error of ``hit_rate_at``, as two standard deviations; 0 if it is exact.

        About nine of ten estimates are at most this far from the exact rate. The error is itself
        estimated from the sample, so it varies, too.

        Raises:
            ValueError: The longest request does not fit.
        """
        self._check(num_blocks)
        if self.hit_rate_errors is None:
            return 0.0
        return float(np.interp(num_blocks, self.capacities, self.hit_rate_errors))

    def blocks_for(self, hit_rate: float) -> int:
        """The smallest capacity whose hit rate is at least ``hit_rate``.

        Raises:
            ValueError: ``hit_rate`` is below 0, or above what an unbounded pool reaches.
        """
        if not 0 <= hit_rate <= self.unbounded_hit_rate:
            raise ValueError(
                f"hit_rate must be in [0, {self.unbounded_hit_rate:.6f}], the attainable rate of "
                f"this trace, got {hit_rate}"
            )
        tokens = ceil(Fraction(hit_rate) * self.query_tokens)
        # Makes the inverse exact for rates that this curve returned.
        while tokens and (tokens - 1) / self.query_tokens >= hit_rate:
            tokens -= 1
        reached = int(np.searchsorted(self.hit_tokens, tokens))
        if not reached:
            return int(self.capacities[0])
        low, high = (int(self.capacities[reached - step]) for step in (1, 0))
        before, after = (int(self.hit_tokens[reached - step]) for step in (1, 0))
        return low - (before - tokens) * (high - low) // (after - before)

    def as_json(self) -> dict[str, Any]:
        """The curve as plain numbers and lists for JSON."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in plain.items()
        }

    def _check(self, num_blocks: int) -> None:
        if num_blocks < self.longest_request_blocks:
            raise ValueError(
                f"num_blocks must be at least {self.longest_request_blocks}, the blocks of the "
                f"longest request, got {num_blocks}"
            )

    def _one(self, counts: Counts, num_blocks: int) -> int:
        self._check(num_blocks)
        return int(between(self, counts, np.array([num_blocks]))[0])


def between(curve: Curve, counts: Counts, sizes: Counts) -> Counts:
    """The ``hit_blocks`` or ``hit_tokens`` of a curve at pool sizes of at least its first one."""
    right = np.minimum(np.searchsorted(curve.capacities, sizes), len(counts) - 1)
    left = np.maximum(right - 1, 0)
    low, high = curve.capacities[left], curve.capacities[right]
    steps = np.clip(sizes - low, 0, high - low)
    grown = (counts[right] - counts[left]) * steps // np.maximum(1, high - low)
    found: Counts = counts[left] + grown
    return found


def hit_rate_curve(trace: Trace, config: ReplayConfig, rule: Rule = "manager") -> Curve:
    """The hits of a replay of ``trace`` at every capacity.

    Args:
        trace: The requests.
        config: Config of the replay.
        rule: Which blocks a prompt refers to, see ``references``.

    Raises:
        ValueError: ``config`` has groups of layers, partial reuse or ``append_only`` tables, whose
            hits do not follow from one list; or the trace cannot be cut into its blocks.

    Cost: O((runs + releases crossed) * sqrt(requests)) steps.

    Source: Mattson et al., IBM Systems Journal 9(2), 1970.
    """
    _check(config)
    columns = references(trace, config, rule)
    walk = StackPass(columns, config.max_seqs)
    capacities, blocks, tokens = walk.points(walk.longest)
    return Curve(
        capacities=capacities,
        hit_blocks=blocks,
        hit_tokens=tokens,
        query_tokens=columns.query_tokens,
        longest_request_blocks=walk.longest,
        exact_from=max(walk.longest, walk.peak),
    )


def sampled_curve(trace: Trace, config: ReplayConfig, rate: float, *, salt: int = 0) -> Curve:
    """An estimate of ``hit_rate_curve`` from a sample of the blocks.

    A block is in the sample if a digest of its whole prefix is below ``rate``: with all its uses or
    none. Distances within the sample are ``rate`` times the true ones. In a trace known by hash
    ids, all blocks of an id are in the sample or none.

    The misses are scaled, and the hits follow from them. So a system prompt that every request
    begins with does not bias the curve, whether it is in the sample or not.

    Args:
        trace: The requests.
        config: Config of the replay.
        rate: Fraction of the blocks in the sample, in ``(0, 1]``.
        salt: Selects another sample, in ``[0, 2**64)``.

    Returns:
        A curve with error estimates: ``Curve.error_at``.

    Raises:
        ValueError: As in ``hit_rate_curve``; or ``rate`` or ``salt`` is out of its range.

    Cost: One digest per block (or per hash id); the other time and memory is ``rate`` times that of
    ``hit_rate_curve``.

    Source: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015; the correction
    is that of their SHARDS-adj.
    """
    _check(config)
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be in (0, 1], got {rate}")
    if not 0 <= salt < DIGESTS:
        raise ValueError(f"salt must be in [0, 2**64), got {salt}")
    threshold = int(rate * DIGESTS)

    def sample(before: bytes, key: bytes) -> tuple[bytes, bool]:
        digest = xxhash.xxh3_64_digest(before + key, seed=salt)
        return digest, int.from_bytes(digest) < threshold

    stream = references(trace, config, sample=sample)
    walk = StackPass(stream, config.max_seqs, rate)
    capacities, blocks, _ = walk.points(0)
    missed = (stream.looked_at_blocks - blocks) / rate
    found = np.maximum(0, stream.query_blocks - missed)
    longest = walk.longest
    scaled = capacities / rate
    points = np.unique(np.append(np.ceil(scaled[scaled > longest]), longest)).astype(np.int64)
    hit_blocks = np.interp(points, scaled, found).astype(np.int64)
    errors = None
    if rate < 1:
        unit = trace.segment_size(config.block_size) // config.block_size
        share = config.block_size / stream.query_tokens
        deviation: Floats = walk.look_ups.miss_deviation(capacities, rate, unit) * share
        deviation = np.interp(points, scaled, deviation).astype(np.float64)
        rates: Floats = hit_blocks.astype(np.float64) * share
        errors = half_width(points, rates, deviation, rate=rate, unit_blocks=unit)
    return Curve(
        capacities=points,
        hit_blocks=hit_blocks,
        hit_tokens=hit_blocks * config.block_size,
        query_tokens=stream.query_tokens,
        longest_request_blocks=longest,
        exact_from=max(longest, walk.peak),
        sampling_rate=rate,
        hit_rate_errors=errors,
    )


DIGESTS: Final = 2**64


def _check(config: ReplayConfig) -> None:
    check_one_group(config, "a hit rate curve")
    check_full_blocks_only(config)
    if config.dedup != "remap":
        raise ValueError(f"dedup must be 'remap' for one list to tell all, got {config.dedup!r}")
