"""Plans changes of runs of blocks together with changes of their pool."""

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
    """Makes all changes in one instruction; the first may find too few blocks."""
    try:
        return at_once(changes, result)
    except OutOfBlocksError as error:
        raise NoFreeBlocksError(error.needed, error.available) from None


class RunPlans:
    """Plans changes of runs for an allocator, for block tables and for swaps.

    Its calls return the changes; only ``extend`` makes them. All runs belong to one allocator.

    Args:
        pool: The pool of the runs' blocks.
        prefix_cache: Tracks which of its blocks are cached.
        hits: Counts the full blocks that are looked up.
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
            run: The run; if it is empty, callers must not have it yet.
            tokens: Their tokens.
            extra_hash: Their extra key.
            publish: Returns further changes for the blocks, and the result. The columns of an empty
                run are filled by then.
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
            else:  # it evicts nothing, so it can come later
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
        """The leading blocks among these that are cached after ``parent``."""
        checked_extra(extra_hash)
        key = extra_bytes(extra_hash)
        # The look-up checks the tokens, so it is made even if it cannot find any block.
        found: list[int] = self._pool.find(
            tokens,
            parent=-1 if parent is None else parent,
            extras=dict.fromkeys(range(len(tokens) // self._size), key) if key else None,
        ).tolist()
        return found if self._caches and parent is not None else []

    def _take_beside(self, loan: Loan, found: list[int], n: int) -> list[int]:
        """Acquires the blocks found and takes ``n`` more, or raises and does neither."""
        # All counting before any change: idle blocks that are found are no longer available.
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
        """Number of available blocks that a sequence of these tokens takes."""
        found = self._find(tokens, -1, extra_hash)
        num_blocks = -(-len(tokens) // self._size)
        return num_blocks - len(found) + int(self._pool.is_idle(found).sum())

    def add_cached(self, run: Run, tokens: tuple[int, ...]) -> list[Change]:
        """Puts the cached block with these tokens into an empty run, the most frequent request.

        Returns no changes if there is no such block or the run is not empty.
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
        # Taken when the change is made, because earlier changes may release blocks.
        taken = map(np.ndarray.tolist, map(self._pool.compiled.take, (n,)))
        return run.extend(chain.from_iterable(taken), [()] * n, extra_hash)

    # Writing.

    def fill(
        self, run: Run, index: int, tokens: tuple[int, ...], is_next: bool, extra: int | None
    ) -> tuple[list[Change], bool]:
        """Adds these tokens to a block.

        Args:
            run: The run of the block.
            index: Its index in the run; past the end if another change adds the block.
            tokens: All its tokens afterwards, including its current ones.
            is_next: Whether the previous block is cached by then.
            extra: The extra key, if another change adds the block.

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
        """Moves a block if it is shared; also returns whether the block then waits for a copy."""
        block, count = run.blocks[index], len(run.tokens[index])
        if self._pool.ref_count(block) == 1:
            return [], self._pool.waits_for_copy(block)
        moved = map(self._pool.compiled.make_writable, (block,), (count,))
        return [(run.blocks.__setitem__, slice(index, index + 1), moved)], count > 0

    # Sharing and release.

    def fork(self, parts: list[tuple[Run, int]]) -> tuple[Run, list[Change]]:
        """A run that shares the first ``stop`` blocks of each part; freed blocks stay freed."""
        copy = Run(parts[0][0].allocator)
        for run, stop in parts:
            copy.add_slice(run, stop)
        acquired = (self._pool.compiled.acquire, copy.held(), False)
        return copy, [acquired, *self._prefix_cache.fork(parts, copy)]

    def free_slice(self, run: Run, start: int, stop: int) -> list[Change]:
        """Frees some blocks of a run that were not freed before."""
        blocks = run.blocks[start:stop]
        if FREED in blocks:
            run.view(start + blocks.index(FREED)).held()  # raises
        return [(self._pool.compiled.release, blocks), run.drop(start, stop)]

    def free_run(self, run: Run) -> list[Change]:
        """Frees all held blocks of a run, the last first."""
        return [(self._pool.compiled.release, run.held()[::-1]), run.drop(0, len(run.blocks))]
