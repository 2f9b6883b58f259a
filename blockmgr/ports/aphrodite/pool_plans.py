"""The changes that make up an allocator's calls, for those calls, block tables and swaps."""

from __future__ import annotations

from itertools import chain, starmap
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from blockmgr.changes import Loan, at_once
from blockmgr.errors import BlockStateError, OutOfBlocksError
from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite.blocks import FREED, BlockView, PoolBlock, Run
from blockmgr.ports.aphrodite.caching import PrefixCache
from blockmgr.ports.aphrodite.interfaces import Block, BlockAllocator, NoFreeBlocksError
from blockmgr.ports.aphrodite.tokens import block_names, checked_extra, extra_bytes, whole_tokens
from blockmgr.ports.aphrodite.tracking import HitCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from blockmgr.blocks import CopyPlan
    from blockmgr.changes import Change
    from blockmgr.policy import PolicyFactory

__all__ = ["PoolPlans"]

T = TypeVar("T")


class PoolPlans(BlockAllocator):
    """An allocator's books, and plans to change them together with its pool's.

    Attributes:
        block_class: What it hands out.
        caches: Whether full blocks are found by the prefix they end.
        pool: The core. Its block ids count from 0.
        block_size: Tokens a block.
        hits: Full blocks looked up and found by ``allocate_immutable_*``.
        prefix_cache: Which blocks are cached and computed.
    """

    caches: ClassVar[bool]

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None,
        block_class: type[PoolBlock],
        eviction: str | PolicyFactory,
    ) -> None:
        self.block_class = block_class
        self.pool = BlockPool(num_blocks, block_size, prefix_caching=self.caches, eviction=eviction)
        self.block_size = self.pool.block_size
        self.hits = HitCounter()
        self.prefix_cache = PrefixCache(self.pool)
        self._ids = block_names(block_ids, self.pool.num_blocks)

    def extend(
        self,
        prev_block: Block | None,
        tokens: tuple[int, ...],
        num_empty: int,
        extra_hash: int | None,
        publish: Callable[[BlockView], tuple[list[Change], T]],
    ) -> T:
        """Blocks with these tokens, then ``num_empty`` empty ones. For block tables.

        Args:
            prev_block: The block they follow.
            tokens: Their tokens.
            num_empty: Blocks without tokens after them.
            extra_hash: Their extra key.
            publish: Plans what is made of the blocks: the changes, and what is returned. The
                columns of a run of their own are filled by then.
        """
        previous = self._previous(prev_block)
        if previous is not None and tokens and not previous.is_full:
            raise BlockStateError(
                previous.held(), f"prev_block has {previous.num_empty_slots} empty slots"
            )
        size = self.block_size
        num_full = len(tokens) // size
        parent, found = self._look_up(previous, tokens, extra_hash)
        key = extra_bytes(extra_hash)
        keep = self.caches and parent is not None and num_full > 0
        num_blocks = -(-len(tokens) // size) + num_empty
        loan = Loan(self.pool) if num_blocks > len(found) else None
        fresh: list[int] = []
        changes: list[Change] = []
        try:
            if loan:
                fresh = self.take_beside(loan, found, num_blocks - len(found))
            else:  # nothing is evicted for it, so this can wait
                changes.append((self.pool.compiled.acquire, found))
            num_fresh = num_full - len(found)
            if keep and num_fresh:
                rest = tokens[len(found) * size : num_full * size]
                keys = tuple((i, key) for i in range(num_fresh)) if key else None
                before = found[-1] if found else parent
                chained = fresh[:num_fresh]
                changes += [
                    (self.pool.compiled.promote_chain, chained, rest, before, b"", keys),
                    self.prefix_cache.add(chained),
                ]
            run = self._run_after(previous)
            start = len(run.blocks)
            chunks = [tokens[i : i + size] for i in range(0, len(tokens), size)]
            changes += run.extend(
                found + fresh, chunks + [()] * num_empty, extra_hash, num_full if keep else 0
            )
            if self.caches and num_full:
                changes.append(self.hits.count(num_full, len(found)))
                if not keep:
                    waiting = {(run, start + i): fresh[i] for i in range(num_full)}
                    changes.append(self.prefix_cache.wait(waiting))
            more, result = publish(BlockView(run, start, start + num_blocks))
            changes += more
            if loan:
                changes.append(loan.keep)
            return at_once(changes, result)
        except BaseException:
            if loan:
                loan.give_back()
            raise

    def _look_up(
        self, previous: PoolBlock | None, tokens: tuple[int, ...], extra_hash: int | None
    ) -> tuple[int | None, list[int]]:
        """The cached block that these tokens follow, and those of their own that are cached."""
        checked_extra(extra_hash)
        parent = self.prefix_cache.node(None if previous is None else previous.place)
        key = extra_bytes(extra_hash)
        # The look-up is what checks the tokens, so it is made even where it cannot find any.
        found: list[int] = self.pool.find(
            tokens,
            parent=-1 if parent is None else parent,
            extras=dict.fromkeys(range(len(tokens) // self.block_size), key) if key else None,
        ).tolist()
        return parent, found if self.caches and parent is not None else []

    def num_taken_by(self, tokens: tuple[int, ...], extra_hash: int | None) -> int:
        """Blocks that a sequence of these tokens takes from those available."""
        _, found = self._look_up(None, tokens, extra_hash)
        num_blocks = -(-len(tokens) // self.block_size)
        return num_blocks - len(found) + int(self.pool.are_idle(found).sum())

    def add_empty(self, run: Run, n: int, extra_hash: int | None) -> list[Change]:
        """Adds empty blocks at the end of a run. For block tables."""
        # Taken when the change is made, when others may have been given back.
        taken = map(np.ndarray.tolist, map(self.pool.compiled.take, (n,)))
        return run.extend(chain.from_iterable(taken), [()] * n, extra_hash)

    def take_beside(self, loan: Loan, found: list[int], n: int) -> list[int]:
        """Acquires blocks that were found and takes ``n`` more, or raises with neither done."""
        # All counting before any change: idle blocks that are found are not available any more.
        pool = self.pool
        available = pool.num_available
        if n + len(found) > available:
            needed = n + pool.are_idle(found).tolist().count(True)
            if needed > available:
                raise NoFreeBlocksError(needed, available)
        if found:
            loan.acquire(found)
        taken: list[int] = loan.take(n).tolist() if n else []
        return taken

    def carry_out(self, changes: list[Change], result: T) -> T:
        """Makes the changes at once, of which the first may find no block."""
        try:
            return at_once(changes, result)
        except OutOfBlocksError as error:
            raise NoFreeBlocksError(error.needed, error.available) from None

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
            changes, waits = self._make_writable(run, index)
            extra = run.extras.get(index)
        changes.append((run.tokens.__setitem__, index, tokens))
        if not self.caches or len(tokens) < self.block_size:
            return changes, False
        is_next = is_next and not waits
        return changes + self.prefix_cache.promote(run, index, tokens, extra, is_next), is_next

    def append(self, run: Run, index: int, token_ids: Sequence[int]) -> None:
        """What ``Block.append_token_ids`` does."""
        tokens = whole_tokens(token_ids)
        present = run.tokens[index]
        empty = self.block_size - len(present)
        count = len(tokens)
        if not 0 < count <= empty:
            raise ValueError(f"token_ids must have 1 to {empty} tokens, got {count}")
        block = run.blocks[index]
        if block == FREED:
            run.view(index).held()  # raises
        if count < empty and self.pool.ref_count(block) == 1:
            run.tokens[index] = present + tokens
            return
        before = self.prefix_cache.node(run.place_before(index))
        steps, _ = self.fill(run, index, present + tokens, before is not None, None)
        self.carry_out(steps, None)

    def _make_writable(self, run: Run, index: int) -> tuple[list[Change], bool]:
        """Moves a block if it is shared; whether what stands there then waits for a copy."""
        block, count = run.blocks[index], len(run.tokens[index])
        if self.pool.ref_count(block) == 1:
            return [], self.pool.waits_for_copy(block)
        moved = map(self.pool.compiled.make_writable, (block,), (count,))
        return [(run.blocks.__setitem__, slice(index, index + 1), moved)], count > 0

    def hand_out_copies(self, form: Callable[[dict[int, list[int]]], T]) -> T:
        """``clear_copy_on_writes``, in another form."""
        calls = self.pool.compiled
        plans: list[CopyPlan] = []
        try:
            # Noted down in the same instruction.
            plans.extend(starmap(calls.take_copies, ((),)))
            copies: dict[int, list[int]] = {}
            for source, destination, _ in plans[0]:
                copies.setdefault(self._ids[source], []).append(self._ids[destination])
            # All that were planned are in it, so nothing waits for a copy any more.
            applied = (calls.copies_applied, plans[0].ticket)
            promoted = self.prefix_cache.promote_waiting()
            return at_once([applied, *promoted, (plans.clear,)], form(copies))
        except BaseException:
            for plan in plans:
                self.pool.copies_aborted(plan.ticket)
            raise

    def fork_run(self, run: Run) -> tuple[Run, list[Change]]:
        """The same for a table, some of whose blocks may have left its window."""
        return self._fork([(run, len(run.blocks))])

    def _fork(self, parts: list[tuple[Run, int]]) -> tuple[Run, list[Change]]:
        copy = Run(self)
        for run, stop in parts:
            copy.add_slice(run, stop)
        acquired = (self.pool.compiled.acquire, copy.held(), False)
        return copy, [acquired, *self.prefix_cache.fork(parts, copy)]

    def free_slice(self, run: Run, start: int, stop: int) -> list[Change]:
        """Frees some blocks of a run, none of which was freed before. For block tables."""
        blocks = run.blocks[start:stop]
        if FREED in blocks:
            run.view(start + blocks.index(FREED)).held()  # raises
        return [(self.pool.compiled.release, blocks), run.drop(start, stop)]

    def free_run(self, run: Run) -> list[Change]:
        """Frees all blocks of a run that are held, the last first. For block tables."""
        return [(self.pool.compiled.release, run.held()[::-1]), run.drop(0, len(run.blocks))]

    def is_computed(self, block: int) -> bool:
        """Whether a block of the pool is cached, and its K/V was marked computed."""
        return self.prefix_cache.is_computed(block)

    def physical_ids(self, blocks: list[int]) -> list[int]:
        """The ids here of blocks of the pool."""
        ids = self._ids
        return blocks.copy() if ids == range(len(ids)) else [ids[block] for block in blocks]

    def physical_id(self, block: int) -> int:
        """The id here of a block of the pool.

        Raises:
            ValueError: The pool has no such block.
        """
        if not 0 <= block < len(self._ids):
            raise ValueError(f"block must be in [0, {len(self._ids) - 1}], got {block}")
        return self._ids[block]

    def refuse_waiting(self, blocks: list[int]) -> None:
        """Raises for blocks of the pool that wait for a copy. For swaps.

        Raises:
            BlockStateError: One does.
        """
        for block in blocks:
            if block != FREED and self.pool.waits_for_copy(block):
                raise BlockStateError(block, "it waits for a copy; clear_copy_on_writes first")

    def _mine(self, block: Block) -> PoolBlock:
        if not isinstance(block, self.block_class):
            raise TypeError(
                f"block must be a {self.block_class.__name__}, got {type(block).__name__}"
            )
        if block._run.allocator is not self:
            raise ValueError("block belongs to another allocator")
        return block

    def _previous(self, prev_block: Block | None) -> PoolBlock | None:
        if prev_block is None:
            return None
        previous = self._mine(prev_block)
        previous.held()  # raises if it has been freed: nothing can follow what is not there
        return previous

    def _run_after(self, previous: PoolBlock | None) -> Run:
        if previous is not None and previous._index + 1 == len(previous._run.blocks):
            return previous._run
        return Run(self, previous)
