"""The contents of a block map: a manager at one moment, with words for every part."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from blockmgr.block_words import GroupBlocks, count, group_blocks
from blockmgr.blocks import BlockSnapshot, BlockState
from blockmgr.groups import first_full, sizes_of
from blockmgr.inspect import Row, ranges, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from blockmgr.manager import BlockManager

__all__ = ["STATES", "BlockMap", "Span", "block_map", "count", "spans"]

Ids = npt.NDArray[np.int32]

STATES: Final[Mapping[BlockState, str]] = {
    BlockState.CACHED: "in use, found by prompts with the same prefix",
    BlockState.OWNED: "in use, not cached",
    BlockState.IDLE: "not in use, still cached",
    BlockState.FENCED: "waiting for a step to complete",
    BlockState.FREE: "holding nothing",
    BlockState.NULL: "target of padded writes",
}
"""Every state with its meaning, in the order of maps."""

MOST_HOLDERS: Final = 4
MOST_RANGES: Final = 6


@dataclass(frozen=True, slots=True, eq=False)
class BlockMap:
    """A snapshot of a manager, ready to be drawn.

    Attributes:
        title: Title of the map.
        facts: Further facts about the moment, as pairs of a name and a value.
        blocks: Every block.
        block_sizes: Tokens per block by group of layers; one without groups.
        full: The group of the block tables.
        available: Blocks that can be handed out.
        rows: The live sequences; those that begin with the same blocks are neighbours.
        details: For each row: tokens, computed tokens, whether it is preempted.
        company: ``int32[num_blocks]`` on the host: a number for the set of sequences that hold a
            block, equal for equal sets; 0 for none.
        groups: The blocks of each group of layers; empty without groups.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    blocks: BlockSnapshot
    block_sizes: tuple[int, ...]
    full: int
    available: int
    rows: tuple[Row, ...]
    details: tuple[tuple[int, int, bool], ...]
    company: Ids
    groups: tuple[GroupBlocks, ...]
    _owners: npt.NDArray[np.int32] = field(repr=False)
    _first_owner: npt.NDArray[np.int64] = field(repr=False)

    @property
    def states(self) -> list[tuple[BlockState, int]]:
        """The states that occur, with the number of blocks in each, in the order of ``STATES``."""
        counts = [(state, self.blocks.count(state)) for state in STATES]
        return [(state, number) for state, number in counts if number]

    def size_of(self, block: int) -> int:
        """Tokens that a block of its group has room for; a free one is of no group."""
        return self.block_sizes[max(int(self.blocks.group[block]), 0)]

    def holders(self, block: int) -> list[int]:
        """Indices into ``rows`` of the sequences whose tables name a block."""
        first, last = self._first_owner[block : block + 2]
        return [int(row) for row in self._owners[first:last]]

    def label(self, block: int) -> str:
        """A description of a block in one line."""
        blocks, state = self.blocks, BlockState(self.blocks.state[block])
        parts = [state.name.lower()]
        if self.groups and state not in {BlockState.FREE, BlockState.NULL}:
            number = int(blocks.group[block])
            parts.append(f"group {number}, {self.groups[number].group!r}")
        if state in {BlockState.OWNED, BlockState.CACHED, BlockState.IDLE}:
            parts.append(self._tokens(block))
        if held_by := self._held_by(block):
            parts.append(held_by)
        if state in {BlockState.CACHED, BlockState.IDLE}:
            parent = int(blocks.parent[block])
            parts.append(f"continues block {parent}" if parent >= 0 else "begins a prompt")
        if blocks.num_children[block]:
            parts.append(f"continued by {count(int(blocks.num_children[block]), 'block')}")
        if blocks.twin[block] >= 0:
            parts.append(f"same content as block {blocks.twin[block]}")
        if blocks.pins[block] and not blocks.ref_count[block]:
            parts.append("in no table, kept because other blocks need it")
        if blocks.copy_source[block] >= 0:
            parts.append(
                f"copy of {count(int(blocks.copy_tokens[block]), 'token')} from block "
                f"{blocks.copy_source[block]} {'taken' if blocks.copy_taken[block] else 'pending'}"
            )
        rank = int(blocks.eviction_rank[block])
        if rank >= 0:
            parts.append(f"evicted after {count(rank, 'other')}" if rank else "evicted next")
        return f"block {block}: {', '.join(parts)}"

    def group_label(self, ids: range | Ids) -> str:
        """A description of several blocks in one line."""
        chosen = np.asarray(ids)
        found = self.blocks.state[chosen]
        counts = [
            f"{np.count_nonzero(found == state):,} {state.name.lower()}"
            for state in STATES
            if state in found
        ]
        text = f"{ids[0]}-{ids[-1]}"
        if not isinstance(ids, range):
            text = ranges(chosen.tolist(), MOST_RANGES)
        alike = np.all(self.company[chosen] == self.company[chosen[0]])
        held_by = self._held_by(int(chosen[0])) if alike else ""
        return f"blocks {text}: {', '.join(counts)}" + (f", {held_by}" if held_by else "")

    def _tokens(self, block: int) -> str:
        tokens = int(self.blocks.num_tokens[block])
        computed = int(self.blocks.num_computed_tokens[block])
        if not tokens:
            return "no tokens yet"
        size = self.size_of(block)
        full = f"all {tokens}" if tokens == size else f"{tokens} of {size}"
        missing = "" if computed == tokens else f", {computed} computed"
        return f"{full} tokens{missing}"

    def _held_by(self, block: int) -> str:
        holders = self.holders(block)
        if not holders:
            return ""
        names = ", ".join(self.rows[row].name for row in holders[:MOST_HOLDERS])
        more = len(holders) - MOST_HOLDERS
        return f"held by {names}" + (f" and {more:,} more" if more > 0 else "")


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Adjacent blocks that look alike, across all rows that hold them.

    Attributes:
        row: First row.
        column: First logical block.
        height: Number of rows.
        block_ids: ``int32[width]`` on the host, one for each column.
    """

    row: int
    column: int
    height: int
    block_ids: Ids


def block_map(
    manager: BlockManager,
    *,
    title: str = "Block map",
    names: Mapping[int, str] | None = None,
    facts: Iterable[tuple[str, str]] = (),
) -> BlockMap:
    """A snapshot of a manager, to be drawn.

    Args:
        manager: The manager, which is not changed.
        title: Title of the map.
        names: Names of sequences by handle; others are called by their row.
        facts: Pairs of a name and a value to print with the map.

    Cost: O(blocks + entries of all block tables), and a sort of those entries.
    """
    blocks = manager.blocks()
    shown = tuple(rows(manager, names))
    # With groups of layers, a sequence holds blocks in each; the null block does not count.
    tables = [
        np.concatenate([row.block_ids, *(table[table > 0] for _, table in row.further)])
        for row in shown
    ]
    entries = np.concatenate(tables) if tables else np.zeros(0, dtype=np.int32)
    owners = np.repeat(np.arange(len(shown), dtype=np.int32), [len(table) for table in tables])
    order = np.argsort(entries, kind="stable")
    first = np.zeros(len(blocks) + 1, dtype=np.int64)
    np.cumsum(np.bincount(entries, minlength=len(blocks)), out=first[1:])
    return BlockMap(
        title=title,
        facts=tuple(facts),
        blocks=blocks,
        block_sizes=tuple(sizes_of(manager.config.groups, manager.config.block_size)),
        full=first_full(manager.config.groups),
        available=manager.num_available,
        rows=shown,
        details=tuple(
            (row.view.num_tokens, row.view.num_computed_tokens, row.view.is_preempted)
            for row in shown
        ),
        company=_company(owners[order], first),
        groups=tuple(group_blocks(manager, blocks)),
        _owners=owners[order],
        _first_owner=first,
    )


def _company(owners: Ids, first: npt.NDArray[np.int64]) -> Ids:
    """A number for each set of owners, ``owners[first[b] : first[b + 1]]`` for block b."""
    numbers: dict[bytes, int] = {b"": 0}
    company = np.zeros(len(first) - 1, dtype=np.int32)
    for block in np.flatnonzero(np.diff(first)).tolist():
        holders = owners[first[block] : first[block + 1]].tobytes()
        company[block] = numbers.setdefault(holders, len(numbers))
    return company


def spans(shown: BlockMap, most_rows: int) -> list[Span]:
    """The block tables of the first rows, cut into spans that cover every entry once.

    Args:
        shown: The map.
        most_rows: Rows to cover, from the first.

    Returns:
        Spans in the order of rows, then columns. A block that adjacent rows share is in one span.

    Cost: O(entries of those rows).
    """
    blocks = shown.blocks
    # One number for the appearance of a block; token counts have 16 bits.
    kinds = blocks.state.astype(np.int64) * 2 + (blocks.copy_source >= 0)
    kinds = (kinds << 16 | blocks.num_tokens) << 16 | blocks.num_computed_tokens
    chosen = shown.rows[:most_rows]
    result: list[list[Span]] = []
    below = np.zeros(0, dtype=np.int32)
    below_same = np.zeros(0, dtype=np.bool_)
    # From the last row up, so that each row knows how far down its blocks extend.
    for index in range(len(chosen) - 1, -1, -1):
        row = chosen[index]
        heights = np.ones(len(row.block_ids), dtype=np.int32)
        shorter = min(len(heights), len(below))
        heights[:shorter] += np.where(below_same[:shorter], below[:shorter], 0)
        look = np.stack((kinds[row.block_ids], heights, row.same), axis=1)
        cuts = 1 + np.flatnonzero(np.any(look[1:] != look[:-1], axis=1))
        edges = [0, *cuts.tolist(), len(heights)]
        result.append(
            [
                Span(index, start, int(heights[start]), row.block_ids[start:stop])
                for start, stop in itertools.pairwise(edges)
                if start < stop and not row.same[start]
            ]
        )
        below, below_same = heights, row.same
    return [span for row_spans in reversed(result) for span in row_spans]
