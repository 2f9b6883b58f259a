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
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blockmgr.lab.optimum import check_full_blocks_only
from blockmgr.lab.references import Rule, references
from blockmgr.lab.replay_config import check_one_group

if TYPE_CHECKING:
    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.runs import References
    from blockmgr.lab.trace import Trace

__all__ = ["Counts", "Curve", "hit_rate_curve"]

Counts = npt.NDArray[np.int64]
"""One number per capacity: ``int64[n]`` on the host."""


class StackPass:
    """A replay through an unbounded pool that stores the order of all releases.

    Args:
        columns: The references of the requests.
        max_seqs: Most sequences that run at a time.

    Attributes:
        longest: Blocks of the longest admitted request, at least 1.
        peak: Most blocks that were in use or requested at a time.

    Cost: O((runs + releases crossed) * sqrt(requests)).
    """

    def __init__(self, columns: References, max_seqs: int) -> None:
        rows = min(max_seqs, len(columns.ends))
        held = columns.column("held_blocks")[columns.column("num_samples") <= rows]
        self.longest = int(held.max(initial=0)) if len(held) else 1
        found = columns.paths().stack_pass(max_seqs)
        self.peak: int = found["peak"]
        # Ranges of consecutive distances, each of which counts as many blocks and tokens.
        self._first, self._last = found["first"], found["last"]
        self._weights = found["blocks"], found["tokens"]

    def points(self) -> tuple[Counts, Counts, Counts]:
        """Capacities from the longest request on where the slope changes, and the hits there."""
        lowest = self.longest
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
    """

    capacities: Counts
    hit_blocks: Counts
    hit_tokens: Counts
    query_tokens: int
    longest_request_blocks: int
    exact_from: int

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
    capacities, blocks, tokens = walk.points()
    return Curve(
        capacities=capacities,
        hit_blocks=blocks,
        hit_tokens=tokens,
        query_tokens=columns.query_tokens,
        longest_request_blocks=walk.longest,
        exact_from=max(walk.longest, walk.peak),
    )


def _check(config: ReplayConfig) -> None:
    check_one_group(config, "a hit rate curve")
    check_full_blocks_only(config)
    if config.dedup != "remap":
        raise ValueError(f"dedup must be 'remap' for one list to tell all, got {config.dedup!r}")
