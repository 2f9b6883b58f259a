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
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from blockmgr.lab.distances import StackPass
from blockmgr.lab.optimum import check_full_blocks_only
from blockmgr.lab.references import Rule, references
from blockmgr.lab.replay_config import check_one_group
from blockmgr.lab.spread import Counts, Floats, half_width

if TYPE_CHECKING:
    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = ["Curve", "hit_rate_curve", "sampled_curve"]


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
        return self._at(self.hit_tokens, num_blocks)

    def hit_blocks_at(self, num_blocks: int) -> int:
        """Blocks found in a pool of ``num_blocks`` blocks.

        Raises:
            ValueError: The longest request does not fit.
        """
        return self._at(self.hit_blocks, num_blocks)

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
        return {
            "capacities": self.capacities.tolist(),
            "hit_blocks": self.hit_blocks.tolist(),
            "hit_tokens": self.hit_tokens.tolist(),
            "query_tokens": self.query_tokens,
            "longest_request_blocks": self.longest_request_blocks,
            "exact_from": self.exact_from,
            "sampling_rate": self.sampling_rate,
            "hit_rate_errors": (
                None if self.hit_rate_errors is None else self.hit_rate_errors.tolist()
            ),
        }

    def _check(self, num_blocks: int) -> None:
        if num_blocks < self.longest_request_blocks:
            raise ValueError(
                f"num_blocks must be at least {self.longest_request_blocks}, the blocks of the "
                f"longest request, got {num_blocks}"
            )

    def _at(self, counts: Counts, num_blocks: int) -> int:
        self._check(num_blocks)
        right = int(np.searchsorted(self.capacities, num_blocks))
        if right == len(counts):
            return int(counts[-1])
        if self.capacities[right] == num_blocks:
            return int(counts[right])
        low, high = int(self.capacities[right - 1]), int(self.capacities[right])
        before, after = int(counts[right - 1]), int(counts[right])
        return before + (after - before) * (num_blocks - low) // (high - low)


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
    capacities, blocks, tokens = walk.hits.points(walk.longest)
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
    capacities, blocks, _ = walk.hits.points(0)
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
