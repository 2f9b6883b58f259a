"""What a router of a fleet sees and answers, and how events reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args, runtime_checkable

from blockmgr.arguments import real, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.event_columns import Events
    from blockmgr.groups import Group
    from blockmgr.lab.request import Request, Tokens
    from blockmgr.lab.trace import Trace

__all__ = [
    "AT_ONCE",
    "REPAIRS",
    "Arrival",
    "Delivery",
    "Listener",
    "Router",
    "RouterFactory",
    "Setting",
    "View",
    "deliveries",
]

Repair = Literal["replay", "forget", "none"]
"""A reader's reaction to a lost batch.

``replay`` asks the replica for it, which takes two more delays. ``forget`` has no replay endpoint
and forgets the replica's blocks. ``none`` ignores the numbers of batches and continues.
"""

REPAIRS: Final[tuple[Repair, ...]] = get_args(Repair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Delivery of batches of events from replicas to a router.

    Attributes:
        delay_ms: Delay of each batch in simulated milliseconds.
        loss: Fraction of the batches that never arrive, in ``0 … 1``.
        repair: A reader's reaction to lost batches.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    delay_ms: int = 0
    loss: float = 0.0
    repair: Repair = "replay"

    def __post_init__(self) -> None:
        whole("delay_ms", self.delay_ms, 0, 2**31)
        if not 0 <= real("loss", self.loss) <= 1:
            raise ValueError(f"loss must be in [0, 1], got {self.loss}")
        if self.repair not in REPAIRS:
            raise ValueError(f"repair must be one of {', '.join(REPAIRS)}, got {self.repair!r}")

    @property
    def label(self) -> str:
        """Delay and loss in words, with the repair if it matters; empty if there is neither.

        >>> Delivery(delay_ms=2000, loss=0.05, repair="none").label
        '2000 ms late, 5% lost, repair none'
        >>> Delivery().label
        ''
        """
        parts = [f"{self.delay_ms} ms late"] if self.delay_ms else []
        if self.loss:
            parts += [f"{100 * self.loss:g}% lost", f"repair {self.repair}"]
        return ", ".join(parts)


AT_ONCE: Final = Delivery()
"""All events, without delay."""


def deliveries(
    delays_ms: Sequence[int], losses: Sequence[float], repairs: Sequence[Repair]
) -> tuple[Delivery, ...]:
    """All combinations, by delay, then by loss; without loss, only one repair.

    Raises:
        ValueError: As in ``Delivery``.

    >>> [each.label for each in deliveries([500], [0.0, 0.5], ["replay", "none"])]
    ['500 ms late', '500 ms late, 50% lost, repair replay', '500 ms late, 50% lost, repair none']
    """
    return tuple(
        Delivery(delay_ms=delay_ms, loss=loss, repair=repair)
        for delay_ms in delays_ms
        for loss in losses
        for repair in (repairs if loss else repairs[:1])
    )


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
