"""A worker of an index, and the cache of each of its data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from blockmgr.index.layers import Groups

__all__ = ["Cache", "Worker"]

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
