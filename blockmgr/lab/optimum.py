"""The most any order of eviction could find in a pool of a given size.

With knowledge of the future, the best victim is the block with the farthest next use. Among
prefixes that is always a leaf: whatever uses a block uses its parent, so a parent's next use is
never later than its child's, and at equal distance the deeper one goes first.

* One request at a time, in order of arrival. A request's own blocks cannot go while it runs.
* A hit needs its block in the pool at every admission from its last use on. What a request holds
  while others run with it only leaves less room for that. So no replay that admits in the same
  order finds more, however long its requests run and whatever it evicts.
* A prompt that ends exactly with a block looks that block up in vain, because its last token is
  computed again. The bound lets such a block go until then even if blocks after it stay, which no
  pool does: there, and only there, it may lie above what can be reached.

Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966; Mattson et al., IBM Systems Journal 9(2), 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from blockmgr.lab.references import NO_RUN, References, RequestReferences, Rule, references

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = ["Optimum", "check_full_blocks_only", "optima", "optimum", "optimum_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best that a pool of ``num_blocks`` could have done.

    Attributes:
        num_blocks: Blocks in the pool.
        query_blocks: Blocks looked up that may hit, of all requests.
        hit_blocks: Of those, blocks found.
        query_tokens: Prompt tokens of all requests.
        hit_tokens: Of those, tokens found.
    """

    num_blocks: int
    query_blocks: int
    hit_blocks: int
    query_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens, in ``0 … 1``."""
        return self.hit_tokens / self.query_tokens


def optimum(trace: Trace, num_blocks: int, config: ReplayConfig, rule: Rule = "manager") -> Optimum:
    """The most that any order of eviction finds in ``num_blocks`` blocks.

    A request larger than the pool is rejected, as a replay rejects it: all of it is missed.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: How a replay would run; service times make no difference.
        rule: Which blocks a prompt refers to, see ``references``.

    Raises:
        ValueError: ``num_blocks`` is below 1, ``config.min_partial_tokens`` is not 0, or the trace
            cannot be cut into blocks of ``config.block_size``.

    Cost: that of ``references``, and O(log runs) for each run of each request.
    """
    return optimum_of(references(trace, config, rule), num_blocks, config)


def optimum_of(stream: References, num_blocks: int, config: ReplayConfig) -> Optimum:
    """``optimum`` of a trace whose references are known, for several capacities.

    Raises:
        ValueError: As ``optimum`` does.
    """
    if num_blocks < 1:
        raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
    check_full_blocks_only(config)
    rows = min(config.max_seqs, sum(request.num_samples for request in stream.requests))
    admitted = [
        request
        for request in stream.requests
        if request.asked_blocks <= num_blocks and request.num_samples <= rows
    ]
    hit_blocks, hit_tokens = _Pool(stream, admitted, num_blocks).run()
    return Optimum(
        num_blocks=num_blocks,
        query_blocks=stream.query_blocks,
        hit_blocks=hit_blocks,
        query_tokens=stream.query_tokens,
        hit_tokens=hit_tokens,
    )


def optima(trace: Trace, sizes: Sequence[int], config: ReplayConfig) -> list[Optimum]:
    """``optimum`` at several pool sizes, whose references are found once.

    Raises:
        ValueError: As ``optimum`` does.
    """
    stream = references(trace, config)
    return [optimum_of(stream, num_blocks, config) for num_blocks in sizes]


def check_full_blocks_only(config: ReplayConfig) -> None:
    """Refuse a replay that reuses parts of blocks, which no bound on whole blocks holds for.

    Raises:
        ValueError: ``config.min_partial_tokens`` is not 0.
    """
    if config.min_partial_tokens:
        raise ValueError(
            f"min_partial_tokens must be 0 to count whole blocks, got {config.min_partial_tokens}"
        )


class _Pool:
    """A pool that knows the future. Of each run it keeps so many blocks, counted from the root."""

    def __init__(
        self, stream: References, admitted: list[RequestReferences], num_blocks: int
    ) -> None:
        self._block_size = stream.block_size
        self._runs = stream.runs
        self._requests = admitted
        self._num_blocks = num_blocks
        self._paths = [self._path(request) for request in admitted]
        self._never = len(admitted)
        self._next_uses = self._look_ahead()
        self._kept = [0] * len(self._runs)
        self._total = 0
        self._due = [NO_RUN] * len(self._runs)  # the next use, NO_RUN while it cannot go
        # (-next use, -blocks from the root, run): what goes first, on top. An entry counts as
        # long as it names the run's next use.
        self._order: list[tuple[int, int, int]] = []

    def run(self) -> tuple[int, int]:
        """Hits in blocks and in tokens."""
        blocks = tokens = 0
        for number, request in enumerate(self._requests):
            found, whole = self._find(request)
            blocks += found
            tokens += found * self._block_size
            if whole:
                tokens -= self._block_size - request.last_tokens
            self._make_room(number)
            self._keep(number)
        return blocks, tokens

    def _path(self, request: RequestReferences) -> list[int]:
        """Every run that is in the pool when the request has ended, once, parents first."""
        first, *others = request.ends
        path = self._runs.path(first)
        if others:
            union = set(path)
            for end in others:
                union.update(self._runs.path(end))
            path = sorted(union)
        return path

    def _look_ahead(self) -> list[list[int]]:
        """For each request and run of its path, the next request that may hit it."""
        upcoming = [self._never] * len(self._runs)
        next_uses: list[list[int]] = []
        for number in range(len(self._requests) - 1, -1, -1):
            path = self._paths[number]
            next_uses.append([upcoming[run] for run in path])
            limit = set(self._runs.path(self._requests[number].limit))
            for run in path:
                # What is not looked up is computed anyway, so until then it is worth nothing.
                upcoming[run] = number if run in limit else self._never
        next_uses.reverse()
        return next_uses

    def _find(self, request: RequestReferences) -> tuple[int, bool]:
        """Blocks found of a prompt, and whether they are all that may be."""
        kept, found = self._kept, 0
        for run in self._runs.path(request.limit):
            found += kept[run]
        return found, 0 < request.limit_blocks == found

    def _make_room(self, number: int) -> None:
        """Evict the block that is used last, until all blocks of a request have room."""
        path = self._paths[number]
        own = 0
        for run in path:
            own += self._kept[run]
            self._due[run] = NO_RUN
        self._total -= own
        surplus = self._total - (self._num_blocks - self._requests[number].held_blocks)
        order, kept, due = self._order, self._kept, self._due
        while surplus > 0:
            use, _, run = order[0]
            if due[run] != -use:
                heappop(order)
                continue
            gone = min(surplus, kept[run])
            kept[run] -= gone
            self._total -= gone
            surplus -= gone
            if not kept[run]:
                heappop(order)

    def _keep(self, number: int) -> None:
        kept, due, runs = self._kept, self._due, self._runs
        for run, use in zip(self._paths[number], self._next_uses[number], strict=True):
            kept[run] = runs.length[run]
            due[run] = use
            self._total += runs.length[run]
            heappush(self._order, (-use, -runs.end[run], run))
