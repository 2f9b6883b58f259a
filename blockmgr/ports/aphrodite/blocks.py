"""Block objects: light views of runs of blocks.

A *run* holds consecutive blocks of one sequence as columns: physical block, tokens, cache key. A
``Block`` is a position in a run. It is created when a caller reads it, and stays the same object
while a caller holds it. So a fork of ten thousand blocks copies columns instead of creating ten
thousand objects, and chains of blocks need no recursion.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np
import xxhash

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError
from blockmgr.ports.aphrodite.interfaces import Block
from blockmgr.ports.aphrodite.tokens import checked_extra, extra_bytes, whole_tokens

if TYPE_CHECKING:
    from blockmgr.changes import Change
    from blockmgr.ports.aphrodite.pool_allocator import PoolAllocator

__all__ = [
    "FREED",
    "BlockView",
    "NaiveBlock",
    "PoolBlock",
    "PrefixCachingBlock",
    "Run",
    "freed_after",
    "segments",
]

FREED = -1
freed_after = {None: FREED}.__getitem__
"""The entry of a run after the ``release`` of its block."""

_DIGEST_BYTES = 16


class Run:
    """Consecutive blocks of one sequence, as columns. Only allocators change it.

    A call that changes a run returns its changes, which are made together with the pool's.

    Attributes:
        allocator: Allocator of the blocks.
        size: Tokens per block.
        before: The block before the first one.
        blocks: Blocks of the pool; ``FREED`` in place of released ones.
        may_have_freed: Whether any may be released. Set before the first release, and never unset.
        tokens: The tokens of each block.
        promoted: Whether each held block is cached under this prefix; 0 or 1.
        extras: The extra keys, by index; few blocks have one.
        hashes: ``content_hash`` by index, for blocks whose hash a caller has read.
    """

    __slots__ = (
        "_views",
        "allocator",
        "before",
        "blocks",
        "extras",
        "hashes",
        "may_have_freed",
        "promoted",
        "size",
        "tokens",
    )

    def __init__(self, allocator: PoolAllocator, before: PoolBlock | None = None) -> None:
        self.allocator = allocator
        self.size = allocator.block_size
        self.before = before
        self.blocks: list[int] = []
        self.may_have_freed = False
        self.tokens: list[tuple[int, ...]] = []
        self.promoted = bytearray()
        self.extras: dict[int, int] = {}
        self.hashes: dict[int, int] = {}
        self._views: dict[int, weakref.ref[PoolBlock]] = {}

    def extend(
        self,
        blocks: Iterable[int],
        tokens: list[tuple[int, ...]],
        extra: int | None,
        num_promoted: int = 0,
    ) -> list[Change]:
        """Adds blocks with these tokens at the end; the first ``num_promoted`` are cached.

        An empty run is filled immediately, because no caller has it yet.
        """
        start, count = len(self.blocks), len(tokens)
        promoted = bytes([1]) * num_promoted + bytes(count - num_promoted)
        changes: list[Change] = []
        if start:
            changes.append((self.blocks.extend, blocks))
            changes.append((self.tokens.extend, tokens))
            changes.append((self.promoted.extend, promoted))
        else:
            self.tokens += tokens
            self.promoted += promoted
            if isinstance(blocks, list):
                self.blocks += blocks
            else:
                changes.append((self.blocks.extend, blocks))
        if extra is not None:
            extras = dict.fromkeys(range(start, start + count), extra)
            changes.append((self.extras.update, extras))
        return changes

    def add_slice(self, other: Run, stop: int) -> None:
        """Adds the first ``stop`` blocks of another run: none of them freed, or the whole run."""
        start = len(self.blocks)
        self.blocks += other.blocks[:stop]
        self.may_have_freed = self.may_have_freed or other.may_have_freed
        self.tokens += other.tokens[:stop]
        self.promoted += other.promoted[:stop]
        self.extras.update((start + i, x) for i, x in other.extras.items() if i < stop)
        self.hashes.update((start + i, x) for i, x in other.hashes.items() if i < stop)

    def held(self) -> list[int]:
        """The blocks that are not released."""
        if not self.may_have_freed:
            return self.blocks
        return [block for block in self.blocks if block != FREED]

    def drop(self, start: int, stop: int) -> Change:
        """Records that the remaining blocks of this part are released."""
        self.may_have_freed = True
        return (self.blocks.__setitem__, slice(start, stop), [FREED] * (stop - start))

    def place_before(self, index: int) -> tuple[Run, int] | None:
        """The position of the previous block; None at the start of a sequence."""
        if index:
            return self, index - 1
        return None if self.before is None else self.before.place

    def view(self, index: int) -> PoolBlock:
        """The block at this position."""
        views = self._views
        block = views[index]() if index in views else None
        if block is None:
            block = self.allocator.block_class(self, index)
            views[index] = weakref.ref(block)
        return block


def segments(last: PoolBlock) -> list[tuple[Run, int]]:
    """The runs of a sequence, first to last, with the number of blocks of each."""
    found: list[tuple[Run, int]] = []
    block: PoolBlock | None = last
    while block is not None:
        found.append((block._run, block._index + 1))
        block = block._run.before
    return found[::-1]


class BlockView(Sequence[Block]):
    """Consecutive blocks of one sequence, made as they are read; otherwise like a tuple."""

    __slots__ = ("_stop", "run", "start")

    run: Run
    """The run with its columns."""

    start: int
    """Index of the first block in the run."""

    def __init__(self, run: Run, start: int, stop: int) -> None:
        self.run, self.start, self._stop = run, start, stop

    def __len__(self) -> int:
        return self._stop - self.start

    @overload
    def __getitem__(self, index: int) -> PoolBlock: ...
    @overload
    def __getitem__(self, index: slice) -> list[PoolBlock]: ...
    def __getitem__(self, index: int | slice) -> PoolBlock | list[PoolBlock]:
        places = range(self.start, self._stop)[index]
        if isinstance(places, range):
            return [self.run.view(place) for place in places]
        return self.run.view(places)

    def __iter__(self) -> Iterator[PoolBlock]:
        return map(self.run.view, range(self.start, self._stop))

    def __repr__(self) -> str:
        return f"<{len(self)} blocks: {[block.block_id for block in self]}>"


class PoolBlock(Block):
    """A position in a run; the base of both kinds of blocks."""

    __slots__ = ("__weakref__", "_index", "_run")

    def __init__(self, run: Run, index: int) -> None:
        self._run = run
        self._index = index

    def __repr__(self) -> str:
        tokens = f"{len(self._run.tokens[self._index])} of {self.block_size} tokens"
        return f"<{type(self).__name__} {self.block_id}: {tokens}>"

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Puts tokens into the next empty slots.

        A shared block is moved to a copy first. When a block of a prefix caching allocator becomes
        full, it becomes findable, and its ``block_id`` may change to that of an equal cached block.

        Args:
            token_ids: At least one, and no more than ``num_empty_slots``.

        Raises:
            NoFreeBlocksError: The block is shared, and none is free to copy it to.
            BlockStateError: The block was freed.
            ValueError: No tokens, too many, or one out of ``[0, 2**32)``.
            TypeError: A token that is not an int.

        Leaves:
            A copy, for ``clear_copy_on_writes``.
        """
        self._run.allocator.append(self._run, self._index, token_ids)

    @property
    def block_id(self) -> int | None:
        """The physical block; None once freed."""
        block = self._run.blocks[self._index]
        return None if block == FREED else self._run.allocator.ids.of(block)

    @property
    def token_ids(self) -> list[int]:
        """The tokens in the block, a copy."""
        return list(self._run.tokens[self._index])

    @property
    def num_tokens_total(self) -> int:
        """Tokens in the block and in all before it."""
        return sum(len(t) for run, stop in segments(self) for t in run.tokens[:stop])

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self._run.size

    @property
    def num_empty_slots(self) -> int:
        """Slots without a token."""
        run = self._run
        return run.size - len(run.tokens[self._index])

    @property
    def is_full(self) -> bool:
        """Whether every slot has a token."""
        run = self._run
        return len(run.tokens[self._index]) == run.size

    @property
    def prev_block(self) -> PoolBlock | None:
        """The block before this one in its sequence."""
        return self._run.view(self._index - 1) if self._index else self._run.before

    @property
    def extra_hash(self) -> int | None:
        """Extra key of the block, besides its tokens: an adapter, an image."""
        return self._run.extras.get(self._index)

    @property
    def computed(self) -> bool:
        """Whether the block is cached and its K/V was marked as computed."""
        block = self._run.blocks[self._index]
        return block != FREED and self._run.allocator.is_computed(block)

    @property
    def place(self) -> tuple[Run, int]:
        """The run and the index in it."""
        return self._run, self._index

    def held(self) -> int:
        """The pool's block; raises if the block was freed."""
        block = self._run.blocks[self._index]
        if block == FREED:
            raise BlockStateError(FREED, "the block was freed, and holds nothing")
        return block


class NaiveBlock(PoolBlock):
    """A block that is not shared by content."""

    __slots__ = ()

    @property
    def content_hash(self) -> int | None:
        """None: such blocks cannot be found by content."""
        return None


class PrefixCachingBlock(PoolBlock):
    """A block that can be found by its prefix once it is full."""

    __slots__ = ()

    @property
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None before it is full.

        It does not decide sharing: all tokens are compared first.

        Cost: O(blocks) when first asked for, without recursion.
        """
        before: int | None = None
        first = True
        for run, stop in segments(self):
            for i in range(stop):
                known = run.hashes.get(i)
                if known is None:
                    if len(run.tokens[i]) < run.size:
                        return None
                    known = self.hash_block_tokens(first, before, run.tokens[i], run.extras.get(i))
                    run.hashes[i] = known
                before, first = known, False
        return before

    @staticmethod
    def hash_block_tokens(
        is_first_block: bool,
        prev_block_hash: int | None,
        cur_block_token_ids: Sequence[int],
        extra_hash: int | None = None,
    ) -> int:
        """The ``content_hash`` of a block: xxh3_128 in the layout of ``blockmgr.digest``.

        The same in every process and on every machine.

        Args:
            is_first_block: Whether the block begins a sequence.
            prev_block_hash: ``content_hash`` of the previous block; None only for the first block.
            cur_block_token_ids: The tokens of the block, each in ``[0, 2**32)``.
            extra_hash: Extra key of the block.

        Raises:
            ValueError: A previous hash for a first block, or none for a later one; a token out of
                bounds.
            TypeError: A token, a hash or an extra hash that is not an int.
        """
        if (prev_block_hash is None) is not is_first_block:
            raise ValueError(
                "prev_block_hash must be None for a first block and for no other, got "
                f"{prev_block_hash} with is_first_block={is_first_block}"
            )
        checked_extra(extra_hash)
        tokens = np.array(whole_tokens(cur_block_token_ids), "<u4")
        before = 0
        if prev_block_hash is not None:
            before = whole("prev_block_hash", prev_block_hash, 0, 2 ** (8 * _DIGEST_BYTES) - 1)
        parent = before.to_bytes(_DIGEST_BYTES, "little")
        message = parent + extra_bytes(extra_hash) + tokens.tobytes()
        return int.from_bytes(xxhash.xxh3_128_digest(message), "little")
