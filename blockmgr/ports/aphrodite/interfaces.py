"""The interfaces for callers: blocks, allocators, and the error for a shortage."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from blockmgr.errors import OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["AllocStatus", "Block", "BlockAllocator", "Device", "NoFreeBlocksError", "the_same"]


class NoFreeBlocksError(OutOfBlocksError, ValueError):
    """Not enough blocks at the moment; also ``BlockAllocator.NoFreeBlocksError``."""


class _Shared(enum.Enum):
    """An enumeration that each engine of this lineage defines itself, with the same names.

    Members are equal to the engine's members of the same name, because its scheduler compares the
    results with its own members.
    """

    def __eq__(self, other: object) -> bool:
        if isinstance(other, enum.Enum) and type(other).__name__ == type(self).__name__:
            return self.name == other.name
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)


_Member = TypeVar("_Member", bound=_Shared)


def the_same(kind: type[_Member], name: str, member: object) -> _Member:
    """The member of this enumeration for itself or for an engine's member of that name."""
    for own in kind:
        if own == member:
            return own
    raise TypeError(f"{name} must be a {kind.__name__}, got {member!r}")


class Device(_Shared):
    """The device of a pool."""

    GPU = "gpu"
    """The device that computes."""

    CPU = "cpu"
    """The host, to which blocks are swapped."""


class AllocStatus(_Shared):
    """Whether a group of sequences can get its blocks."""

    OK = "ok"
    """They can be allocated immediately."""

    LATER = "later"
    """They can be allocated after others are freed."""

    NEVER = "never"
    """They are more than the pool can ever hold."""


class Block(ABC):
    """One block of a sequence, and the tokens in it. Only allocators make blocks."""

    __slots__ = ()

    @abstractmethod
    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Puts tokens into the next empty slots, moving to a copy first if the block is shared."""

    @property
    @abstractmethod
    def block_id(self) -> int | None:
        """The physical block; None once freed."""

    @property
    @abstractmethod
    def token_ids(self) -> list[int]:
        """The tokens in the block, a copy."""

    @property
    @abstractmethod
    def num_tokens_total(self) -> int:
        """Tokens in the block and in all before it."""

    @property
    @abstractmethod
    def block_size(self) -> int:
        """Slots of a block."""

    @property
    @abstractmethod
    def num_empty_slots(self) -> int:
        """Slots without a token."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether every slot has a token."""

    @property
    @abstractmethod
    def prev_block(self) -> Block | None:
        """The block before this one in its sequence."""

    @property
    @abstractmethod
    def extra_hash(self) -> int | None:
        """Extra key of the block, besides its tokens: an adapter, an image."""

    @property
    @abstractmethod
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None before it is full."""

    @property
    @abstractmethod
    def computed(self) -> bool:
        """Whether the block is cached and its K/V was marked as computed."""


class BlockAllocator(ABC):
    """Hands out blocks of one pool and takes them back."""

    NoFreeBlocksError: ClassVar[type[NoFreeBlocksError]] = NoFreeBlocksError

    @abstractmethod
    def allocate_mutable_block(
        self, prev_block: Block | None, extra_hash: int | None = None
    ) -> Block:
        """An empty block after ``prev_block``."""

    @abstractmethod
    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], extra_hash: int | None = None
    ) -> Block:
        """A block with these tokens after ``prev_block``, shared if it is cached."""

    @abstractmethod
    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        extra_hash: int | None = None,
    ) -> Sequence[Block]:
        """The same for blocks that follow one another, all or nothing."""

    @abstractmethod
    def free(self, block: Block) -> None:
        """Releases a block."""

    @abstractmethod
    def fork(self, last_block: Block) -> Sequence[Block]:
        """New blocks that share the memory of a sequence, given its last block."""

    @abstractmethod
    def promote_to_immutable_block(self, block: Block) -> int:
        """Makes a full block findable; returns the physical block to use for it."""

    @abstractmethod
    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """Moves a shared block to a copy of its own; returns the physical block to write to."""

    @abstractmethod
    def clear_copy_on_writes(self) -> dict[int, list[int]]:
        """The copies to run before the next forward: source to destinations."""

    @abstractmethod
    def mark_blocks_as_computed(self, block_ids: Iterable[int] | None = None) -> None:
        """Marks the K/V of cached blocks as written."""

    @abstractmethod
    def get_common_computed_block_ids(self, seq_block_ids: Sequence[Sequence[int]]) -> list[int]:
        """The leading blocks that none of these sequences needs to compute."""

    @abstractmethod
    def get_num_free_blocks(self) -> int:
        """Blocks that can be handed out."""

    @abstractmethod
    def get_num_total_blocks(self) -> int:
        """All blocks of the pool."""

    @property
    @abstractmethod
    def all_block_ids(self) -> frozenset[int]:
        """The ids of all blocks of the pool."""
