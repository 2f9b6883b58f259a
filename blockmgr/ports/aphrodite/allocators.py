"""The two allocators: one shares blocks between forks only, the other caches prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from blockmgr.ports.aphrodite.blocks import NaiveBlock, PrefixCachingBlock
from blockmgr.ports.aphrodite.pool_allocator import PoolAllocator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.policy import PolicyFactory

__all__ = ["NaiveBlockAllocator", "PrefixCachingBlockAllocator"]


class NaiveBlockAllocator(PoolAllocator):
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

    caches: ClassVar[bool] = False

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


class PrefixCachingBlockAllocator(PoolAllocator):
    """An allocator of blocks that can be found by their prefix as soon as they are full.

    For one thread at a time.

    Args:
        num_blocks: Blocks of the pool.
        block_size: Tokens per block.
        block_ids: The ids of the blocks, distinct and not negative; ``0 … num_blocks - 1`` if not
            given.
        eviction: As in ``ManagerConfig``.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    >>> allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
    >>> first = allocator.allocate_immutable(None, [1, 2])
    >>> again = allocator.allocate_immutable(None, [1, 2])
    >>> first.block_id == again.block_id, allocator.get_num_free_blocks()
    (True, 3)

    Source: the block allocators of vLLM 0.4 to 0.7 and Aphrodite 0.5.3 to 0.9.
    """

    caches: ClassVar[bool] = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None = None,
        *,
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        self.block_class = PrefixCachingBlock
        super().__init__(num_blocks, block_size, block_ids, eviction=eviction)
