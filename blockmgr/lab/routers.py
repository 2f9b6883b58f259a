"""Routers, which choose the replica of a fleet for a request.

A router sees the exact state of each replica at the arrival of a request. Only ``events`` has no
such view of the caches (``blockmgr.lab.event_router``).
"""

from __future__ import annotations

from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from blockmgr.lab.hints import Outlook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blockmgr.lab.routing import Arrival, Router, RouterFactory, Setting, View

__all__ = ["BY_EVENTS", "ROUTERS", "router_of"]

BY_EVENTS: Final = "events"
"""The router that needs the extra ``events``."""


def _random(setting: Setting) -> Router:
    """A random replica."""
    generator = np.random.Generator(np.random.PCG64(setting.seed))
    return lambda _, replicas: int(generator.integers(len(replicas)))


def _round_robin(_: Setting) -> Router:
    """The replicas in turn."""
    turn = count()
    return lambda _, replicas: next(turn) % len(replicas)


def _least_loaded(_: Setting) -> Router:
    """The replica with the fewest running and waiting requests; ties go to the first."""
    return lambda _, replicas: _fewest(replicas, range(len(replicas)))


def _session(setting: Setting) -> Router:
    """Always the same replica for a conversation, by rendezvous hashing.

    A request belongs to the conversation of an earlier request if it begins with that whole prompt.
    When replicas are added or removed, only their conversations move.
    """
    outlook = Outlook(setting.trace, setting.block_size)
    sessions: dict[int, int] = {}  # for future requests

    def choose(arrival: Arrival, replicas: Sequence[View]) -> int:
        session = sessions.pop(arrival.number, arrival.number)
        follower = outlook.next_request(arrival.number)
        if follower:
            sessions.setdefault(follower, session)
        name = session.to_bytes(8)
        return max(
            range(len(replicas)),
            key=lambda replica: xxhash.xxh3_64_intdigest(name, seed=setting.seed + replica),
        )

    return choose


def _longest_prefix(_: Setting) -> Router:
    """The replica with the longest cached prefix; ties go to the one with fewest requests."""

    def choose(arrival: Arrival, replicas: Sequence[View]) -> int:
        cached = [replica.cached_tokens(arrival) for replica in replicas]
        most = max(cached)
        return _fewest(replicas, [replica for replica, found in enumerate(cached) if found == most])

    return choose


def _prefix_minus_load(setting: Setting) -> Router:
    """The replica with the largest cached share minus ``load_weight`` times the load.

    The load of a replica is its requests over the mean of all replicas.
    """

    def choose(arrival: Arrival, replicas: Sequence[View]) -> int:
        total = sum(replica.num_requests for replica in replicas)
        mean = max(1.0, total / len(replicas))
        scores = [
            replica.cached_tokens(arrival) / len(arrival.tokens)
            - setting.load_weight * replica.num_requests / mean
            for replica in replicas
        ]
        return scores.index(max(scores))

    return choose


def _events(setting: Setting) -> Router:
    """Like ``prefix-minus-load``, by whole blocks, with caches known only from events."""
    # Needs the extra ``events`` only if this router is chosen.
    from blockmgr.lab.event_router import EventRouter  # noqa: PLC0415

    return EventRouter(setting)


def _fewest(replicas: Sequence[View], among: Sequence[int]) -> int:
    return min(among, key=lambda replica: replicas[replica].num_requests)


ROUTERS: Final[Mapping[str, RouterFactory]] = MappingProxyType(
    {
        "random": _random,
        "round-robin": _round_robin,
        "least-loaded": _least_loaded,
        "session": _session,
        "longest-prefix": _longest_prefix,
        "prefix-minus-load": _prefix_minus_load,
        BY_EVENTS: _events,
    }
)
"""Every router by name."""


def router_of(router: str | RouterFactory, setting: Setting) -> Router:
    """A router from its name or from your own factory.

    Raises:
        ValueError: There is no router with this name.
        MissingExtraError: It is ``events``, and the extra ``events`` is not installed.
    """
    if not isinstance(router, str):
        return router(setting)
    if router not in ROUTERS:
        raise ValueError(f"router must be one of {', '.join(ROUTERS)}, got {router!r}")
    return ROUTERS[router](setting)
