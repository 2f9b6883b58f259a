"""Draws a manager: its blocks, their states and holders, and the eviction order.

::

    block_map(manager) ──► BlockMap ──► as_svg, as_html ──► a file that needs no other

The picture shows pools of 8 to 100,000 blocks; the page has the same numbers as tables, too. Needs
the extra ``plot``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blockmgr.block_words import GroupBlocks, count, group_blocks
from blockmgr.blocks import BlockSnapshot, BlockState
from blockmgr.files import check_output, printable, replacing
from blockmgr.inspect import Row, ranges, rows
from blockmgr.lab.html import Part, Table, page
from blockmgr.lab.plot import drawn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from blockmgr.manager import BlockManager

__all__ = ["SUFFIXES", "BlockMap", "as_html", "as_svg", "block_map", "save_block_map"]

SUFFIXES: Final = (".html", ".svg")

Ids = npt.NDArray[np.int32]

STATES: Final[Mapping[BlockState, str]] = {
    BlockState.CACHED: "in use, found by prompts with the same prefix",
    BlockState.OWNED: "in use, not cached",
    BlockState.IDLE: "not in use, still cached",
    BlockState.FENCED: "waiting for a step to complete",
    BlockState.FREE: "holding nothing",
    BlockState.NULL: "target of padded writes",
    BlockState.OUT: "out of use",
}
"""Every state with its meaning, in the order of maps."""

LOOKS: Final = (
    *(("cached", "#5DBB9D"), ("owned", "#E69F00"), ("owned, not computed", "#F7D283")),
    *(("owned, no tokens", "#FFF3D6"), ("idle", "#56B4E9"), ("fenced", "#CC79A7")),
    *(("free", "#ECEFF2"), ("null", "#57606A"), ("out", "#9AA4AE")),
)
"""Names and colours of blocks in a picture: Okabe and Ito's hues, which also differ in grey."""

NEXT_PREFIX: Final = "#A9D6F2"
"""Of idle blocks of every other prefix, in the order of eviction."""

WIDTH: Final = 11.0  # inches
MOST_ROWS: Final = 160
MOST_WITH_IDS: Final = 512
MOST_LINES: Final = 2000
MOST_RANGES: Final = 40


@dataclass(frozen=True, slots=True, eq=False)
class BlockMap:
    """A snapshot of a manager, ready to be drawn.

    Attributes:
        title: Title of the map.
        facts: Further facts about the moment, as pairs of a name and a value.
        blocks: Every block.
        rows: The live sequences; those that begin with the same blocks are neighbours.
        details: For each row: tokens, computed tokens, whether it is preempted.
        groups: The blocks of each group of layers; empty without groups.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    blocks: BlockSnapshot
    rows: tuple[Row, ...]
    details: tuple[tuple[int, int, bool], ...]
    groups: tuple[GroupBlocks, ...]
    _owners: npt.NDArray[np.int32] = field(repr=False)
    _first_owner: npt.NDArray[np.int64] = field(repr=False)

    @property
    def states(self) -> list[tuple[BlockState, int]]:
        """The states that occur, with the number of blocks in each."""
        counts = [(state, self.blocks.count(state)) for state in STATES]
        return [(state, number) for state, number in counts if number]

    @property
    def looks(self) -> npt.NDArray[np.int64]:
        """The look of each block: ``int64[num_blocks]`` on the host, indices into ``LOOKS``."""
        blocks = self.blocks
        names = [name for name, _ in LOOKS]
        looks = np.array([names.index(state.name.lower()) for state in sorted(BlockState)])
        found: npt.NDArray[np.int64] = looks[blocks.state]
        owned = blocks.state == BlockState.OWNED
        found[owned & (blocks.num_computed_tokens < blocks.num_tokens)] += 1
        found[owned & (blocks.num_tokens == 0)] += 2
        return found

    def holders(self, block: int) -> list[int]:
        """Indices into ``rows`` of the sequences whose tables name a block."""
        first, last = self._first_owner[block : block + 2]
        return [int(row) for row in self._owners[first:last]]


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
        rows=shown,
        details=tuple(
            (row.view.num_tokens, row.view.num_computed_tokens, row.view.is_preempted)
            for row in shown
        ),
        groups=tuple(group_blocks(manager, blocks)),
        _owners=owners[order],
        _first_owner=first,
    )


def save_block_map(shown: BlockMap, path: str | Path) -> Path:
    """Write a map into a file, as HTML or SVG by its suffix.

    Raises:
        ValueError: The suffix is neither ``.html`` nor ``.svg``, there is no such folder, or it is
            a folder or a symbolic link.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = check_output(path, suffixes=SUFFIXES)
    text = as_svg(shown) if target.suffix.lower() == ".svg" else as_html(shown)
    with replacing(target) as file:
        file.write(text.encode())
    return target


def as_svg(shown: BlockMap) -> str:
    """A block map as one SVG document. The same map gives the same text."""
    title = [shown.title, *(f"{name}: {value}" for name, value in shown.facts)]
    return _picture(shown, "\n".join(map(printable, title)))


def as_html(shown: BlockMap) -> str:
    """A block map as one page that needs no other file. The same map gives the same text."""
    text = (
        "From top to bottom: all blocks by state; who holds what, where a row is a sequence, a "
        "column a place in its block table, and a line separates blocks that differ; idle blocks "
        "in the order of eviction, in another shade where another prefix begins; and every block "
        "by its id, with the number of sequences that share it."
    )
    states = ", ".join(f"{number:,} {state.name.lower()}" for state, number in shown.states)
    drawing = Part("map", "The pool", text, states, _picture(shown), tuple(_tables(shown)))
    return page(shown.title, parts=[drawing], facts=shown.facts)


def _picture(shown: BlockMap, title: str = "") -> str:
    idle = shown.blocks.eviction_order
    visible = shown.rows[:MOST_ROWS]
    heights = [0.7]
    heights += [0.8 + 0.17 * len(visible)] * bool(visible)
    heights += [0.7 + 0.3 * -(-len(idle) // _columns(len(idle)))] * bool(len(idle))
    total = len(shown.blocks)
    heights.append(0.7 + 0.3 * -(-total // _columns(total)))
    heights = [min(height, 9.0) for height in heights[:-1]] + [min(heights[-1], 6.0)]

    def draw(canvas: Any) -> None:
        if title:
            canvas.suptitle(title, x=0.01, ha="left", fontsize=10)
        panels = canvas.subplots(len(heights), 1, height_ratios=heights, squeeze=False)
        first, *middle, last = panels[:, 0]
        looks = shown.looks
        _draw_states(first, looks)
        if visible:
            _draw_sequences(middle[0], shown, looks)
        if len(idle):
            _draw_idle(middle[-1], shown)
        _draw_pool(last, shown, looks)

    size = (WIDTH, sum(heights) + 0.25 * (2 + title.count("\n")))
    return drawn(size, draw).decode()


def _colours(looks: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The colours of blocks: ``uint8[..., 3]``."""
    values = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for _, colour in LOOKS]
    return np.array(values, dtype=np.uint8)[looks]


def _draw_states(axes: Any, looks: npt.NDArray[np.int64]) -> None:
    left = 0
    for place, (name, colour) in enumerate(LOOKS):
        number = int(np.count_nonzero(looks == place))
        if number:
            label = f"{name} {number:,}"
            axes.barh(0, number, 1, left, color=colour, edgecolor="#333333", lw=0.5, label=label)
            left += number
    axes.set_xlim(0, left)
    axes.set_title(f"{count(left, 'block')} by state", loc="left")
    axes.set_axis_off()
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.05), ncols=8, frameon=False, fontsize=8)


def _draw_sequences(axes: Any, shown: BlockMap, looks: npt.NDArray[np.int64]) -> None:
    """A row for each sequence; a line separates blocks of neighbours that are not the same."""
    visible = shown.rows[:MOST_ROWS]
    width = max(1, *(len(row.block_ids) for row in visible))
    image = np.full((len(visible), width, 3), 255, dtype=np.uint8)
    for number, row in enumerate(visible):
        image[number, : len(row.block_ids)] = _colours(looks[row.block_ids])
    axes.imshow(image, aspect="auto", interpolation="none", extent=(0, width, len(visible), 0))
    for number, row in enumerate(visible):
        for begin, end in separators(row):
            axes.hlines(number, begin, end, color="white", linewidth=1.5)
    if width <= MOST_WITH_IDS:
        axes.vlines(range(1, width), 0, len(visible), color="white", linewidth=0.3)
    labels = map(_row_label, visible, shown.details)
    axes.set_yticks(np.arange(len(visible)) + 0.5, list(labels), fontsize=7)
    hidden = len(shown.rows) - len(visible)
    title = f"Who holds what: {count(len(shown.rows), 'sequence')}"
    axes.set_title(title + (f", {hidden:,} not drawn" if hidden else ""), loc="left")
    axes.set_xlabel("place in the block table")


def separators(row: Row) -> list[tuple[int, int]]:
    """Where a row is separated from that above: from each first column to that after the last."""
    edges = np.flatnonzero(np.diff(row.same, prepend=True, append=True)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _row_label(row: Row, details: tuple[int, int, bool]) -> str:
    tokens, computed, preempted = details
    state = "preempted" if preempted else f"{computed:,} computed" if computed < tokens else ""
    return ", ".join(filter(None, (printable(row.name), count(tokens, "token"), state)))


def _columns(total: int) -> int:
    """Blocks of a line: more in large pools, whose lines would be too many."""
    return next((width for width in (16, 32, 64) if total <= 16 * width), 64 * -(-total // 8192))


def _draw_blocks(axes: Any, colours: npt.NDArray[np.uint8], labels: Sequence[str]) -> None:
    """Blocks line by line, with their labels if there is room."""
    total = len(colours)
    width = _columns(total)
    lines = -(-total // width)
    image = np.full((lines * width, 3), 255, dtype=np.uint8)
    image[:total] = colours
    axes.imshow(
        image.reshape(lines, width, 3),
        aspect="auto",
        interpolation="none",
        extent=(0, width, lines, 0),
    )
    for number, label in enumerate(labels):
        line, column = divmod(number, width)
        axes.text(column + 0.5, line + 0.5, label, ha="center", va="center", fontsize=6)
    step = -(-lines // 20)
    axes.set_yticks(
        np.arange(0, lines, step) + 0.5, [f"{n * width:,}" for n in range(0, lines, step)]
    )
    axes.set_xticks([])


def _draw_idle(axes: Any, shown: BlockMap) -> None:
    order = shown.blocks.eviction_order
    # A prefix runs from its tail to its first block.
    begins = np.append(True, shown.blocks.parent[order[:-1]] != order[1:])
    shades = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (NEXT_PREFIX, LOOKS[4][1])]
    colours = np.array(shades, dtype=np.uint8)[np.cumsum(begins) % 2]
    _draw_blocks(axes, colours, [str(b) for b in order] if len(order) <= MOST_WITH_IDS else [])
    axes.set_title(f"Evicted in this order: {count(len(order), 'idle block')}", loc="left")


def _draw_pool(axes: Any, shown: BlockMap, looks: npt.NDArray[np.int64]) -> None:
    blocks = shown.blocks
    total = len(blocks)
    labels: list[str] = []
    if total <= MOST_WITH_IDS:
        shared = enumerate(blocks.ref_count.tolist())
        labels = [f"{block} x{n}" if n > 1 else str(block) for block, n in shared]
    _draw_blocks(axes, _colours(looks), labels)
    copies = np.flatnonzero(blocks.copy_source >= 0) if labels else np.zeros(0, dtype=np.int64)
    for block in copies.tolist():
        from_, to = (
            (place % _columns(total) + 0.5, place // _columns(total) + 0.7)
            for place in (int(blocks.copy_source[block]), block)
        )
        axes.annotate("", xy=to, xytext=from_, arrowprops={"arrowstyle": "->"})
    arrows = "; an arrow is a copy that has not run" if len(copies) else ""
    axes.set_title(f"The pool, by block id{arrows}", loc="left")


def _tables(shown: BlockMap) -> Iterator[Table]:
    """The tables that are not empty."""
    total = len(shown.blocks)
    states = [
        (state.name.lower(), f"{number:,}", f"{100 * number / total:.1f} %", STATES[state])
        for state, number in shown.states
    ]
    yield Table("Blocks by state", ("state", "blocks", "share", "meaning"), states)
    if shown.groups:
        lines: list[tuple[str, ...]] = [
            (str(held.number), repr(held.group), f"{held.used:,}", f"{held.cached:,}")
            for held in shown.groups
        ]
        headings = ("group", "its layers read", "in use", "cached")
        yield Table("Blocks by group of layers", headings, lines)
    if shown.rows:
        headings_ = ("sequence", "tokens", "computed", "blocks", "shared", "block ids")
        yield Table("Sequences", headings_, _sequence_lines(shown))
    if np.any(shown.blocks.copy_source >= 0):
        headings = ("into block", "from block", "tokens", "state")
        yield Table("Copies that have not run", headings, _copy_lines(shown))
    if shown.blocks.count(BlockState.IDLE):
        headings = ("evicted after", "block", "tokens", "continues")
        yield Table("Idle blocks in the order of eviction", headings, _first(_idle_lines(shown)))
    every = ("blocks", "state", "shared by", "tokens", "computed", "held by")
    yield Table("Every block", every, _first(_block_lines(shown)))


def _first(lines: Iterator[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """As many lines as a page has, and a note if there are more."""
    found = list(itertools.islice(lines, MOST_LINES + 1))
    return found if len(found) <= MOST_LINES else [*found[:-1], ("and more, left out here",)]


def _sequence_lines(shown: BlockMap) -> list[tuple[str, ...]]:
    lines = []
    for row, (tokens, computed, preempted) in zip(shown.rows, shown.details, strict=True):
        shared = int(np.count_nonzero(shown.blocks.ref_count[row.block_ids] > 1))
        ids = "none: preempted" if preempted else ranges(row.block_ids.tolist(), MOST_RANGES)
        numbers = (tokens, computed, len(row.block_ids), shared)
        lines.append((row.name, *(f"{number:,}" for number in numbers), ids))
    return lines


def _copy_lines(shown: BlockMap) -> list[tuple[str, ...]]:
    blocks = shown.blocks
    lines = []
    for block in np.flatnonzero(blocks.copy_source >= 0).tolist():
        state = "taken, not resolved" if blocks.copy_taken[block] else "pending"
        numbers = (block, blocks.copy_source[block], blocks.copy_tokens[block])
        lines.append((*map(str, numbers), state))
    return lines


def _idle_lines(shown: BlockMap) -> Iterator[tuple[str, ...]]:
    blocks = shown.blocks
    for rank, block in enumerate(blocks.eviction_order.tolist()):
        parent = int(blocks.parent[block])
        before = f"block {parent}" if parent >= 0 else "nothing: it begins a prompt"
        yield count(rank, "other"), str(block), str(blocks.num_tokens[block]), before


def _block_lines(shown: BlockMap) -> Iterator[tuple[str, ...]]:
    """Every block by id; neighbours that are alike share a line."""
    blocks = shown.blocks
    columns = (blocks.state, blocks.ref_count, blocks.num_tokens, blocks.num_computed_tokens)

    def look(block: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        numbers = tuple(int(column[block]) for column in columns)
        return numbers, int(blocks.group[block]), tuple(shown.holders(block))

    for ((state, *numbers), group, holders), alike in itertools.groupby(range(len(blocks)), look):
        names = ", ".join(shown.rows[row].name for row in holders)
        if shown.groups and names:
            names += f" (group {group})"
        name = BlockState(state).name.lower()
        yield ranges(alike), name, *(f"{number:,}" for number in numbers), names
