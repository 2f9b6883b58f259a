"""Which blocks are proposed to a tier, one class for each way to write.

The walk of ``Stores`` asks for blocks, plans stores of their prefixes, and says of which nothing is
left to do. A proposal counts as dealt with once the whole plan is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blockmgr.manager import BlockManager
from blockmgr.pool import BlockPool

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.idle_calls import IdleCalls
    from blockmgr.tiers.paths import Origin, Path
    from blockmgr.tiers.tier import TierConfig

__all__ = ["Proposals", "proposals_for"]

PART_AHEAD = 16  # of the blocks above, one in so many is stored ahead of its eviction


class Proposals:
    """Idle blocks, the coldest first.

    Args:
        holder: The manager, or the pool of the tier above.
        ahead: Idle blocks to look at.
    """

    def __init__(self, holder: IdleCalls, ahead: int) -> None:
        self._holder = holder
        self._ahead = ahead
        self._front: dict[int, int] = {}  # content by block
        self._done: set[int] = set()  # contents of which nothing is left to do
        self._settled: list[int] = []
        self._calm: npt.NDArray[np.int64] | None = None  # a front that is done

    def blocks(self) -> list[int]:
        """The ends of the prefixes to store."""
        self._settled = []
        front = self._holder.idle_front(self._ahead)
        if self._calm is not None and np.array_equal(front.contents, self._calm):
            return []
        contents = front.contents.tolist()
        self._calm = None
        self._done &= set(contents)
        self._front = dict(zip(front.block_ids.tolist(), contents, strict=True))
        return [block for block, content in self._front.items() if content not in self._done]

    def part(self, origin: Origin) -> int:
        """Leading blocks of a proposed prefix to store."""
        return len(origin.path)

    def settle(self, block: int, origin: Origin | None) -> None:
        """Nothing is left to do for the prefix that ends with this block; None: nor can be."""
        self._settled.append(block)

    def finish(self) -> None:
        """The plan is made, so what was settled is not proposed again."""
        self._done.update(self._front[block] for block in self._settled if block in self._front)
        if self._calm is None and len(self._done) == len(self._front):
            self._calm = np.array([*self._front.values()], np.int64)

    def found(self, path: Path) -> None:
        """A request has found this prefix."""


class _FoundAgain(Proposals):
    """Of idle blocks, those that a request has found, or whose content was computed twice.

    Args:
        holder: As in ``Proposals``.
        ahead: As in ``Proposals``.
        seen: A new pool, for prefixes that were proposed or found: its blocks have no bytes.
    """

    def __init__(self, holder: IdleCalls, ahead: int, seen: BlockPool) -> None:
        super().__init__(holder, ahead)
        self._seen = seen
        # By block of that pool, the content with which it was proposed first; -1: it was used again
        self._first = np.zeros(seen.num_blocks, np.int64)
        self._proposed: list[Origin] = []

    def blocks(self) -> list[int]:
        self._proposed = []
        return super().blocks()

    def part(self, origin: Origin) -> int:
        known = origin.path.find_in(self._seen)
        is_again = self._first[known] != origin.contents[: len(known)]
        return len(known) if is_again.all() else int(is_again.argmin())

    def settle(self, block: int, origin: Origin | None) -> None:
        super().settle(block, origin)
        self._proposed += () if origin is None else (origin,)

    def finish(self) -> None:
        super().finish()
        for origin in self._proposed:
            self._note(origin.path, origin.contents)
        self._proposed = []

    def found(self, path: Path) -> None:
        self._note(path, np.full(len(path), -1, np.int64))

    def _note(self, path: Path, contents: npt.NDArray[np.int64]) -> None:
        path = path.whole()  # an end that is found is none any more
        pool, known = self._seen, path.find_in(self._seen).tolist()
        was = self._first[known]
        self._first[known] = np.where(was == contents[: len(known)], was, -1)
        pool.acquire(known, found=False)
        fresh = pool.take(min(len(path) - len(known), pool.num_available)).tolist()
        self._first[fresh] = contents[len(known) : len(known) + len(fresh)]
        path.promote_in(pool, known, fresh)
        pool.release([*known, *fresh][::-1])


class _Computed(Proposals):
    """What is computed of running sequences, then idle blocks."""

    def __init__(self, manager: BlockManager) -> None:
        super().__init__(manager, manager.config.num_blocks)
        self._manager = manager
        self._ends: dict[int, tuple[int, int]] = {}  # by block: handle, whole computed blocks
        self._stored: dict[int, int] = {}  # by handle: such blocks of which nothing is left to do

    def blocks(self) -> list[int]:
        manager, self._ends = self._manager, {}
        views = [manager.sequence(handle) for handle in manager.handles()]
        counts = {
            view.handle: view.num_computed_tokens // manager.config.block_size
            for view in views
            if not view.is_preempted
        }
        self._stored = {h: n for h, n in self._stored.items() if h in counts}
        for handle, count in counts.items():
            if count and self._stored.get(handle) != count:
                block = manager.block_ids(handle)[count - 1]
                if manager.is_cached(block):  # not the twin of a cached one
                    self._ends[block] = handle, count
        return [*self._ends, *super().blocks()]

    def finish(self) -> None:
        super().finish()
        self._stored.update(self._ends[block] for block in self._settled if block in self._ends)


def proposals_for(
    config: TierConfig, holder: IdleCalls, blocks_above: int, block_size: int
) -> Proposals:
    """The proposals to a tier.

    Args:
        config: Of the tier.
        holder: The manager, or the pool of the tier above.
        blocks_above: Its blocks.
        block_size: Tokens per block.
    """
    if config.store == "commit" and isinstance(holder, BlockManager):
        return _Computed(holder)
    if config.store in {"commit", "release"}:  # in a tier, what is there is computed
        return Proposals(holder, blocks_above)
    ahead = min(blocks_above, config.ahead or max(1, blocks_above // PART_AHEAD))
    if config.store == "second_touch":
        return _FoundAgain(holder, ahead, BlockPool(config.size, block_size))
    return Proposals(holder, ahead)
