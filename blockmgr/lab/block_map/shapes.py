"""The shapes of panels, and their looks by state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import numpy as np

from blockmgr.blocks import BlockState
from blockmgr.lab.block_map.facts import STATES

if TYPE_CHECKING:
    from blockmgr.lab.block_map.facts import BlockMap

__all__ = [
    "LETTER",
    "LINE_HEIGHT",
    "MOST_SHAPES",
    "SMALLEST_WITH_ID",
    "Look",
    "Place",
    "add",
    "block_shape",
    "blocks_a_shape",
    "document",
    "looks",
    "rect",
    "script_data",
    "writable",
    "write",
]

MOST_SHAPES: Final = 3072
"""Approximate number of shapes in a panel; above it, one shape stands for several blocks."""

SMALLEST_WITH_ID: Final = 24
"""Width of a shape with room for a block id, in user units."""

LETTER: Final = 6.4
"""Approximate width of a letter on a shape."""

LINE_HEIGHT: Final = 13.5
"""Distance of two lines of text on a shape."""

# A file name may contain these characters, but they would make a document invalid.
UNWRITABLE: Final = dict.fromkeys(
    (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF),
    "\N{REPLACEMENT CHARACTER}",
)
# The last two end a line of a script, but not of JSON.
IN_SCRIPT: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def add(parent: ET.Element, tag: str, text: str | None = None, **attributes: object) -> ET.Element:
    """A child element; ``_`` in attribute names means ``-``, and is removed at the end."""
    names = {
        name.rstrip("_").replace("_", "-"): _written(value) for name, value in attributes.items()
    }
    child = ET.SubElement(parent, tag, names)
    child.text = text
    return child


def document(root: ET.Element, *, html: bool) -> str:
    """The text of a whole page or drawing, as a valid document."""
    text = ET.tostring(root, encoding="unicode", method="html" if html else "xml")
    return ("<!doctype html>\n" if html else "") + writable(text) + "\n"


def writable(text: str) -> str:
    r"""``text`` with a replacement for each character that is invalid in documents.

    >>> writable("a\x00b")
    'a\ufffdb'
    """
    return text.translate(UNWRITABLE)


def script_data(data: object) -> str:
    r"""``data`` as JSON that is safe inside a ``<script>`` of a page.

    Browsers do not decode escapes there, so a tag or the start of a comment in a name would end the
    script too early or too late. Escapes of JSON replace those characters.

    >>> script_data("<!--<script>")
    '"\\u003c!--\\u003cscript\\u003e"'
    """
    return json.dumps(data, sort_keys=True).translate(IN_SCRIPT)


@dataclass(frozen=True, slots=True)
class Look:
    """How some blocks are drawn.

    Attributes:
        name: Name of their state.
        classes: Classes of the style sheet.
        meaning: Meaning in a few words.
        number: Number of blocks.
    """

    name: str
    classes: str
    meaning: str
    number: int


def looks(shown: BlockMap, chosen: slice = slice(None)) -> list[Look]:
    """The number of blocks by appearance; owned blocks without tokens are separate."""
    states = shown.blocks.state[chosen]
    unused = (states == BlockState.OWNED) & (shown.blocks.num_tokens[chosen] == 0)
    found = []
    for state, meaning in STATES.items():
        name = state.name.lower()
        of_state = states == state
        found.append(Look(name, name, meaning, int(np.count_nonzero(of_state & ~unused))))
        if state is BlockState.OWNED:
            waiting = "owned, no tokens", "owned-rest unused", "taken, for tokens to come"
            found.append(Look(*waiting, int(np.count_nonzero(unused))))
    return [look for look in found if look.number]


@dataclass(frozen=True, slots=True)
class Place:
    """A rectangle, in user units."""

    x: float
    y: float
    width: float
    height: float


def block_shape(
    group: ET.Element,
    shown: BlockMap,
    block: int,
    place: Place,
    *,
    label: str,
    ids: str,
    whole: bool = False,
) -> ET.Element:
    """A block, or several alike: filled up to its tokens, pale for uncomputed ones.

    Args:
        group: Parent element.
        shown: The map.
        block: The block, or the first of those that look like it.
        place: Position and size.
        label: Its title.
        ids: The blocks, as ranges.
        whole: Whether to draw it full, whatever its tokens.
    """
    state = BlockState(shown.blocks.state[block])
    name = state.name.lower()
    shape = add(group, "g", class_=f"b {name}-block", role="img", data_b=ids)
    add(shape, "title", label)
    tokens = int(shown.blocks.num_tokens[block])
    computed = int(shown.blocks.num_computed_tokens[block])
    filled = state in {BlockState.OWNED, BlockState.CACHED, BlockState.IDLE} and not whole
    size = shown.size_of(block)
    if not filled or computed == size:
        rect(shape, place, name)
        return shape
    rect(shape, place, f"{name}-rest" if tokens else f"{name}-rest unused")
    for upto, look in ((tokens, f"{name} awaited"), (computed, name)):
        if upto:
            width = place.width * upto / size
            rect(shape, Place(place.x, place.y, width, place.height), look)
    return shape


def rect(shape: ET.Element, place: Place, look: str) -> None:
    """A rectangle with these classes."""
    add(
        shape,
        "rect",
        x=place.x,
        y=place.y,
        width=place.width,
        height=place.height,
        class_=look,
    )


def write(parent: ET.Element, place: Place, *lines: str, look: str = "on-block") -> None:
    """Text in the middle of a shape."""
    x, y = place.x + place.width / 2, place.y + place.height / 2 + 3.6
    y -= (len(lines) - 1) * LINE_HEIGHT / 2
    for line in lines:
        add(parent, "text", line, x=x, y=y, class_=look)
        y += LINE_HEIGHT


def blocks_a_shape(number: int) -> int:
    """The number of blocks per shape, a power of two."""
    each = 1
    while number > each * MOST_SHAPES:
        each *= 2
    return each


def _written(value: object) -> str:
    # Two decimals are finer than a pixel, and the same on every machine.
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
