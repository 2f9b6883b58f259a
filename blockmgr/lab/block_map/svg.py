"""A block map as one SVG document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from blockmgr.lab.block_map.panels import WIDTH, panels
from blockmgr.lab.block_map.shapes import add, document
from blockmgr.lab.block_map.style import patterns, shape_rules

if TYPE_CHECKING:
    from blockmgr.lab.block_map.facts import BlockMap

__all__ = ["as_svg"]

MARGIN: Final = 28
LINE: Final = 18


def as_svg(shown: BlockMap) -> str:
    """A block map as one SVG document. The same map gives the same text."""
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "graphics-document"})
    summary = ", ".join(f"{number:,} {state.name.lower()}" for state, number in shown.states)
    root.set("aria-label", f"{shown.title}: {summary}")
    add(root, "title", shown.title)
    add(root, "desc", "; ".join(f"{name}: {value}" for name, value in shown.facts) or summary)
    add(root, "style", "\n" + shape_rules() + "\n.title { font-size: 20px; font-weight: 600; }\n")
    root.append(patterns())
    paper = add(root, "rect", class_="paper", x=0, y=0, width=WIDTH + 2 * MARGIN)
    add(root, "text", shown.title, x=MARGIN, y=MARGIN + 16, class_="title")
    top = MARGIN + 24.0
    for line in _lines(shown):
        top += LINE
        add(root, "text", line, x=MARGIN, y=top - 4, class_="quiet")
    for panel in panels(shown):
        top += 30
        add(root, "text", panel.heading, x=MARGIN, y=top, class_="strong")
        add(root, "text", panel.text, x=MARGIN, y=top + LINE, class_="quiet")
        top += LINE + 12
        panel.shapes.set("transform", f"translate({MARGIN},{top:g})")
        root.append(panel.shapes)
        top += panel.height
    height = f"{top + MARGIN:g}"
    paper.set("height", height)
    root.set("viewBox", f"0 0 {WIDTH + 2 * MARGIN} {height}")
    return document(root, html=False)


def _lines(shown: BlockMap) -> list[str]:
    """The facts, with as many per line as fit."""
    lines: list[str] = []
    for name, value in shown.facts:
        fact = f"{name}: {value}"
        if lines and len(lines[-1]) + len(fact) < WIDTH // 7:
            lines[-1] += f"   ·   {fact}"
        else:
            lines.append(fact)
    return lines
