"""Draws a manager: its blocks, their states and holders, and the eviction order.

The picture shows pools of 8 to 100,000 blocks. Needs the extra ``plot``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blockmgr.block_words import count
from blockmgr.blocks import BlockSnapshot, BlockState
from blockmgr.files import check_output, printable, replacing
from blockmgr.inspect import Row, rows
from blockmgr.lab.plot import drawn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from blockmgr.manager import BlockManager

__all__ = ["SUFFIX", "BlockMap", "as_svg", "block_map", "save_block_map"]

SUFFIX: Final = ".svg"

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


@dataclass(frozen=True, slots=True, eq=False)
class BlockMap:
    """A snapshot of a manager, ready to be drawn.

    Attributes:
        title: Title of the map.
        facts: Further facts about the moment, as pairs of a name and a value.
        blocks: Every block.
        rows: The live sequences; those that begin with the same blocks are neighbours.
        details: For each row: tokens, computed tokens, whether it is preempted.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    blocks: BlockSnapshot
    rows: tuple[Row, ...]
    details: tuple[tuple[int, int, bool], ...]

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

    Cost: O(blocks + entries of all block tables).
    """
    shown = tuple(rows(manager, names))
    return BlockMap(
        title=title,
        facts=tuple(facts),
        blocks=manager.blocks(),
        rows=shown,
        details=tuple(
            (row.view.num_tokens, row.view.num_computed_tokens, row.view.is_preempted)
            for row in shown
        ),
    )


def save_block_map(shown: BlockMap, path: str | Path) -> Path:
    """Write a map into an SVG file.

    Raises:
        ValueError: The suffix is not ``.svg``, there is no such folder, or it is a folder or a
            symbolic link.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = check_output(path, suffixes=(SUFFIX,))
    with replacing(target) as file:
        file.write(as_svg(shown).encode())
    return target


def as_svg(shown: BlockMap) -> str:
    """A block map as one SVG document. The same map gives the same text."""
    words = [shown.title, *(f"{name}: {value}" for name, value in shown.facts)]
    idle = shown.blocks.eviction_order
    visible = shown.rows[:MOST_ROWS]
    heights = [0.7]
    heights += [0.8 + 0.17 * len(visible)] * bool(visible)
    heights += [0.7 + 0.3 * -(-len(idle) // _columns(len(idle)))] * bool(len(idle))
    total = len(shown.blocks)
    heights.append(0.7 + 0.3 * -(-total // _columns(total)))
    heights = [min(height, 9.0) for height in heights[:-1]] + [min(heights[-1], 6.0)]

    def draw(canvas: Any) -> None:
        title = "\n".join(map(printable, words))
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

    size = (WIDTH, sum(heights) + 0.25 * (1 + len(words)))
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
