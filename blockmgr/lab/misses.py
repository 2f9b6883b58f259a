"""The missed tokens of a replay by reason.

A manager with groups of layers remembers no evicted blocks, so its explanations cannot distinguish
evicted blocks from blocks that were never cached. A replay can: it sees the digest of each computed
block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.explain import Explanation, Miss, MissReason
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.grouped import refusing
from blockmgr.lab.replay import EventLoop, Limits, held_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from blockmgr.lab.replay import Progress, ReplayConfig, Waiting
    from blockmgr.lab.trace import Request, Tokens, Trace

__all__ = ["MissTable", "Seen", "explain_request", "misses"]

# Reasons that do not distinguish evictions, or come after it in the order of reasons.
UNSURE: Final = frozenset(
    {
        MissReason.NOT_REMEMBERED,
        MissReason.DIVERGED,
        MissReason.OTHER_EXTRAS,
        MissReason.OTHER_NAMESPACE,
    }
)


class Seen:
    """The digests of all computed blocks.

    Args:
        block_size: Tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._digests: set[bytes] = set()

    def add(self, digests: Iterable[bytes]) -> None:
        """Record the whole blocks of a sequence."""
        self._digests.update(digests)

    def told(self, explanation: Explanation, digests: Sequence[bytes]) -> Explanation:
        """``explanation`` with ``EVICTED`` and ``NEVER_SEEN`` where they apply.

        Args:
            explanation: Explanation of a prompt.
            digests: Digests of its whole blocks.
        """
        misses = [part for miss in explanation.misses for part in self._parts(miss, digests)]
        return replace(explanation, misses=tuple(misses))

    def _parts(self, miss: Miss, digests: Sequence[bytes]) -> Iterator[Miss]:
        if miss.reason not in UNSURE:
            yield miss
            return
        # A digest covers the whole prefix, so the blocks that were cached are the first ones of the
        # run.
        size = self._block_size
        end = miss.start // size
        while end * size < miss.stop and end < len(digests) and digests[end] in self._digests:
            end += 1
        cut = min(max(miss.start, end * size), miss.stop)
        if cut > miss.start:
            yield Miss(reason=MissReason.EVICTED, start=miss.start, stop=cut)
        if cut < miss.stop:
            forgotten = miss.reason is MissReason.NOT_REMEMBERED
            yield replace(
                miss, start=cut, reason=MissReason.NEVER_SEEN if forgotten else miss.reason
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MissTable:
    """The computed prompt tokens of one replay, by reason of the miss.

    Attributes:
        trace: Name of the trace.
        config: Config of the replay.
        num_blocks: Blocks in the pool.
        query_tokens: Prompt tokens of all requests.
        hit_tokens: Of those, tokens found.
        missed_tokens: The others by reason, in the order of ``MissReason``, without reasons that do
            not occur. Their sum is ``query_tokens - hit_tokens``.
        more_blocks: ``int64[n]`` on the host, ascending: numbers of additional blocks that would
            have kept evicted blocks. Empty with groups of layers, for which they are unknown.
        saved_tokens: ``int64[n]`` on the host, ascending: evicted tokens that up to this many
            additional blocks would have kept.
    """

    trace: str
    config: ReplayConfig
    num_blocks: int
    query_tokens: int
    hit_tokens: int
    missed_tokens: Mapping[MissReason, int]
    more_blocks: npt.NDArray[np.int64]
    saved_tokens: npt.NDArray[np.int64]

    @property
    def refusing(self) -> str | None:
        """The group behind ``MissReason.GROUP``, such as ``"SlidingWindow(width=1024)"``.

        If several groups lack something, it is the one that lacks it everywhere. None without
        groups of layers, or if all of them have full attention.
        """
        group = refusing(self.config.groups)
        return None if group is None else repr(group)

    def saved(self, more_blocks: int) -> int:
        """Evicted tokens that a pool with ``more_blocks`` additional blocks would have found."""
        place = int(np.searchsorted(self.more_blocks, more_blocks, side="right"))
        return int(self.saved_tokens[place - 1]) if place else 0

    def more_blocks_for(self, share: float) -> int:
        """Fewest additional blocks that would have kept this share of the evicted tokens.

        Args:
            share: In ``0 … 1``; 1 is everything that a pool without evictions would have kept.

        Raises:
            ValueError: ``share`` is out of range.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        if not len(self.saved_tokens) or not share:
            return 0
        place = int(np.searchsorted(self.saved_tokens, share * int(self.saved_tokens[-1])))
        return int(self.more_blocks[min(place, len(self.more_blocks) - 1)])


def misses(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    *,
    warmup: int = 0,
    progress: Progress | None = None,
) -> MissTable:
    """``replay``, with the reason for each missed token.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of the replay.
        warmup: Requests at the start that fill the pool and are not counted.
        progress: Called once for each request.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.

    Cost: A replay, one digest for each block that is not found, and a scan of the cached blocks for
    each request that misses one.
    """
    table = _Table(config, warmup)
    _Explained(trace, num_blocks, config, table.add, progress=progress).run()
    asked = sum(request.num_prompt_tokens for request in trace.requests[warmup:])
    table.tokens[MissReason.TOO_LARGE] += asked - table.query_tokens
    places, order = np.unique(np.array(table.more_blocks, dtype=np.int64), return_inverse=True)
    saved = np.bincount(order, weights=table.evicted_tokens, minlength=len(places))
    return MissTable(
        trace=trace.name,
        config=config,
        num_blocks=num_blocks,
        query_tokens=asked,
        hit_tokens=table.hit_tokens,
        missed_tokens={reason: count for reason, count in table.tokens.items() if count},
        more_blocks=places,
        saved_tokens=np.cumsum(saved).astype(np.int64),
    )


def explain_request(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    number: int,
    *,
    progress: Progress | None = None,
) -> Explanation:
    """Explains the misses of one request of a replay at its admission.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of the replay.
        number: Number of the request, in ``[1, len(trace.requests)]``.
        progress: Called once for each request up to this one.

    Raises:
        ValueError: There is no such request, the pool can never hold it, or the trace cannot be cut
            into blocks of ``config.block_size``.
    """
    if not 1 <= number <= len(trace.requests):
        raise ValueError(f"request must be in [1, {len(trace.requests)}], got {number}")
    found: list[Explanation] = []

    def keep(current: int, explanation: Explanation, _num_cached: int) -> None:
        if current == number:
            found.append(explanation)

    # Requests are admitted in order, so later ones cannot affect this one.
    until = replace(trace, requests=trace.requests[:number])
    _Explained(until, num_blocks, config, keep, progress=progress).run()
    if not found:
        needed = held_blocks(trace.requests[number - 1], config)
        raise ValueError(
            f"request {number} needs {needed:,} blocks, more than the pool of {num_blocks:,} holds"
        )
    return found[0]


class _Table:
    """Sums over explanations."""

    def __init__(self, config: ReplayConfig, warmup: int) -> None:
        self.tokens = dict.fromkeys(MissReason, 0)
        self.query_tokens = 0
        self.hit_tokens = 0
        self.more_blocks: list[int] = []
        self.evicted_tokens: list[int] = []
        self._block_size = config.block_size
        self._warmup = warmup

    def add(self, number: int, explanation: Explanation, num_cached: int) -> None:
        if number <= self._warmup:
            return
        self.query_tokens += explanation.num_tokens
        self.hit_tokens += num_cached
        # If the pool is too full to copy part of a block, that part counts as missed.
        self.tokens[explanation.reason] += explanation.num_cached_tokens - num_cached
        most = 0
        for miss in explanation.misses:
            self.tokens[miss.reason] += miss.num_tokens
            start = miss.start
            for more in miss.more_blocks:
                # A block is found only if all earlier ones are.
                most = max(most, more)
                stop = (start // self._block_size + 1) * self._block_size
                self.more_blocks.append(most)
                self.evicted_tokens.append(stop - start)
                start = stop


class _Explained(EventLoop):
    """A replay that gets an explanation before each admission."""

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        config: ReplayConfig,
        add: Callable[[int, Explanation, int], None],
        *,
        progress: Progress | None,
    ) -> None:
        # A manager with groups remembers no evicted blocks.
        self._seen = Seen(config.block_size) if config.groups else None
        # The number of all blocks that can be evicted, so that none is forgotten.
        ghost_blocks = 0 if config.groups else unbounded(trace, config).working_set_blocks
        limits = replace(Limits.of(trace, config), ghost_blocks=ghost_blocks)
        super().__init__(trace, num_blocks, config, progress=progress, limits=limits)
        self._add = add
        self._number = 0

    def _admit(self, waiting: Waiting, now: int) -> bool:
        self._number = waiting.number
        return super()._admit(waiting, now)

    def _start(self, request: Request, tokens: Tokens) -> list[int]:
        explanation = self.manager.explain(tokens, namespace=request.namespace)
        digests = []
        if self._seen is not None:
            digests = self.manager.block_digests(tokens, namespace=request.namespace)
            explanation = self._seen.told(explanation, digests)
        handles = super()._start(request, tokens)
        if handles:
            if self._seen is not None:
                self._seen.add(digests)
            self._add(
                self._number, explanation, self.manager.sequence(handles[0]).num_cached_tokens
            )
        return handles

    def _end(self, request: Request, handles: list[int], number: int) -> None:
        if self._seen is not None:
            # All tokens of an output except the last one are computed.
            for output in request.outputs:
                tokens = np.concatenate((request.tokens(), output[:-1]))
                self._seen.add(self.manager.block_digests(tokens, namespace=request.namespace))
        super()._end(request, handles, number)
