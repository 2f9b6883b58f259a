"""Which full blocks are cached, computed, or waiting to be cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from blockmgr.ports.aphrodite.tokens import extra_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.pool import BlockPool

__all__ = ["FREED", "Columns", "HitCounter", "Place", "PrefixCache"]

FREED = -1
"""The entry of a list in place of a freed block."""


class Columns(Protocol):
    """What is cached of consecutive blocks of one sequence: ``BlockList`` has the fields."""

    blocks: list[int]
    tokens: list[tuple[int, ...]]
    cached: bytearray
    extras: dict[int, int]

    def place_before(self, index: int) -> Place | None:
        """The position of the previous block; None at the start of a sequence."""


Place: TypeAlias = tuple[Columns, int]
"""A list and an index in it."""


class HitCounter:
    """Counts full blocks looked up, and those of them that were cached."""

    __slots__ = ("num_hits", "num_queries")

    num_queries: int
    """Full blocks looked up."""

    num_hits: int
    """Number of those that were cached."""

    def __init__(self) -> None:
        self.restart()

    def count(self, num_queries: int, num_hits: int) -> None:
        """Adds a look-up of this many blocks."""
        self.num_queries += num_queries
        self.num_hits += num_hits

    def restart(self) -> None:
        """Resets the counts to 0."""
        self.num_queries = self.num_hits = 0

    @property
    def hit_rate(self) -> float:
        """Hits over queries since the last reset, in ``0 … 1``; 0 without queries."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0


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
        blocks, index = place
        block = blocks.blocks[index]
        return block if blocks.cached[index] and block != FREED else None

    def find(self, tokens: tuple[int, ...], parent: int | None, extra: int | None) -> list[int]:
        """The leading blocks among these tokens that are cached after ``parent``, if it is.

        Raises:
            ValueError: A token out of bounds.
            TypeError: A token that is not an int.
        """
        key = extra_bytes(extra)
        # The look-up checks the tokens, so it is made even if it cannot find any block.
        found: list[int] = self._pool.find(
            tokens,
            parent=-1 if parent is None else parent,
            extras=dict.fromkeys(range(len(tokens) // self._pool.block_size), key) if key else None,
        ).tolist()
        return found if parent is not None else []

    def num_taken_by(self, tokens: tuple[int, ...], extra: int | None) -> int:
        """Number of available blocks that a sequence of these tokens takes."""
        found = self.find(tokens, -1, extra)
        num_blocks = -(-len(tokens) // self._pool.block_size)
        return num_blocks - len(found) + int(self._pool.is_idle(found).sum())

    def chain(
        self,
        blocks: Columns,
        start: int,
        parent: int | None,
        tokens: tuple[int, ...],
        num_found: int,
    ) -> None:
        """Caches the full ones of new blocks in a list; the first ``num_found`` are cached already.

        Args:
            blocks: The list.
            start: Index of the first new block.
            parent: The cached block that this one continues; None if it is not cached.
            tokens: The tokens of the new blocks.
            num_found: Blocks found in the cache.
        """
        size = self._pool.block_size
        num_full = len(tokens) // size
        fresh = blocks.blocks[start + num_found : start + num_full]
        if parent is None:
            self._waiting.update(((blocks, start + i), block) for i, block in enumerate(fresh))
            return
        if fresh:
            key = extra_bytes(blocks.extras.get(start))
            self._pool.promote(
                fresh,
                tokens[num_found * size : num_full * size],
                parent=blocks.blocks[start + num_found - 1] if num_found else parent,
                extras=dict.fromkeys(range(len(fresh)), key) if key else None,
            )
            self._uncomputed.update(fresh)
        blocks.cached[start : start + num_full] = b"\1" * num_full

    def promote(self, blocks: Columns, index: int) -> None:
        """Caches a full block, or makes it wait.

        It is not replaced by an equal block whose K/V is not written: its own K/V is, except for
        the last token.
        """
        block, tokens = blocks.blocks[index], blocks.tokens[index]
        parent = self.node(blocks.place_before(index))
        key = extra_bytes(blocks.extras.get(index))
        if parent is None or self._pool.waits_for_copy(block):
            self._waiting[blocks, index] = block
            return
        if self._unwritten:
            twin = self._pool.find(tokens, parent=parent, extras={0: key} if key else None).tolist()
            if any(map(self._is_unwritten, twin)):
                self._waiting[blocks, index] = block
                return
        kept = self._pool.promote(block, tokens, parent=parent, extras=key)
        if kept == block:
            self._uncomputed.add(block)
        blocks.blocks[index] = kept
        blocks.cached[index] = 1

    def _is_unwritten(self, block: int) -> bool:
        known = self._unwritten.get(block)
        return known == self._pool.generation(block) and block in self._uncomputed

    def promote_waiting(self) -> None:
        """Retries the waiting blocks in order, and drops those freed since."""
        waiting, self._waiting = self._waiting, {}
        for (blocks, index), block in waiting.items():
            if blocks.blocks[index] == block and not blocks.cached[index]:
                self.promote(blocks, index)

    def fork(self, parts: Sequence[Place], copy: Columns) -> None:
        """Makes the waiting blocks of these lists wait in a copy of them as well."""
        start = 0
        for part, count in parts if self._waiting else ():
            for (blocks, index), block in list(self._waiting.items()):
                if blocks is part and index < count:
                    self._waiting[copy, start + index] = block
            start += count

    def arrive(self, cached: list[int], computed: set[int]) -> None:
        """Records cached blocks whose content is copied here from another pool."""
        self._uncomputed.difference_update(computed)
        late = set(cached) - computed
        self._uncomputed.update(late)
        self._unwritten.update((block, self._pool.generation(block)) for block in late)

    def leave(self, blocks: Columns) -> None:
        """Records that a list has left this pool."""
        for place in [place for place in self._waiting if place[0] is blocks]:
            del self._waiting[place]

    def progress(self, done: list[int], rest: list[int]) -> None:
        """Records that the next forward writes the first blocks and not the rest."""
        self.mark_computed(block for block in done if block != FREED)
        late = [b for b in rest if b in self._uncomputed and self._pool.is_cached(b)]
        if late:
            self._unwritten.update((block, self._pool.generation(block)) for block in late)
        elif not any(map(self._is_unwritten, self._unwritten)):
            self._unwritten.clear()

    def is_computed(self, block: int) -> bool:
        """Whether a block is cached and its K/V was marked as computed."""
        return self._pool.is_cached(block) and block not in self._uncomputed

    def mark_computed(self, blocks: Iterable[int] | None) -> None:
        """Marks the cached ones of these blocks as computed; None: all cached blocks."""
        if blocks is None:
            self._uncomputed.clear()
        else:
            self._uncomputed.difference_update([b for b in blocks if self._pool.is_cached(b)])

    def reset(self) -> None:
        """Forgets everything cached; no block is in use."""
        self._pool.reset()
        for known in (self._uncomputed, self._unwritten, self._waiting):
            known.clear()
