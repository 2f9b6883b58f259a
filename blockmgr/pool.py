"""``BlockPool``: blocks held singly or in chains, for adapters with their own tables.

Longer than other modules, because most of it documents the calls; ``csrc`` implements them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, cast, overload

from blockmgr import _core
from blockmgr.arguments import extras_pairs, is_number, whole
from blockmgr.blocks import Priority, retention_of
from blockmgr.common_calls import CommonCalls
from blockmgr.config import ManagerConfig, PoolOptions, core_options
from blockmgr.options import spells_options
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from blockmgr.tokens import Ints

__all__ = ["BlockPool"]


class BlockPool(CommonCalls, NotCopied):
    """Blocks, references to them, and the prefixes they are cached for; no sequences.

    For adapters that keep their own block tables; engines use ``BlockManager``. Both have the same
    pool, prefix index, eviction order and copy tracker, but here the caller manages the references:
    it acquires and releases blocks by id.

    Every call either finishes or raises with nothing changed. Calls may come from several threads:
    each waits for the one before it.

    Args:
        num_blocks: Physical blocks in the pool, the null block included.
        block_size: Tokens per block, ``1 … 65535``.
        **options: Those fields of ``ManagerConfig``, by keyword, that do not concern sequences.
            With ``quotas``, ``take`` gets the namespace from whose share it takes blocks, and a
            block can be promoted only under a namespace of that share. The policy of ``eviction``
            is notified by ``acquire`` and ``acquire_prefix`` of a request that found blocks.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    >>> pool = BlockPool(num_blocks=4, block_size=2)
    >>> first, second = pool.take(2).tolist()
    >>> pool.promote([first, second], [1, 2, 3, 4]).tolist() == [first, second]
    True
    >>> pool.release([first, second])
    >>> pool.find([1, 2, 3, 4, 5]).tolist() == [first, second], pool.num_idle
    (True, 2)
    """

    __slots__ = (
        "__weakref__",
        "_config",
        "_core",
        "block_size",
        "capacity",
        "num_blocks",
    )

    _core: _core.PoolCore

    num_blocks: int
    """Physical blocks, including the null block."""

    block_size: int
    """Tokens per block."""

    capacity: int
    """Blocks that can be held: all but the null block."""

    _instead = "make another pool, whose blocks are its own"

    @spells_options(ManagerConfig, PoolOptions)
    def __init__(self, num_blocks: int, block_size: int, **options: Unpack[PoolOptions]) -> None:
        config = ManagerConfig(num_blocks=num_blocks, block_size=block_size, **options)
        self._config = config
        self.num_blocks = config.num_blocks
        self.block_size = config.block_size
        self.capacity = config.capacity
        self._core = _core.PoolCore(core_options(config))

    def __repr__(self) -> str:
        return (
            f"<BlockPool: {self.num_blocks} blocks of {self.block_size} tokens, "
            f"{self.num_available} available>"
        )

    # References.

    def take(self, n: int = 1, *, namespace: bytes = b"") -> npt.NDArray[np.int32]:
        """Hands out blocks for new content, with one reference each.

        Takes free blocks first, the last freed first, and then evicts idle blocks in order.

        Args:
            n: Number of blocks.
            namespace: Selects the share to take from, with ``quotas``.

        Returns:
            ``int32[n]`` on the host, owned by the caller.

        Raises:
            OutOfBlocksError: Fewer than ``n`` are available there.
            ValueError: ``n`` below 0, or too long a namespace.
            TypeError: A value of the wrong type.
        """
        return self._core.take(n, namespace)

    def take_blocks(self, blocks: Ints) -> None:
        """Hands out these free blocks for new content, with one reference each.

        For content that is in its block already, such as what a file of blocks holds when a process
        opens it again.

        Args:
            blocks: Distinct free blocks, of any share.

        Raises:
            BlockStateError: A block that is not free.
            ValueError: A block out of range, or twice.
            TypeError: A value of the wrong type.

        Cost: O(free blocks + blocks).
        """
        self._core.take_blocks(blocks)

    def acquire(self, blocks: Ints, *, found: bool = True) -> None:
        """Adds a reference to each block, as often as it is in the list.

        A used block keeps the blocks that it continues in use, so acquiring the last block of a
        chain keeps the whole chain.

        Args:
            blocks: Held or cached, of any share.
            found: Whether a request found the cached blocks, which eviction policies count as hits;
                False for another reference to blocks that a request has already, as in a fork.

        Raises:
            BlockStateError: A block that is not held and not cached.
            ValueError: A block out of range.
            TypeError: ``found`` is not a bool.
        """
        self._core.acquire(blocks, found)

    def acquire_prefix(
        self,
        tokens: Ints,
        *,
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
    ) -> npt.NDArray[np.int32]:
        """``find``, then ``acquire``, as one request that ``hit_rate_curve`` counts.

        Args:
            tokens: A prompt, from its beginning; all of its tokens count as looked up.
            namespace: The namespace.
            extras: Further keys, 1 to 1024 bytes each, by block.

        Returns:
            ``int32[k]`` on the host, owned by the caller: the blocks found, with one more reference
            each.

        Raises:
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.
        """
        return self._core.acquire_prefix(tokens, namespace, extras_pairs(extras))

    def release(self, blocks: Ints) -> None:
        """Drops a reference to each block, in this order, as often as it is in the list.

        A block that loses its last reference becomes free, or idle if it is cached; a copy that is
        planned into it is dropped. A cached block stays in use as long as a used block continues
        it, so a block is never evicted before its children, in whatever order they are released.

        Raises:
            BlockStateError: A block is listed more often than it is held.
            ValueError: A block out of range.
        """
        self._core.release(blocks)

    def touch(self, blocks: Ints) -> None:
        """Moves idle blocks and their ancestors to the end of the eviction order.

        Blocks in use do not change, because they move there anyway when they are released.

        Raises:
            BlockStateError: A block that is not held and not cached.
            ValueError: A block out of range.
        """
        self._core.touch(blocks)

    # The prefix cache.

    def find(
        self,
        tokens: Ints,
        *,
        parent: int = -1,
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
    ) -> npt.NDArray[np.int32]:
        """The longest chain of cached blocks that match these tokens.

        Changes nothing: it takes no references and leaves the eviction order as it is. Unlike
        ``BlockManager.match`` it may find all tokens.

        Args:
            tokens: The tokens to find; those after the last full block are ignored.
            parent: The cached block that the tokens continue; -1 if they begin a prompt.
            namespace: The namespace, for tokens that begin a prompt.
            extras: Further keys, 1 to 1024 bytes each, by block of the chain.

        Returns:
            ``int32[k]`` on the host, owned by the caller.

        Raises:
            BlockStateError: The parent is not cached.
            ValueError: A value out of its bounds, or a namespace beside a parent.
            TypeError: A value of the wrong type.

        Cost: O(blocks): comparing tokens, one digest where prompts diverge.
        """
        return self._core.find(tokens, parent, namespace, extras_pairs(extras))

    @overload
    def promote(
        self,
        blocks: int,
        tokens: Ints,
        *,
        parent: int = -1,
        namespace: bytes = b"",
        extras: bytes = b"",
    ) -> int: ...
    @overload
    def promote(
        self,
        blocks: Ints,
        tokens: Ints,
        *,
        parent: int = -1,
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
    ) -> npt.NDArray[np.int32]: ...
    def promote(
        self,
        blocks: int | Ints,
        tokens: Ints,
        *,
        parent: int = -1,
        namespace: bytes = b"",
        extras: bytes | Mapping[int, bytes] | None = None,
    ) -> int | npt.NDArray[np.int32]:
        """Makes held blocks findable; their K/V must be written before it is read.

        Takes one block, or a chain of blocks: all or nothing. If an equal block is cached, in use
        or idle, the caller's reference moves to that block.

        Args:
            blocks: A block, or ``[n]`` distinct ones, each held by the caller and not waiting for a
                copy.
            tokens: ``[n * block_size]``: the tokens in these blocks.
            parent: The cached block that the first one continues; -1 if it begins a prompt.
            namespace: The namespace, if the first block begins a prompt.
            extras: Bytes, 1 to 1024, that change K/V besides the tokens: for one block, its bytes;
                for several, a mapping from the index in ``blocks``.

        Returns:
            The block to use from here on: the same one, or the equal block cached before. For
                several, ``int32[n]`` on the host, owned by the caller.

        Raises:
            BlockStateError: A block is not held, is cached with other content, or waits for a copy;
                or the parent is not cached, or an end.
            ValueError: Blocks repeated, a number of tokens that does not fill them exactly, a value
                out of its bounds, a namespace beside a parent, or a block of another share than the
                namespace's or the parent's.
            TypeError: A value of the wrong type.

        Cost: O(blocks), one digest for each that becomes findable.

        >>> pool = BlockPool(num_blocks=4, block_size=2)
        >>> one, *two = pool.take(3).tolist()
        >>> pool.promote(one, [1, 2])
        0
        >>> pool.promote(two, [3, 4, 5, 6], parent=one, extras={1: b"image"})
        array([1, 2], dtype=int32)
        """
        if is_number(blocks):
            own = b"" if extras is None else extras
            return self._core.promote(blocks, tokens, parent, namespace, own)
        pairs = extras_pairs(cast("Mapping[int, bytes] | None", extras))
        return self._core.promote_chain(blocks, tokens, parent, namespace, pairs)

    def promote_end(
        self,
        block: int,
        tokens: Ints,
        *,
        parent: int = -1,
        namespace: bytes = b"",
        extras: bytes = b"",
    ) -> None:
        """Caches a held block that is not full, such as the last one of a prompt.

        The pool evicts it as it does others, and before the blocks that it continues. It is in
        ``children`` and ``prefix_of``; ``find`` does not find it, nor do events tell of it, and
        equal ends can stand beside each other.

        Args:
            block: A block that the caller holds, that is not cached and does not wait for a copy.
            tokens: ``[n]``: the tokens in it, fewer than ``block_size``.
            parent: The cached block that it continues; -1 if it begins a prompt. An end can
                continue an end that is no shorter.
            namespace: The namespace, if it begins a prompt.
            extras: Bytes, at most 1024, that change K/V besides the tokens.

        Raises:
            BlockStateError: The block is not held, is cached, or waits for a copy; or the parent is
                not cached, or a shorter end.
            ValueError: No tokens or too many, a value out of its bounds, a namespace beside a
                parent, or a block of another share than the namespace's or the parent's.
            TypeError: A value of the wrong type.

        >>> pool = BlockPool(num_blocks=4, block_size=4)
        >>> first, end = pool.take(2).tolist()
        >>> _ = pool.promote(first, [1, 2, 3, 4])
        >>> pool.promote_end(end, [5, 6], parent=first)
        >>> pool.prefix_of(end).tokens.tolist()
        [1, 2, 3, 4, 5, 6]
        """
        self._core.promote_end(block, tokens, parent, namespace, extras)

    def evict(self, n: int, *, namespace: bytes = b"") -> npt.NDArray[np.int32]:
        """Takes the next ``n`` idle blocks in the eviction order, even if blocks are free.

        Args:
            n: Number of blocks.
            namespace: Selects the share, with ``quotas``.

        Returns:
            ``int32[n]`` on the host, owned by the caller, with one reference each.

        Raises:
            OutOfBlocksError: Fewer than ``n`` are idle there; ``available`` says how many.
            ValueError: ``n`` below 0, or too long a namespace.
            TypeError: A value of the wrong type.
        """
        return self._core.evict(n, namespace)

    def forget(self, n: int, *, namespace: bytes = b"") -> npt.NDArray[np.int32]:
        """Frees the next ``n`` idle blocks in the eviction order.

        Args:
            n: Number of blocks.
            namespace: Selects the share, with ``quotas``.

        Returns:
            ``int32[n]`` on the host: the blocks, which are no longer held.

        Raises:
            OutOfBlocksError: Fewer than ``n`` are idle there; ``available`` says how many.
            ValueError: ``n`` below 0, or too long a namespace.
            TypeError: A value of the wrong type.
        """
        return self._core.forget(n, namespace)

    def forget_blocks(self, blocks: Ints) -> int:
        """Takes cached blocks out of the cache, with every cached block that continues them.

        For blocks whose K/V turned out to be wrong or lost. Idle blocks become free. Blocks in use
        stay with those who hold them, and become free with their last reference.

        Args:
            blocks: Cached blocks, of any share; one may continue another.

        Returns:
            The number of blocks that were forgotten.

        Raises:
            BlockStateError: A block that is not cached.
            ValueError: A block out of range.
            TypeError: A value of the wrong type.

        Cost: O(forgotten blocks).

        >>> pool = BlockPool(num_blocks=4, block_size=2)
        >>> chain = pool.promote(pool.take(2), [1, 2, 3, 4])
        >>> pool.forget_blocks(chain[:1]), pool.num_cached
        (2, 0)
        """
        return self._core.forget_blocks(blocks)

    def reset(self) -> None:
        """Forgets every cached block, and with ``ghost_blocks`` the evicted ones.

        Raises:
            BlockStateError: A block is in use.
        """
        self._core.reset()

    # Copy-on-write.

    def make_writable(self, block: int, num_tokens: int) -> int:
        """A private block for the caller to write from token ``num_tokens`` on.

        Returns the block itself if only the caller holds it and it is not cached. Otherwise the
        caller's reference moves to a fresh block, and a copy of the leading tokens is planned.

        Args:
            block: A block with a reference of the caller's.
            num_tokens: Leading tokens with K/V to copy; 0 for none. If the block itself waits for a
                shorter copy, only that many tokens are copied: the others have no K/V yet, and
                every sharer computes them.

        Returns:
            The block to write to.

        Raises:
            OutOfBlocksError: A fresh block is needed, and none is available.
            BlockStateError: The block is not held.
            ValueError: A block out of range, or ``num_tokens`` not in ``[0, block_size]``.

        Leaves:
            A planned copy, for ``take_copies``.
        """
        return self._core.make_writable(block, num_tokens)

    # Reading.

    @property
    def num_free(self) -> int:
        """Free blocks: not in use, without content."""
        return self._core.num_free()

    @property
    def num_idle(self) -> int:
        """Idle blocks: not in use, cached."""
        return self._core.num_idle()

    @property
    def num_used(self) -> int:
        """Blocks with a reference or an internal pin."""
        return self._core.num_used()

    @property
    def num_cached(self) -> int:
        """Cached blocks, used or idle."""
        return self._core.num_cached()

    @property
    def num_pending_copies(self) -> int:
        """Copies that are planned and not taken."""
        return self._core.num_pending_copies()

    @overload
    def ref_count(self, blocks: int) -> int: ...
    @overload
    def ref_count(self, blocks: Ints) -> npt.NDArray[np.int64]: ...
    def ref_count(self, blocks: int | Ints) -> int | npt.NDArray[np.int64]:
        """The number of references to a block, or to each of several.

        Args:
            blocks: A block, or several.

        Returns:
            An int; for several, ``int64[len(blocks)]`` on the host, owned by the caller.

        Raises:
            ValueError: A block is out of range.
            TypeError: Neither a block nor several.

        >>> pool = BlockPool(num_blocks=4, block_size=2)
        >>> block = int(pool.take(1)[0])
        >>> pool.ref_count(block), pool.ref_count([block, 3])
        (1, array([1, 0]))
        """
        if is_number(blocks):
            return self._core.ref_count(blocks)
        return self._core.ref_counts(blocks)

    @overload
    def is_cached(self, blocks: int) -> bool: ...
    @overload
    def is_cached(self, blocks: Ints) -> npt.NDArray[np.bool_]: ...
    def is_cached(self, blocks: int | Ints) -> bool | npt.NDArray[np.bool_]:
        """Whether a block is cached, or each of several.

        Args:
            blocks: A block, or several.

        Returns:
            A bool; for several, ``bool[len(blocks)]`` on the host, owned by the caller.

        Raises:
            ValueError: A block is out of range.
            TypeError: Neither a block nor several.
        """
        if is_number(blocks):
            return self._core.is_cached(blocks)
        return self._core.are_cached(blocks)

    @overload
    def is_idle(self, blocks: int) -> bool: ...
    @overload
    def is_idle(self, blocks: Ints) -> npt.NDArray[np.bool_]: ...
    def is_idle(self, blocks: int | Ints) -> bool | npt.NDArray[np.bool_]:
        """Whether a block is idle, or each of several.

        Acquiring an idle block makes one block fewer available.

        Args:
            blocks: A block, or several.

        Returns:
            A bool; for several, ``bool[len(blocks)]`` on the host, owned by the caller.

        Raises:
            ValueError: A block is out of range.
            TypeError: Neither a block nor several.
        """
        if is_number(blocks):
            return bool(self._core.are_idle((blocks,))[0])
        return self._core.are_idle(blocks)

    def waits_for_copy(self, block: int) -> bool:
        """Whether a copy into the block is planned, or taken and not resolved.

        Raises:
            ValueError: The block is out of range.
        """
        return self._core.waits_for_copy(block)

    def generation(self, block: int) -> int:
        """A counter that grows whenever the block loses its content.

        The pair of block id and generation names the content, for a caller that remembers blocks it
        does not hold.

        Raises:
            ValueError: The block is out of range.
        """
        return self._core.generation(block)

    def parent(self, block: int) -> int:
        """The cached block that a cached block continues; -1 if it begins a prompt.

        Raises:
            BlockStateError: The block is not cached.
            ValueError: The block is out of range.
        """
        return self._core.parent(block)

    def children(self, parent: int = -1, *, namespace: bytes = b"") -> npt.NDArray[np.int32]:
        """The cached blocks that continue a block, the last promoted first.

        Args:
            parent: A cached block; -1 for blocks that begin a prompt.
            namespace: Namespace of the blocks that begin a prompt.

        Returns:
            ``int32[k]`` on the host, owned by the caller.

        Raises:
            BlockStateError: The parent is not cached.
            ValueError: The parent is out of range, or a namespace is given with it.
        """
        return self._core.children(parent, namespace)

    def tokens(self, block: int) -> npt.NDArray[np.uint32]:
        """The tokens of a cached block: ``uint32[n]`` on the host, a copy.

        They are ``block_size``, and fewer only after ``promote_end``.

        Raises:
            BlockStateError: The block is not cached.
            ValueError: The block is out of range.
        """
        return self._core.tokens(block)

    def idle_blocks(self, most: int | None = None) -> npt.NDArray[np.int32]:
        """The idle blocks, the least recently used first: ``int32[num_idle]`` on the host, a copy.

        This is the eviction order, unless a policy or retention changes it. With ``quotas``, one
        share after the other.

        Args:
            most: Most blocks to return; ``None`` for all.

        Raises:
            ValueError: ``most`` below 0.
            TypeError: ``most`` is not an int.
        """
        limit = self.num_blocks if most is None else whole("most", most, 0)
        return self._core.idle_blocks(min(limit, self.num_blocks))

    def retain(self, blocks: Ints, *, priority: Priority | None, ttl: float | None = None) -> None:
        """Sets how long to keep these blocks.

        The retention of a block lasts until it loses its content or is retained again: the last
        call wins. On blocks that are not cached yet, it takes effect when they are. A block is not
        evicted before the blocks that continue it, and when ``promote`` merges two blocks, the
        higher priority wins.

        Args:
            blocks: Held or cached.
            priority: From ``LOW`` to ``HIGH``. None removes the retention.
            ttl: Seconds, measured by ``set_time``, after which the retention expires; None for
                never.

        Raises:
            BlockStateError: A block that is not held and not cached.
            ValueError: A block out of range, ``priority`` or ``ttl`` out of bounds, or no
                ``retention``.
            TypeError: A value of the wrong type.
        """
        level, seconds = retention_of(priority, ttl)
        self._core.retain(blocks, level, seconds)

    def pin(self, block: int) -> int:
        """Pins a cached block and all blocks it continues: they are evicted after all others.

        A pin is the highest priority, not a reference: ``num_available`` counts pinned blocks, and
        they are handed out if no other block is left. ``BlockManager.pin`` has the details.

        Args:
            block: The deepest block of a chain.

        Returns:
            The pin, for ``unpin``. Pins may overlap.

        Raises:
            PinBudgetError: More blocks, or pins, than the block's share has of
                ``max_pinned_blocks``.
            BlockStateError: The block is not cached.
            ValueError: The block is out of range, or ``retention`` is off.
        """
        return self._core.pin(block)

    def priority(self, block: int) -> Priority:
        """The priority of a cached block; ``NORMAL`` without ``retention``.

        Raises:
            BlockStateError: The block is not cached.
            ValueError: The block is out of range.
        """
        return Priority(self._core.level(block))
