"""Routers: which replica of a fleet serves a request.

A router sees each replica as it is at the moment a request comes: nothing is late or lost. Only
``events`` has no such view of what is cached (``blockmgr.lab.event_router``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np
import xxhash

from blockmgr.lab.delivery import AT_ONCE, Delivery
from blockmgr.lab.hints import Outlook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blockmgr.event_columns import Events
    from blockmgr.groups import Group
    from blockmgr.lab.request import Request, Tokens
    from blockmgr.lab.trace import Trace

__all__ = [
    "BY_EVENTS",
    "ROUTERS",
    "Arrival",
    "Listener",
    "Router",
    "RouterFactory",
    "Setting",
    "View",
    "router_of",
]

BY_EVENTS: Final = "events"
"""The router that needs the extra ``events``."""


class View(Protocol):
    """A replica as a router sees it."""

    @property
    def num_requests(self) -> int:
        """Requests that run there or wait."""

    def cached_tokens(self, arrival: Arrival) -> int:
        """Leading tokens of a prompt that are cached there, which changes nothing."""

    def block_digests(self, arrival: Arrival) -> list[bytes]:
        """Digests of the whole blocks of a prompt, which are the same in every replica."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has arrived.

    Attributes:
        number: Its number in the trace, from 1.
        request: What it is.
        tokens: Its prompt: ``uint32[num_prompt_tokens]`` on the host.
    """

    number: int
    request: Request
    tokens: Tokens


Router = Callable[[Arrival, "Sequence[View]"], int]
"""Chooses a replica, by its place in the sequence."""


@runtime_checkable
class Listener(Protocol):
    """A router that is notified of the events of all replicas; their managers then keep events."""

    def listen(self, place: int, now_ms: int, events: Events) -> None:
        """What became findable in a replica at an instant, and what stopped being so.

        Args:
            place: Of the replica in the sequence.
            now_ms: The instant, in simulated milliseconds; no earlier than that of any call for
                the same replica before.
            events: At least one.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The input of a router factory.

    Attributes:
        trace: The requests.
        block_size: Tokens per block.
        seed: For routers that draw.
        load_weight: What ``prefix-minus-load`` and ``events`` make of the load.
        num_replicas: How many there are.
        delivery: How events reach ``events``.
        groups: The groups of layers of each replica; empty for one of full attention.
    """

    trace: Trace
    block_size: int
    seed: int = 0
    load_weight: float = 0.25
    num_replicas: int = 1
    delivery: Delivery = AT_ONCE
    groups: tuple[Group, ...] = ()


RouterFactory = Callable[[Setting], Router]


def _random(setting: Setting) -> Router:
    """Any replica, evenly."""
    generator = np.random.Generator(np.random.PCG64(setting.seed))
    return lambda _, replicas: int(generator.integers(len(replicas)))


def _round_robin(_: Setting) -> Router:
    """One after another."""
    turn = count()
    return lambda _, replicas: next(turn) % len(replicas)


def _least_loaded(_: Setting) -> Router:
    """The one with the fewest requests that run or wait; the first of several."""
    return lambda _, replicas: _fewest(replicas, range(len(replicas)))


def _session(setting: Setting) -> Router:
    """Always the same one for a conversation, by rendezvous hashing.

    A request belongs to the conversation of the request whose whole prompt it begins with. When
    replicas come or go, only the conversations of those move.
    """
    outlook = Outlook(setting.trace, setting.block_size)
    sessions: dict[int, int] = {}  # of requests to come

    def choose(arrival: Arrival, replicas: Sequence[View]) -> int:
        session = sessions.pop(arrival.number, arrival.number)
        follower = outlook.next_request(arrival.number)
        if follower:
            sessions.setdefault(follower, session)
        name = session.to_bytes(8)
        return max(
            range(len(replicas)),
            key=lambda place: xxhash.xxh3_64_intdigest(name, seed=setting.seed + place),
        )

    return choose


def _longest_prefix(_: Setting) -> Router:
    """The one that has most of the prompt cached; of several, the one with the fewest requests."""

    def choose(arrival: Arrival, replicas: Sequence[View]) -> int:
        cached = [replica.cached_tokens(arrival) for replica in replicas]
        most = max(cached)
        return _fewest(replicas, [place for place, found in enumerate(cached) if found == most])

    return choose


def _prefix_minus_load(setting: Setting) -> Router:
    """The largest share of the prompt that is cached, less ``load_weight`` times the load.

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
    """As ``prefix-minus-load``, by whole blocks, with what is cached known by events alone."""
    # The extra ``events`` only where this router is chosen.
    from blockmgr.lab.event_router import EventRouter  # noqa: PLC0415

    return EventRouter(setting)


def _fewest(replicas: Sequence[View], places: Sequence[int]) -> int:
    return min(places, key=lambda place: replicas[place].num_requests)


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
    """A router by its name, or by your own factory.

    Raises:
        ValueError: There is none of this name.
        MissingExtraError: It is ``events``, and the extra ``events`` is not installed.
    """
    if not isinstance(router, str):
        return router(setting)
    if router not in ROUTERS:
        raise ValueError(f"router must be one of {', '.join(ROUTERS)}, got {router!r}")
    return ROUTERS[router](setting)
