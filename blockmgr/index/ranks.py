"""A worker of an index, and the cache of each of its data-parallel ranks.

``Groups`` says which part of a prefix a worker with several groups of layers can serve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.events import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

__all__ = ["Cache", "Groups", "Layers", "Worker", "layers_of", "longest_served"]

_MOST: Final = 2**31 - 1
"""Most tokens of a window, chunk or block."""

_MOST_GROUPS: Final = 64
"""Most groups of a worker. Models have a few; each takes time in every answer."""

_WINDOWS: Final = frozenset({"sliding_window", "sliding_window_mla"})
_CHUNKS: Final = frozenset({"chunked_local_attention"})
_STATES: Final = frozenset({"mamba"})


@dataclass(frozen=True, slots=True)
class Layers:
    """A group of layers, which determines the blocks of a prefix that the next query reads.

    Attributes:
        kind: vLLM's word for it.
        width: Tokens of a window or chunk; 0 for others.
        block_size: Tokens per block.
    """

    kind: str
    width: int
    block_size: int

    @property
    def is_whole_prefix(self) -> bool:
        """Whether the next query reads all blocks."""
        return self.kind in wire.WHOLE_PREFIX

    def serves(self, has: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether this group can continue a prefix, by the number of blocks of the prefix.

        Args:
            has: ``bool[blocks]``: which blocks of the prompt the group has.

        Returns:
            ``bool[blocks + 1]`` on the host.
        """
        served = np.ones(len(has) + 1, np.bool_)
        if self.kind in _STATES:
            served[1:] = has
            return served
        blocks = np.arange(len(has) + 1)
        ends = blocks * self.block_size
        first = np.zeros_like(ends)
        if self.kind in _WINDOWS:
            first = np.maximum(0, ends - self.width + 1)
        elif self.kind in _CHUNKS:
            first = ends - ends % self.width
        missing = np.concatenate(([0], np.add.accumulate(~has, dtype=np.int64)))
        # A query at a block boundary may read no earlier block.
        complete: npt.NDArray[np.bool_] = (
            missing[blocks] == missing[np.minimum(first // self.block_size, blocks)]
        )
        return complete


def layers_of(kind: str | None, width: int | None, block_size: int) -> Layers | None:
    """The group that events describe; None if they do not determine what its query reads.

    A width or size that no model has is not believed either.

    >>> layers_of("sliding_window", 128, 16)
    Layers(kind='sliding_window', width=128, block_size=16)
    >>> layers_of("cross_attention", None, 16) is None
    True
    """
    kind = wire.FULL_ATTENTION if kind is None else kind
    if not 0 <= block_size <= _MOST:
        return None
    if kind in wire.WHOLE_PREFIX or (kind in _STATES and block_size > 0):
        return Layers(kind, 0, block_size)
    if kind in _WINDOWS | _CHUNKS and block_size > 0 and width is not None and 0 < width <= _MOST:
        return Layers(kind, width, block_size)
    return None


class Groups:
    """The groups of layers of a worker, as far as its events describe them."""

    __slots__ = ("described", "first", "further", "known")

    def __init__(self) -> None:
        self.described: dict[int, tuple[str | None, int | None, int]] = {}
        """The last description of each known group in an event, as it stood there."""
        self.known: dict[int, Layers | None] = {}
        self.first: int | None = None
        """The group of full attention whose blocks are counted; the others limit the number."""
        self.further: dict[int, Layers] = {}
        """The other groups whose blocks have the same number of tokens."""

    def note(self, described: Iterable[tuple[int, Layers | None]]) -> None:
        """Records the kinds of groups, by number, unless they are known or there are too many."""
        changed = False
        for group, layers in described:
            if self.known.get(group) is not None or (layers is None and group in self.known):
                continue
            if group not in self.known and len(self.known) == _MOST_GROUPS:
                continue
            self.known[group] = layers
            if self.first is None and layers is not None and layers.is_whole_prefix:
                self.first = group
            changed = True
        if changed and self.first is not None:
            others = ((n, other) for n, other in self.known.items() if n != self.first)
            size = self.block_size
            self.further = {n: other for n, other in others if other and other.block_size == size}

    @property
    def block_size(self) -> int:
        """Tokens per block of full attention; 0 if no event named it."""
        first = None if self.first is None else self.known[self.first]
        return 0 if first is None else first.block_size

    def counts(self, group: int) -> bool:
        """Whether the blocks that a query reads of a group are known."""
        return self.known.get(group) is not None


def longest_served(
    num_blocks: int,
    groups: Mapping[int, Layers],
    has: Callable[[int], npt.NDArray[np.bool_]],
) -> int:
    """The most leading blocks that all groups can serve.

    Args:
        num_blocks: Leading blocks that full attention has.
        groups: The other groups, by number.
        has: Which of those blocks a group has, by its number.
    """
    served = np.ones(num_blocks + 1, np.bool_)
    for group, layers in groups.items():
        served &= layers.serves(has(group))
    return int(np.flatnonzero(served)[-1])


_MOST_MESSAGES: Final = 16


@dataclass(slots=True, eq=False)
class Cache:
    """What is known of the cache of one rank.

    Attributes:
        slot: Its number in the tables.
        rank: The rank; None until a batch names one.
        digest_bytes: Bytes of a digest; 0 for numbers, None if no block is known.
        groups: Its groups of layers.
        problem: Why its blocks are not believed; None if they are.
        is_emptying: Whether blocks that are left in the tables do not count any more.
        is_gone: Whether the slot was given back, and may be that of another cache.
    """

    slot: int
    rank: int | None = None
    digest_bytes: int | None = None
    groups: Groups = field(default_factory=Groups)
    problem: str | None = None
    is_emptying: bool = False
    is_gone: bool = False

    def forget(self) -> None:
        """Forgets what events said about it, except for its rank."""
        self.digest_bytes = None
        self.groups = Groups()
        self.problem = None


class Worker:
    """A worker and its ranks, of which each has a cache.

    A worker has one cache at first. The first batch that names a rank gives it that rank, and each
    other rank has a cache of its own.

    Args:
        name: Its name.
        cache: Its first cache.
    """

    __slots__ = ("_messages", "caches", "is_withdrawn", "name")

    def __init__(self, name: str, cache: Cache) -> None:
        self.name = name
        self.caches = [cache]
        self.is_withdrawn = False
        self._messages = _MOST_MESSAGES

    def named(self, rank: int | None) -> Cache | None:
        """The cache that a batch with this rank is about, or None if there is none yet."""
        if self.caches[0].rank == rank:
            return self.caches[0]
        found = self.of_rank(rank)
        if found is None and len(self.caches) == 1 and None in (rank, self.caches[0].rank):
            found = self.caches[0]
            found.rank = found.rank if rank is None else rank
        return found

    def of_rank(self, rank: int | None) -> Cache | None:
        """The cache of this rank, or None."""
        return next((cache for cache in self.caches if cache.rank == rank), None)

    def chosen(self, rank: int | None) -> list[Cache]:
        """The cache of a rank, or all of them for None.

        Raises:
            KeyError: The worker has no such rank.
        """
        if rank is None:
            return self.caches
        if (cache := self.of_rank(rank)) is None:
            ranks = [cache.rank for cache in self.caches if cache.rank is not None]
            raise KeyError(f"worker {self.name!r} has no rank {rank}, only {ranks}")
        return [cache]

    def add(self, cache: Cache) -> None:
        """Adds the cache of another rank; they are in the order of ranks."""
        self.caches.append(cache)
        self.caches.sort(key=lambda each: -1 if each.rank is None else each.rank)

    def may_log(self) -> bool:
        """Whether it may cause another message; one that starts over and over fills no log."""
        self._messages -= 1
        return self._messages >= 0

    def title(self, cache: Cache) -> str:
        """The name for messages."""
        return self.name if len(self.caches) == 1 else f"{self.name}, rank {cache.rank}"
