"""Groups of layers: what the query at a position reads.

Models mix layers that read all tokens with layers that read a window, a chunk, or a state. Layers
that read the same tokens form one group, which has one block table. The blocks of all groups come
from one pool and have the same number of bytes. A group whose layers store more bytes a token has
fewer tokens a block: its ``block_size``. A group of states or rings has one block per sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from blockmgr.arguments import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ChunkedAttention",
    "FullAttention",
    "Group",
    "RecurrentState",
    "Ring",
    "SlidingWindow",
    "checked_groups",
    "prefix_granularity",
]

MAX_BLOCK_SIZE = 2**16 - 1
MAX_EXTRA_BLOCKS = 1024
MAX_GROUPS = 64
MAX_PARTS = 254
MAX_WIDTH = 2**31 - 1


class _Shown:
    """Groups as they are written: without what has its default."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = [(row, getattr(self, row.name)) for row in fields(self)]  # type: ignore[arg-type]
        given = (f"{row.name}={value!r}" for row, value in values if value != row.default)
        return f"{type(self).__name__}({', '.join(given)})"


class _Attention(_Shown):
    """What groups with attention have in common."""

    __slots__ = ()
    block_size: int | None

    def __post_init__(self) -> None:
        if hasattr(self, "width"):
            object.__setattr__(self, "width", whole("width", self.width, 1, MAX_WIDTH))
        if self.block_size is not None:
            size = whole("block_size", self.block_size, 1, MAX_BLOCK_SIZE)
            object.__setattr__(self, "block_size", size)


@dataclass(frozen=True, slots=True, repr=False)
class FullAttention(_Attention):
    """A query reads all positions up to its own.

    Attributes:
        block_size: Tokens per block of this group, which the manager's ``block_size`` is a multiple
            of; ``None`` for the manager's.
    """

    block_size: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class SlidingWindow(_Attention):
    """A query reads the last ``width`` positions, including its own.

    Attributes:
        width: In tokens, at least 1.
        block_size: As in ``FullAttention``.
        cached: Whether prompts find its blocks. If not, a prompt that finds a prefix computes the
            end of that prefix again, for the uncached groups alone (``num_replayed_tokens``).
        replay: Without ``cached``, how many of these tokens, at least 1 and at least all that the
            next query reads: ``width - 1``. A prefix of no more tokens counts as not found. The
            largest ``replay`` is that of all groups. With ``cached``, 0.
    """

    width: int
    block_size: int | None = None
    cached: bool = True
    replay: int = 0

    def __post_init__(self) -> None:
        _Attention.__post_init__(self)
        if not isinstance(self.cached, bool):
            raise TypeError(f"cached must be a bool, got {self.cached!r}")
        replay = whole("replay", self.replay, 0, MAX_WIDTH)
        object.__setattr__(self, "replay", replay)
        if self.cached and replay:
            raise ValueError(f"replay must be 0 for a window that is cached, got {replay}")
        least = max(1, self.width - 1)
        if not self.cached and replay < least:
            raise ValueError(
                f"replay must be at least {least} for an uncached window of {self.width}, because "
                f"the first query behind a hit reads as much, got {replay}"
            )


@dataclass(frozen=True, slots=True, repr=False)
class ChunkedAttention(_Attention):
    """A query reads the positions of its chunk, up to its own.

    Attributes:
        width: Tokens per chunk, at least 1; chunks begin at its multiples.
        block_size: As in ``FullAttention``.
    """

    width: int
    block_size: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class RecurrentState(_Shown):
    """A query reads the state after the previous position; its forward replaces that state.

    Attributes:
        extra_blocks: Blocks of a sequence beside the one that its state is in: a forward over draft
            tokens leaves the states after several of them, each in a slot of its own. All groups of
            states have as many.
    """

    extra_blocks: int = 0

    def __post_init__(self) -> None:
        extra = whole("extra_blocks", self.extra_blocks, 0, MAX_EXTRA_BLOCKS)
        object.__setattr__(self, "extra_blocks", extra)


@dataclass(frozen=True, slots=True)
class Ring:
    """A query reads the last positions, which one block holds in turn, as compressors keep them.

    A sequence has one block of the group from its admission to its end. Position ``p`` lies in it
    at ``p % width``. Prompts never find it, so each sequence begins with an empty one: at a
    multiple of ``restart``, where nothing before it is missing. ``CopyPlan.zeros`` names the blocks
    that begin empty.

    Attributes:
        width: Positions that a block holds, in tokens: at least ``restart``, and what
            ``truncate`` is to take back beside.
        restart: The query at position ``p`` reads nothing before ``p - p % restart``, in tokens: at
            least 1.
    """

    width: int
    restart: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole("width", self.width, 1, MAX_WIDTH))
        restart = whole("restart", self.restart, 1, MAX_WIDTH)
        if restart > self.width:
            raise ValueError(f"restart must be at most the width, {self.width}, got {restart}")
        object.__setattr__(self, "restart", restart)


Group = FullAttention | SlidingWindow | ChunkedAttention | RecurrentState | Ring

_KINDS = (FullAttention, SlidingWindow, ChunkedAttention, RecurrentState, Ring)


def checked_groups(groups: Iterable[Group]) -> tuple[Group, ...]:
    """The checked groups; ``block_tables`` belongs to the one that ``table_group`` names.

    Raises:
        ValueError: There are more than 64, or only rings, or those of states have different
            ``extra_blocks`` or stand beside uncached windows; or these are without full attention.
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
                "groups must be FullAttention, SlidingWindow, ChunkedAttention, RecurrentState or "
                f"Ring, got {type(group).__name__} at position {position}"
            )
    if len(found) > MAX_GROUPS:
        raise ValueError(f"groups must be at most {MAX_GROUPS}, got {len(found)}")
    if found and all(isinstance(group, Ring) for group in found):
        raise ValueError("groups must have one that is no ring, got none")
    extra = {group.extra_blocks for group in found if isinstance(group, RecurrentState)}
    if len(extra) > 1:
        raise ValueError(
            f"extra_blocks must be the same in all groups of states, got {sorted(extra)}"
        )
    if extra and (replay := max(map(replay_of, found))):
        raise ValueError(
            f"replay must be 0 beside states, which take each token once, got {replay}"
        )
    if is_bare(found) and any(map(replay_of, found)):
        raise ValueError("groups must have one of FullAttention beside uncached windows, got none")
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


def is_bare(groups: Sequence[Group]) -> bool:
    """Whether none of the groups has full attention, so that nodes have no blocks of their own."""
    # No generator, as in ``arguments.is_number``.
    for group in groups:
        if isinstance(group, FullAttention):
            return False
    return bool(groups)


def table_group(groups: Sequence[Group]) -> int:
    """Position of the group whose blocks are in ``BlockManager.block_tables``.

    The first group with full attention; else the first one of attention; else the first one.
    """
    # No generator, as in ``arguments.is_number``.
    for kinds in (FullAttention, (SlidingWindow, ChunkedAttention)):
        for position, group in enumerate(groups):
            if isinstance(group, kinds):
                return position
    return 0


def is_single(group: Group) -> bool:
    """Whether a sequence has one block of the group, whatever its length."""
    return isinstance(group, RecurrentState | Ring)


def is_cached(group: Group) -> bool:
    """Whether prompts find what a sequence leaves of the group."""
    return not isinstance(group, Ring) and getattr(group, "cached", True)


def replay_of(group: Group) -> int:
    """Tokens before a hit that are computed again for the group."""
    return group.replay if isinstance(group, SlidingWindow) else 0


def tokens_per_block(group: Group, block_size: int) -> int:
    """Tokens per block of a group of a manager with this block size; of states: the manager's."""
    return getattr(group, "block_size", None) or block_size


def extra_blocks_of(group: Group | None) -> int:
    """Blocks that a sequence has of a group of states beside the one that its state is in."""
    return group.extra_blocks if isinstance(group, RecurrentState) else 0


def full_block_size(groups: Sequence[Group], block_size: int) -> int:
    """Tokens per block of ``BlockManager.block_tables``."""
    return tokens_per_block(groups[table_group(groups)], block_size) if groups else block_size


def sizes_of(groups: Sequence[Group], block_size: int) -> list[int]:
    """Tokens per block by group; of all blocks where there are no groups."""
    return [tokens_per_block(group, block_size) for group in groups] or [block_size]


def prefix_granularity(groups: Iterable[Group]) -> int:
    """The least ``block_size`` of a manager for groups that all have block sizes of their own.

    A manager tells prefixes apart by blocks of its ``block_size`` tokens. Each of them holds whole
    blocks of every group, so it is a multiple of every group's block size. Inside such a block, a
    prompt finds what ``min_partial_tokens`` allows.

    Returns:
        The least common multiple of the block sizes, in tokens.

    Raises:
        ValueError: No group has a block size.
        TypeError: An entry is not a group.

    >>> prefix_granularity([FullAttention(16), SlidingWindow(512, 32)])
    32
    """
    sizes = [getattr(group, "block_size", None) for group in checked_groups(groups)]
    known = [size for size in sizes if size is not None]
    if not known:
        raise ValueError("groups must have a block_size, got none with one")
    return math.lcm(*known)


def check_block_sizes(groups: Sequence[Group], block_size: int) -> None:
    """Checks that blocks of ``block_size`` tokens hold whole blocks of every group.

    Raises:
        ValueError: One does not, or a block holds too many.
    """
    parts = 0
    for position, group in enumerate(groups):
        size = tokens_per_block(group, block_size)
        if block_size % size:
            raise ValueError(
                f"groups must have a block_size that divides the manager's, {block_size}, got "
                f"{size} at position {position}; prefix_granularity gives one that fits all"
            )
        parts += block_size // size
    if parts > MAX_PARTS:
        raise ValueError(
            f"groups must have at most {MAX_PARTS} blocks in one of the manager's, {block_size} "
            f"tokens, got {parts}"
        )


def refuse_uncached(groups: Iterable[Group], whose: str) -> None:
    """Refuses rings and uncached windows.

    Args:
        groups: The groups.
        whose: What cannot use them, for the message.

    Raises:
        ValueError: A group is not cached.
    """
    for position, group in enumerate(groups):
        if not is_cached(group):
            what = "rings" if isinstance(group, Ring) else "uncached windows"
            raise ValueError(
                f"groups must have no {what} for {whose}, got {group} at position {position}"
            )


def check_replay(groups: Sequence[Group]) -> None:
    """Checks that it is all that rings read.

    Raises:
        ValueError: It is not.
    """
    if not (replay := max(map(replay_of, groups), default=0)):
        return
    for position, group in enumerate(groups):
        if isinstance(group, Ring) and group.restart > replay + 1:
            raise ValueError(
                f"groups must have rings with a restart of at most replay + 1, {replay + 1}, got "
                f"{group} at position {position}"
            )


def refuse_bare(groups: Sequence[Group], whose: str) -> None:
    """Refuses groups none of which has full attention.

    Args:
        groups: The groups.
        whose: What cannot use them, for the message.

    Raises:
        ValueError: There are groups, and none has full attention.
    """
    if is_bare(groups):
        raise ValueError(f"groups must have one of FullAttention for {whose}, got none")


# A cached prefix of so many tokens has nodes by default.
_TOKENS_OF_PREFIX = 8192
_MOST_NODES_BY_DEFAULT = 2**20


def default_nodes(groups: Sequence[Group], block_size: int, capacity: int) -> int:
    """Nodes of a manager none of whose groups has full attention.

    Enough for as many prefixes of 8,192 tokens as can end in the blocks: the end of one takes the
    blocks of each window and one for each state. At least as many as there are blocks, and
    otherwise at most 2**20.

    Args:
        groups: The groups.
        block_size: Tokens of a node.
        capacity: Blocks.
    """
    each = 0
    for group in groups:
        if is_single(group):
            each += 1
        else:
            each += -(-group.width // tokens_per_block(group, block_size)) + 1  # type: ignore[union-attr]
    ends = -(-capacity // each)
    due = min(ends * -(-_TOKENS_OF_PREFIX // block_size), _MOST_NODES_BY_DEFAULT)
    return max(due, capacity)


def check_rings(groups: Sequence[Group], max_rollback_tokens: int) -> None:
    """Checks that rings hold what is read after drafts are taken back.

    Raises:
        ValueError: One does not, or their restarts have no common multiple below 2**31.
    """
    restarts = [group.restart for group in groups if isinstance(group, Ring)]
    if math.lcm(*restarts) > MAX_WIDTH:
        raise ValueError(
            "groups must have rings whose restarts have a common multiple below 2**31, got "
            f"{restarts}"
        )
    for position, group in enumerate(groups):
        if isinstance(group, Ring) and group.width < group.restart + max_rollback_tokens:
            raise ValueError(
                f"groups must have rings of at least restart + max_rollback_tokens, "
                f"{group.restart + max_rollback_tokens}, got {group} at position {position}"
            )


def first_slices(groups: Sequence[Group], block_size: int) -> tuple[int, ...]:
    """By group, its first slice in ``core_groups``; -1 for that of ``block_tables``."""
    found, full, total = [], table_group(groups), 0
    if is_bare(groups):  # its slices come first
        total = block_size // tokens_per_block(groups[full], block_size)
    # No comprehension, as in ``arguments.is_number``.
    for position, group in enumerate(groups):
        if position == full:
            found.append(-1)
        else:
            found.append(total)
            total += block_size // tokens_per_block(group, block_size)
    return tuple(found)


def core_groups(groups: Sequence[Group], block_size: int) -> list[tuple[object, ...]]:
    """What the core has of each group beside the nodes' own blocks, by slice.

    Those are the blocks of the first group with full attention or, if they are smaller than a node,
    the first one of each node; the others of that group come last. Without such a group, nodes have
    no blocks of their own, and the slices of the group of ``block_tables`` come first.

    Returns:
        For each slice: kind, width, first token in a node and the one after its last, position of
        the group, number of the slice in the group, slices of the group, whether it has events,
        where it restarts, its ``extra_blocks`` and its ``replay``.
    """
    full, bare = table_group(groups), is_bare(groups)
    found = []
    for position, group in enumerate(groups):
        size = tokens_per_block(group, block_size)
        width, extra = getattr(group, "width", 0), extra_blocks_of(group)
        for number, begin in enumerate(range(0, block_size, size)):
            of_full = position == full
            if of_full and not number and not bare:
                continue
            is_replayed = replay_of(group) > 0
            kind = len(_KINDS) if is_replayed else _KINDS.index(type(group))
            slices = block_size // size
            restart = getattr(group, "restart", 1)
            place = (position, number, slices, (bare or not of_full) and not is_replayed)
            row = (kind, width, begin, begin + size, *place, restart, extra, replay_of(group))
            found.append((of_full != bare, row))
    return [row for _, row in sorted(found, key=lambda each: each[0])]
