"""A replica of a fleet: a replay that gets its requests one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from blockmgr.lab.replay import EventLoop, Limits
from blockmgr.lab.replay_manager import replay_manager

if TYPE_CHECKING:
    from blockmgr.event_columns import Events
    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.request import Request
    from blockmgr.lab.routing import Arrival
    from blockmgr.lab.running import Running
    from blockmgr.lab.trace import Trace

__all__ = ["BusyTime", "Replica", "Served", "event_bytes"]

BusyTime = Callable[["Request", int], int]
"""Milliseconds for which a request holds its blocks, from the request and its computed tokens."""


class Served(NamedTuple):
    """An admitted request, when everything is there that it does not compute."""

    number: int
    """Its number in the trace, from 1."""
    now_ms: int
    """Time in simulated milliseconds."""
    wait_ms: int
    """Time that it waited."""
    num_computed_tokens: int
    """Tokens of its prompt that were not cached."""
    replica: int
    """Index of the replica."""


class Replica(EventLoop):
    """An ``EventLoop`` that a router can query.

    Args:
        trace: All requests of the fleet.
        num_blocks: Blocks in its pool.
        config: Config of the replay.
        replica: Index of the replica.
        limits: Limits of the trace; with events if ``told`` is given.
        served: Called for each admitted request.
        busy_ms: Time for which a request holds its blocks; None for that of ``config``.
        told: Called with the time and the events of each step with events; None for no calls.
        options: As in ``EventLoop``.
    """

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        config: ReplayConfig,
        *,
        replica: int,
        limits: Limits,
        served: Callable[[Served], None],
        busy_ms: BusyTime | None = None,
        told: Callable[[int, Events], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(trace, num_blocks, config, limits=limits, **options)
        self._replica = replica
        self._served = served
        self._told = told
        self._busy = busy_ms

    @property
    def num_requests(self) -> int:
        """Number of requests that run or wait here."""
        return len(self._running) + self.num_waiting

    def cached_tokens(self, arrival: Arrival) -> int:
        """Leading tokens of a prompt that are cached here."""
        return self.manager.match(
            arrival.tokens, namespace=arrival.request.namespace
        ).num_cached_tokens

    def block_digests(self, arrival: Arrival) -> list[bytes]:
        """Digests of the whole blocks of a prompt."""
        return self.manager.block_digests(arrival.tokens, namespace=arrival.request.namespace)

    def _begin(self, order: int, now: int) -> None:
        super()._begin(order, now)
        one = self._running[order]
        computed = one.request.num_prompt_tokens - one.num_cached_tokens
        wait = now - one.request.arrival_ms
        self._served(Served(one.number, now, wait, computed, self._replica))

    def _busy_ms(self, one: Running) -> int:
        if self._busy is None:
            return super()._busy_ms(one)
        return self._busy(one.request, one.request.num_prompt_tokens - one.num_cached_tokens)

    def _count_step(self, now: int) -> None:
        super()._count_step(now)
        if self._told is None:
            return
        events = self.manager.take_events()
        lost = events.num_lost
        if len(events):
            self._told(now, events)
        if lost:
            self._told(now, self.manager.take_snapshot())


def event_bytes(num_blocks: int, config: ReplayConfig, limits: Limits) -> int:
    """Memory of the manager of a replica for its events, which results leave out."""
    plain, telling = (
        replay_manager(num_blocks, config, replace(limits, events=events), "lru").memory_usage()
        for events in (False, limits.events)
    )
    return telling - plain
