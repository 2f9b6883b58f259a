"""Kinds of layers: what the query at a position reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FullAttention:
    """All positions up to its own."""

    def first_read(self, position: int) -> int:
        del position
        return 0


@dataclass(frozen=True)
class SlidingWindow:
    """The last ``width`` positions, including its own."""

    width: int

    def first_read(self, position: int) -> int:
        return max(0, position - self.width + 1)


@dataclass(frozen=True)
class ChunkedAttention:
    """The positions of its own chunk, up to its own."""

    width: int

    def first_read(self, position: int) -> int:
        return position - position % self.width


@dataclass(frozen=True)
class RecurrentState:
    """The state after all positions before its own."""


Attention = FullAttention | SlidingWindow | ChunkedAttention
Kind = Attention | RecurrentState


def kinds_of(groups: Iterable[Any]) -> tuple[Kind, ...]:
    """The kinds of ``blockmgr.groups``; full attention alone if there are none."""
    names = {kind.__name__: kind for kind in (FullAttention, SlidingWindow, ChunkedAttention)}
    names |= {"RecurrentState": RecurrentState}
    widths = ((names[type(g).__name__], getattr(g, "width", None)) for g in groups)
    kinds = tuple(kind() if width is None else kind(width) for kind, width in widths)
    return kinds or (FullAttention(),)


def cells_read(kind: Attention, position: int) -> range:
    """The positions before this one whose K/V its query reads."""
    return range(kind.first_read(position), position)
