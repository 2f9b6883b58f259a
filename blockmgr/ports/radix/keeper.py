"""The base of the managers that hand out pages of a radix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blockmgr.errors import BlockStateError, SequenceStateError
from blockmgr.ports.locking import exclusive
from blockmgr.ports.radix.arrays import on_host
from blockmgr.ports.radix.records import namespace_of

if TYPE_CHECKING:
    from blockmgr.pool import BlockPool
    from blockmgr.ports.radix.arrays import Ids, Pages
    from blockmgr.ports.radix.records import RadixCacheHandle
    from blockmgr.ports.radix.tree import RadixTree

__all__ = ["PageKeeper"]


class _HandOver(NamedTuple):
    """What became of the pages of a request whose whole pages are in the tree now."""

    chain: Pages
    """All its pages in the tree."""
    done: Pages
    """Its own pages to release: computed twice, or passed to the tree."""
    unfinished: Pages
    """Its unfinished page, if any."""


class PageKeeper:
    """The free pages of a cache, and its tree. Calls of several threads wait for one another."""

    __slots__ = ("_mutex", "_pool", "_tree", "num_pages", "page_size")

    num_pages: int
    """Pages of the KV cache."""

    page_size: int
    """Token slots per page."""

    def __init__(self, pool: BlockPool, tree: RadixTree) -> None:
        self._pool = pool
        self._tree = tree
        self._mutex = tree._mutex
        self.num_pages = pool.num_blocks
        self.page_size = pool.block_size

    @property
    def available_size(self) -> int:
        """Slots that ``allocate`` can hand out: free or evictable."""
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
        return tokens, namespace_of(getattr(req, "extra_key", None))

    def _hand_over(self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids) -> _HandOver:
        """Checks everything, and puts the whole pages of a request into the tree."""
        manager, size = self._tree, self.page_size
        if getattr(old_handle, "_has_ended", False):
            raise SequenceStateError("the request of old_handle has ended, or has a later handle")
        manager._check_handle(old_handle)
        matched, page = old_handle.cached_len // size, old_handle.node.page
        if matched and old_handle not in manager._locks:
            raise BlockStateError(page, "not locked by this handle")
        tokens = on_host(input_ids)
        found = self._pool.find(tokens, namespace=old_handle.namespace)
        if matched and (matched > len(found) or int(found[matched - 1]) != page):
            raise ValueError(f"old_handle must be of a prefix of input_ids, got {old_handle!r}")
        own = manager._pages_beyond(found[:matched], tokens, indices)
        twice, whole_pages = len(found) - matched, len(tokens) // size - matched
        mine = own[twice:whole_pages]
        # The insertion checks the pages that go to the tree before any change.
        self._check_owned(np.concatenate([own[:twice], own[whole_pages:]]), apart_from=mine)
        self._refuse_freed(own[:twice], own[whole_pages:])
        manager._promote(found, mine, tokens, old_handle.namespace)
        chain = np.concatenate([found, mine])
        return _HandOver(chain, own[:whole_pages], own[whole_pages:])

    def _refuse_freed(self, *pages: Pages) -> None:
        """Refuses pages that were freed and are not handed out yet; there are none here."""

    def _continue(self, pages: _HandOver, old_handle: RadixCacheHandle) -> RadixCacheHandle:
        """A locked handle for the pages in the tree of a request that continues."""
        handle = self._tree._handle(pages.chain, old_handle.namespace)
        if not handle.node.is_root():
            self._tree._lock(handle)
        return handle

    def _end(self, handle: RadixCacheHandle) -> None:
        # A request without a match holds no lock. The root, passed instead of a match, may stand
        # for any number of requests.
        if not handle.node.is_root():
            self._tree._unlock(handle)
        if handle.node is not self._tree.root_node:
            object.__setattr__(handle, "_has_ended", True)

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
