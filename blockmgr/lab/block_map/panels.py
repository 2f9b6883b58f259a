"""The panels of a block map as SVG: totals, sequences, the eviction queue, the pool.

States differ in colour and pattern, and every shape has a title. Panels grow with their content up
to a few thousand shapes; above that, one shape stands for several blocks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import numpy as np

from blockmgr.blocks import BlockState
from blockmgr.inspect import ranges
from blockmgr.lab.block_map.facts import BlockMap, Span, count, spans
from blockmgr.lab.block_map.shapes import (
    LETTER,
    LINE_HEIGHT,
    MOST_SHAPES,
    SMALLEST_WITH_ID,
    Place,
    add,
    block_shape,
    blocks_a_shape,
    looks,
    rect,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.inspect import Row

__all__ = ["WIDTH", "Panel", "panels"]

WIDTH: Final = 1040
"""Width of every panel, in user units."""

MOST_ROWS: Final = 160

NAME_WIDTH: Final = 168
NOTE_WIDTH: Final = 178
MOST_NAME: Final = 25

QUEUE_LEFT: Final = 52.0
QUEUE_GAP: Final = 5.0
QUEUE_LINES: Final = 12
QUEUE_PITCH: Final = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One picture of a block map.

    Attributes:
        name: Prefix of ids.
        heading: Title in a few words.
        text: Explanation in one or two sentences.
        shapes: A ``g`` element, ``WIDTH`` wide.
        height: In user units.
    """

    name: str
    heading: str
    text: str
    shapes: ET.Element
    height: float


def panels(shown: BlockMap) -> list[Panel]:
    """All panels that are not empty, from the coarsest to the finest."""
    found = [_totals(shown)]
    if shown.rows:
        found.append(_sequences(shown))
    if shown.blocks.count(BlockState.IDLE):
        found.append(_queue(shown))
    return [*found, _pool(shown)]


# ---- totals ---------------------------------------------------------------------------------


def _totals(shown: BlockMap) -> Panel:
    """A bar of all blocks by state, with a legend below."""
    group = ET.Element("g")
    total = len(shown.blocks)
    left = 0.0
    found = looks(shown)
    for look in found:
        width = WIDTH * look.number / total
        shape = add(group, "g", class_="b", role="img")
        share = f"{count(look.number, 'block')} {look.name}, {look.number / total:.1%}"
        add(shape, "title", share)
        rect(shape, Place(left, 0, width, 26), look.classes)
        left += width
    x, y = 0.0, 40.0
    for look in found:
        text = f"{look.name} {look.number:,}"
        width = 26 + 7.2 * len(text) + 6.1 * len(look.meaning) + 26
        if x and x + width > WIDTH:
            x, y = 0.0, y + 24
        swatch = add(group, "g", class_="b", role="img")
        add(swatch, "title", f"how {look.name} blocks are drawn")
        rect(swatch, Place(x, y, 18, 16), look.classes)
        label = add(group, "text", x=x + 26, y=y + 12.5)
        add(label, "tspan", text, class_="strong")
        add(label, "tspan", look.meaning, class_="quiet", dx=6)
        x += width
    text = (
        "All blocks of the pool, by state. A block is filled as far as it has tokens, and paler "
        "where these are not computed yet."
    )
    return Panel("totals", f"{count(total, 'block')} in the pool", text, group, y + 22)


# ---- sequences ------------------------------------------------------------------------------


def _sequences(shown: BlockMap) -> Panel:
    """One row per sequence, one column per logical block; shared blocks span their rows."""
    group = ET.Element("g")
    visible, found = _visible(shown)
    columns = max((len(row.block_ids) for row in visible), default=0)
    room = WIDTH - NAME_WIDTH - NOTE_WIDTH
    cell = min(34.0, room / max(1, columns))
    pitch = 26.0 if len(visible) <= 24 else 18.0 if len(visible) <= 64 else 13.0
    top = _axis(group, shown.block_sizes[shown.full], columns, cell) if columns else 0.0
    single = cell >= 9 and sum(len(span.block_ids) for span in found) <= MOST_SHAPES
    for index in range(len(visible)):
        end = NAME_WIDTH + columns * cell
        _row_text(group, shown, index, end, top + index * pitch + pitch / 2)
    for span in found:
        whole = Place(
            NAME_WIDTH + span.column * cell,
            top + span.row * pitch,
            max(1.0, len(span.block_ids) * cell - (1 if cell > 3 else 0)),
            span.height * pitch - 2,
        )
        if not single:
            _draw_span(group, shown, span, whole)
            continue
        for part in _singles(span):
            x = NAME_WIDTH + part.column * cell
            _draw_span(group, shown, part, replace(whole, x=x, width=cell - 1))
        if cell - 1 < SMALLEST_WITH_ID:
            state = BlockState(shown.blocks.state[span.block_ids[0]])
            label = add(group, "g", class_=f"{state.name.lower()}-block")
            _write_size(label, shown, span, whole)
    height = top + len(visible) * pitch
    if len(shown.rows) > len(visible):
        more = count(len(shown.rows) - len(visible), "more sequence")
        add(group, "text", f"and {more}, not drawn", x=0, y=height + 15, class_="quiet")
        height += 22
    text = (
        "A row is a sequence, a column a place in its block table. A block that several sequences "
        "share is drawn once, across all of their rows."
    )
    return Panel("sequences", _who(shown), text, group, height)


def _visible(shown: BlockMap) -> tuple[tuple[Row, ...], list[Span]]:
    """The leading rows that can be drawn, and the spans of their blocks."""
    most = MOST_ROWS
    found = spans(shown, most)
    while len(found) > MOST_SHAPES and most > 1:
        most //= 2
        found = spans(shown, most)
    return shown.rows[:most], found


def _who(shown: BlockMap) -> str:
    preempted = sum(state[2] for state in shown.details)
    many = count(len(shown.rows), "sequence")
    return f"Who holds what: {many}" + (f", {preempted:,} preempted" if preempted else "")


def _axis(group: ET.Element, block_size: int, columns: int, cell: float) -> float:
    """Token positions above the columns."""
    step = 1
    while step * cell < 64:
        step *= 2
    for column in range(0, columns, step):
        x = NAME_WIDTH + column * cell
        add(group, "line", x1=x, y1=14, x2=x, y2=20, class_="tick")
        tokens = f"{column * block_size:,}"
        add(group, "text", tokens if column else "token 0", x=x, y=10, class_="small")
    return 22.0


def _row_text(group: ET.Element, shown: BlockMap, index: int, end: float, middle: float) -> None:
    row = shown.rows[index]
    tokens, computed, preempted = shown.details[index]
    name = row.name if len(row.name) <= MOST_NAME else f"{row.name[: MOST_NAME - 1]}…"
    add(group, "text", name, x=NAME_WIDTH - 10, y=middle + 4, class_="end")
    note = count(tokens, "token")
    if preempted:
        note += ", preempted"
    elif computed < tokens:
        note += f", {computed:,} computed"
    x = NAME_WIDTH if preempted else end + 10
    add(group, "text", note, x=x, y=middle + 4, class_="quiet")


def _singles(span: Span) -> list[Span]:
    return [
        Span(span.row, span.column + offset, span.height, span.block_ids[offset : offset + 1])
        for offset in range(len(span.block_ids))
    ]


def _draw_span(group: ET.Element, shown: BlockMap, span: Span, place: Place) -> None:
    block = int(span.block_ids[0])
    many = len(span.block_ids)
    label = shown.label(block) if many == 1 else shown.group_label(span.block_ids)
    shape = block_shape(
        group, shown, block, place, label=label, ids=ranges(span.block_ids.tolist())
    )
    if many > 1:
        _write_size(shape, shown, span, place)
    elif place.width >= SMALLEST_WITH_ID and place.height >= 11:
        write(shape, place, str(block))


def _write_size(parent: ET.Element, shown: BlockMap, span: Span, place: Place) -> None:
    """The number of blocks in a span and of their sharers, if there is room for it."""
    many = len(span.block_ids)
    # Also counts rows that are not drawn.
    sharing = int(shown.blocks.ref_count[span.block_ids[0]])
    size, by = count(many, "block"), f"shared by {sharing:,}"
    choices = [(f"{size} {by}",), (size, by)] if sharing > 1 else []
    if many > 1:
        choices.append((f"{many:,}",))
    for lines in choices:
        fits = max(map(len, lines)) * LETTER + 4 < place.width
        if fits and place.height >= LINE_HEIGHT * len(lines) - 3:
            write(parent, place, *lines, look="on-block label")
            return


# ---- idle blocks ----------------------------------------------------------------------------


def _queue(shown: BlockMap) -> Panel:
    """Idle blocks in eviction order, with a gap where another prefix begins."""
    group = ET.Element("g")
    order = shown.blocks.eviction_order
    # Starts of prefixes in the order: each runs from its tail to its first block.
    starts = [0, *(1 + np.flatnonzero(shown.blocks.parent[order[:-1]] != order[1:])).tolist()]
    text = (
        "Idle blocks from the one evicted next, left to right and line by line; the number is how "
        "many go before a line. A gap is where another prefix begins, its tail first."
    )
    if len(order) <= MOST_SHAPES:
        height = _queue_of_blocks(group, shown, order.tolist(), set(starts))
    else:
        height = _queue_of_runs(group, shown, order.tolist(), starts)
        text += " A bar is as long as it has blocks."
    heading = f"Evicted in this order: {count(len(order), 'idle block')}"
    return Panel("queue", heading, text, group, height)


def _queue_of_blocks(
    group: ET.Element, shown: BlockMap, order: Sequence[int], starts: set[int]
) -> float:
    size = 30.0 if len(order) <= 64 else 16.0 if len(order) <= 600 else 11.0
    x, y, line_starts = QUEUE_LEFT, 0.0, True
    for rank, block in enumerate(order):
        if not line_starts and rank in starts:
            x += QUEUE_GAP
        if x + size > WIDTH:
            x, y, line_starts = QUEUE_LEFT, y + size + 5, True
        if line_starts:
            _write_rank(group, rank, y + size / 2)
            line_starts = False
        place = Place(x, y, size - 1, size - 1)
        shape = block_shape(group, shown, block, place, label=shown.label(block), ids=str(block))
        if size >= SMALLEST_WITH_ID:
            write(shape, place, str(block))
        x += size
    return y + size


def _queue_of_runs(
    group: ET.Element, shown: BlockMap, order: Sequence[int], starts: Sequence[int]
) -> float:
    line = -(-len(order) // QUEUE_LINES)
    if len(starts) > MOST_SHAPES:
        starts = range(0, len(order), blocks_a_shape(len(order)))
    scale = (WIDTH - QUEUE_LEFT) / line
    cuts = sorted({*starts, *range(0, len(order), line), len(order)})
    for first, stop in itertools.pairwise(cuts):
        y = first // line * QUEUE_PITCH
        if first % line == 0:
            _write_rank(group, first, y + QUEUE_PITCH / 2 - 2)
        width = max(0.5, (stop - first) * scale - 1.5)
        place = Place(QUEUE_LEFT + first % line * scale, y, width, QUEUE_PITCH - 5)
        ids = order[first:stop]
        after = f"evicted after {first:,} to {stop - 1:,} others" if first else "evicted next"
        label = f"{count(len(ids), 'idle block')}, {after}: {ranges(ids, 6)}"
        shape = block_shape(group, shown, ids[0], place, label=label, ids=ranges(ids), whole=True)
        size = f"{len(ids):,}"
        if len(size) * LETTER + 4 < width:
            write(shape, place, size)
    return -(-len(order) // line) * QUEUE_PITCH


def _write_rank(group: ET.Element, rank: int, middle: float) -> None:
    add(group, "text", f"{rank:,}", x=QUEUE_LEFT - 8, y=middle + 4, class_="small end")


# ---- the pool -------------------------------------------------------------------------------


def _pool(shown: BlockMap) -> Panel:
    """Every block by id; a shape for several blocks is divided by their states."""
    group = ET.Element("g")
    total = len(shown.blocks)
    each = blocks_a_shape(total)
    shapes = -(-total // each)
    columns, size = (16, 44.0) if shapes <= 64 else (32, 30.0) if shapes <= 512 else (64, 15.25)
    left = 60.0
    centre: dict[int, tuple[float, float]] = {}
    for number in range(shapes):
        line, column = divmod(number, columns)
        x, y = left + column * size, line * size
        ids = range(number * each, min(total, (number + 1) * each))
        if not column:
            add(group, "text", f"{ids[0]:,}", x=left - 8, y=y + size / 2 + 4, class_="small end")
        place = Place(x, y, size - 1.5, size - 1.5)
        if each == 1:
            _pool_block(group, shown, ids[0], place)
            # Drawn below its label.
            centre[ids[0]] = (x + size / 2, y + 0.82 * size)
        else:
            _pool_group(group, shown, ids, place)
    _copies(group, shown, centre)
    text = "Every block by its id; a number is how many sequences share it."
    if each > 1:
        text = f"Every block by its id. One shape stands for {each} blocks, divided by state."
    if len(np.flatnonzero(shown.blocks.copy_source >= 0)) and each == 1:
        text += " An arrow is a copy that has not run."
    return Panel("pool", "The pool", text, group, -(-shapes // columns) * size)


def _pool_block(group: ET.Element, shown: BlockMap, block: int, place: Place) -> None:
    shape = block_shape(group, shown, block, place, label=shown.label(block), ids=str(block))
    sharing = int(shown.blocks.ref_count[block])
    x, y = place.x + place.width / 2, place.y + place.height / 2
    if place.width > 20:
        add(shape, "text", str(block), x=x, y=y + (3.6 if sharing < 2 else -1), class_="on-block")
        if sharing > 1:
            add(
                shape,
                "text",
                f"\N{MULTIPLICATION SIGN}{sharing}",
                x=x,
                y=y + 11,
                class_="on-block small",
            )
    elif sharing > 1:
        text = str(sharing) if sharing < 100 else "+"
        add(shape, "text", text, x=x, y=y + 3.2, class_="on-block small")


def _pool_group(group: ET.Element, shown: BlockMap, ids: range, place: Place) -> None:
    """A shape filled from below by the share of each state."""
    shape = add(group, "g", class_="b", role="img", data_b=f"{ids[0]}-{ids[-1]}")
    add(shape, "title", shown.group_label(ids))
    bottom = place.y + place.height
    for look in looks(shown, slice(ids[0], ids[-1] + 1)):
        height = place.height * look.number / len(ids)
        bottom -= height
        rect(shape, Place(place.x, bottom, place.width, height), look.classes)


def _copies(group: ET.Element, shown: BlockMap, centre: dict[int, tuple[float, float]]) -> None:
    """Arrows from the source of each copy to its destination."""
    for block in np.flatnonzero(shown.blocks.copy_source >= 0).tolist():
        source = int(shown.blocks.copy_source[block])
        if source not in centre or block not in centre:
            continue
        (x1, y1), (x2, y2) = centre[source], centre[block]
        bend = 0.25
        middle = (x1 + x2) / 2 + bend * (y2 - y1), (y1 + y2) / 2 - bend * (x2 - x1)
        path = f"M{x1:g},{y1:g} Q{middle[0]:g},{middle[1]:g} {x2:g},{y2:g}"
        arrow = add(group, "path", d=path, class_="copy", role="img", marker_end="url(#arrow)")
        many = count(int(shown.blocks.copy_tokens[block]), "token")
        add(arrow, "title", f"copy of {many} from block {source} to block {block}")
