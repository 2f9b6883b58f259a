"""The blocks of a sequence, as callers see them: positions in a ``BlockList``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from blockmgr.errors import BlockStateError
from blockmgr.ports.aphrodite.block_list import FREED
from blockmgr.ports.aphrodite.tokens import whole_tokens

if TYPE_CHECKING:
    from blockmgr.ports.aphrodite.block_list import BlockList, Place

__all__ = ["Block", "BlockView", "NullBlock"]


class Block(ABC):
    """One block of a sequence, and the tokens in it. Only allocators make blocks.

    It is created when a caller reads it, and stays the same object while a caller holds it.
    """

    __slots__ = ("__weakref__", "_blocks", "_index")

    def __init__(self, blocks: BlockList, index: int) -> None:
        self._blocks = blocks
        self._index = index

    def __repr__(self) -> str:
        tokens = f"{len(self._tokens)} of {self.block_size} tokens"
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
        tokens, empty = whole_tokens(token_ids), self.num_empty_slots
        if not 0 < len(tokens) <= empty:
            raise ValueError(f"token_ids must have 1 to {empty} tokens, got {len(tokens)}")
        self.held()  # raises if the block was freed
        self._blocks.fill(self._index, tokens)

    @property
    def block_id(self) -> int | None:
        """The physical block; None once freed."""
        block = self._blocks.blocks[self._index]
        return None if block == FREED else self._blocks.allocator.physical_id(block)

    @property
    def _tokens(self) -> tuple[int, ...]:
        return self._blocks.tokens[self._index]

    @property
    def token_ids(self) -> list[int]:
        """The tokens in the block, a copy."""
        return list(self._tokens)

    @property
    def num_tokens_total(self) -> int:
        """Tokens in the block and in all before it."""
        return sum(len(t) for blocks, count in self.parts() for t in blocks.tokens[:count])

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self._blocks.allocator.block_size

    @property
    def num_empty_slots(self) -> int:
        """Slots without a token."""
        return self.block_size - len(self._tokens)

    @property
    def is_full(self) -> bool:
        """Whether every slot has a token."""
        return self.num_empty_slots == 0

    @property
    def prev_block(self) -> Block | None:
        """The block before this one in its sequence."""
        return self._blocks.view(self._index - 1) if self._index else self._blocks.prev_block

    @property
    def extra_hash(self) -> int | None:
        """Extra key of the block, besides its tokens: an adapter, an image."""
        return self._blocks.extras.get(self._index)

    @property
    @abstractmethod
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None before it is full."""

    @property
    def computed(self) -> bool:
        """Whether the block is cached and its K/V was marked as computed."""
        block = self._blocks.blocks[self._index]
        return block != FREED and self._blocks.allocator.is_computed(block)

    @property
    def place(self) -> Place:
        """The list and the index in it."""
        return self._blocks, self._index

    def held(self) -> int:
        """The pool's block; raises if the block was freed."""
        block = self._blocks.blocks[self._index]
        if block == FREED:
            raise BlockStateError(FREED, "the block was freed, and holds nothing")
        return block

    def parts(self) -> list[tuple[BlockList, int]]:
        """The lists of the sequence up to this block, with the number of blocks of each."""
        found: list[tuple[BlockList, int]] = []
        block: Block | None = self
        while block is not None:
            found.append((block._blocks, block._index + 1))
            block = block._blocks.prev_block
        return found[::-1]


class NullBlock(Block):
    """Replaces a block that is outside the window; never written or freed, so it stays empty."""

    __slots__ = ()

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Always raises: the null block is never written."""
        raise BlockStateError(self.held(), "the null block is never written")

    @property
    def content_hash(self) -> int | None:
        """None."""
        return None


class BlockView(Sequence[Block]):
    """Consecutive blocks of one sequence, made as they are read; otherwise like a tuple."""

    __slots__ = ("_blocks", "_range")

    def __init__(self, blocks: BlockList, start: int = 0) -> None:
        self._blocks = blocks
        self._range = range(start, len(blocks.blocks))

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        places = self._range[index]
        if isinstance(places, range):
            return [self._blocks.view(place) for place in places]
        return self._blocks.view(places)

    def __iter__(self) -> Iterator[Block]:
        return map(self._blocks.view, self._range)

    def __repr__(self) -> str:
        return f"<{len(self)} blocks: {[block.block_id for block in self]}>"
