"""The parts of a chapter of a report."""

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
    """The numbers of a chart.

    Attributes:
        caption: Caption of the table.
        headings: One per column.
        rows: Rows as text; the first cell of each is its heading.
    """

    caption: str
    headings: tuple[str, ...]
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One chart with its text.

    Attributes:
        name: Prefix of ids.
        heading: Title.
        text: Explanation.
        description: Description for screen readers.
        height: Height of the wide drawing, in CSS pixels.
        tall: Height of the narrow drawing.
        draw: Draws the chart.
        tables: The numbers of the chart.
    """

    name: str
    heading: str
    text: str
    description: str
    height: float
    tall: float
    draw: Callable[..., Placed]
    tables: tuple[Table, ...]
