"""Slots for requests in a page table: the later interface of mini-sglang's cache manager."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError
from blockmgr.ports.locking import exclusive
from blockmgr.ports.radix.arrays import on_host
from blockmgr.ports.radix.keeper import PageKeeper
from blockmgr.ports.radix.tree import RadixPrefixCache, new_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blockmgr.policy import PolicyFactory
    from blockmgr.ports.radix.arrays import Ids, Pages
    from blockmgr.ports.radix.records import PrefixMatch, RadixCacheHandle

__all__ = ["PagedCacheManager", "PagedRequest"]


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
        digest: As in ``ManagerConfig``.
        eviction: As in ``ManagerConfig``.

    Raises:
        ValueError: A value out of its bounds, or a page table of another shape or type.
        TypeError: A value of the wrong type.

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

    __slots__ = ("_lazy", "page_table", "prefix_cache")

    prefix_cache: RadixPrefixCache
    """The radix cache."""

    page_table: Any
    """``int32[rows, columns]``, the caller's object."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        page_table: Any,
        type: str = "radix",
        *,
        digest: str | Callable[[bytes], bytes] = "xxh3_128",
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        if type != "radix":
            raise ValueError(f"type must be 'radix', got {type!r}")
        if getattr(page_table, "ndim", None) != 2 or not str(page_table.dtype).endswith("int32"):
            raise ValueError("page_table must be an int32 array or tensor of two dimensions")
        pool = new_pool(num_pages, page_size, digest, eviction)
        device = page_table.device if hasattr(page_table, "detach") else None
        self.prefix_cache = RadixPrefixCache.on_pool(pool, device)
        self.page_table = page_table
        self._lazy: list[list[Pages]] = []
        super().__init__(pool, self.prefix_cache)

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
            TypeError: A length or a row that is not an int.
        """
        size, (rows, columns) = self.page_size, self.page_table.shape
        at: list[tuple[int, int, int]] = []
        for req in reqs:
            row = whole("table_idx", req.table_idx, 0, rows - 1)
            cached = whole("cached_len", req.cached_len, 0, columns)
            end = whole("device_len", req.device_len, cached, columns)
            first, last = -(-cached // size) * size, -(-end // size) * size
            if last > columns:
                raise ValueError(
                    f"device_len must leave whole pages in {columns} columns, got {end}"
                )
            at.append((row, first, last))
        if len({row for row, _, _ in at}) < len(at):
            raise ValueError("reqs must have rows of their own")
        num_slots = sum(last - first for _, first, last in at)
        if not num_slots:
            return
        where = np.repeat([row for row, _, _ in at], [last - first for _, first, last in at])
        columns_ = np.concatenate([np.arange(first, last) for _, first, last in at])
        pages = self._pool.take(num_slots // size)
        try:
            self._write(where, columns_, self._tree._page_slots.slots(pages))
        except Exception:  # out of device memory, say
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
            TypeError: A value of the wrong type.
        """
        if not isinstance(finished, bool):
            raise TypeError(f"finished must be a bool, got {finished!r}")
        rows, columns = self.page_table.shape
        row = whole("table_idx", req.table_idx, 0, rows - 1)
        count = whole("cached_len", req.cached_len, 0, min(columns, len(req.input_ids)))
        old = req.cache_handle
        indices = on_host(self.page_table[row, :count])
        pages = self._hand_over(old, req.input_ids[:count], indices)
        if not finished:
            req.cache_handle = self._continue(pages, old)
            shared = self._tree._page_slots.slots(pages.chain)
            where = np.flatnonzero(shared != indices[: len(shared)])
            self._write(np.full(len(where), row), where, shared[where])
        going = np.concatenate([pages.done, pages.unfinished]) if finished else pages.done
        # Pages handed to the tree are released directly: the tree owns them.
        mine = np.isin(going, pages.chain)
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

    def _refuse_freed(self, *pages: Pages) -> None:
        """Refuses pages that were freed in an open region and are held until its end."""
        mine = np.concatenate(pages)
        for kept in (pages_ for region in self._lazy for pages_ in region):
            again = mine[np.isin(mine, kept)]
            if len(again):
                raise BlockStateError(int(again[0]), "not the caller's: freed in this region")

    def _write(self, rows: Any, columns: Any, slots: Any) -> None:
        if not len(rows):
            return
        if self.device is not None:
            import torch  # noqa: PLC0415  # torch is installed: the page table is a tensor

            at = [torch.as_tensor(each, device=self.device) for each in (rows, columns, slots)]
            rows, columns, slots = at
        self.page_table[rows, columns] = slots
