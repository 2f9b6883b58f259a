"""Slots for requests: from the free pages and the radix cache, and back to it when they finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError, SequenceStateError
from blockmgr.ports.commits import Loan, at_once
from blockmgr.ports.radix.arrays import on_host
from blockmgr.ports.radix.tree import MatchResult, RadixCacheHandle, RadixCacheManager, new_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.ports.commits import Step
    from blockmgr.ports.radix.arrays import Ids, Pages

__all__ = ["CacheManager", "Request"]


@dataclass(eq=False)
class Request:
    """A request as the scheduler sees it; only ``input_ids`` is read here.

    Attributes:
        uid: Its name.
        input_ids: ``[input_len]``, the prompt.
        table_idx: Row of the page table.
        cached_len: Leading tokens whose K/V is written.
        output_len: Tokens to generate.
        cache_handle: The prefix it has locked.
        max_tokens: Longest it may become.
    """

    uid: int
    input_ids: Ids
    table_idx: int
    cached_len: int
    output_len: int
    cache_handle: RadixCacheHandle | None = None
    max_tokens: int = 1024

    @property
    def input_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.input_ids)


class _HandOver(NamedTuple):
    """How the pages of a request get into the tree."""

    promote: Step
    """Puts them there."""
    chain: Pages
    """What stands for them there then."""
    done: Pages
    """Of its own, those to release: computed twice, or handed over."""
    unfinished: Pages
    """Its unfinished page, if any."""


class CacheManager:
    """Hands out token slots, evicting cached ones when none are free, and caches what finishes.

    The life of a request: ``match_req``, ``lock`` what was found, ``allocate`` slots for the rest,
    compute, ``free_and_cache_finished_req``.

    Args:
        device: Where results go, as torch tensors; None for NumPy arrays on the host.
        num_pages: Pages of the KV cache.
        page_size: Token slots a page.
        digest: As in ``ManagerConfig``.

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

    Source: mini-sglang, ``minisgl/scheduler/cache.py``.
    """

    __slots__ = ("_pool", "manager", "num_pages", "page_size")

    manager: RadixCacheManager
    """The radix cache."""

    num_pages: int
    """Pages of the KV cache."""

    page_size: int
    """Token slots a page."""

    def __init__(
        self,
        device: object,
        num_pages: int,
        page_size: int = 1,
        *,
        digest: str | Callable[[bytes], bytes] = "xxh3_128",
    ) -> None:
        self._pool = new_pool(num_pages, page_size, digest)
        self.manager = RadixCacheManager.on_pool(self._pool, device)
        self.num_pages = self._pool.num_blocks
        self.page_size = self._pool.block_size

    @property
    def device(self) -> Any:
        """Where results go; None for NumPy arrays on the host."""
        return self.manager.device

    @property
    def available_size(self) -> int:
        """Slots that ``allocate`` could hand out: free, or evictable."""
        return self._pool.num_available * self.page_size

    def match_req(self, req: Request) -> MatchResult:
        """Finds the longest cached prefix of a prompt, changing nothing.

        The last token is left out, so that one is always left to compute.

        Raises:
            ValueError: No tokens, or a token out of bounds.
            TypeError: Tokens that are not integers.
        """
        if not hasattr(req, "input_ids"):
            raise TypeError(f"req must have input_ids, got {type(req).__name__}")
        if not len(req.input_ids):
            raise ValueError("input_ids must hold at least 1 token, got 0")
        return self.manager.match_prefix(req.input_ids[:-1])

    def lock(self, handle: RadixCacheHandle) -> None:
        """``RadixCacheManager.lock_handle``."""
        self.manager.lock_handle(handle)

    def unlock(self, handle: RadixCacheHandle) -> None:
        """``RadixCacheManager.lock_handle`` with ``unlock``."""
        self.manager.lock_handle(handle, unlock=True)

    def allocate(self, needed_len: int) -> Any:
        """Hands out slots: free pages first, then the least recently used of the cache.

        Args:
            needed_len: Slots wanted, rounded up to whole pages; 0 for none.

        Returns:
            ``int32[at least needed_len]``: the slots, page by page, the caller's from here on.

        Raises:
            OutOfBlocksError: Fewer pages are available; nothing has been evicted.
            ValueError: ``needed_len`` below 0.
            TypeError: ``needed_len`` is not an int.

        Cost: O(needed_len).
        """
        num_pages = -(-whole("needed_len", needed_len, 0) // self.page_size)
        loan = Loan(self._pool)
        try:
            slots = self.manager._slots(loan.take(num_pages))
            return loan.kept(slots)
        except BaseException:  # no memory on the device, say
            loan.give_back()
            raise

    def free(self, indices: Ids) -> None:
        """Gives slots back that were allocated and are not to be cached: an aborted request's.

        A page says whether it is taken, not by whom: one that another request has been given since
        cannot be told from the caller's.

        Args:
            indices: ``[n]``, slots of whole pages in order; of the last page, its leading ones
                will do.

        Raises:
            BlockStateError: A page is free already, given twice, or in the tree.
            ValueError: Other slots.
            TypeError: Slots that are not integers.
        """
        pages = self.manager._page_slots.pages(indices)
        core = self._pool._core
        in_tree = core.are_cached(pages)
        if 1 in in_tree.tobytes():
            raise BlockStateError(int(pages[np.argmax(in_tree)]), "in the tree; evict gives it up")
        core.release(pages)

    def free_and_cache_finished_req(
        self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids
    ) -> None:
        """Ends a request: its whole pages go to the tree, all else becomes free.

        ::

            [0, old_handle.cached_len)   the tree's: was matched, is unlocked
            [.., cached by others)       computed twice: freed
            [.., whole pages)            to the tree
            [.., end)                    an unfinished page: freed

        Args:
            old_handle: What ``match_req`` gave for it, locked; or the root, if nothing was found.
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
        plan = self._hand_over(old_handle, input_ids, indices)
        pages = np.concatenate([plan.done, plan.unfinished])
        release = (self._pool._core.release, pages)
        at_once((plan.promote, release, *self._end(old_handle)), None)

    def cache_unfinished_req(
        self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids
    ) -> MatchResult:
        """Shares what a running request has computed so far: after a chunk of its prompt, say.

        Its whole pages go to the tree and stay locked; an unfinished one stays its own.

        Args:
            old_handle: What ``match_req`` or the last call gave for it, locked; or the root.
            input_ids: ``[n]``, its tokens with K/V.
            indices: ``[n]``, the slot of each.

        Returns:
            The handle to end the request with, locked in place of the old one, and
            ``int32[cached_len]``, the slots of its leading tokens from here on: where others have
            computed the same before, theirs.

        Raises:
            SequenceStateError: As ``free_and_cache_finished_req``.
            BlockStateError: As ``free_and_cache_finished_req``.
            ValueError: As ``free_and_cache_finished_req``.
            TypeError: As ``free_and_cache_finished_req``.
        """
        plan = self._hand_over(old_handle, input_ids, indices)
        handle = self.manager._handle(plan.chain)
        lock = [] if handle.node.is_root() else self.manager._lock(handle)
        release = (self._pool._core.release, plan.done)
        return at_once(
            (plan.promote, *lock, release, *self._end(old_handle)),
            MatchResult(handle, self.manager._slots(plan.chain)),
        )

    def reset(self) -> None:
        """Empties the tree; its pages are free then. Allocated slots stay allocated.

        Raises:
            BlockStateError: A handle is locked.
        """
        self.manager.reset()

    def check_integrity(self) -> None:
        """Recomputes the books of pages, tree and locks.

        Raises:
            InvariantError: Something does not hold, which is a bug here.
        """
        self.manager.check_integrity()

    def _hand_over(self, old_handle: RadixCacheHandle, input_ids: Ids, indices: Ids) -> _HandOver:
        """Checks everything, and plans to put the whole pages of a request into the tree."""
        manager, size = self.manager, self.page_size
        if getattr(old_handle, "_has_ended", False):
            raise SequenceStateError("the request of old_handle has ended, or has a later handle")
        manager._check_handle(old_handle)
        matched, page = old_handle.cached_len // size, old_handle.node.page
        if matched and old_handle not in manager._locks:
            raise BlockStateError(page, "not locked by this handle")
        tokens = on_host(input_ids)
        found = self._pool.find(tokens)
        if matched and (matched > len(found) or int(found[matched - 1]) != page):
            raise ValueError(f"old_handle must be of a prefix of input_ids, got {old_handle!r}")
        own = manager._pages_beyond(found[:matched], tokens, indices)
        twice, whole_pages = len(found) - matched, len(tokens) // size - matched
        mine = own[twice:whole_pages]
        # What goes to the tree is checked on its way there, before anything else is done.
        self._check_owned(np.concatenate([own[:twice], own[whole_pages:]]), apart_from=mine)
        return _HandOver(
            manager._promotion(found, mine, tokens),
            np.concatenate([found, mine]),
            own[:whole_pages],
            own[whole_pages:],
        )

    def _end(self, handle: RadixCacheHandle) -> list[Step]:
        # What nothing was matched for holds no lock that could be missed the next time. The root
        # itself, given in place of a match, may stand for any number of requests.
        steps: list[Step] = []
        if not handle.node.is_root():
            steps += self.manager._unlock(handle)
        if handle.node is not self.manager.root_node:
            steps.append((object.__setattr__, handle, "_has_ended", True))
        return steps

    def _check_owned(self, pages: Pages, *, apart_from: Pages) -> None:
        """Refuses pages that are not the caller's to give away, or are given twice."""
        if not len(pages):
            return
        if len(np.unique(pages)) != len(pages) or np.isin(pages, apart_from).any():
            raise ValueError(f"indices must name a page once, got pages {pages.tolist()} again")
        not_owned = (self._pool.ref_counts(pages) != 1) | self._pool.are_cached(pages)
        if not_owned.any():
            page = int(pages[np.argmax(not_owned)])
            state = "in the tree" if self._pool.is_cached(page) else "free already"
            raise BlockStateError(page, f"not the caller's: {state}")
