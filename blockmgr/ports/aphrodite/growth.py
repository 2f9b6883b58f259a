"""How many blocks tables take when they grow: asked before it is done, and by what does it."""

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
    """What a table takes and gives back to have slots for what comes next.

    Attributes:
        run: The blocks of the table.
        num_new: Blocks added at the end.
        written: Blocks in which tokens are put after others; shared ones are moved.
        stale: Places of blocks that leave the window.
    """

    run: Run
    num_new: int
    written: list[int]
    stale: range


def blocks_needed(pool: BlockPool, growths: Iterable[Growth]) -> int:
    """The most blocks that these growths, one after the other, take from a pool at once.

    Each gives back what has left its window before it takes anything.
    """
    given_up: Counter[int] = Counter()
    needed = most = 0
    # Copies that are not run may still read a block that is given back.
    can_reuse = not pool.num_pending_copies
    for growth in growths:
        for block in growth.run.blocks[growth.stale.start : growth.stale.stop]:
            if block == FREED:
                continue
            given_up[block] += 1
            needed -= can_reuse and pool.ref_count(block) == given_up[block]
        for block in growth.written:
            # The last one to write to a shared block keeps it.
            if block != FREED and pool.ref_count(block) - given_up[block] > 1:
                given_up[block] += 1
                needed += 1
        needed += growth.num_new
        most = max(most, needed)
    return most


def blocks_needed_unshared(growths: Iterable[Growth]) -> int:
    """The same where every table writes to blocks of its own, as one does after a swap."""
    return max(accumulate((each.num_new - len(each.stale) for each in growths), initial=0))
