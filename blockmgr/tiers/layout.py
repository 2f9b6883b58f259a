"""What a prefix needs in each group of layers, so that a prompt can continue at its end.

A *node* is ``block_size`` tokens of a prefix, or fewer at its *end*. It has a block of full
attention, its part 0, and in other groups, or if blocks are smaller, further *parts*, a block each.
All of a model with full attention alone is part 0, and prompts can continue behind each node.
Otherwise they can where the windows, chunks and states are that the next query reads: at a
*boundary*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.groups import (
    RecurrentState,
    SlidingWindow,
    core_groups,
    refuse_bare,
    refuse_uncached,
    sizes_of,
    table_group,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from blockmgr.blocks import CachedPrefix
    from blockmgr.config import ManagerConfig
    from blockmgr.manager import BlockManager

__all__ = ["Layout", "Pieces"]


class Pieces:
    """Blocks of a path: each is a part of a node.

    Args:
        chosen: ``bool[n, num_parts]``: which ones.

    Attributes:
        units: ``int64[k]``: logical nodes, in order for each part.
        parts: ``int64[k]``: parts; those of part 0 come first.
    """

    __slots__ = ("parts", "units")

    def __init__(self, chosen: npt.NDArray[np.bool_]) -> None:
        self.parts, self.units = np.nonzero(chosen.T)

    def __len__(self) -> int:
        return len(self.units)

    def first(self, n: int) -> Pieces:
        """The leading ``n``."""
        some = Pieces.__new__(Pieces)
        some.units, some.parts = self.units[:n], self.parts[:n]
        return some

    def chosen(self, which: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """The node and the part of some of them: ``bool[k]``."""
        return zip(self.units[which].tolist(), self.parts[which].tolist(), strict=True)

    @property
    def num_nodes(self) -> int:
        """How many are of part 0."""
        return int((self.parts == 0).sum())


class Layout:
    """The parts of the nodes of a manager.

    Args:
        config: Its config.
    """

    def __init__(self, config: ManagerConfig) -> None:
        self.block_size: Final = config.block_size
        groups = config.groups
        refuse_uncached(groups, "tiers")
        refuse_bare(groups, "tiers")
        self._groups = groups
        self._full = table_group(groups)
        rows = core_groups(groups, config.block_size)
        self.num_parts: Final = 1 + len(rows)
        self._group_of = np.array([self._full, *(row[4] for row in rows)], np.int32)
        begins = [0, *(row[2] for row in rows)]
        self._begins = np.array(begins)
        self._ends = [0, *(row[3] for row in rows)]
        self._sizes = sizes_of(groups, config.block_size)
        self._part_of = {
            (int(group), begin): part
            for part, (group, begin) in enumerate(
                zip(self._group_of, self._begins.tolist(), strict=True)
            )
        }

    @property
    def is_grouped(self) -> bool:
        """Whether prompts can continue at boundaries only."""
        return self.num_parts > 1

    def groups_of(self, pieces: Pieces) -> npt.NDArray[np.int32] | None:
        """The group of each piece; None without groups."""
        return self._group_of[pieces.parts] if self._groups else None

    def group_of(self, part: int) -> int:
        """The group of a part."""
        return int(self._group_of[part])

    def _first_units(self, part: int, position: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first node of which the query at each of these positions reads this part."""
        group = self._groups[self._group_of[part]]
        if isinstance(group, RecurrentState):
            return (position - 1) // self.block_size
        if part == 0 or self._group_of[part] == self._full or not hasattr(group, "width"):
            return np.zeros_like(position)
        is_window = isinstance(group, SlidingWindow)
        read = position - group.width + 1 if is_window else position - position % group.width
        units: npt.NDArray[np.int64] = (
            np.maximum(read, 0) + self.block_size - self._ends[part]
        ) // self.block_size
        return units

    def needed(self, num_tokens: int, first: int = 0) -> npt.NDArray[np.bool_]:
        """The parts that a prompt reads which continues behind so many tokens.

        Returns:
            ``bool[n, num_parts]`` for their nodes; False for all of the first ``first`` nodes.
        """
        units = np.arange(-(-num_tokens // self.block_size))
        found = np.repeat((units >= first)[:, None], self.num_parts, axis=1)
        for part in range(1, self.num_parts):
            found[:, part] &= units >= self._first_units(part, np.array([num_tokens]))[0]
        # What an end has no tokens for.
        found[-1:] &= (len(units) - 1) * self.block_size + self._begins < num_tokens
        return found

    def serves(self, blocks: npt.NDArray[np.int32], num_tokens: int) -> bool:
        """Whether a prompt can continue behind so many tokens, of which these are the blocks."""
        return not (self.needed(num_tokens) & (blocks < 0)).any()

    def readable(self, stop: int, first: int) -> npt.NDArray[np.bool_]:
        """The parts that prompts read which continue behind more than ``first`` nodes.

        Returns:
            ``bool[stop, num_parts]``.
        """
        found = self.needed(stop * self.block_size)
        position = np.array([(first + 1) * self.block_size])
        for part in range(1, self.num_parts):
            found[:, part] = np.arange(stop) >= self._first_units(part, position)[0]
        return found

    def deepest(self, blocks: npt.NDArray[np.int32], most: int | None = None) -> int:
        """The most nodes, ``most`` at most and none of them an end, for a prompt to continue.

        Args:
            blocks: ``int32[n, num_parts]``: the blocks of the nodes of a path; -1 for none.
            most: Most nodes; None for all.
        """
        count = len(blocks) if most is None else max(0, min(len(blocks), most))
        if not self.is_grouped or not count:
            return count
        units = np.arange(count)
        is_served = np.ones(count, np.bool_)
        for part in range(1, self.num_parts):
            lacking = np.where(blocks[:count, part] < 0, units, -1)
            last_lacking = np.maximum.accumulate(lacking)
            is_served &= last_lacking < self._first_units(part, (units + 1) * self.block_size)
        found = np.flatnonzero(is_served)
        return int(found[-1]) + 1 if len(found) else 0

    def blocks_of(self, prefix: CachedPrefix) -> npt.NDArray[np.int32]:
        """The blocks of a prefix of the device: ``int32[n, num_parts]``; -1 for none."""
        found = np.full((len(prefix.block_ids), self.num_parts), -1, np.int32)
        found[:, 0] = prefix.block_ids
        groups, starts = prefix.parts.groups.tolist(), prefix.parts.starts.tolist()
        for block, group, start in zip(
            prefix.parts.block_ids.tolist(), groups, starts, strict=True
        ):
            unit, begin = divmod(start, self.block_size)
            found[unit, self._part_of[group, begin]] = block
        return found

    def targets(self, manager: BlockManager, handle: int, pieces: Pieces) -> list[int]:
        """The blocks of a sequence that these pieces belong to."""
        if not self._groups:
            blocks: list[int] = np.array(manager.block_ids(handle))[pieces.units].tolist()
            return blocks
        row = manager.sequence(handle).row
        found = np.empty(len(pieces), np.int64)
        for part in range(self.num_parts):
            group = self.group_of(part)
            chosen = pieces.parts == part
            if isinstance(self._groups[group], RecurrentState):
                found[chosen] = manager.group_table(group)[row, 0]
                continue
            size = self._sizes[group]
            at = (pieces.units[chosen] * self.block_size + self._begins[part]) // size
            found[chosen] = manager.group_table(group)[row, at]
        return found.tolist()
