"""The radix tree with two interfaces: the earlier and the later one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.ports.locking import exclusive
from blockmgr.ports.radix.records import InsertResult, MatchResult, PrefixMatch
from blockmgr.ports.radix.tree import RadixTree

if TYPE_CHECKING:
    from blockmgr.ports.radix.arrays import Ids

__all__ = ["RadixCacheManager", "RadixPrefixCache"]


class RadixCacheManager(RadixTree):
    """Keeps finished prefixes, finds the longest one again, and evicts pages by a policy.

    Slot ``s`` is in page ``s // page_size``. A page belongs either to the tree or to the caller.
    Initially all pages belong to the caller: ``insert_prefix`` passes pages to the tree, and
    ``evict`` returns them. ``CacheManager`` also has pages without an owner.

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

    __slots__ = ()

    @exclusive
    def match_prefix(self, input_ids: Ids, *, namespace: bytes = b"") -> MatchResult:
        """Finds the longest prefix in the tree, in whole pages; changes nothing, not even recency.

        Args:
            input_ids: ``[n]``, tokens; none are a prefix too.
            namespace: Namespace, up to 1024 bytes; different ones share nothing.

        Returns:
            A handle, and ``int32[cached_len]`` slots. They may be evicted until it is locked.

        Raises:
            ValueError: A token out of bounds, or not one dimension.
            TypeError: Tokens that are not integers.

        Cost: O(tokens), comparing them.
        """
        handle = self._match(input_ids, namespace)
        return MatchResult(handle, self._slots(handle._pages.copy()))

    @exclusive
    def insert_prefix(self, input_ids: Ids, indices: Ids, *, namespace: bytes = b"") -> int:
        """Hands the pages of a computed prefix to the tree.

        Whole pages only; an unfinished page at the end stays the caller's.

        Args:
            input_ids: ``[n]``, tokens.
            indices: ``[n]``, the slot of each. Those of tokens that the tree has are not read.
            namespace: The namespace.

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
        return self._insert(input_ids, indices, namespace).cached_len


class RadixPrefixCache(RadixTree):
    """The same tree with the later interface: a match is a handle, an insertion answers one.

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

    >>> cache = RadixPrefixCache(None, num_pages=16)
    >>> cached_len, handle = cache.insert_prefix([1, 3, 6, 7], [0, 1, 2, 3])
    >>> cache.match_prefix([1, 3, 6, 8]).cuda_handle.get_matched_indices().tolist()
    [0, 1, 2]

    Source: mini-sglang, ``minisgl/kvcache/radix_cache.py`` at commit 02b130b.
    """

    __slots__ = ()

    @exclusive
    def match_prefix(self, input_ids: Ids, *, namespace: bytes = b"") -> PrefixMatch:
        """Finds the longest prefix in the tree, in whole pages; changes nothing, not even recency.

        Args:
            input_ids: ``[n]``, tokens; none are a prefix too.
            namespace: Namespace, up to 1024 bytes; different ones share nothing.

        Returns:
            A handle. What it stands for may be evicted until it is locked.

        Raises:
            ValueError: A token out of bounds, or not one dimension.
            TypeError: Tokens that are not integers.

        Cost: O(tokens), comparing them.
        """
        return PrefixMatch(self._match(input_ids, namespace))

    @exclusive
    def insert_prefix(
        self, input_ids: Ids, indices: Ids, *, namespace: bytes = b""
    ) -> InsertResult:
        """Hands the pages of a computed prefix to the tree.

        Whole pages only; an unfinished page at the end stays the caller's.

        Args:
            input_ids: ``[n]``, tokens.
            indices: ``[n]``, the slot of each. Those of tokens that the tree has are not read.
            namespace: The namespace.

        Returns:
            How many leading tokens the tree had already, and a handle for all of them. Slots given
            for those it had, if they are not the tree's own, stay the caller's to free.

        Raises:
            BlockStateError: A page to insert is in the tree already.
            ValueError: Not as many slots as tokens, slots that are not whole pages in order, or
                a value out of bounds.
            TypeError: Values that are not integers.

        Cost: O(tokens), one digest for each page inserted.
        """
        return self._insert(input_ids, indices, namespace)
