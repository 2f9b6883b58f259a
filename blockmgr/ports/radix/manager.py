"""Slots for requests, from free pages and the radix cache, which get them back at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError
from blockmgr.ports.locking import exclusive
from blockmgr.ports.radix.keeper import PageKeeper
from blockmgr.ports.radix.records import MatchResult, RadixCacheHandle
from blockmgr.ports.radix.tree import MAX_SLOTS, RadixCacheManager, new_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.policy import PolicyFactory
    from blockmgr.ports.radix.arrays import Ids

__all__ = ["CacheManager", "Request"]


@dataclass(eq=False)
class Request:
    """A request of the scheduler; the port reads only ``input_ids`` and ``extra_key``.

    Attributes:
        uid: Id of the request.
        input_ids: ``[input_len]``, the prompt.
        table_idx: Row of the page table.
        cached_len: Leading tokens whose K/V is written.
        output_len: Tokens to generate.
        cache_handle: The locked prefix.
        max_tokens: Its maximum length.
        extra_key: Extra key besides its tokens: a tenant, an adapter.
    """

    uid: int
    input_ids: Ids
    table_idx: int
    cached_len: int
    output_len: int
    cache_handle: RadixCacheHandle | None = None
    max_tokens: int = 1024
    extra_key: str | bytes | None = None

    @property
    def input_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.input_ids)


class CacheManager(PageKeeper):
    """Hands out token slots, evicts cached ones if necessary, and caches finished requests.

    The calls for a request: ``match_req``, ``lock`` the match, ``allocate`` slots for the rest,
    compute, ``free_and_cache_finished_req``.

    Args:
        device: Device of results, as torch tensors; None for NumPy arrays on the host.
        num_pages: Pages of the KV cache.
        page_size: Token slots a page.
        digest: As in ``ManagerConfig``.
        eviction: As in ``ManagerConfig``.

    Raises:
        MissingExtraError: A device, and torch is not installed.
        ValueError: A size out of its bounds.
        TypeError: A size of the wrong type.

    >>> slots = CacheManager(None, num_pages=16)
    >>> indices = slots.allocate(4)
    >>> root = RadixCacheHandle(0, slots.manager.root_node)
    >>> slots.free_and_cache_finished_req(root, [1, 3, 6, 7], indices)
    >>> slots.match_req(Request(1, [1, 3, 6, 7], 0, 0, 8)).handle.cached_len
    3

    Source: mini-sglang, ``minisgl/scheduler/cache.py`` as it was in January 2026.
    """

    __slots__ = ("manager",)

    manager: RadixCacheManager
    """The radix cache."""

    def __init__(
        self,
        device: object,
        num_pages: int,
        page_size: int = 1,
        *,
        digest: str | Callable[[bytes], bytes] = "xxh3_128",
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        pool = new_pool(num_pages, page_size, digest, eviction)
        self.manager = RadixCacheManager.on_pool(pool, device)
        super().__init__(pool, self.manager)

    @exclusive
    def match_req(self, req: Request) -> MatchResult:
        """Finds the longest cached prefix of a prompt; changes nothing.

        The last token is left out, so that one is always left to compute. Requests with different
        ``extra_key`` share nothing; a request that ends with the handle is cached under its key.

        Raises:
            ValueError: No tokens, a token out of bounds, or an ``extra_key`` too long.
            TypeError: Tokens that are not integers, or an ``extra_key`` that is not str or bytes.
        """
        tokens, namespace = self._prompt_of(req)
        return self.manager.match_prefix(tokens, namespace=namespace)

    @exclusive
    def allocate(self, needed_len: int) -> Any:
        """Hands out slots of free pages first, then of cached pages in eviction order.

        Args:
            needed_len: Number of slots, rounded up to whole pages; 0 for none.

        Returns:
            ``int32[at least needed_len]``: the slots, page by page; they belong to the caller.

        Raises:
            OutOfBlocksError: Fewer pages are available; nothing has been evicted.
            ValueError: ``needed_len`` below 0.
            TypeError: ``needed_len`` is not an int.

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
            TypeError: Slots that are not integers.
        """
        pages = self.manager._page_slots.pages(indices)
        in_tree = self._pool.is_cached(pages)
        if 1 in in_tree.tobytes():
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
            TypeError: Values of the wrong type.

        Cost: O(tokens), one digest for each page that goes to the tree.
        """
        pages = self._hand_over(old_handle, input_ids, indices)
        self._pool.release(np.concatenate([pages.done, pages.unfinished]))
        self._end(old_handle)

    @exclusive
    def cache_unfinished_req(
        self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids
    ) -> MatchResult:
        """Shares the computed pages of a running request, as after a chunk of its prompt.

        Its whole pages go to the tree and stay locked; an unfinished page stays with the request.

        Args:
            old_handle: The locked handle from ``match_req`` or the last call, or the root.
            input_ids: ``[n]``, its tokens with K/V.
            indices: ``[n]``, the slot of each.

        Returns:
            A new handle, locked instead of the old one, to end the request with; and
            ``int32[cached_len]``, the slots to use for its leading tokens, which may belong to
            equal pages cached before.

        Raises the errors of ``free_and_cache_finished_req``.
        """
        pages = self._hand_over(old_handle, input_ids, indices)
        handle = self._continue(pages, old_handle)
        self._pool.release(pages.done)
        self._end(old_handle)
        return MatchResult(handle, self.manager._slots(pages.chain))
