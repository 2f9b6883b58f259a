"""Groups of layers as data: what the query at a position reads, and where that is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Layer:
    """What all groups have.

    Attributes:
        block_size: Tokens of a block; None: those of a node.
        cached: Whether prompts find it.
        replay: Of a window that is not cached, the tokens before a hit that are computed again.
        restart: An empty one is right at multiples of this.
        extra_blocks: Of a state, the slots for drafts.
    """

    _: KW_ONLY
    block_size: int | None = None
    cached: bool = True
    replay: int = 0
    restart: int = 1
    extra_blocks: int = 0

    def __str__(self) -> str:
        values = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "width")
        usual = {f.name: f.default for f in fields(Layer)}
        more = [f"{name}={value}" for name, value in values if value != usual[name]]
        return " ".join([type(self).__name__, *map(str, [getattr(self, "width", "")]), *more])


@dataclass(frozen=True)
class FullAttention(Layer):
    """All positions up to its own."""

    def first_read(self, position: int) -> int:
        del position
        return 0


@dataclass(frozen=True)
class Nodes(FullAttention):
    """Where no group has full attention: what sequences share, as if it had, without memory.

    Its copies are waited for like others, but nothing is to be done for them.
    """


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


@dataclass(frozen=True)
class Ring(Layer):
    """The last ``width`` positions in one block, overwritten in turn; never cached."""

    width: int

    def first_read(self, position: int) -> int:
        return position - position % self.restart


Attention = FullAttention | SlidingWindow | ChunkedAttention
Kind = Attention | RecurrentState | Ring
KINDS = (FullAttention, SlidingWindow, ChunkedAttention, RecurrentState, Ring)


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
        "restart": getattr(group, "restart", None),
        "cached": getattr(group, "cached", None),
        "replay": getattr(group, "replay", None),
        "extra_blocks": getattr(group, "extra_blocks", None),
    }
    return {name: value for name, value in given.items() if value is not None}


def cells_read(kind: Attention, position: int) -> range:
    """The positions before this one whose K/V its query reads."""
    return range(kind.first_read(position), position)
