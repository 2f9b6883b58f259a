"""The radix cache: prefixes kept as chains of pages, found again, locked and evicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError, InvariantError
from blockmgr.pool import BlockPool
from blockmgr.ports.commits import at_once
from blockmgr.ports.radix.arrays import PageSlots, ToDevice, on_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.ports.commits import Step
    from blockmgr.ports.radix.arrays import Ids, Pages

__all__ = ["MatchResult", "RadixCacheHandle", "RadixCacheManager", "RadixNode", "SizeInfo"]


def new_pool(num_pages: int, page_size: int, digest: str | Callable[[bytes], bytes]) -> BlockPool:
    """A pool whose slots are all int32."""
    most = 2**31 // whole("page_size", page_size, 1)
    if whole("num_pages", num_pages, 1) > most:
        raise ValueError(
            f"num_pages must be at most {most} with pages of {page_size}, got {num_pages}"
        )
    return BlockPool(num_pages, page_size, digest=digest)


class SizeInfo(NamedTuple):
    """How many token slots the tree holds."""

    evictable_size: int
    """Slots in pages that no lock protects."""
    protected_size: int
    """Slots in pages at or above a locked node."""

    @property
    def total_size(self) -> int:
        """Slots in all pages of the tree."""
        return self.evictable_size + self.protected_size


@dataclass(frozen=True, slots=True)
class RadixNode:
    """A page of the tree, or its root: where a matched prefix ends.

    Attributes:
        page: The page; -1 for the root.
        generation: Of the page's content. The node is gone once the page has another.
    """

    page: int
    generation: int
    _owner: object = field(repr=False)

    def is_root(self) -> bool:
        """Whether nothing was matched."""
        return self.page < 0


@dataclass(frozen=True, slots=True, eq=False)
class RadixCacheHandle:
    """A matched prefix. Equal only to itself, so that a lock can be told from another's.

    Attributes:
        cached_len: Its tokens; a multiple of the page size.
        node: Where it ends.
    """

    cached_len: int
    node: RadixNode
    _has_ended: bool = field(default=False, init=False, repr=False)


class MatchResult(NamedTuple):
    """What ``match_prefix`` finds."""

    handle: RadixCacheHandle
    """To lock before the indices are used."""
    indices: Any
    """``int32[cached_len]``: the slots of the prefix, in token order."""


class RadixCacheManager:
    """Keeps finished prefixes, finds the longest one again, and gives pages back in LRU order.

    Slot ``s`` lies in page ``s // page_size``. A page belongs either to the tree or to the caller.
    By itself, the manager starts with all pages the caller's: ``insert_prefix`` hands pages to
    the tree, ``evict`` takes them back. ``CacheManager`` keeps those that are nobody's.

    Args:
        device: Where results go, as torch tensors; None for NumPy arrays on the host.
        num_pages: Pages of the KV cache.
        page_size: Token slots a page.
        digest: As in ``ManagerConfig``.

    Raises:
        MissingExtraError: A device, and torch is not installed.
        ValueError: A size out of its bounds.
        TypeError: A size of the wrong type.

    >>> cache = RadixCacheManager(None, num_pages=16)
    >>> cache.insert_prefix([1, 3, 6, 7], [0, 1, 2, 3])
    0
    >>> handle, indices = cache.match_prefix([1, 3, 6, 8])
    >>> handle.cached_len, indices.tolist()
    (3, [0, 1, 2])

    Source: RadixAttention, Zheng et al., "SGLang: Efficient Execution of Structured Language Model
    Programs", NeurIPS 2024, section 3; the interface is mini-sglang's.
    """

    __slots__ = (
        "_caller_keeps_pages",
        "_core",
        "_locks",
        "_page_slots",
        "_to_device",
        "page_size",
        "pool",
        "root_node",
    )

    pool: BlockPool
    """The pool that does the work, for its statistics. A page is a block."""

    page_size: int
    """Token slots a page."""

    root_node: RadixNode
    """Where a prefix of no tokens ends: ``RadixCacheHandle(0, root_node)`` matches nothing."""

    def __init__(
        self,
        device: object,
        num_pages: int,
        page_size: int = 1,
        *,
        digest: str | Callable[[bytes], bytes] = "xxh3_128",
    ) -> None:
        self._set_up(new_pool(num_pages, page_size, digest), device)
        self._caller_keeps_pages = True
        self.pool.take(self.pool.num_blocks)

    @classmethod
    def on_pool(cls, pool: BlockPool, device: object = None) -> Self:
        """A cache on a pool from which the caller takes its pages itself."""
        cache = cls.__new__(cls)
        cache._set_up(pool, device)
        cache._caller_keeps_pages = False
        return cache

    def _set_up(self, pool: BlockPool, device: object) -> None:
        self.pool = pool
        self._core = pool._core
        self.page_size = pool.block_size
        self.root_node = RadixNode(-1, 0, self)
        self._to_device = ToDevice(device)
        self._page_slots = PageSlots(pool.num_blocks, pool.block_size)
        self._locks: dict[RadixCacheHandle, int] = {}

    @property
    def device(self) -> Any:
        """Where results go; None for NumPy arrays on the host."""
        return self._to_device.device

    @property
    def size_info(self) -> SizeInfo:
        """What could be evicted, and what could not."""
        idle = self.pool.num_idle
        return SizeInfo(idle * self.page_size, (self.pool.num_cached - idle) * self.page_size)

    def match_prefix(self, input_ids: Ids) -> MatchResult:
        """Finds the longest prefix in the tree, in whole pages; changes nothing, not even recency.

        Args:
            input_ids: ``[n]``, tokens; none are a prefix too.

        Returns:
            A handle, and ``int32[cached_len]`` slots. They may be evicted until it is locked.

        Raises:
            ValueError: A token out of bounds, or not one dimension.
            TypeError: Tokens that are not integers.

        Cost: O(tokens), comparing them.
        """
        pages = self.pool.find(on_host(input_ids))
        return MatchResult(self._handle(pages), self._slots(pages))

    def lock_handle(self, handle: RadixCacheHandle, unlock: bool = False) -> None:
        """Protects the pages of a matched prefix from eviction, or ends that.

        Locks of a handle add up. The root needs none: locking or unlocking it does nothing.

        Args:
            handle: As ``match_prefix`` gave it.
            unlock: Take one lock away instead of adding one.

        Raises:
            BlockStateError: To lock, and the page has been evicted since; to unlock, and this
                handle is not locked.
            ValueError: The handle is another cache's.
            TypeError: Not a handle, or ``unlock`` is not a bool.

        Cost: O(pages) that become protected or evictable.
        """
        self._check_handle(handle)
        if not isinstance(unlock, bool):
            raise TypeError(f"unlock must be a bool, got {unlock!r}")
        page = handle.node.page
        if page < 0:
            return
        if unlock and handle not in self._locks:
            raise BlockStateError(page, "not locked by this handle")
        at_once(self._unlock(handle) if unlock else self._lock(handle), None)

    def insert_prefix(self, input_ids: Ids, indices: Ids) -> int:
        """Hands the pages of a computed prefix to the tree.

        Whole pages only; an unfinished page at the end stays the caller's.

        Args:
            input_ids: ``[n]``, tokens.
            indices: ``[n]``, the slot of each. Those of tokens that the tree has are not read.

        Returns:
            How many leading tokens the tree had already. Slots given for them, if they are not the
            tree's own, stay the caller's to free.

        Raises:
            BlockStateError: A page to insert is in the tree already.
            ValueError: Not as many slots as tokens, slots that are not whole pages in order, or
                a value out of bounds.
            TypeError: Values that are not integers.

        Cost: O(tokens), one digest for each page inserted.
        """
        tokens = on_host(input_ids)
        found = self.pool.find(tokens)
        num_whole = len(tokens) // self.page_size
        pages = self._pages_beyond(found, tokens, indices)[: num_whole - len(found)]
        promote = self._promotion(found, pages, tokens)
        release = (self._core.release, pages)
        return at_once((promote, release), len(found) * self.page_size)

    def evict(self, size: int) -> Any:
        """Takes the least recently used pages out of the tree; they are the caller's then.

        Args:
            size: Slots wanted, rounded up to whole pages; 0 does nothing.

        Returns:
            ``int32[at least size]``: the slots, page by page.

        Raises:
            OutOfBlocksError: More than is evictable.
            ValueError: ``size`` below 0.
            TypeError: ``size`` is not an int.

        Cost: O(size).
        """
        num_pages = -(-whole("size", size, 0) // self.page_size)
        next_pages = self.pool.idle_blocks(num_pages)
        return at_once(((self._core.evict, num_pages),), self._slots(next_pages))

    def reset(self) -> None:
        """Empties the tree. Its pages go where evicted ones go.

        Raises:
            BlockStateError: A handle is locked.
        """
        if self._locks:
            page = next(iter(self._locks)).node.page
            raise BlockStateError(page, "locked; unlock every handle before a reset")
        if self._caller_keeps_pages:
            self.pool.evict(self.pool.num_idle)
        else:
            self.pool.forget(self.pool.num_idle)

    def check_integrity(self) -> None:
        """Recomputes the books of the tree and of its locks.

        Raises:
            InvariantError: Something does not hold, which is a bug here.
        """
        self.pool.check_invariants()
        locks: dict[int, int] = {}
        for handle, count in self._locks.items():
            locks[handle.node.page] = locks.get(handle.node.page, 0) + count
        every = np.arange(self.pool.num_blocks)
        cached = np.flatnonzero(self.pool.are_cached(every))
        counts = dict(zip(cached.tolist(), self.pool.ref_counts(cached).tolist(), strict=True))
        if wrong := tuple(
            f"page {page} has {counts.get(page, 0)} references and {locks.get(page, 0)} locks"
            for page in sorted(counts.keys() | locks.keys())
            if counts.get(page, 0) != locks.get(page, 0)
        ):
            raise InvariantError(wrong)

    # What follows is CacheManager's too, which checks more before it changes anything.

    def _check_handle(self, handle: RadixCacheHandle) -> None:
        """Refuses what no ``match_prefix`` of this cache has given, and what is gone since."""
        if not isinstance(handle, RadixCacheHandle):
            raise TypeError(f"handle must be a RadixCacheHandle, got {handle!r}")
        node = handle.node
        if not isinstance(node, RadixNode) or node._owner is not self:
            raise ValueError(f"handle must be of this cache, got {handle!r}")
        length, page = handle.cached_len, node.page
        if (page < 0) != (length == 0) or length < 0 or length % self.page_size:
            raise ValueError(f"handle must end where its cached_len says, got {handle!r}")
        if page >= 0 and self._core.generation(page) != node.generation:
            raise BlockStateError(page, "evicted since it was matched")

    def _pages_beyond(self, found: Pages, input_ids: Ids, indices: Ids) -> Pages:
        """The pages of a sequence that continue the chain found of it, an unfinished one too."""
        if len(indices) != len(input_ids):
            raise ValueError(
                f"indices must be as many as input_ids, got {len(indices)} for {len(input_ids)}"
            )
        return self._page_slots.pages(indices, len(found))

    def _promotion(self, found: Pages, pages: Pages, tokens: Any) -> Step:
        """Puts pages below the chain that was found; the caller keeps the references to them."""
        if len(pages):
            start, stop = (n * self.page_size for n in (len(found), len(found) + len(pages)))
            parent = int(found[-1]) if len(found) else -1
            return (self._core.promote_chain, pages, tokens[start:stop], parent, b"", None)
        return (self._core.touch, found[-1:])

    def _lock(self, handle: RadixCacheHandle) -> list[Step]:
        locks = self._locks.get(handle, 0) + 1
        return [
            (self._core.acquire, [handle.node.page]),
            (self._locks.__setitem__, handle, locks),
        ]

    def _unlock(self, handle: RadixCacheHandle) -> list[Step]:
        release = (self._core.release, [handle.node.page])
        if (locks := self._locks[handle] - 1) == 0:
            return [release, (self._locks.pop, handle)]
        return [release, (self._locks.__setitem__, handle, locks)]

    def _handle(self, pages: Pages) -> RadixCacheHandle:
        if not len(pages):
            return RadixCacheHandle(0, RadixNode(-1, 0, self))
        page = int(pages[-1])
        node = RadixNode(page, self.pool.generation(page), self)
        return RadixCacheHandle(len(pages) * self.page_size, node)

    def _slots(self, pages: Pages) -> Any:
        slots = self._page_slots.slots(pages)
        return slots if self._to_device.device is None else self._to_device(slots)
