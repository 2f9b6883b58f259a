"""Moving sequences from one pool to another."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from blockmgr.ports.aphrodite.blocks import FREED, Run
from blockmgr.ports.aphrodite.tokens import extra_bytes
from blockmgr.ports.commits import Loan, at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.ports.aphrodite.pool_allocator import PoolAllocator
    from blockmgr.ports.commits import Step

__all__ = ["Move", "cached_at"]

T = TypeVar("T")


class Move:
    """Sequences on their way from one pool to the other, all of them or none.

    Args:
        source: Where they are.
        destination: Where they go.
    """

    def __init__(self, source: PoolAllocator, destination: PoolAllocator) -> None:
        self._source = source
        self._destination = destination
        self._loan = Loan(destination.pool)
        self._steps: list[Step] = []
        self._copies: list[tuple[int, int]] = []
        self._moved: dict[int, int] = {}  # cached blocks that go, and what stands for them then

    def carry_out(
        self, sequences: list[list[Run]], form: Callable[[list[tuple[int, int]]], T]
    ) -> T:
        """Moves sequences, given the runs of each; ``form`` makes the result of the copies."""
        try:
            for runs in sequences:
                self._plan(runs)
            return at_once([*self._steps, self._loan.keep], form(self._copies))
        except BaseException:
            self._loan.give_back()
            raise

    def _plan(self, runs: list[Run]) -> None:
        source, destination = self._source, self._destination
        olds = [block for run in runs for block in run.blocks]
        held = [block for block in olds if block != FREED]
        source.refuse_waiting(held)
        num_cached = _num_cached(runs)
        found = cached_at(destination, runs)
        ready = set(filter(destination.prefix_cache.is_computed, found))
        # What an earlier one shares with this is cached there by then, and copied.
        shared = takewhile(self._moved.__contains__, olds[len(found) : num_cached])
        again = [self._moved[old] for old in shared]
        ready.update(again)
        found += again
        fresh = destination.take_beside(self._loan, found, len(held) - len(found))
        arrived = iter(found + fresh)
        news = [FREED if old == FREED else next(arrived) for old in olds]
        if num_cached > len(found):
            self._cache(runs, found, fresh[: num_cached - len(found)])
        cached = list(zip(olds[:num_cached], news, strict=False))
        self._moved.update(cached)
        computed = [new for old, new in cached if source.is_computed(old)]
        self._copies += [
            (old, new)
            for old, new in zip(olds, news, strict=True)
            if old != FREED and new not in ready
        ]
        self._steps += [
            destination.prefix_cache.compute(computed),
            (source.pool._core.release, held[::-1]),
        ]
        self._change(runs, news, num_cached)

    def _cache(self, runs: list[Run], found: list[int], fresh: list[int]) -> None:
        size, start = self._destination.block_size, len(found)
        tokens = _tokens(runs, start, start + len(fresh))
        keys = _extras(runs, start, start + len(fresh))
        parent = found[-1] if found else -1
        core = self._destination.pool._core
        assert len(tokens) == len(fresh) * size
        self._steps += [
            (core.promote_chain, fresh, tokens, parent, b"", list(keys.items()) or None),
            self._destination.prefix_cache.add(fresh),
        ]

    def _change(self, runs: list[Run], news: list[int], num_cached: int) -> None:
        at = 0
        for run in runs:
            count = len(run.blocks)
            promoted = bytes(at + i < num_cached for i in range(count))
            self._steps += [
                *self._source.prefix_cache.leave(run),
                (setattr, run, "allocator", self._destination),
                (run.promoted.__setitem__, slice(None), promoted),
                (run.blocks.__setitem__, slice(None), news[at : at + count]),
            ]
            at += count


def cached_at(destination: PoolAllocator, runs: list[Run]) -> list[int]:
    """What of the cached beginning of a sequence is cached at the destination, too."""
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
