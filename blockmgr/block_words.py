"""Words for blocks and for the contents of each group of layers, shared by all displays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blockmgr.blocks import BlockSnapshot, BlockState
from blockmgr.groups import table_group, tokens_per_block

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.groups import Group
    from blockmgr.manager import BlockManager, Sequence

__all__ = ["GroupBlocks", "count", "further_tables", "group_blocks", "listed", "ranges"]

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBlocks:
    """The blocks of a group of layers.

    Attributes:
        number: Its position in ``ManagerConfig.groups``.
        group: The kind of its layers.
        used: Blocks in use.
        cached: Blocks not in use that a prompt can find.
    """

    number: int
    group: Group
    used: int
    cached: int

    def __str__(self) -> str:
        return f"group {self.number}, {self.group!r}: {self.used:,} in use, {self.cached:,} cached"


def group_blocks(manager: BlockManager, blocks: BlockSnapshot) -> list[GroupBlocks]:
    """The blocks of each group; empty without groups."""
    used = np.isin(blocks.state, (BlockState.OWNED, BlockState.CACHED))
    idle = blocks.state == BlockState.IDLE
    return [
        GroupBlocks(
            number=number,
            group=group,
            used=int(np.count_nonzero(used & (blocks.group == number))),
            cached=int(np.count_nonzero(idle & (blocks.group == number))),
        )
        for number, group in enumerate(manager.config.groups)
    ]


def further_tables(manager: BlockManager, view: Sequence) -> list[tuple[int, Ids]]:
    """A sequence's block tables in all groups except that of ``BlockManager.block_tables``.

    Args:
        manager: The manager of the sequence.
        view: The sequence.

    Returns:
        Positions of groups, and ``int32[n]`` on the host: one entry for each of its blocks of
        tokens, the null block where the group holds nothing, or the block of its state.
    """
    groups, size = manager.config.groups, manager.config.block_size
    if view.is_preempted:
        return []
    tables = []
    for number, group in enumerate(groups):
        if number != table_group(groups):
            entries = -(-view.num_slots // tokens_per_block(group, size))
            tables.append((number, manager.group_table(number)[view.row][:entries].copy()))
    return tables


def ranges(ids: Iterable[int], most: int | None = None) -> str:
    """Block ids in order, neighbours joined: ``0-3, 9``.

    Args:
        ids: Block ids.
        most: Ranges to write out; the rest are only counted.

    >>> ranges([4, 5, 6, 9, 3, 2, 1, 7], most=3)
    '4-6, 9, 3-1 and 1 more'
    """
    runs: list[list[int]] = []
    for block in ids:
        last = runs[-1] if runs else []
        # Ids often run downwards, because the block freed last is handed out first.
        if last and abs(block - last[-1]) == 1 and (block - last[-1]) * (last[-1] - last[0]) >= 0:
            last[1:] = [block]
        else:
            runs.append([block])
    shown = runs if most is None else runs[:most]
    text = ", ".join("-".join(map(str, run)) for run in shown)
    left = sum(abs(run[-1] - run[0]) + 1 for run in runs[len(shown) :])
    return f"{text} and {left:,} more" if left else text


def count(number: int, noun: str) -> str:
    """``1 block``, ``2,000 blocks``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(texts: list[str], of: int) -> str:
    """The first few texts, and the number of the others."""
    more = f" and {of - len(texts):,} more" if of > len(texts) else ""
    return ", ".join(texts) + more
