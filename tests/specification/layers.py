"""Groups of layers as data: what the query at a position reads, and where that is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any


@dataclass(frozen=True)
class Layer:
    """What all groups have: the tokens of a block; None: those of a unit."""

    _: KW_ONLY
    block_size: int | None = None

    def __str__(self) -> str:
        size = f" block_size={self.block_size}" if self.block_size else ""
        return f"{type(self).__name__} {getattr(self, 'width', '')}{size}"


@dataclass(frozen=True)
class FullAttention(Layer):
    """All positions up to its own."""

    def first_read(self, position: int) -> int:
        del position
        return 0


@dataclass(frozen=True)
class SlidingWindow(Layer):
    """The last ``width`` positions, including its own."""

    width: int

    def first_read(self, position: int) -> int:
        return max(0, position - self.width + 1)


@dataclass(frozen=True)
class ChunkedAttention(Layer):
    """The positions of its own chunk, up to its own."""

    width: int

    def first_read(self, position: int) -> int:
        return position - position % self.width


@dataclass(frozen=True)
class RecurrentState(Layer):
    """The state after all positions before its own."""


Attention = FullAttention | SlidingWindow | ChunkedAttention
Kind = Attention | RecurrentState
KINDS = (FullAttention, SlidingWindow, ChunkedAttention, RecurrentState)


def kinds_of(groups: Iterable[Any]) -> tuple[Kind, ...]:
    """The kinds of ``blockmgr.groups``; full attention alone if there are none."""
    names = {kind.__name__: kind for kind in KINDS}
    kinds = tuple(
        group if isinstance(group, Layer) else names[type(group).__name__](**vars_of(group))
        for group in groups
    )
    return kinds or (FullAttention(),)  # type: ignore[return-value]


def vars_of(group: Any) -> dict[str, Any]:
    given = {
        "width": getattr(group, "width", None),
        "block_size": getattr(group, "block_size", None),
    }
    return {name: value for name, value in given.items() if value is not None}


def cells_read(kind: Attention, position: int) -> range:
    """The positions before this one whose K/V its query reads."""
    return range(kind.first_read(position), position)
