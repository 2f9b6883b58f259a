"""The calls of ``BlockManager`` on single blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as IntSequence

    import numpy as np
    import numpy.typing as npt

    from blockmgr import _core

    Blocks = IntSequence[int] | npt.NDArray[np.integer]

__all__ = ["BlockCalls"]


class BlockCalls:
    """Holds, touches and removal of single blocks: a part of ``BlockManager``."""

    __slots__ = ()

    _core: _core.Core

    def acquire(self, blocks: Blocks) -> None:
        """Holds blocks independently of the sequences whose tables name them.

        For callers that move K/V out of blocks or into them while sequences come and go. A held
        block is not handed out. If it can be found, it stays findable, and so do the blocks that it
        continues. If deduplication passes its key to a block with the same content, its own K/V
        stays. A hold is not a reference of a block table: a sequence still writes in place to a
        private block that is held. So hold only cached blocks if their K/V must not change.

        To keep the blocks of a sequence after its end: ``acquire`` them, ``free`` the sequence, and
        later ``release`` them in the order in which they should be evicted.

        Args:
            blocks: ``int[n]``, each named by a block table, cached, or held already. A block that
                is listed twice is held twice.

        Raises:
            BlockStateError: A block is not held, and it is not cached.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.

        Cost: O(blocks), and O(1) for each idle block that they continue.

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=4, block_size=2)
        >>> handle = manager.admit([1, 2, 3, 4])
        >>> blocks = manager.block_ids(handle)
        >>> manager.acquire(blocks)
        >>> manager.free(handle)
        >>> manager.num_available
        2
        >>> manager.release(reversed(blocks))
        Traceback (most recent call last):
        ...
        TypeError: blocks must be a list, tuple, array or buffer of ints, got list_reverseiterator
        >>> manager.release(blocks[::-1])
        >>> manager.num_available
        4
        """
        self._core.acquire(blocks)

    def release(self, blocks: Blocks) -> None:
        """Releases holds on blocks, in this order: the first is evicted first.

        Args:
            blocks: ``int[n]``; a block that is listed twice is released twice.

        Raises:
            BlockStateError: A block is released more often than it is held.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.
        """
        self._core.release(blocks)

    def touch_blocks(self, blocks: Blocks) -> None:
        """Marks blocks and their ancestors as just used.

        The last block in the list is evicted last. Blocks in use do not change. ``touched_blocks``
        counts every touch.

        Args:
            blocks: ``int[n]``, each named by a block table, cached, or held.

        Raises:
            BlockStateError: A block is not held, and it is not cached.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.

        Cost: O(1) for each idle block that one of them continues.
        """
        self._core.touch_blocks(blocks)

    def forget(self, blocks: Blocks) -> int:
        """Removes these blocks, and all that continue them, from the cache.

        For K/V that turns out to be wrong, as after a failed load. Idle blocks become free. Blocks
        in use stay with their sequences, which continue to use them. What those sequences hold from
        the first of these blocks on, and what they compute later, is not cached until the sequence
        is preempted and resumed, which computes it again. Earlier copies of part of a block stay.
        With ``append_only``, a sequence may have a twin of a forgotten block; its next commit
        caches the twin. Holds stay. The retention of the blocks is forgotten.

        Args:
            blocks: ``int[n]``, in use or not. A block that is neither cached nor in use has nothing
                to forget.

        Returns:
            The number of blocks removed from the cache, including those that continue them.

        Raises:
            StepError: With ``early_commit``, while a sequence is committed ahead of this step's
                forward.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.

        Cost: O(entries of all block tables), a few times that if sequences with ``append_only``
        hold each other's blocks; O(1) for each block forgotten.

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> manager.forget(manager.block_ids(handle, 1)), manager.match([1, 2, 3, 4, 5]).block_ids
        (1, array([0], dtype=int32))
        """
        return self._core.forget(blocks)

    def is_cached(self, block: int) -> bool:
        """Whether a prompt can find this block.

        Raises:
            ValueError: The block is out of bounds.
            TypeError: Not an int.
        """
        return self._core.is_cached(block)

    def ref_count(self, block: int) -> int:
        """The number of block tables that name this block, plus the number of its holds.

        Raises:
            ValueError: The block is out of bounds.
            TypeError: Not an int.
        """
        return self._core.ref_count(block)

    def block_ids(self, handle: int, start: int = 0) -> list[int]:
        """The blocks of a sequence from a logical block on.

        Args:
            handle: A live sequence.
            start: First logical block. The list is empty from the number of blocks on.

        Returns:
            Block ids as plain ints. ``block_tables`` holds the same ids as an array.

        Raises:
            UnknownSequenceError: The handle is not live.
            ValueError: ``start`` below 0.
            TypeError: An argument that is not an int.
        """
        return self._core.block_ids_from(handle, start)
