"""Moving sequences from one pool to another."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from blockmgr.changes import Loan, at_once
from blockmgr.errors import BlockStateError
from blockmgr.ports.aphrodite.blocks import FREED, Run
from blockmgr.ports.aphrodite.interfaces import NoFreeBlocksError
from blockmgr.ports.aphrodite.tokens import extra_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.changes import Change
    from blockmgr.pool import BlockPool
    from blockmgr.ports.aphrodite.pool_allocator import PoolAllocator

__all__ = ["Move", "cached_at"]

T = TypeVar("T")


class _Arrival(NamedTuple):
    """A sequence at the destination."""

    runs: list[Run]
    olds: list[int]
    """Its run at the source."""
    held: list[int]
    """Its blocks that are not released."""
    num_cached: int
    """Number of leading blocks that are cached."""
    found: list[int]
    """The blocks cached at the destination already."""
    shared: list[int]
    """Number of blocks after these that an earlier sequence brings there."""

    @property
    def num_fresh(self) -> int:
        """Blocks taken for the other tokens."""
        return len(self.held) - len(self.found) - len(self.shared)


class Move:
    """A plan to move sequences from one pool to the other, all or none.

    The plan itself changes nothing, and knows the blocks it needs; ``carry_out`` moves the
    sequences.

    Args:
        source: Their current allocator.
        destination: Allocator to move them to.
        sequences: The runs of each sequence.

    Raises:
        BlockStateError: A block waits for a copy.

    """

    num_taken: int
    """Number of available blocks that it takes at the destination."""

    num_held: int
    """Number of different blocks that the sequences hold there afterwards."""

    def __init__(
        self, source: PoolAllocator, destination: PoolAllocator, sequences: list[list[Run]]
    ) -> None:
        self._source = source
        self._destination = destination
        self._loan = Loan(destination.pool)
        self._changes: list[Change] = []
        self._copies: list[tuple[int, int]] = []
        self._moved: dict[int, int] = {}  # cached block to its block at the destination
        brought: set[int] = set()
        self._arrivals = [self._arrival(runs, brought) for runs in sequences]
        found = sorted({block for arrival in self._arrivals for block in arrival.found})
        num_fresh = sum(arrival.num_fresh for arrival in self._arrivals)
        self.num_taken = num_fresh + int(destination.pool.is_idle(found).sum())
        self.num_held = num_fresh + len(found)

    def _arrival(self, runs: list[Run], brought: set[int]) -> _Arrival:
        olds = [block for run in runs for block in run.blocks]
        held = [block for block in olds if block != FREED]
        _refuse_waiting(self._source.pool, held)
        num_cached = _num_cached(runs)
        found = cached_at(self._destination, runs)
        # Blocks shared with an earlier sequence are cached and copied there by then.
        shared = list(takewhile(brought.__contains__, olds[len(found) : num_cached]))
        brought.update(olds[:num_cached])
        return _Arrival(runs, olds, held, num_cached, found, shared)

    def carry_out(self, form: Callable[[list[tuple[int, int]]], T]) -> T:
        """Moves the sequences; ``form`` converts the copies to the result.

        Raises:
            NoFreeBlocksError: The destination has too few blocks available.
        """
        available = self._destination.pool.num_available
        if self.num_taken > available:
            raise NoFreeBlocksError(self.num_taken, available)
        try:
            # First, so that no found block is evicted to make room.
            for arrival in self._arrivals:
                self._loan.acquire(arrival.found)
            for arrival in self._arrivals:
                self._plan(arrival)
            return at_once([*self._changes, self._loan.keep], form(self._copies))
        except BaseException:
            self._loan.give_back()
            raise

    def _plan(self, arrival: _Arrival) -> None:
        source, destination = self._source, self._destination
        olds, held, num_cached = arrival.olds, arrival.held, arrival.num_cached
        ready = set(filter(destination.prefix_cache.is_computed, arrival.found))
        again = [self._moved[old] for old in arrival.shared]
        ready.update(again)
        self._loan.acquire(again, found=False)
        found = arrival.found + again
        fresh: list[int] = self._loan.take(arrival.num_fresh).tolist()
        arrived = iter(found + fresh)
        news = [FREED if old == FREED else next(arrived) for old in olds]
        if num_cached > len(found):
            self._cache(arrival.runs, found, fresh[: num_cached - len(found)])
        cached = list(zip(olds[:num_cached], news, strict=False))
        self._moved.update(cached)
        computed = [new for old, new in cached if source.is_computed(old)]
        self._copies += [
            (old, new)
            for old, new in zip(olds, news, strict=True)
            if old != FREED and new not in ready
        ]
        uncomputed = set(news[:num_cached]) - set(computed) - ready
        self._changes += [
            destination.prefix_cache.compute(computed),
            destination.prefix_cache.leave_unwritten(sorted(uncomputed)),
            (source.pool.compiled.release, held[::-1]),
        ]
        self._change(arrival.runs, news, num_cached)

    def _cache(self, runs: list[Run], found: list[int], fresh: list[int]) -> None:
        size, start = self._destination.block_size, len(found)
        tokens = _tokens(runs, start, start + len(fresh))
        keys = _extras(runs, start, start + len(fresh))
        parent = found[-1] if found else -1
        calls = self._destination.pool.compiled
        assert len(tokens) == len(fresh) * size
        self._changes += [
            (calls.promote_chain, fresh, tokens, parent, b"", tuple(keys.items()) or None),
            self._destination.prefix_cache.add(fresh),
        ]

    def _change(self, runs: list[Run], news: list[int], num_cached: int) -> None:
        at = 0
        for run in runs:
            count = len(run.blocks)
            promoted = bytes(at + i < num_cached for i in range(count))
            self._changes += [
                *self._source.prefix_cache.leave(run),
                (setattr, run, "allocator", self._destination),
                (run.promoted.__setitem__, slice(None), promoted),
                (run.blocks.__setitem__, slice(None), news[at : at + count]),
            ]
            at += count


def _refuse_waiting(pool: BlockPool, blocks: list[int]) -> None:
    for block in blocks:
        if pool.waits_for_copy(block):
            raise BlockStateError(block, "it waits for a copy; clear_copy_on_writes first")


def cached_at(destination: PoolAllocator, runs: list[Run]) -> list[int]:
    """The part of a sequence's cached prefix that the destination has cached, too."""
    count = _num_cached(runs)
    found: list[int] = destination.pool.find(
        _tokens(runs, 0, count), extras=_extras(runs, 0, count) or None
    ).tolist()
    return found


def _num_cached(runs: list[Run]) -> int:
    places = [place for run in runs for place in zip(run.promoted, run.blocks, strict=True)]
    return sum(takewhile(bool, (promoted and block != FREED for promoted, block in places)))


def _tokens(runs: list[Run], start: int, stop: int) -> list[int]:
    chunks = [chunk for run in runs for chunk in run.tokens]
    return [token for chunk in chunks[start:stop] for token in chunk]


def _extras(runs: list[Run], start: int, stop: int) -> dict[int, bytes]:
    keys = [extra_bytes(run.extras.get(i)) for run in runs for i in range(len(run.blocks))]
    return {i: key for i, key in enumerate(keys[start:stop]) if key}
