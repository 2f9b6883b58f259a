"""An allocator of blocks that only forks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.ports.aphrodite.block import Block
from blockmgr.ports.aphrodite.block_allocator import BlockAllocator

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NaiveBlock", "NaiveBlockAllocator"]


class NaiveBlock(Block):
    """A block that is not shared by content."""

    __slots__ = ()

    @property
    def content_hash(self) -> int | None:
        """None: such blocks cannot be found by content."""
        return None


class NaiveBlockAllocator(BlockAllocator):
    """An allocator of blocks that only forks share. For one thread at a time.

    Args:
        create_block: The kind of block, ``NaiveBlock`` or a subclass of it.
        num_blocks: Blocks of the pool.
        block_size: Tokens per block.
        block_ids: The ids of the blocks, distinct and not negative; ``0 … num_blocks - 1`` if not
            given.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    def __init__(
        self,
        create_block: type[NaiveBlock],
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None = None,
    ) -> None:
        if not (isinstance(create_block, type) and issubclass(create_block, NaiveBlock)):
            raise TypeError(f"create_block must be NaiveBlock or a subclass, got {create_block!r}")
        self.block_class = create_block
        super().__init__(num_blocks, block_size, block_ids)
