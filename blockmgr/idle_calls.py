"""The calls about blocks that are evicted soon: a part of ``BlockManager`` and of ``BlockPool``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.blocks import CachedPrefix, IdleFront, PrefixParts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blockmgr.tokens import Ints

__all__ = ["IdleCalls"]


class IdleCalls:
    """What a caller needs to copy blocks elsewhere before they are evicted."""

    __slots__ = ()

    _core: Any  # of a manager or of a pool

    def idle_front(self, most: int) -> IdleFront:
        """The ends of the cached prefixes that are evicted soon; changes nothing.

        The order is that of the last use, the longest ago first, whatever the policy. With
        ``quotas``, each share has a part of the front in proportion to its size. With several
        groups of layers, a prefix ends where prompts can continue; the ends that sequences only
        passed come first, as in evictions, and of a path the last one. With
        ``min_partial_tokens``, a prefix can end with a block that is not full.

        Args:
            most: Idle blocks to look at. With one group, those that another cached block continues
                are left out: ``prefix_of`` of that block includes them.

        Raises:
            ValueError: ``most`` below 0.
            TypeError: ``most`` is not an int.

        Cost: O(most).
        """
        return IdleFront(*self._core.idle_front(most))

    def prefix_of(self, block: int) -> CachedPrefix:
        """The prefix that ends with a cached block; changes nothing.

        It ends earlier, before the first block whose K/V is not written yet.

        Args:
            block: A cached block, of any group of layers. The cached tail of a sequence has fewer
                tokens than others.

        Raises:
            BlockStateError: The block is not cached.
            ValueError: The block is out of bounds.
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
        # By name: CPython leaks a starred list for which there is no memory.
        ids, contents, tokens, name, extras, levels, until, is_whole, parts = self._core.prefix_of(
            block
        )
        own = PrefixParts(*parts)
        return CachedPrefix(ids, contents, tokens, name, extras, levels, until, is_whole, own)

    def contents_of(self, blocks: Ints) -> npt.NDArray[np.int64]:
        """A number of the content of each block, which no other content ever has.

        If the number is the same before and after a read, the read has got that content.

        Args:
            blocks: ``int[n]``, of any group of layers.

        Returns:
            ``int64[n]`` on the host, owned by the caller; -1 for a block that is not cached.

        Raises:
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.
        """
        contents: npt.NDArray[np.int64] = self._core.contents_of(blocks)
        return contents
