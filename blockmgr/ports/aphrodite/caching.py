"""Which full blocks are cached, which of those are computed, and which wait to be cached."""

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
    """What one allocator knows of the prefixes in its pool.

    A full block is cached at once, unless it waits for a copy, or follows a block that waits: then
    it is cached when the copies are taken.
    """

    __slots__ = ("_pool", "_uncomputed", "_unwritten", "_waiting")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._uncomputed: set[int] = set()  # cached blocks whose K/V was not marked computed
        # Of those, blocks that a forward so far is known not to have reached, by generation.
        self._unwritten: dict[int, int] = {}
        self._waiting: dict[Place, int] = {}  # and the block that stood there

    def node(self, place: Place | None) -> int | None:
        """The cached block at a place; -1 in front of a sequence; None if it is not cached."""
        if place is None:
            return -1
        run, index = place
        block = run.blocks[index]
        return block if run.promoted[index] and block != FREED else None

    def promote(
        self, run: Run, index: int, tokens: tuple[int, ...], extra: int | None, is_next: bool
    ) -> list[Change]:
        """Caches a block that is full by then, or makes it wait.

        Args:
            run: The run of the block.
            index: Its place there.
            tokens: What it holds by then.
            extra: Its extra key.
            is_next: Whether it waits for no copy, and follows a cached block, by then.

        It does not give way to a twin whose K/V is not written: its own is, but for the last token.
        """
        blocks = run.blocks
        if not is_next or self._has_unwritten_twin(run, index, tokens, extra):
            place = zip(((run, index),), map(blocks.__getitem__, (index,)), strict=True)
            return [(self._waiting.update, place)]
        before = run.place_before(index)
        # Read when the change is made: those before it may have put other blocks there.
        parent = (-1,) if before is None else map(before[0].blocks.__getitem__, before[1:])
        own = map(blocks.__getitem__, (index,))
        key = (extra_bytes(extra),)
        kept = map(self._pool.compiled.promote, own, (tokens,), parent, (b"",), key)
        return [
            # If it gives way to a twin it is not cached, and this means nothing.
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
        if parent is None:  # cached by a change before this one: it can wait to be looked at
            return True
        key = extra_bytes(extra)
        twins = self._pool.find(tokens, parent=parent, extras={0: key} if key else None).tolist()
        return any(map(self._is_unwritten, twins))

    def _is_unwritten(self, block: int) -> bool:
        known = self._unwritten.get(block)
        return known == self._pool.generation(block) and block in self._uncomputed

    def promote_waiting(self) -> list[Change]:
        """Tries again with what waits, in order. Blocks given back since wait no more."""
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
        """Lets the blocks at these places wait."""
        return (self._waiting.update, places)

    def fork(self, sources: list[tuple[Run, int]], copy: Run) -> list[Change]:
        """Lets what waits in these runs wait in a copy of them as well."""
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
        """Takes note that the blocks of a run are not of this pool any more."""
        return [(self._waiting.pop, place) for place in self._waiting if place[0] is run]

    def add(self, blocks: list[int]) -> Change:
        """Takes note of blocks that are cached."""
        return (self._uncomputed.update, blocks)

    def compute(self, blocks: list[int]) -> Change:
        """Takes note that the K/V of cached blocks is written."""
        return (self._uncomputed.difference_update, blocks)

    def leave_unwritten(self, blocks: list[int]) -> Change:
        """Takes note of cached blocks that no forward has reached yet."""
        return (self._unwritten.update, {b: self._pool.generation(b) for b in blocks})

    def progress(self, done: list[int], rest: list[int]) -> list[Change]:
        """The forward that is about to be launched writes the first blocks, and not the rest."""
        cached = self._pool.is_cached
        changes = [self.compute([b for b in done if b != FREED and cached(b)])]
        late = [b for b in rest if b in self._uncomputed and cached(b)]
        if late:
            changes.append(self.leave_unwritten(late))
        elif self._unwritten and not any(map(self._is_unwritten, self._unwritten)):
            changes.append((self._unwritten.clear,))
        return changes

    def is_computed(self, block: int) -> bool:
        """Whether a block is cached, and its K/V was marked computed."""
        return self._pool.is_cached(block) and block not in self._uncomputed

    def named(self, hashes: Sequence[int]) -> list[int]:
        """The first of these hashes, as long as each names a computed block after the one before.

        Blocks with an extra key are passed over.
        """
        parent, before = -1, None
        for at, wanted in enumerate(hashes):
            for child in self._pool.children(parent).tolist():
                tokens = self._pool.tokens(child)
                name = PrefixCachingBlock.hash_block_tokens(not at, before, tokens.tolist())
                # Found by its tokens, too: so it has no extra key, and does not only hash alike.
                found = name == wanted and self._pool.find(tokens, parent=parent).tolist()
                if found == [child] and self.is_computed(child):
                    parent, before = child, name
                    break
            else:
                return list(hashes[:at])
        return list(hashes)

    def mark_computed(self, blocks: Iterable[int] | None) -> None:
        """Marks blocks computed, as far as they are cached; None: all of them."""
        if blocks is None:
            self._uncomputed.clear()
            return
        self._uncomputed.difference_update([b for b in blocks if self._pool.is_cached(b)])

    def reset(self, and_then: Change) -> bool:
        """Forgets everything cached, if no block is in use; says whether it did."""
        if self._pool.num_used:
            return False
        forgotten = [(each.clear,) for each in (self._uncomputed, self._unwritten, self._waiting)]
        return at_once([(self._pool.compiled.reset,), *forgotten, and_then], True)
