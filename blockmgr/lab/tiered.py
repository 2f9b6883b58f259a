"""Tiers in a replay: where the tokens of each prompt come from, and what is moved.

A replay with tiers drives a real ``TieredManager``. Its mover carries no bytes and never fails.
Every token of a prompt counts once: found on the device, loaded from a tier, or computed. With
``min_partial_tokens``, tiers hold the ends of requests, too, and load them.

A tier whose ``ms_per_block`` is 0 moves everything at once. Otherwise it has one link, a queue:

* Loads and stores pass it one after another, in the order in which the manager plans them, for
  ``ms_per_block`` each block. What passes from tier to tier takes the link of the slower one.
* A request holds its blocks while it loads. Its prompt is computed when everything is there, which
  delays its end, and in a fleet its first token (``blockmgr.lab.fleet``).
* A block that is evicted before its store has ended is not stored.
* With ``prefetch``, what slower tiers have of waiting prompts is stored in the fastest tier.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from blockmgr.arguments import real, whole
from blockmgr.tiers import DEVICE, TieredManager, TierStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    from _typeshed import DataclassInstance

    from blockmgr.lab.request import Running
    from blockmgr.lab.trace import Request, Trace
    from blockmgr.manager import BlockManager
    from blockmgr.tiers import Transfer

__all__ = ["ByTier", "ReplayTier", "TierCounts", "TierSteps", "less"]

Counted = TypeVar("Counted", bound="DataclassInstance")


def less(whole: Counted, first: Counted, *names: str, **changes: Any) -> Counted:
    """``whole`` with the counts of these names less those of ``first``, and with the changes."""
    counts = {name: getattr(whole, name) - getattr(first, name) for name in names}
    return replace(whole, **counts, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTier:
    """A tier of a replay.

    Attributes:
        name: Its name, such as ``"host"``.
        num_blocks: Blocks that it holds, at least 1.
        ms_per_block: Milliseconds for which a block occupies its link; 0 moves blocks at once.

    Raises:
        ValueError: A number is out of its bounds, or there is no name.
        TypeError: A value is of the wrong type.
    """

    name: str
    num_blocks: int
    ms_per_block: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a str, got {type(self.name).__name__}")
        if not self.name.isidentifier():
            raise ValueError(f"name must be a word, got {self.name!r}")
        object.__setattr__(self, "num_blocks", whole("num_blocks", self.num_blocks, 1, 2**31 - 1))
        time = real("ms_per_block", self.ms_per_block)
        if not 0 <= time < inf:
            raise ValueError(f"ms_per_block must be at least 0, got {time}")
        object.__setattr__(self, "ms_per_block", time)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCounts:
    """The counts of one tier.

    Attributes:
        tier: The tier.
        hit_tokens: Prompt tokens that were loaded from it.
        moved: What happened in it, in blocks.
        busy_ms: Milliseconds for which its link was taken.
    """

    tier: ReplayTier
    hit_tokens: int
    moved: TierStats
    busy_ms: float

    def after(self, first: TierCounts) -> TierCounts:
        """Without the counts of a replay of the first requests."""
        moved = less(self.moved, first.moved, *(row.name for row in fields(TierStats)))
        return less(self, first, "hit_tokens", "busy_ms", moved=moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTier:
    """The counts of a replay with tiers.

    Attributes:
        device_tokens: Prompt tokens that were found on the device.
        tiers: The counts of each tier, the fastest first.
        computed_tokens: Prompt tokens that were computed.
        dropped_blocks: Blocks that were evicted from the device, and that no tier had got from it
            or given to it. With ``min_partial_tokens``, the ends that were evicted count, stored or
            not.
        one_pool_hit_tokens: Tokens that one LRU pool of all blocks, of the device and of tiers,
            finds for the same requests.
        tokens: ``int64[requests, tiers + 2]`` on the host: for each request of the trace, the
            tokens that were found on the device, loaded from each tier, and computed.
        load_ms: ``int64[requests]`` on the host: for how long each request waited for its load, in
            whole milliseconds.
    """

    device_tokens: int
    tiers: tuple[TierCounts, ...]
    computed_tokens: int
    dropped_blocks: int
    one_pool_hit_tokens: int = 0
    tokens: npt.NDArray[np.int64] = field(compare=False, repr=False)
    load_ms: npt.NDArray[np.int64] = field(compare=False, repr=False)

    @property
    def loaded_tokens(self) -> int:
        """Prompt tokens that were loaded from any tier."""
        return sum(counts.hit_tokens for counts in self.tiers)

    @property
    def query_tokens(self) -> int:
        """All prompt tokens."""
        return self.device_tokens + self.loaded_tokens + self.computed_tokens

    @property
    def load_mean_ms(self) -> float:
        """Mean time that a request waited for its load, of those that loaded; 0 if none did."""
        return float(self._waits.mean()) if len(self._waits) else 0.0

    @property
    def load_p99_ms(self) -> float:
        """The time that one in a hundred of these requests exceeded."""
        return float(np.quantile(self._waits, 0.99)) if len(self._waits) else 0.0

    @property
    def _waits(self) -> npt.NDArray[np.int64]:
        waits: npt.NDArray[np.int64] = self.load_ms[self.tokens[:, 1:-1].sum(axis=1) > 0]
        return waits

    def share(self, tokens: int) -> float:
        """Some tokens over all prompt tokens, in ``0 … 1``."""
        return tokens / self.query_tokens

    def after(self, first: ByTier) -> ByTier:
        """Without the counts of a replay of the first requests."""
        pairs = zip(self.tiers, first.tiers, strict=True)
        return less(
            self,
            first,
            *("device_tokens", "computed_tokens", "dropped_blocks", "one_pool_hit_tokens"),
            tiers=tuple(mine.after(other) for mine, other in pairs),
            tokens=self.tokens[len(first.tokens) :],
            load_ms=self.load_ms[len(first.load_ms) :],
        )

    @property
    def as_plain(self) -> dict[str, Any]:
        """The counts for a JSON document, without those of single requests."""
        return {
            "computed_tokens": self.computed_tokens,
            "device_tokens": self.device_tokens,
            "dropped_blocks": self.dropped_blocks,
            "load_mean_ms": self.load_mean_ms,
            "load_p99_ms": self.load_p99_ms,
            "one_pool_hit_rate": self.share(self.one_pool_hit_tokens),
            "one_pool_hit_tokens": self.one_pool_hit_tokens,
            "tiers": [
                {
                    **asdict(counts.tier),
                    **{f"{name}_blocks": n for name, n in asdict(counts.moved).items()},
                    "busy_ms": counts.busy_ms,
                    "hit_rate": self.share(counts.hit_tokens),
                    "hit_tokens": counts.hit_tokens,
                }
                for counts in self.tiers
            ],
        }


class TierSteps:
    """Moves nothing, and tells the manager of a replay that everything has arrived.

    Args:
        manager: The manager of the replay.
        trace: The requests.
        tiers: The tiers, the fastest first.
        block_size: Tokens per block.
    """

    def __init__(
        self, manager: BlockManager, trace: Trace, tiers: tuple[ReplayTier, ...], block_size: int
    ) -> None:
        assert isinstance(manager, TieredManager)
        self._manager = manager
        self._tiers, self._size = tiers, block_size
        self._ms = [tier.ms_per_block for tier in tiers]
        if any(self._ms) and any(request.num_samples > 1 for request in trace.requests):
            # A fork takes its blocks when the prompt is there, and there may be none by then.
            raise ValueError("requests must have one output each with links, got several")
        self._idle_at = [0.0] * len(self._ms)  # each link
        self._busy_ms = [0.0] * len(self._ms)
        self._loading: dict[int, list[Transfer]] = {}  # by handle
        self._storing: list[tuple[float, int, Transfer]] = []  # a heap by end
        self._tokens = np.zeros((len(trace.requests), len(self._ms) + 2), np.int64)
        self._tokens[:, -1] = [request.num_prompt_tokens for request in trace.requests]
        self._load_ms = np.zeros(len(trace.requests), np.int64)
        # Contents of the device that a tier has got from it or given to it.
        self._safe: set[int] = set()
        self._last_fetched = 0  # number of a request

    def load(self, one: Running, now: int) -> int:
        """The time from which everything is there that an admitted request loads."""
        loads = self._loading[one.handles[0]] = list(self._manager.take_loads())
        row = self._tokens[one.number - 1]
        row[0] = one.num_cached_tokens
        end = float(now)
        for transfer in loads:
            row[transfer.source + 1] = transfer.num_tokens
            one.num_cached_tokens += transfer.num_tokens
            end = max(end, self._passed(transfer, now))
        row[-1] = one.request.num_prompt_tokens - one.num_cached_tokens
        self._load_ms[one.number - 1] = ceil(end) - now
        return ceil(end)

    def loaded(self, one: Running) -> None:
        """Everything is there that a request loads."""
        loads = self._loading.pop(one.handles[0])
        for transfer in loads:
            self._manager.loads_done(transfer.ticket, len(transfer))
        num_whole = one.num_cached_tokens // self._size
        if loads and num_whole:  # an end is the request's own
            self._keep(self._manager.block_ids(one.handles[0])[num_whole - 1])

    def prefetch(self, waiting: Iterable[tuple[int, Request]], now: int) -> None:
        """Copy what slower tiers have of prompts to the fastest one.

        Of the oldest ones only, as many as fit half of that tier: those of others would be evicted
        before their turn.

        Args:
            waiting: Requests with their numbers, in order.
            now: The time.
        """
        room = self._tiers[0].num_blocks // 2
        for number, request in waiting:
            room -= max(1, request.num_prompt_tokens // self._size)
            if room < 0:
                break
            if number > self._last_fetched:
                self._last_fetched = number
                self._manager.prefetch(request.tokens(), namespace=request.namespace)
        self.store_until(now)

    def store_until(self, now: int) -> None:
        """Store what the manager plans up to ``now``; each link takes what is planned in order."""
        self._resolve(now)
        while self._plan(now) and self._resolve(now):
            pass

    def _resolve(self, now: int) -> int:
        """End the stores that end up to ``now``; returns the number of blocks that they brought."""
        count = 0
        while self._storing and self._storing[0][0] <= now:
            end = self._storing[0][0]
            while self._storing and self._storing[0][0] == end:
                count += self._stored(heapq.heappop(self._storing)[2])
            if end < now:
                self._plan(end)
        return count

    def _plan(self, now: float) -> int:
        """Begin the stores that are planned; returns their number."""
        plan = self._manager.take_stores()
        for transfer in plan:
            heapq.heappush(self._storing, (self._passed(transfer, now), transfer.ticket, transfer))
        return len(plan)

    def _stored(self, transfer: Transfer) -> int:
        count = self._manager.stores_done(transfer.ticket, len(transfer))
        if transfer.source == DEVICE and count:
            self._keep(int(transfer.source_blocks[count - 1]))
        return count

    def _keep(self, block: int) -> None:
        """Note that a tier has a block of the device, and so all blocks before it.

        An end is left out: the next request may take it over, which looks like an eviction.
        """
        prefix = self._manager.prefix_of(block)
        self._safe.update(prefix.contents[: len(prefix.tokens) // self._size].tolist())

    def _passed(self, transfer: Transfer, now: float) -> float:
        """The time at which a transfer has passed its link."""
        link = max(transfer.source, transfer.target)
        time = self._ms[link] * len(transfer)
        self._idle_at[link] = max(self._idle_at[link], now) + time
        self._busy_ms[link] += time
        return self._idle_at[link]

    def result(self, evicted_blocks: int) -> ByTier:
        """All counts, after the last request has ended.

        Args:
            evicted_blocks: Blocks that were evicted from the device.
        """
        manager, tiers = self._manager, self._tiers
        still_there: set[int] = set()
        for block in manager.idle_front(manager.config.num_blocks).block_ids.tolist():
            still_there.update(manager.prefix_of(block).contents.tolist())
        sums: list[int] = self._tokens.sum(axis=0).tolist()
        counts = (
            TierCounts(tier=tier, hit_tokens=hits, moved=moved, busy_ms=busy)
            for tier, hits, moved, busy in zip(
                tiers, sums[1:-1], manager.tier_stats(), self._busy_ms, strict=True
            )
        )
        return ByTier(
            device_tokens=sums[0],
            tiers=tuple(counts),
            computed_tokens=sums[-1],
            dropped_blocks=evicted_blocks - len(self._safe - still_there),
            tokens=self._tokens,
            load_ms=self._load_ms,
        )
