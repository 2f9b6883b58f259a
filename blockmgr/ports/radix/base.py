"""The records of the radix cache: sizes, nodes, handles, matches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from blockmgr.ports.radix.pages import Ids, Pages

__all__ = [
    "InsertResult",
    "MatchResult",
    "PrefixMatch",
    "RadixCacheHandle",
    "RadixNode",
    "Request",
    "SizeInfo",
]


class SizeInfo(NamedTuple):
    """The number of token slots in the tree."""

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
    """The last page of a matched prefix, or the root.

    Attributes:
        page: The page; -1 for the root.
        generation: Generation of the page's content; with another one, the node is gone.
    """

    page: int
    generation: int
    _owner: Any = field(repr=False)

    def is_root(self) -> bool:
        """Whether nothing was matched."""
        return self.page < 0


@dataclass(slots=True, eq=False)
class RadixCacheHandle:
    """A matched prefix. Handles compare by identity, so that each has its own locks.

    Attributes:
        cached_len: Number of its tokens, a multiple of the page size.
        node: The end of the prefix.
        namespace: Namespace of the look-up.
    """

    cached_len: int
    node: RadixNode
    namespace: bytes = b""
    _pages: Pages = field(default_factory=lambda: np.empty(0, np.int32), repr=False)
    _is_match: bool = field(default=False, repr=False)
    _has_ended: bool = field(default=False, init=False, repr=False)

    def get_matched_indices(self) -> Any:
        """``int32[cached_len]``: the slots of the prefix, in token order.

        Raises:
            BlockStateError: The prefix has been evicted since it was matched.
        """
        return self.node._owner._indices_of(self)


class MatchResult(NamedTuple):
    """The result of ``RadixCacheManager.match_prefix``."""

    handle: RadixCacheHandle
    """Lock it before using the indices."""
    indices: Any
    """``int32[cached_len]``: the slots of the prefix, in token order."""


class PrefixMatch(NamedTuple):
    """The result of ``RadixPrefixCache.match_prefix``."""

    cuda_handle: RadixCacheHandle
    """Lock it before using its ``get_matched_indices()``."""
    host_handle: None = None
    """Always None: there is no second memory level."""


class InsertResult(NamedTuple):
    """The result of ``RadixPrefixCache.insert_prefix``."""

    cached_len: int
    """Leading tokens that the tree had already; the caller frees the slots given for them."""
    handle: RadixCacheHandle
    """The whole prefix in the tree, not locked."""


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
