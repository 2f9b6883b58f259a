"""Counts the blocks that tables take when they grow."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from blockmgr.ports.aphrodite.block_list import FREED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.pool import BlockPool

__all__ = ["Growth", "blocks_needed", "blocks_needed_unshared"]


class Growth(NamedTuple):
    """The blocks that a table takes and frees for its next slots."""

    num_new: int
    """Blocks added at the end."""
    written: list[int]
    """Partly filled blocks that get tokens; shared ones are moved."""
    stale: list[int]
    """Blocks that leave the window."""


def blocks_needed(pool: BlockPool, growths: Iterable[Growth]) -> int:
    """The most blocks that these growths, in order, hold from a pool at any time.

    Each frees the blocks that have left its window before it takes any.
    """
    given_up: Counter[int] = Counter()
    needed = most = 0
    # Pending copies may still read a freed block.
    can_reuse = not pool.num_pending_copies
    for growth in growths:
        for block in growth.stale:
            if block != FREED:
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
