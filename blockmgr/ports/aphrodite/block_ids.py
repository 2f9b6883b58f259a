"""The callers' ids of the blocks of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BlockIds"]


class BlockIds:
    """Maps the blocks of a pool to the callers' ids, and back.

    Args:
        block_ids: The ids, distinct and not negative; ``0 … num_blocks - 1`` if not given.
        num_blocks: Blocks of the pool, whose own ids begin at 0.

    Raises:
        ValueError: The number of ids is wrong, an id is repeated, or an id is negative.
        TypeError: An id that is not an int.
    """

    __slots__ = ("_blocks", "_ids")

    def __init__(self, block_ids: Iterable[int] | None, num_blocks: int) -> None:
        # A range of consecutive ids finds a block without a dictionary.
        self._ids = _checked(block_ids, num_blocks)
        self._blocks = (
            None
            if isinstance(self._ids, range)
            else dict(zip(self._ids, range(num_blocks), strict=True))
        )

    def every(self) -> frozenset[int]:
        """All ids."""
        return frozenset(self._ids)

    def of(self, block: int) -> int:
        """The id of a block of the pool.

        Raises:
            ValueError: The pool has no such block.
        """
        if not 0 <= block < len(self._ids):
            raise ValueError(f"block must be in [0, {len(self._ids) - 1}], got {block}")
        return self._ids[block]

    def of_all(self, blocks: list[int]) -> list[int]:
        """The ids of blocks of the pool, as a new list."""
        ids = self._ids
        return blocks.copy() if ids == range(len(ids)) else [ids[block] for block in blocks]

    def block(self, block_id: int) -> int:
        """The block of the pool with this id.

        Raises:
            ValueError: No block has it.
            TypeError: Not an int.
        """
        block_id = integer("block_id", block_id)
        try:
            if self._blocks is not None:
                return self._blocks[block_id]
            return self._ids.index(block_id)
        except (KeyError, ValueError):
            raise ValueError(f"block_id {block_id} is no block of this allocator") from None


def _checked(block_ids: Iterable[int] | None, num_blocks: int) -> Sequence[int]:
    if block_ids is None:
        return range(num_blocks)
    ids = tuple(integer("block_ids", block_id) for block_id in block_ids)
    if len(ids) != num_blocks or len(set(ids)) != num_blocks or min(ids) < 0:
        raise ValueError(
            f"block_ids must be {num_blocks} distinct ids of 0 or more, got {len(ids)} of which "
            f"{len(set(ids))} are distinct, the smallest {min(ids, default=None)}"
        )
    in_a_row = range(ids[0], ids[0] + num_blocks)
    return in_a_row if ids == tuple(in_a_row) else ids
