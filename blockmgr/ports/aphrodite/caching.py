"""Tracks which full blocks are cached, computed, or waiting to be cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from blockmgr.changes import at_once
from blockmgr.ports.aphrodite.blocks import FREED, PrefixCachingBlock
from blockmgr.ports.aphrodite.tokens import extra_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.changes import Change
    from blockmgr.pool import BlockPool
    from blockmgr.ports.aphrodite.blocks import Run

__all__ = ["PrefixCache"]

Place: TypeAlias = tuple["Run", int]


class PrefixCache:
    """The prefixes in the pool of one allocator.

    A full block is cached immediately, unless it waits for a copy or follows a block that waits:
    then it is cached when the copies are taken.
    """

    __slots__ = ("_pool", "_uncomputed", "_unwritten", "_waiting")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._uncomputed: set[int] = set()  # cached blocks whose K/V was not marked computed
        # Of those, blocks that no forward has reached yet, by generation.
        self._unwritten: dict[int, int] = {}
        self._waiting: dict[Place, int] = {}  # and the block at that position

    def node(self, place: Place | None) -> int | None:
        """The cached block at a position; -1 before the first block; None if it is not cached."""
        if place is None:
            return -1
        run, index = place
        block = run.blocks[index]
        return block if run.promoted[index] and block != FREED else None

    def promote(
        self, run: Run, index: int, tokens: tuple[int, ...], extra: int | None, is_next: bool
    ) -> list[Change]:
        """Caches a block, which is full when the changes are made, or makes it wait.

        Args:
            run: The run of the block.
            index: Its index in the run.
            tokens: Its tokens after the changes.
            extra: Its extra key.
            is_next: Whether, after the changes, it waits for no copy and follows a cached block.

        It is not replaced by an equal block whose K/V is not written: its own K/V is, except for
        the last token.
        """
        blocks = run.blocks
        if not is_next or self._has_unwritten_twin(run, index, tokens, extra):
            place = zip(((run, index),), map(blocks.__getitem__, (index,)), strict=True)
            return [(self._waiting.update, place)]
        before = run.place_before(index)
        # Read when the change is made: earlier changes may have replaced the block.
        parent = (-1,) if before is None else map(before[0].blocks.__getitem__, before[1:])
        own = map(blocks.__getitem__, (index,))
        key = (extra_bytes(extra),)
        kept = map(self._pool.compiled.promote, own, (tokens,), parent, (b"",), key)
        return [
            # If an equal block replaces it, it is not cached, and this has no effect.
            (self._uncomputed.update, map(blocks.__getitem__, (index,))),
            (blocks.__setitem__, slice(index, index + 1), kept),
            (run.promoted.__setitem__, index, 1),
        ]

    def _has_unwritten_twin(
        self, run: Run, index: int, tokens: tuple[int, ...], extra: int | None
    ) -> bool:
        if not self._unwritten:
            return False
        is_there = index <= len(run.blocks)
        parent = self.node(run.place_before(index)) if is_there else None
        if parent is None:  # cached by an earlier change: it can be checked later
            return True
        key = extra_bytes(extra)
        twins = self._pool.find(tokens, parent=parent, extras={0: key} if key else None).tolist()
        return any(map(self._is_unwritten, twins))

    def _is_unwritten(self, block: int) -> bool:
        known = self._unwritten.get(block)
        return known == self._pool.generation(block) and block in self._uncomputed

    def promote_waiting(self) -> list[Change]:
        """Retries the waiting blocks in order, and drops those released since."""
        changes: list[Change] = [(self._waiting.clear,)]
        cached: set[Place] = set()
        for (run, index), block in self._waiting.items():
            if run.blocks[index] != block or run.promoted[index]:
                continue
            before = run.place_before(index)
            is_next = before in cached or self.node(before) is not None
            extra = run.extras.get(index)
            more = self.promote(run, index, run.tokens[index], extra, is_next)
            if len(more) > 1:
                cached.add((run, index))
            changes += more
        return changes

    def wait(self, places: dict[Place, int]) -> Change:
        """Makes the blocks at these positions wait."""
        return (self._waiting.update, places)

    def fork(self, sources: list[tuple[Run, int]], copy: Run) -> list[Change]:
        """Makes the waiting blocks of these runs wait in a copy of them as well."""
        if not self._waiting:
            return []
        waiting: dict[Place, int] = {}
        start = 0
        for run, stop in sources:
            for (other, index), block in self._waiting.items():
                if other is run and index < stop:
                    waiting[copy, start + index] = block
            start += stop
        return [self.wait(waiting)]

    def leave(self, run: Run) -> list[Change]:
        """Records that the blocks of a run have left this pool."""
        return [(self._waiting.pop, place) for place in self._waiting if place[0] is run]

    def add(self, blocks: list[int]) -> Change:
        """Records cached blocks."""
        return (self._uncomputed.update, blocks)

    def compute(self, blocks: list[int]) -> Change:
        """Records that the K/V of cached blocks is written."""
        return (self._uncomputed.difference_update, blocks)

    def leave_unwritten(self, blocks: list[int]) -> Change:
        """Records cached blocks that no forward has reached yet."""
        return (self._unwritten.update, {b: self._pool.generation(b) for b in blocks})

    def progress(self, done: list[int], rest: list[int]) -> list[Change]:
        """Records that the next forward writes the first blocks and not the rest."""
        cached = self._pool.is_cached
        changes = [self.compute([b for b in done if b != FREED and cached(b)])]
        late = [b for b in rest if b in self._uncomputed and cached(b)]
        if late:
            changes.append(self.leave_unwritten(late))
        elif self._unwritten and not any(map(self._is_unwritten, self._unwritten)):
            changes.append((self._unwritten.clear,))
        return changes

    def is_computed(self, block: int) -> bool:
        """Whether a block is cached and its K/V was marked as computed."""
        return self._pool.is_cached(block) and block not in self._uncomputed

    def named(self, hashes: Sequence[int]) -> list[int]:
        """The leading hashes of which each names a computed block after the previous one.

        Blocks with an extra key are skipped.
        """
        parent, before = -1, None
        for at, wanted in enumerate(hashes):
            for child in self._pool.children(parent).tolist():
                tokens = self._pool.tokens(child)
                name = PrefixCachingBlock.hash_block_tokens(not at, before, tokens.tolist())
                # Also found by its tokens, so it has no extra key, and the hash is no collision.
                found = name == wanted and self._pool.find(tokens, parent=parent).tolist()
                if found == [child] and self.is_computed(child):
                    parent, before = child, name
                    break
            else:
                return list(hashes[:at])
        return list(hashes)

    def mark_computed(self, blocks: Iterable[int] | None) -> None:
        """Marks the cached ones of these blocks as computed; None: all cached blocks."""
        if blocks is None:
            self._uncomputed.clear()
            return
        self._uncomputed.difference_update([b for b in blocks if self._pool.is_cached(b)])

    def reset(self, and_then: Change) -> bool:
        """Forgets everything cached if no block is in use; returns whether it did."""
        if self._pool.num_used:
            return False
        forgotten = [(each.clear,) for each in (self._uncomputed, self._unwritten, self._waiting)]
        return at_once([(self._pool.compiled.reset,), *forgotten, and_then], True)
