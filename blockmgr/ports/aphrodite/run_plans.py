"""Changes of runs of blocks, planned together with those of their pool."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from blockmgr.changes import Loan, at_once
from blockmgr.errors import BlockStateError, OutOfBlocksError
from blockmgr.ports.aphrodite.blocks import FREED, BlockView, Run
from blockmgr.ports.aphrodite.interfaces import NoFreeBlocksError
from blockmgr.ports.aphrodite.tokens import checked_extra, extra_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.changes import Change
    from blockmgr.pool import BlockPool
    from blockmgr.ports.aphrodite.caching import PrefixCache
    from blockmgr.ports.aphrodite.tracking import HitCounter

__all__ = ["RunPlans", "carry_out"]

T = TypeVar("T")


def carry_out(changes: list[Change], result: T) -> T:
    """Makes the changes at once, of which the first may find no block."""
    try:
        return at_once(changes, result)
    except OutOfBlocksError as error:
        raise NoFreeBlocksError(error.needed, error.available) from None


class RunPlans:
    """What it takes to change runs: for the calls of an allocator, of block tables and of swaps.

    Its calls return the changes; only ``extend`` makes them. The runs are all of one allocator.

    Args:
        pool: Whose blocks the runs hold.
        prefix_cache: Which of its blocks are cached.
        hits: Where full blocks that are looked up are counted.
        caches: Whether full blocks are cached at all.
    """

    __slots__ = ("_caches", "_hits", "_pool", "_prefix_cache", "_size")

    def __init__(
        self, pool: BlockPool, prefix_cache: PrefixCache, hits: HitCounter, *, caches: bool
    ) -> None:
        self._pool = pool
        self._size = pool.block_size
        self._prefix_cache = prefix_cache
        self._hits = hits
        self._caches = caches

    # Growth.

    def extend(
        self,
        run: Run,
        tokens: tuple[int, ...],
        extra_hash: int | None,
        publish: Callable[[BlockView], tuple[list[Change], T]],
    ) -> T:
        """Adds blocks with these tokens at the end of a run.

        Args:
            run: The run, which is still the caller's own if it is empty.
            tokens: Their tokens.
            extra_hash: Their extra key.
            publish: Plans what is made of the blocks: the changes, and what is returned. The
                columns of an empty run are filled by then.
        """
        size, start = self._size, len(run.blocks)
        last = run.place_before(start)
        if last is not None and tokens:
            before, index = last
            if num_empty := size - len(before.tokens[index]):
                raise BlockStateError(
                    before.blocks[index], f"prev_block has {num_empty} empty slots"
                )
        num_full, num_blocks = len(tokens) // size, -(-len(tokens) // size)
        parent = self._prefix_cache.node(last)
        found = self._find(tokens, parent, extra_hash)
        keep = self._caches and parent is not None and num_full > 0
        loan = Loan(self._pool) if num_blocks > len(found) else None
        fresh: list[int] = []
        changes: list[Change] = []
        try:
            if loan:
                fresh = self._take_beside(loan, found, num_blocks - len(found))
            else:  # nothing is evicted for it, so this can wait
                changes.append((self._pool.compiled.acquire, found))
            num_fresh = num_full - len(found)
            if keep and num_fresh:
                rest = tokens[len(found) * size : num_full * size]
                key = extra_bytes(extra_hash)
                keys = tuple((i, key) for i in range(num_fresh)) if key else None
                follows = found[-1] if found else parent
                chained = fresh[:num_fresh]
                changes += [
                    (self._pool.compiled.promote_chain, chained, rest, follows, b"", keys),
                    self._prefix_cache.add(chained),
                ]
            chunks = [tokens[i : i + size] for i in range(0, len(tokens), size)]
            changes += run.extend(found + fresh, chunks, extra_hash, num_full if keep else 0)
            if self._caches and num_full:
                changes.append(self._hits.count(num_full, len(found)))
                if not keep:
                    waiting = {(run, start + i): fresh[i] for i in range(num_full)}
                    changes.append(self._prefix_cache.wait(waiting))
            more, result = publish(BlockView(run, start, start + num_blocks))
            changes += more
            if loan:
                changes.append(loan.keep)
            return at_once(changes, result)
        except BaseException:
            if loan:
                loan.give_back()
            raise

    def _find(
        self, tokens: tuple[int, ...], parent: int | None, extra_hash: int | None
    ) -> list[int]:
        """The leading ones of these blocks that are cached after ``parent``."""
        checked_extra(extra_hash)
        key = extra_bytes(extra_hash)
        # The look-up is what checks the tokens, so it is made even where it cannot find any.
        found: list[int] = self._pool.find(
            tokens,
            parent=-1 if parent is None else parent,
            extras=dict.fromkeys(range(len(tokens) // self._size), key) if key else None,
        ).tolist()
        return found if self._caches and parent is not None else []

    def _take_beside(self, loan: Loan, found: list[int], n: int) -> list[int]:
        """Acquires blocks that were found and takes ``n`` more, or raises with neither done."""
        # All counting before any change: idle blocks that are found are not available any more.
        pool = self._pool
        available = pool.num_available
        if n + len(found) > available:
            needed = n + pool.is_idle(found).tolist().count(True)
            if needed > available:
                raise NoFreeBlocksError(needed, available)
        if found:
            loan.acquire(found)
        taken: list[int] = loan.take(n).tolist() if n else []
        return taken

    def num_taken_by(self, tokens: tuple[int, ...], extra_hash: int | None) -> int:
        """Blocks that a sequence of these tokens takes from those available."""
        found = self._find(tokens, -1, extra_hash)
        num_blocks = -(-len(tokens) // self._size)
        return num_blocks - len(found) + int(self._pool.is_idle(found).sum())

    def add_cached(self, run: Run, tokens: tuple[int, ...]) -> list[Change]:
        """Puts the cached block with these tokens into an empty run: what is asked most.

        Without such a block, or for another run, there are no changes.
        """
        parent = self._prefix_cache.node(run.place_before(0))
        if run.blocks or parent is None:
            return []
        found: list[int] = self._pool.find(tokens, parent=parent).tolist()
        if not found:
            return []
        run.extend(found, [tokens], None, 1)
        return [(self._pool.compiled.acquire, found), self._hits.count(1, 1)]

    def add_empty(self, run: Run, n: int, extra_hash: int | None) -> list[Change]:
        """Adds empty blocks at the end of a run."""
        # Taken when the change is made, when others may have been given back.
        taken = map(np.ndarray.tolist, map(self._pool.compiled.take, (n,)))
        return run.extend(chain.from_iterable(taken), [()] * n, extra_hash)

    # Writing.

    def fill(
        self, run: Run, index: int, tokens: tuple[int, ...], is_next: bool, extra: int | None
    ) -> tuple[list[Change], bool]:
        """Lets a block hold these tokens, after those it holds.

        Args:
            run: The run of the block.
            index: Its place there; beyond the end if it is added by then.
            tokens: What it holds by then, present tokens included.
            is_next: Whether the block before is cached by then.
            extra: The extra key of a block that is added by then.

        Returns:
            The changes, and whether the block is cached by then.
        """
        changes: list[Change] = []
        waits = False
        if index < len(run.blocks):
            changes, waits = self.make_writable(run, index)
            extra = run.extras.get(index)
        changes.append((run.tokens.__setitem__, index, tokens))
        if not self._caches or len(tokens) < self._size:
            return changes, False
        is_next = is_next and not waits
        return changes + self._prefix_cache.promote(run, index, tokens, extra, is_next), is_next

    def make_writable(self, run: Run, index: int) -> tuple[list[Change], bool]:
        """Moves a block if it is shared; whether what stands there then waits for a copy."""
        block, count = run.blocks[index], len(run.tokens[index])
        if self._pool.ref_count(block) == 1:
            return [], self._pool.waits_for_copy(block)
        moved = map(self._pool.compiled.make_writable, (block,), (count,))
        return [(run.blocks.__setitem__, slice(index, index + 1), moved)], count > 0

    # Sharing and release.

    def fork(self, parts: list[tuple[Run, int]]) -> tuple[Run, list[Change]]:
        """A run that shares the first ``stop`` blocks of each part; freed places stay freed."""
        copy = Run(parts[0][0].allocator)
        for run, stop in parts:
            copy.add_slice(run, stop)
        acquired = (self._pool.compiled.acquire, copy.held(), False)
        return copy, [acquired, *self._prefix_cache.fork(parts, copy)]

    def free_slice(self, run: Run, start: int, stop: int) -> list[Change]:
        """Frees some blocks of a run, none of which was freed before."""
        blocks = run.blocks[start:stop]
        if FREED in blocks:
            run.view(start + blocks.index(FREED)).held()  # raises
        return [(self._pool.compiled.release, blocks), run.drop(start, stop)]

    def free_run(self, run: Run) -> list[Change]:
        """Frees all blocks of a run that are held, the last first."""
        return [(self._pool.compiled.release, run.held()[::-1]), run.drop(0, len(run.blocks))]
