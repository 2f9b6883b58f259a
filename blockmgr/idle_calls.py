"""The calls about blocks that are evicted soon: a part of ``BlockManager`` and of ``BlockPool``."""

from __future__ import annotations

from typing import Any

from blockmgr.blocks import CachedPrefix, IdleFront

__all__ = ["IdleCalls"]


class IdleCalls:
    """What a caller needs to copy blocks elsewhere before they are evicted."""

    __slots__ = ()

    _core: Any  # of a manager or of a pool

    def idle_front(self, most: int) -> IdleFront:
        """The ends of the cached prefixes that are evicted soon; changes nothing.

        The order is that of the last use, the longest ago first, whatever the policy. With
        ``quotas``, each share has a part of the front in proportion to its size.

        Args:
            most: Idle blocks to look at. Those that another cached block continues are left out:
                ``prefix_of`` of that block includes them.

        Raises:
            ValueError: ``most`` below 0, or there are several groups of layers.
            TypeError: ``most`` is not an int.

        Cost: O(most).
        """
        return IdleFront(*self._core.idle_front(most))

    def prefix_of(self, block: int) -> CachedPrefix:
        """The prefix that ends with a cached block; changes nothing.

        It ends earlier, before the first block whose K/V is not written yet.

        Args:
            block: A cached block. The cached tail of a sequence is none, because it is not full.

        Raises:
            BlockStateError: The block is not cached.
            ValueError: The block is out of bounds, or there are several groups of layers.
            TypeError: ``block`` is not an int.

        Cost: O(blocks of the prefix).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> manager.free(handle)
        >>> [last] = manager.idle_front(8).block_ids.tolist()
        >>> manager.prefix_of(last).tokens.tolist()
        [1, 2, 3, 4]
        """
        return CachedPrefix(*self._core.prefix_of(block))
