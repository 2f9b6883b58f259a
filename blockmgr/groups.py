"""Groups of layers: what the query at a position reads.

Models mix layers that read all tokens with layers that read a window, a chunk, or a state. Layers
that read the same tokens form one group, which has one block table. The blocks of all groups come
from one pool and have the same number of tokens and bytes; a group of states has one block per
sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.arguments import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ChunkedAttention",
    "FullAttention",
    "Group",
    "RecurrentState",
    "SlidingWindow",
    "checked_groups",
]

MAX_GROUPS = 64
MAX_WIDTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FullAttention:
    """A query reads all positions up to its own."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A query reads the last ``width`` positions, including its own.

    Attributes:
        width: In tokens, at least 1.
    """

    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole("width", self.width, 1, MAX_WIDTH))


@dataclass(frozen=True, slots=True)
class ChunkedAttention:
    """A query reads the positions of its chunk, up to its own.

    Attributes:
        width: Tokens per chunk, at least 1; chunks begin at its multiples.
    """

    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole("width", self.width, 1, MAX_WIDTH))


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """A query reads the state after the previous position; its forward replaces that state."""


Group = FullAttention | SlidingWindow | ChunkedAttention | RecurrentState

_KINDS = (FullAttention, SlidingWindow, ChunkedAttention, RecurrentState)


def checked_groups(groups: Iterable[Group]) -> tuple[Group, ...]:
    """The checked groups; ``block_tables`` belongs to the first one with full attention.

    Raises:
        ValueError: None has full attention, or there are more than 64.
        TypeError: An entry is not a group.
    """
    try:
        found = tuple(groups)
    except TypeError:
        raise TypeError(
            f"groups must be a sequence of groups of layers, got {type(groups).__name__}"
        ) from None
    for position, group in enumerate(found):
        if not isinstance(group, _KINDS):
            raise TypeError(
                "groups must be FullAttention, SlidingWindow, ChunkedAttention or RecurrentState, "
                f"got {type(group).__name__} at position {position}"
            )
    if len(found) > MAX_GROUPS:
        raise ValueError(f"groups must be at most {MAX_GROUPS}, got {len(found)}")
    if found and not any(isinstance(group, FullAttention) for group in found):
        raise ValueError("groups must have one of FullAttention, got none")
    return found


def check_prompt_end_stop(
    stop: int | None, groups: Sequence[Group], min_partial_tokens: int
) -> None:
    """Checks that the option ``prompt_end_stop`` of a config has an effect.

    Raises:
        ValueError: There is no group of states, or nothing is reused inside blocks.
    """
    if stop is None:
        return
    if not any(isinstance(group, RecurrentState) for group in groups):
        raise ValueError(
            f"prompt_end_stop must be None without a group of recurrent states, got {stop}"
        )
    if not min_partial_tokens:
        raise ValueError(
            "prompt_end_stop needs min_partial_tokens of at least 1, because prompts end inside "
            f"blocks, got prompt_end_stop={stop} and min_partial_tokens=0"
        )


def first_full(groups: Sequence[Group]) -> int:
    """Position of the group whose blocks are in ``BlockManager.block_tables``."""
    # No generator, as in ``arguments.is_number``.
    for position, group in enumerate(groups):
        if isinstance(group, FullAttention):
            return position
    return 0


def core_groups(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """(kind, width) of all groups but the first with full attention."""
    rest = [group for i, group in enumerate(groups) if i != first_full(groups)] if groups else []
    return [(_KINDS.index(type(group)), getattr(group, "width", 0)) for group in rest]
