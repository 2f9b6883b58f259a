"""Delivery of events from replicas to a router: delay, loss and repair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from blockmgr.arguments import real, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AT_ONCE", "REPAIRS", "Delivery", "Repair", "deliveries"]

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
