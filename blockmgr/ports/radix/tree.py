"""The radix cache: prefixes as chains of pages, with two interfaces for look-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError, InvariantError
from blockmgr.pool import BlockPool
from blockmgr.ports.locking import exclusive, new_mutex
from blockmgr.ports.radix.base import (
    InsertResult,
    MatchResult,
    PrefixMatch,
    RadixCacheHandle,
    RadixNode,
    SizeInfo,
)
from blockmgr.ports.radix.pages import checked_device, on_host, pages_of, slots_of, to_device

if TYPE_CHECKING:
    from blockmgr.policy import PolicyFactory
    from blockmgr.ports.radix.pages import Ids, Pages

__all__ = ["RadixCacheManager", "RadixPrefixCache", "RadixTree"]

MAX_SLOTS = 2**63 - 1


class RadixTree:
    """The base of both interfaces. Calls of several threads wait for one another.

    Values of the wrong type raise ``TypeError``, and values out of their bounds ``ValueError``.

    Attributes:
        pool: The underlying pool, for its statistics. A page is a block.
        page_size: Token slots per page.
        device: Device of results; None for NumPy arrays on the host.
        root_node: The end of the empty prefix: ``RadixCacheHandle(0, root_node)`` matches nothing.
    """

    def __init__(
        self,
        device: object,
        num_pages: int,
        page_size: int = 1,
        *,
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        most = 2**31 // whole("page_size", page_size, 1)  # slots are int32
        if whole("num_pages", num_pages, 1) > most:
            raise ValueError(
                f"num_pages must be at most {most} with pages of {page_size}, got {num_pages}"
            )
        self.device = checked_device(device)
        self.pool = BlockPool(num_pages, page_size, eviction=eviction)
        self.page_size = page_size
        self.root_node = RadixNode(-1, 0, self)
        self._locks: dict[RadixCacheHandle, int] = {}
        self._mutex = new_mutex()
        self._caller_keeps_pages = True
        self.pool.take(num_pages)

    def _free_pages(self) -> None:
        """Takes all pages from the caller, for a manager that hands them out itself."""
        self.pool.release(np.arange(self.pool.num_blocks)[::-1])
        self._caller_keeps_pages = False

    @property
    @exclusive
    def size_info(self) -> SizeInfo:
        """The sizes of the evictable and the protected parts."""
        idle = self.pool.num_idle
        return SizeInfo(idle * self.page_size, (self.pool.num_cached - idle) * self.page_size)

    @exclusive
    def lock_handle(self, handle: RadixCacheHandle, unlock: bool = False) -> None:
        """Locks the pages of a matched prefix against eviction, or removes one such lock.

        Locks of a handle are counted. The root needs none: locking or unlocking it does nothing.

        Raises:
            BlockStateError: A page to lock was evicted after the match, or a handle to unlock is
                not locked.
            ValueError: The handle belongs to another cache.

        Cost: O(pages of the prefix).
        """
        self._check_handle(handle)
        if not isinstance(unlock, bool):
            raise TypeError(f"unlock must be a bool, got {unlock!r}")
        if handle.node.is_root():
            return
        if unlock and handle not in self._locks:
            raise BlockStateError(handle.node.page, "not locked by this handle")
        if unlock:
            self._unlock(handle)
        elif handle._is_match and handle not in self._locks:
            # Tells the policy that a request has found all pages of the match.
            self.pool.acquire(handle._pages)
            self.pool.release(handle._pages[:-1][::-1])
            self._locks[handle] = 1
        else:
            self._lock(handle)

    @exclusive
    def evict(self, size: int) -> Any:
        """Removes pages from the tree in eviction order; they then belong to the caller.

        Returns:
            ``int32[at least size]``: the slots of whole pages, page by page.

        Raises:
            OutOfBlocksError: Fewer slots are evictable.

        Cost: O(size).
        """
        num_pages = -(-whole("size", size, 0, MAX_SLOTS) // self.page_size)
        return self._slots(self.pool.evict(num_pages))

    @exclusive
    def reset(self) -> None:
        """Empties the tree. Its pages are treated like evicted ones.

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

    @exclusive
    def check_integrity(self) -> None:
        """Recomputes and checks the state of the tree and of its locks.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
        """
        self.pool.check_invariants()
        locks = np.zeros(self.pool.num_blocks, np.int64)
        for handle, count in self._locks.items():
            locks[handle.node.page] += count
        every = np.arange(self.pool.num_blocks)
        references = np.where(self.pool.is_cached(every), self.pool.ref_count(every), 0)
        if wrong := tuple(
            f"page {page} has {references[page]} references and {locks[page]} locks"
            for page in np.flatnonzero(references != locks)
        ):
            raise InvariantError(wrong)

    # Managers use the following methods, too, and check more before any change.

    def _check_handle(self, handle: RadixCacheHandle) -> None:
        """Refuses handles that are not from this cache, and evicted ones."""
        if not isinstance(handle, RadixCacheHandle):
            raise TypeError(f"handle must be a RadixCacheHandle, got {handle!r}")
        node = handle.node
        if not isinstance(node, RadixNode) or node._owner is not self:
            raise ValueError(f"handle must be of this cache, got {handle!r}")
        length, page = handle.cached_len, node.page
        if (page < 0) != (length == 0) or length < 0 or length % self.page_size:
            raise ValueError(f"handle must end where its cached_len says, got {handle!r}")
        if page >= 0 and self.pool.generation(page) != node.generation:
            raise BlockStateError(page, "evicted since it was matched")

    def _pages_beyond(self, found: Pages, input_ids: Ids, indices: Ids) -> Pages:
        """The pages of a sequence after its cached chain, including an unfinished one."""
        try:
            given = len(indices)
        except TypeError:
            kind = type(indices).__name__
            raise TypeError(f"indices must be a list or array of ints, got {kind}") from None
        if given != len(input_ids):
            raise ValueError(
                f"indices must be as many as input_ids, got {given} for {len(input_ids)}"
            )
        return pages_of(indices, self.page_size, self.pool.num_blocks, len(found))

    def _promote(self, found: Pages, pages: Pages, tokens: Any, namespace: bytes) -> None:
        """Inserts pages after the cached chain; the caller keeps the references to them."""
        if not len(pages):
            self.pool.touch(found[-1:])
            return
        start, stop = (n * self.page_size for n in (len(found), len(found) + len(pages)))
        parent = int(found[-1]) if len(found) else -1
        whose = b"" if len(found) else namespace
        self.pool.promote(pages, tokens[start:stop], parent=parent, namespace=whose)

    def _lock(self, handle: RadixCacheHandle) -> None:
        self.pool.acquire([handle.node.page], found=False)
        self._locks[handle] = self._locks.get(handle, 0) + 1

    def _unlock(self, handle: RadixCacheHandle) -> None:
        self.pool.release([handle.node.page])
        self._locks[handle] -= 1
        if not self._locks[handle]:
            del self._locks[handle]

    def _match(self, input_ids: Ids, namespace: bytes) -> RadixCacheHandle:
        pages = self.pool.find(on_host(input_ids), namespace=namespace)
        return self._handle(pages, namespace, is_match=True)

    def _insert(self, input_ids: Ids, indices: Ids, namespace: bytes) -> InsertResult:
        tokens = on_host(input_ids)
        found = self.pool.find(tokens, namespace=namespace)
        num_whole = len(tokens) // self.page_size
        pages = self._pages_beyond(found, tokens, indices)[: num_whole - len(found)]
        self._promote(found, pages, tokens, namespace)
        self.pool.release(pages)
        handle = self._handle(np.concatenate([found, pages]), namespace)
        return InsertResult(len(found) * self.page_size, handle)

    def _handle(
        self, pages: Pages, namespace: bytes, *, is_match: bool = False
    ) -> RadixCacheHandle:
        if not len(pages):
            return RadixCacheHandle(0, RadixNode(-1, 0, self), namespace)
        page = int(pages[-1])
        node = RadixNode(page, self.pool.generation(page), self)
        return RadixCacheHandle(len(pages) * self.page_size, node, namespace, pages, is_match)

    @exclusive
    def _indices_of(self, handle: RadixCacheHandle) -> Any:
        self._check_handle(handle)
        return self._slots(handle._pages)

    def _slots(self, pages: Pages) -> Any:
        return to_device(slots_of(pages, self.page_size), self.device)


class RadixCacheManager(RadixTree):
    """Keeps finished prefixes, finds the longest one again, and evicts pages by a policy.

    Slot ``s`` is in page ``s // page_size``. A page belongs either to the tree or to the caller.
    Initially all pages belong to the caller: ``insert_prefix`` passes pages to the tree, and
    ``evict`` returns them. ``CacheManager`` also has pages without an owner.

    Args:
        device: Device of results, as torch tensors; None for NumPy arrays on the host.
        num_pages: Pages of the KV cache.
        page_size: Token slots a page.
        eviction: As in ``ManagerConfig``.

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
    Programs", NeurIPS 2024, section 3; the interface is that of mini-sglang's
    ``minisgl/kvcache/radix_manager.py`` at commit af2d0de.
    """

    @exclusive
    def match_prefix(self, input_ids: Ids, *, namespace: bytes = b"") -> MatchResult:
        """Finds the longest prefix in the tree, in whole pages; changes nothing, not even recency.

        Different namespaces, of up to 1024 bytes, share nothing.

        Returns:
            A handle, and ``int32[cached_len]`` slots. They may be evicted until it is locked.

        Cost: O(tokens), comparing them.
        """
        handle = self._match(input_ids, namespace)
        return MatchResult(handle, self._slots(handle._pages))

    @exclusive
    def insert_prefix(self, input_ids: Ids, indices: Ids, *, namespace: bytes = b"") -> int:
        """Hands the pages of a computed prefix to the tree.

        Whole pages only; an unfinished page at the end stays the caller's.

        Args:
            input_ids: ``[n]``, tokens.
            indices: ``[n]``, the slot of each. Those of tokens that the tree has are not read.
            namespace: Namespace of the prefix.

        Returns:
            How many leading tokens the tree had already. Slots given for them, if they are not the
            tree's own, stay the caller's to free.

        Raises:
            BlockStateError: A page to insert is in the tree already.
            ValueError: Not as many slots as tokens, slots that are not whole pages in order, or
                a value out of bounds.

        Cost: O(tokens), one digest for each page inserted.
        """
        return self._insert(input_ids, indices, namespace).cached_len


class RadixPrefixCache(RadixTree):
    """The later interface of the same tree: a match is a handle, and so is an insertion.

    Args and errors are those of ``RadixCacheManager``.

    >>> cache = RadixPrefixCache(None, num_pages=16)
    >>> cached_len, handle = cache.insert_prefix([1, 3, 6, 7], [0, 1, 2, 3])
    >>> cache.match_prefix([1, 3, 6, 8]).cuda_handle.get_matched_indices().tolist()
    [0, 1, 2]

    Source: mini-sglang, ``minisgl/kvcache/radix_cache.py`` at commit 02b130b.
    """

    @exclusive
    def match_prefix(self, input_ids: Ids, *, namespace: bytes = b"") -> PrefixMatch:
        """As ``RadixCacheManager.match_prefix``, without the slots: the handle has them."""
        return PrefixMatch(self._match(input_ids, namespace))

    @exclusive
    def insert_prefix(
        self, input_ids: Ids, indices: Ids, *, namespace: bytes = b""
    ) -> InsertResult:
        """As ``RadixCacheManager.insert_prefix``, with a handle for all the tokens."""
        return self._insert(input_ids, indices, namespace)
