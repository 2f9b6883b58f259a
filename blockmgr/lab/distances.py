"""Stack distances of the look-ups of a replay, from an unbounded pool.

If no request waits for blocks, all events of a replay are known in advance: requests are admitted
at their arrival, and end after their service time. Then the content of a pool of any size follows
from the order of releases; see ``curve``. The core makes this pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.lab.spread import Counts, LookUps

if TYPE_CHECKING:
    from blockmgr.lab.runs import References

__all__ = ["Hits", "StackPass"]


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Look-ups by stack distance, as ranges of consecutive distances with one weight each.

    Attributes:
        first: First distance of each range: ``int64[n]``, like the others.
        last: Last distance of each range.
        blocks: Blocks that each distance of a range counts.
        tokens: Tokens that each distance of a range counts.
    """

    first: Counts
    last: Counts
    blocks: Counts
    tokens: Counts

    def points(self, lowest: int) -> tuple[Counts, Counts, Counts]:
        """Capacities from ``lowest`` on at which the slope changes, and the hits there."""
        at = np.concatenate((self.first, self.last + 1, [lowest + 1]))
        order = np.argsort(at, kind="stable")
        at = at[order]
        totals = []
        for weight in (self.blocks, self.tokens):
            slope = np.cumsum(np.concatenate((weight, -weight, [0]))[order])
            growth = slope[:-1] * np.diff(at)
            totals.append(np.concatenate((np.zeros(1, np.int64), np.cumsum(growth))))
        # Distances [at[i], at[i + 1]) have one slope, so the hits are known at each at[i] - 1.
        keep = (at > lowest) & np.append(at[1:] != at[:-1], True)
        return at[keep] - 1, totals[0][keep], totals[1][keep]


class StackPass:
    """A replay through an unbounded pool that stores the order of all releases.

    Args:
        columns: The references of the requests.
        max_seqs: Most sequences that run at a time.
        rate: Fraction of the blocks that the runs contain.

    Attributes:
        hits: Look-ups by stack distance.
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
        self.hits = Hits(found["first"], found["last"], found["blocks"], found["tokens"])
        first_node = np.cumsum(columns.length) - columns.length
        runs = found["runs"]
        self.look_ups = LookUps(first_node[runs], columns.length[runs], found["distances"])
