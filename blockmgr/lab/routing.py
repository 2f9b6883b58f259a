"""What a router of a fleet sees and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from blockmgr.lab.delivery import AT_ONCE, Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.event_columns import Events
    from blockmgr.groups import Group
    from blockmgr.lab.request import Request, Tokens
    from blockmgr.lab.trace import Trace

__all__ = ["Arrival", "Listener", "Router", "RouterFactory", "Setting", "View"]


class View(Protocol):
    """A router's view of a replica."""

    @property
    def num_requests(self) -> int:
        """Number of requests that run or wait there."""

    def cached_tokens(self, arrival: Arrival) -> int:
        """Leading tokens of a prompt that are cached there; changes nothing."""

    def block_digests(self, arrival: Arrival) -> list[bytes]:
        """Digests of the whole blocks of a prompt, the same in every replica."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An arrived request.

    Attributes:
        number: Its number in the trace, from 1.
        request: The request.
        tokens: Its prompt: ``uint32[num_prompt_tokens]`` on the host.
    """

    number: int
    request: Request
    tokens: Tokens


Router = Callable[[Arrival, "Sequence[View]"], int]
"""Chooses a replica, by its index."""


@runtime_checkable
class Listener(Protocol):
    """A router that gets the events of all replicas, whose managers then keep events."""

    def listen(self, replica: int, now_ms: int, events: Events) -> None:
        """Called with the events of a replica at an instant.

        Args:
            replica: Index of the replica.
            now_ms: Time in simulated milliseconds, which never decreases for a replica.
            events: At least one.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The input of a router factory.

    Attributes:
        trace: The requests.
        block_size: Tokens per block.
        seed: Seed of random routers.
        load_weight: Weight of the load in ``prefix-minus-load`` and ``events``.
        num_replicas: Number of replicas.
        delivery: Delivery of events to ``events``.
        groups: Groups of layers of each replica; empty for full attention alone.
    """

    trace: Trace
    block_size: int
    seed: int = 0
    load_weight: float = 0.25
    num_replicas: int = 1
    delivery: Delivery = AT_ONCE
    groups: tuple[Group, ...] = ()


RouterFactory = Callable[[Setting], Router]
