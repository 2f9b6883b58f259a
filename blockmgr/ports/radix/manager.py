"""Slots for requests, from free pages and the radix cache, which get them back at the end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError, SequenceStateError
from blockmgr.ports.locking import exclusive
from blockmgr.ports.radix.base import MatchResult, RadixCacheHandle, Request
from blockmgr.ports.radix.pages import on_host, pages_of, slots_of
from blockmgr.ports.radix.tree import MAX_SLOTS, RadixCacheManager, RadixPrefixCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blockmgr.policy import PolicyFactory
    from blockmgr.ports.radix.base import PrefixMatch
    from blockmgr.ports.radix.pages import Ids, Pages
    from blockmgr.ports.radix.tree import RadixTree

__all__ = ["CacheManager", "PageKeeper", "PagedCacheManager", "PagedRequest"]

MAX_KEY = 1024  # bytes


class PageKeeper:
    """The free pages of a cache, and its tree. Calls of several threads wait for one another.

    Attributes:
        num_pages: Pages of the KV cache.
        page_size: Token slots per page.
    """

    def __init__(self, tree: RadixTree) -> None:
        tree._free_pages()
        self._pool = tree.pool
        self._tree = tree
        self._lazy: list[list[Pages]] = []  # pages freed in open regions of ``PagedCacheManager``
        self._mutex = tree._mutex
        self.num_pages = tree.pool.num_blocks
        self.page_size = tree.page_size

    @property
    def available_size(self) -> int:
        """Slots that can be handed out: free or evictable."""
        return self._pool.num_available * self.page_size

    @property
    def device(self) -> Any:
        """Device of results; None for NumPy arrays on the host."""
        return self._tree.device

    def lock(self, handle: RadixCacheHandle) -> None:
        """``lock_handle`` of the tree."""
        self._tree.lock_handle(handle)

    def unlock(self, handle: RadixCacheHandle) -> None:
        """``lock_handle`` of the tree with ``unlock``."""
        self._tree.lock_handle(handle, unlock=True)

    @exclusive
    def reset(self) -> None:
        """Empties the tree, which frees its pages. Allocated slots stay allocated.

        Raises:
            BlockStateError: A handle is locked.
        """
        self._tree.reset()

    @exclusive
    def check_integrity(self) -> None:
        """Recomputes and checks the state of pages, tree and locks.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
        """
        self._tree.check_integrity()

    def _prompt_of(self, req: Any) -> tuple[Ids, bytes]:
        """The tokens of a request to look up, all but the last, and its namespace."""
        if not hasattr(req, "input_ids"):
            raise TypeError(f"req must have input_ids, got {type(req).__name__}")
        try:
            count, tokens = len(req.input_ids), req.input_ids[:-1]
        except (TypeError, LookupError):
            kind = type(req.input_ids).__name__
            raise TypeError(f"input_ids must be a list or array of ints, got {kind}") from None
        if not count:
            raise ValueError("input_ids must hold at least 1 token, got 0")
        return tokens, _namespace_of(getattr(req, "extra_key", None))

    def _hand_over(
        self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids
    ) -> tuple[Pages, Pages, Pages]:
        """Checks everything, and puts the whole pages of a request into the tree.

        Returns:
            All its pages in the tree; its own pages to release, computed twice or passed to the
            tree; its unfinished page, if any.
        """
        tree, size = self._tree, self.page_size
        if getattr(old_handle, "_has_ended", False):
            raise SequenceStateError("the request of old_handle has ended, or has a later handle")
        tree._check_handle(old_handle)
        matched, page = old_handle.cached_len // size, old_handle.node.page
        if matched and old_handle not in tree._locks:
            raise BlockStateError(page, "not locked by this handle")
        tokens = on_host(input_ids)
        found = self._pool.find(tokens, namespace=old_handle.namespace)
        if matched and (matched > len(found) or int(found[matched - 1]) != page):
            raise ValueError(f"old_handle must be of a prefix of input_ids, got {old_handle!r}")
        own = tree._pages_beyond(found[:matched], tokens, indices)
        twice, whole_pages = len(found) - matched, len(tokens) // size - matched
        mine = own[twice:whole_pages]
        # The insertion checks the pages that go to the tree before any change.
        self._check_owned(np.concatenate([own[:twice], own[whole_pages:]]), apart_from=mine)
        tree._promote(found, mine, tokens, old_handle.namespace)
        return np.concatenate([found, mine]), own[:whole_pages], own[whole_pages:]

    def _check_owned(self, pages: Pages, *, apart_from: Pages) -> None:
        """Refuses pages that do not belong to the caller, or appear twice."""
        if not len(pages):
            return
        if len(np.unique(pages)) != len(pages) or np.isin(pages, apart_from).any():
            raise ValueError(f"indices must name a page once, got pages {pages.tolist()} again")
        not_owned = (self._pool.ref_count(pages) != 1) | self._pool.is_cached(pages)
        if not_owned.any():
            page = int(pages[np.argmax(not_owned)])
            state = "in the tree" if self._pool.is_cached(page) else "free already"
            raise BlockStateError(page, f"not the caller's: {state}")
        for freed in (pages_ for region in self._lazy for pages_ in region):
            if len(again := pages[np.isin(pages, freed)]):
                raise BlockStateError(int(again[0]), "not the caller's: freed in this region")

    def _continue(self, chain: Pages, old_handle: RadixCacheHandle) -> RadixCacheHandle:
        """A locked handle for the pages in the tree of a request that continues."""
        handle = self._tree._handle(chain, old_handle.namespace)
        if not handle.node.is_root():
            self._tree._lock(handle)
        return handle

    def _end(self, handle: RadixCacheHandle) -> None:
        # A request without a match holds no lock. The root, passed instead of a match, may stand
        # for any number of requests.
        if not handle.node.is_root():
            self._tree._unlock(handle)
        handle._has_ended = handle.node is not self._tree.root_node


class CacheManager(PageKeeper):
    """Hands out token slots, evicts cached ones if necessary, and caches finished requests.

    The calls for a request: ``match_req``, ``lock`` the match, ``allocate`` slots for the rest,
    compute, ``free_and_cache_finished_req``. Args and errors are those of ``RadixCacheManager``.

    Attributes:
        manager: The radix cache.

    >>> slots = CacheManager(None, num_pages=16)
    >>> indices = slots.allocate(4)
    >>> root = RadixCacheHandle(0, slots.manager.root_node)
    >>> slots.free_and_cache_finished_req(root, [1, 3, 6, 7], indices)
    >>> slots.match_req(Request(1, [1, 3, 6, 7], 0, 0, 8)).handle.cached_len
    3

    Source: mini-sglang, ``minisgl/scheduler/cache.py`` as it was in January 2026.
    """

    def __init__(
        self,
        device: object,
        num_pages: int,
        page_size: int = 1,
        *,
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        self.manager = RadixCacheManager(device, num_pages, page_size, eviction=eviction)
        super().__init__(self.manager)

    @exclusive
    def match_req(self, req: Request) -> MatchResult:
        """Finds the longest cached prefix of a prompt; changes nothing.

        The last token is left out, so that one is always left to compute. Requests with different
        ``extra_key`` share nothing; a request that ends with the handle is cached under its key.

        Raises:
            ValueError: No tokens, a token out of bounds, or an ``extra_key`` too long.
        """
        tokens, namespace = self._prompt_of(req)
        return self.manager.match_prefix(tokens, namespace=namespace)

    @exclusive
    def allocate(self, needed_len: int) -> Any:
        """Hands out slots of free pages first, then of cached pages in eviction order.

        Returns:
            ``int32[at least needed_len]``: the slots of whole pages; they belong to the caller.

        Raises:
            OutOfBlocksError: Fewer pages are available; nothing has been evicted.

        Cost: O(needed_len).
        """
        num_pages = -(-whole("needed_len", needed_len, 0, MAX_SLOTS) // self.page_size)
        pages = self._pool.take(num_pages)
        try:
            return self.manager._slots(pages)
        except Exception:  # out of device memory, say
            self._pool.release(pages)
            raise

    @exclusive
    def free(self, indices: Ids) -> None:
        """Frees allocated slots without caching them, as after an abort.

        A page does not record its owner: the call cannot detect a page that belongs to another
        request.

        Args:
            indices: ``[n]``, slots of whole pages in order; for the last page, its leading slots
                suffice.

        Raises:
            BlockStateError: A page is free already, given twice, or in the tree.
            ValueError: Other slots.
        """
        pages = pages_of(indices, self.page_size, self.num_pages)
        in_tree = self._pool.is_cached(pages)
        if in_tree.any():
            raise BlockStateError(int(pages[np.argmax(in_tree)]), "in the tree; evict releases it")
        self._pool.release(pages)

    @exclusive
    def free_and_cache_finished_req(
        self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids
    ) -> None:
        """Ends a request: its whole pages go to the tree, its other slots become free.

        ::

            [0, old_handle.cached_len)   the tree's: was matched, is unlocked
            [.., cached by others)       computed twice: freed
            [.., whole pages)            to the tree
            [.., end)                    an unfinished page: freed

        Args:
            old_handle: The locked handle from ``match_req``, or the root if nothing was found.
            input_ids: ``[n]``, its tokens with K/V.
            indices: ``[n]``, the slot of each.

        Raises:
            SequenceStateError: The handle's request has ended already.
            BlockStateError: The handle is not locked, or a page is free or in the tree.
            ValueError: The handle is of another prompt or cache, not as many slots as tokens,
                slots that are not whole pages in order, or a value out of bounds.

        Cost: O(tokens), one digest for each page that goes to the tree.
        """
        _, done, unfinished = self._hand_over(old_handle, input_ids, indices)
        self._pool.release(np.concatenate([done, unfinished]))
        self._end(old_handle)

    @exclusive
    def cache_unfinished_req(
        self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids
    ) -> MatchResult:
        """Shares the computed pages of a running request, as after a chunk of its prompt.

        Its whole pages go to the tree and stay locked; an unfinished page stays with the request.
        Args and errors are those of ``free_and_cache_finished_req``.

        Returns:
            A new handle, locked instead of the old one, to end the request with; and
            ``int32[cached_len]``, the slots to use for its leading tokens, which may belong to
            equal pages cached before.
        """
        chain, done, _ = self._hand_over(old_handle, input_ids, indices)
        handle = self._continue(chain, old_handle)
        self._pool.release(done)
        self._end(old_handle)
        return MatchResult(handle, self.manager._slots(chain))


class PagedRequest(Protocol):
    """The attributes of a request that the port reads and writes; ``extra_key`` is optional."""

    input_ids: Ids
    """``[n]``, its tokens, at least ``cached_len``."""
    table_idx: int
    """Its row of the page table."""
    cached_len: int
    """Leading tokens whose K/V is written."""
    device_len: int
    """Leading tokens with K/V after the next forward."""
    cache_handle: RadixCacheHandle
    """The locked prefix; ``cache_req`` replaces it."""


class PagedCacheManager(PageKeeper):
    """Writes token slots into a page table, and caches computed pages.

    The calls for a request: ``match_req``, ``lock`` the handle, copy its ``get_matched_indices()``
    to the request's row, then ``allocate_paged`` before each forward and ``cache_req`` after
    it.

    Args:
        num_pages: Pages of the KV cache.
        page_size: Token slots a page.
        page_table: ``int32[rows, columns]``, the slot of each token of each request: a NumPy array,
            or a torch tensor on any device. It belongs to the caller, and is written in place.
        type: ``"radix"``; there is no other kind here.
        eviction: As in ``ManagerConfig``.

    Raises:
        ValueError: A value out of its bounds, or a page table of another shape or type.
        TypeError: A value of the wrong type.

    Attributes:
        prefix_cache: The radix cache.
        page_table: ``int32[rows, columns]``, the caller's object.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> cache = PagedCacheManager(16, 1, np.zeros((2, 8), np.int32))
    >>> request = SimpleNamespace(
    ...     input_ids=[1, 3, 6, 7], table_idx=0, cached_len=0, device_len=4, input_len=4
    ... )
    >>> request.cache_handle = cache.match_req(request).cuda_handle
    >>> cache.allocate_paged([request])
    >>> request.cached_len = 4  # the forward has run
    >>> cache.cache_req(request, finished=True)
    >>> cache.match_req(request).cuda_handle.cached_len
    3

    Source: mini-sglang, ``minisgl/scheduler/cache.py`` at commit 0467802, without its second memory
    level.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        page_table: Any,
        type: str = "radix",
        *,
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        if type != "radix":
            raise ValueError(f"type must be 'radix', got {type!r}")
        if getattr(page_table, "ndim", None) != 2 or not str(page_table.dtype).endswith("int32"):
            raise ValueError("page_table must be an int32 array or tensor of two dimensions")
        device = page_table.device if hasattr(page_table, "detach") else None
        self.prefix_cache = RadixPrefixCache(device, num_pages, page_size, eviction=eviction)
        self.page_table = page_table
        super().__init__(self.prefix_cache)

    @exclusive
    def match_req(self, req: Any) -> PrefixMatch:
        """As ``CacheManager.match_req``, without the slots: the handle has them."""
        tokens, namespace = self._prompt_of(req)
        return self.prefix_cache.match_prefix(tokens, namespace=namespace)

    @exclusive
    def allocate_paged(self, reqs: Sequence[PagedRequest]) -> None:
        """Allocates the pages that the next forward writes, and enters them in the page table.

        Args:
            reqs: The requests of a batch. Each gets the pages after ``cached_len``, up to that of
                ``device_len``.

        Raises:
            OutOfBlocksError: Too few pages are available for all of them; none is allocated.
            ValueError: A row or a length is outside the page table, a row is repeated, or a
                ``device_len`` is below ``cached_len``.
        """
        size, (rows, columns) = self.page_size, self.page_table.shape
        where: dict[int, range] = {}
        for req in reqs:
            row = whole("table_idx", req.table_idx, 0, rows - 1)
            cached = whole("cached_len", req.cached_len, 0, columns)
            end = whole("device_len", req.device_len, cached, columns)
            first, last = -(-cached // size) * size, -(-end // size) * size
            if last > columns:
                raise ValueError(
                    f"device_len must leave whole pages in {columns} columns, got {end}"
                )
            if row in where:
                raise ValueError("reqs must have rows of their own")
            where[row] = range(first, last)
        pages = self._pool.take(sum(map(len, where.values())) // size)
        slots = slots_of(pages, size)
        try:
            for row, entries in where.items():
                self._write(row, np.array(entries, np.int64), slots[: len(entries)])
                slots = slots[len(entries) :]
        except Exception:  # a table that cannot be written, say
            self._pool.release(pages)
            raise

    @exclusive
    def cache_req(self, req: PagedRequest, *, finished: bool) -> None:
        """Puts the computed pages of a request into the tree, and ends it if it is finished.

        Its whole pages go to the tree. If the request continues, its new handle keeps them locked;
        where equal pages were cached before, its row of the page table gets their slots.

        Args:
            req: A request whose ``cache_handle`` is locked, or matched nothing.
            finished: Whether it ends, which frees its unfinished page.

        Raises:
            SequenceStateError: The handle's request has ended already, or has a later handle.
            BlockStateError: The handle is not locked, or a page is free or in the tree.
            ValueError: The handle is of another prompt or cache, or a value out of bounds.
        """
        if not isinstance(finished, bool):
            raise TypeError(f"finished must be a bool, got {finished!r}")
        rows, columns = self.page_table.shape
        row = whole("table_idx", req.table_idx, 0, rows - 1)
        count = whole("cached_len", req.cached_len, 0, min(columns, len(req.input_ids)))
        old = req.cache_handle
        indices = on_host(self.page_table[row, :count])
        chain, done, unfinished = self._hand_over(old, req.input_ids[:count], indices)
        if not finished:
            req.cache_handle = self._continue(chain, old)
            shared = slots_of(chain, self.page_size)
            changed = np.flatnonzero(shared != indices[: len(shared)])
            self._write(row, changed, shared[changed])
        going = np.concatenate([done, unfinished]) if finished else done
        # Pages handed to the tree are released directly: the tree owns them.
        mine = np.isin(going, chain)
        self._pool.release(going[mine])
        if self._lazy:
            self._lazy[-1].append(going[~mine])
        else:
            self._pool.release(going[~mine])
        self._end(old)

    @contextmanager
    def lazy_free_region(self) -> Iterator[None]:
        """A context in which pages that ``cache_req`` frees are not handed out.

        They become free at its end, also after an exception. Nested regions end independently.
        """
        mine: list[Pages] = []
        with self._mutex:
            self._lazy.append(mine)
        try:
            yield
        finally:
            with self._mutex:
                self._pool.release(np.concatenate([np.empty(0, np.int32), *mine]))
                self._lazy.remove(mine)

    def _write(self, row: int, columns: Any, slots: Any) -> None:
        if self.device is not None:
            import torch  # noqa: PLC0415  # torch is installed: the page table is a tensor

            columns, slots = (torch.as_tensor(x, device=self.device) for x in (columns, slots))
        self.page_table[row, columns] = slots


def _namespace_of(extra_key: object) -> bytes:
    """The namespace for a request's ``extra_key``."""
    if extra_key is None:
        return b""
    if isinstance(extra_key, str):
        # JSON can hold half of a surrogate pair, which UTF-8 has no bytes for.
        extra_key = extra_key.encode(errors="surrogatepass")
    if not isinstance(extra_key, bytes):
        raise TypeError(f"extra_key must be a str, bytes or None, got {type(extra_key).__name__}")
    if len(extra_key) > MAX_KEY:
        raise ValueError(f"extra_key must be at most {MAX_KEY} bytes long, got {len(extra_key)}")
    return extra_key
