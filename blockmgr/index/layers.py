"""The part of a prefix that a worker with several groups of layers can serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.events import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

__all__ = ["Groups", "Layers", "layers_of", "longest_served"]

_MOST: Final = 2**31 - 1
"""Most tokens of a window, chunk or block."""

_MOST_GROUPS: Final = 64
"""Most groups of a worker. Models have a few; each takes time in every answer."""

_WINDOWS: Final = frozenset({"sliding_window", "sliding_window_mla"})
_CHUNKS: Final = frozenset({"chunked_local_attention"})
_STATES: Final = frozenset({"mamba"})


@dataclass(frozen=True, slots=True)
class Layers:
    """A group of layers, which determines the blocks of a prefix that the next query reads.

    Attributes:
        kind: vLLM's word for it.
        width: Tokens of a window or chunk; 0 for others.
        block_size: Tokens per block.
    """

    kind: str
    width: int
    block_size: int

    @property
    def is_whole_prefix(self) -> bool:
        """Whether the next query reads all blocks."""
        return self.kind in wire.WHOLE_PREFIX

    def serves(self, has: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether this group can continue a prefix, by the number of blocks of the prefix.

        Args:
            has: ``bool[blocks]``: which blocks of the prompt the group has.

        Returns:
            ``bool[blocks + 1]`` on the host.
        """
        served = np.ones(len(has) + 1, np.bool_)
        if self.kind in _STATES:
            served[1:] = has
            return served
        blocks = np.arange(len(has) + 1)
        ends = blocks * self.block_size
        first = np.zeros_like(ends)
        if self.kind in _WINDOWS:
            first = np.maximum(0, ends - self.width + 1)
        elif self.kind in _CHUNKS:
            first = ends - ends % self.width
        missing = np.concatenate(([0], np.add.accumulate(~has, dtype=np.int64)))
        # A query at a block boundary may read no earlier block.
        complete: npt.NDArray[np.bool_] = (
            missing[blocks] == missing[np.minimum(first // self.block_size, blocks)]
        )
        return complete


def layers_of(kind: str | None, width: int | None, block_size: int) -> Layers | None:
    """The group that events describe; None if they do not determine what its query reads.

    A width or size that no model has is not believed either.

    >>> layers_of("sliding_window", 128, 16)
    Layers(kind='sliding_window', width=128, block_size=16)
    >>> layers_of("cross_attention", None, 16) is None
    True
    """
    kind = wire.FULL_ATTENTION if kind is None else kind
    if not 0 <= block_size <= _MOST:
        return None
    if kind in wire.WHOLE_PREFIX or (kind in _STATES and block_size > 0):
        return Layers(kind, 0, block_size)
    if kind in _WINDOWS | _CHUNKS and block_size > 0 and width is not None and 0 < width <= _MOST:
        return Layers(kind, width, block_size)
    return None


class Groups:
    """The groups of layers of a worker, as far as its events describe them."""

    __slots__ = ("described", "first", "further", "known")

    def __init__(self) -> None:
        self.described: dict[int, tuple[str | None, int | None, int]] = {}
        """The last description of each known group in an event, as it stood there."""
        self.known: dict[int, Layers | None] = {}
        self.first: int | None = None
        """The group of full attention whose blocks are counted; the others limit the number."""
        self.further: dict[int, Layers] = {}
        """The other groups whose blocks have the same number of tokens."""

    def note(self, described: Iterable[tuple[int, Layers | None]]) -> None:
        """Records the kinds of groups, by number, unless they are known or there are too many."""
        changed = False
        for group, layers in described:
            if self.known.get(group) is not None or (layers is None and group in self.known):
                continue
            if group not in self.known and len(self.known) == _MOST_GROUPS:
                continue
            self.known[group] = layers
            if self.first is None and layers is not None and layers.is_whole_prefix:
                self.first = group
            changed = True
        if changed and self.first is not None:
            others = ((n, other) for n, other in self.known.items() if n != self.first)
            size = self.block_size
            self.further = {n: other for n, other in others if other and other.block_size == size}

    @property
    def block_size(self) -> int:
        """Tokens per block of full attention; 0 if no event named it."""
        first = None if self.first is None else self.known[self.first]
        return 0 if first is None else first.block_size

    def counts(self, group: int) -> bool:
        """Whether the blocks that a query reads of a group are known."""
        return self.known.get(group) is not None


def longest_served(
    num_blocks: int,
    groups: Mapping[int, Layers],
    has: Callable[[int], npt.NDArray[np.bool_]],
) -> int:
    """The most leading blocks that all groups can serve.

    Args:
        num_blocks: Leading blocks that full attention has.
        groups: The other groups, by number.
        has: Which of those blocks a group has, by its number.
    """
    served = np.ones(num_blocks + 1, np.bool_)
    for group, layers in groups.items():
        served &= layers.serves(has(group))
    return int(np.flatnonzero(served)[-1])
