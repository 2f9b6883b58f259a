"""What a chapter of a report consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.lab.page.parts import Placed

__all__ = ["Chapter", "Rows", "Table"]

Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A chart's numbers.

    Attributes:
        caption: What they are.
        headings: One a column.
        rows: As text, the first cell of each being its heading.
    """

    caption: str
    headings: tuple[str, ...]
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One chart with its words.

    Attributes:
        name: Begins ids.
        heading: Its title.
        text: How to read it.
        description: What it shows, for who cannot see it.
        height: Of the wide drawing, in CSS pixels.
        tall: Of the narrow one.
        draw: Draws it.
        tables: The same as numbers.
    """

    name: str
    heading: str
    text: str
    description: str
    height: float
    tall: float
    draw: Callable[..., Placed]
    tables: tuple[Table, ...]
