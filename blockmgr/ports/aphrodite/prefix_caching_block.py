"""An allocator of blocks that can be found by their prefix as soon as they are full."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import xxhash

from blockmgr.arguments import integer, whole
from blockmgr.ports.aphrodite.block import Block
from blockmgr.ports.aphrodite.block_allocator import BlockAllocator
from blockmgr.ports.aphrodite.tokens import checked_extra, extra_bytes, whole_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.policy import PolicyFactory

__all__ = ["PrefixCachingBlock", "PrefixCachingBlockAllocator"]

_DIGEST_BYTES = 16


class PrefixCachingBlock(Block):
    """A block that can be found by its prefix once it is full."""

    __slots__ = ()

    @property
    def content_hash(self) -> int | None:
        """A name for the whole prefix that ends with this block; None before it is full.

        It does not decide sharing: all tokens are compared first.

        Cost: O(blocks) when first asked for, without recursion.
        """
        before: int | None = None
        for blocks, count in self.parts():
            for i in range(count):
                if i not in blocks.hashes:
                    tokens = blocks.tokens[i]
                    if len(tokens) < self.block_size:
                        return None
                    blocks.hashes[i] = self.hash_block_tokens(
                        before is None, before, tokens, blocks.extras.get(i)
                    )
                before = blocks.hashes[i]
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


class PrefixCachingBlockAllocator(BlockAllocator):
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

    def find_cached_blocks_prefix(self, block_hashes: Sequence[int]) -> list[int]:
        """The leading hashes of which each names a computed block after the previous one.

        Args:
            block_hashes: ``content_hash`` of each block of a sequence. Blocks with an extra hash
                cannot be found this way; ``ComputedBlocksTracker`` uses tokens, and finds them.

        Raises:
            TypeError: A hash that is not an int.

        Cost: O(blocks that continue the ones found), with one digest for each.
        """
        hashes = [integer("block_hashes", each) for each in block_hashes]
        parent, before = -1, None
        for at, wanted in enumerate(hashes):
            for child in self.pool.children(parent).tolist():
                tokens = self.pool.tokens(child)
                name = PrefixCachingBlock.hash_block_tokens(not at, before, tokens.tolist())
                # Also found by its tokens, so it has no extra key, and the hash is no collision.
                found = name == wanted and self.pool.find(tokens, parent=parent).tolist()
                if found == [child] and self.is_computed(child):
                    parent, before = child, name
                    break
            else:
                return hashes[:at]
        return hashes
