"""The block that stands for blocks outside a sliding window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.errors import BlockStateError
from blockmgr.ports.aphrodite.interfaces import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.ports.aphrodite.blocks import PoolBlock

__all__ = ["NullBlock"]


class NullBlock(Block):
    """Replaces a block that is outside the window; never written or freed."""

    __slots__ = ("_block",)

    def __init__(self, block: PoolBlock) -> None:
        self._block = block

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Always raises: the null block is never written."""
        raise BlockStateError(self._block.held(), "the null block is never written")

    @property
    def block_id(self) -> int | None:
        """The physical block reserved for it."""
        return self._block.block_id

    @property
    def token_ids(self) -> list[int]:
        """None at all."""
        return []

    @property
    def num_tokens_total(self) -> int:
        """0."""
        return 0

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self._block.block_size

    @property
    def num_empty_slots(self) -> int:
        """All slots of a block."""
        return self._block.num_empty_slots

    @property
    def is_full(self) -> bool:
        """Never."""
        return False

    @property
    def prev_block(self) -> Block | None:
        """None."""
        return None

    @property
    def extra_hash(self) -> int | None:
        """None."""
        return None

    @property
    def content_hash(self) -> int | None:
        """None."""
        return None

    @property
    def computed(self) -> bool:
        """Never."""
        return False
