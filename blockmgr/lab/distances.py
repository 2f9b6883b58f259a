"""Stack distances of the look-ups of a replay, from a pool without bounds.

Every event of a replay in which no request waits for blocks is known before: requests are
admitted when they come, and end when their time is over. What a pool of some size still holds
then follows from the order of releases alone, see ``curve``. The pass itself is in the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blockmgr.lab.spread import LookUps

if TYPE_CHECKING:
    from blockmgr.lab.runs import RunColumns

__all__ = ["Counts", "Hits", "StackPass"]

Counts = npt.NDArray[np.int64]
"""One number a capacity: ``int64[n]`` on the host."""


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Look-ups by stack distance, as stretches of consecutive distances with one weight each.

    Attributes:
        first: First distance of each stretch: ``int64[n]``, and so are the others.
        last: Last distance of it.
        blocks: Blocks that each of its distances counts.
        tokens: Tokens that each of its distances counts.
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
        # Distances [at[i], at[i + 1]) have one slope, so hits are known one below each.
        keep = (at > lowest) & np.append(at[1:] != at[:-1], True)
        return at[keep] - 1, totals[0][keep], totals[1][keep]


class StackPass:
    """A replay through a pool without bounds that remembers the order of all releases.

    Args:
        columns: What the requests refer to.
        max_seqs: Sequences that may run at once.
        rate: Share of the blocks that the runs hold.

    Attributes:
        hits: Look-ups by stack distance.
        look_ups: Those of a sample, by block; of all blocks there is nothing to estimate.
        longest: Blocks of the longest request that is ever admitted, at least 1.
        peak: Most blocks that were in use or asked for at one time.

    Cost: O((runs + releases crossed) * sqrt(requests)).
    """

    def __init__(self, columns: RunColumns, max_seqs: int, rate: float = 1.0) -> None:
        rows = min(max_seqs, len(columns.ends))
        held = columns.column("held_blocks")[columns.column("num_samples") <= rows]
        self.longest = int(held.max(initial=0)) if len(held) else 1
        found = columns.paths().stack_pass(max_seqs, rate)
        self.peak: int = found["peak"]
        self.hits = Hits(found["first"], found["last"], found["blocks"], found["tokens"])
        first_node = np.cumsum(columns.length) - columns.length
        runs = found["runs"]
        self.look_ups = LookUps(first_node[runs], columns.length[runs], found["distances"])
