"""Counts the blocks that tables take when they grow."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from blockmgr.ports.aphrodite.blocks import FREED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.pool import BlockPool
    from blockmgr.ports.aphrodite.blocks import Run

__all__ = ["Growth", "blocks_needed", "blocks_needed_unshared"]


class Growth(NamedTuple):
    """The blocks that a table takes and releases for its next slots.

    Attributes:
        run: The blocks of the table.
        num_new: Blocks added at the end.
        written: Partly filled blocks that get tokens; shared ones are moved.
        stale: Indices of blocks that leave the window.
    """

    run: Run
    num_new: int
    written: list[int]
    stale: range


def blocks_needed(pool: BlockPool, growths: Iterable[Growth]) -> int:
    """The most blocks that these growths, in order, hold from a pool at any time.

    Each releases the blocks that have left its window before it takes any.
    """
    given_up: Counter[int] = Counter()
    needed = most = 0
    # Pending copies may still read a released block.
    can_reuse = not pool.num_pending_copies
    for growth in growths:
        for block in growth.run.blocks[growth.stale.start : growth.stale.stop]:
            if block == FREED:
                continue
            given_up[block] += 1
            needed -= can_reuse and pool.ref_count(block) == given_up[block]
        for block in growth.written:
            # The last sharer that writes to a block keeps it.
            if block != FREED and pool.ref_count(block) - given_up[block] > 1:
                given_up[block] += 1
                needed += 1
        needed += growth.num_new
        most = max(most, needed)
    return most


def blocks_needed_unshared(growths: Iterable[Growth]) -> int:
    """The same if every table writes only to its own blocks, as after a swap."""
    return max(accumulate((each.num_new - len(each.stale) for each in growths), initial=0))
