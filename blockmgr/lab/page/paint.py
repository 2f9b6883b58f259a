"""Colours by role, and the conversion of matplotlib figures to SVG for a page.

A page has a light and a dark scheme, but each chart is drawn once. So figures use placeholder
colours, and the SVG replaces each by a custom property of the page's style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from blockmgr.lab.block_map.style import FONT

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DARK",
    "LIGHT",
    "ROLES",
    "Colours",
    "Drawing",
    "Point",
    "as_drawing",
    "figure",
]

Colours = Callable[[str], str]
"""A colour by role."""

# Okabe and Ito's hues: distinct for any colour vision, and by lightness in grey.
LIGHT: Final = MappingProxyType(
    {
        "paper": "#ffffff",
        "ink": "#1f2328",
        "quiet": "#57606a",
        "line": "#d5dae0",
        "lru": "#0072b2",
        "lru-soft": "#b5d7ec",
        "optimum": "#b84f00",
        "found": "#0072b2",
        "evicted": "#e69f00",
        "unused": "#8f6200",
        "unseen": "#c3cad2",
        "shared": "#0f7a5f",
        "alone": "#63c2a5",
        "idle-0": "#0072b2",
        "idle-1": "#4f9fd0",
        "idle-2": "#94c6e6",
        "idle-3": "#cfe5f4",
        "free": "#eceff2",
        "group-0": "#0072b2",
        "group-0-soft": "#a9d0e8",
        "group-1": "#0f7a5f",
        "group-1-soft": "#a3d9c8",
        "group-2": "#b84f00",
        "group-2-soft": "#f0c49f",
        "group-3": "#8a3b75",
        "group-3-soft": "#e0b8d3",
        "router-0": "#57606a",
        "router-1": "#e69f00",
        "router-2": "#0f7a5f",
        "router-3": "#56b4e9",
        "router-4": "#0072b2",
        "router-5": "#b84f00",
        "router-6": "#8a3b75",
    }
)
DARK: Final = MappingProxyType(
    {
        "paper": "#14171a",
        "ink": "#e6edf3",
        "quiet": "#a3acb6",
        "line": "#333a41",
        "lru": "#56b4e9",
        "lru-soft": "#1f4a66",
        "optimum": "#ff9a4d",
        "found": "#56b4e9",
        "evicted": "#e69f00",
        "unused": "#ffc649",
        "unseen": "#4d565f",
        "shared": "#38c79d",
        "alone": "#1d7a60",
        "idle-0": "#7cc7f0",
        "idle-1": "#3f8fc4",
        "idle-2": "#245f88",
        "idle-3": "#193e59",
        "free": "#23282d",
        "group-0": "#56b4e9",
        "group-0-soft": "#1f4a66",
        "group-1": "#38c79d",
        "group-1-soft": "#185443",
        "group-2": "#ff9a4d",
        "group-2-soft": "#6b3c14",
        "group-3": "#d58fc0",
        "group-3-soft": "#583149",
        "router-0": "#a3acb6",
        "router-1": "#ffc649",
        "router-2": "#38c79d",
        "router-3": "#9bd3f5",
        "router-4": "#56b4e9",
        "router-5": "#ff9a4d",
        "router-6": "#d58fc0",
    }
)
ROLES: Final = tuple(LIGHT)
# Figures do not use these colours for anything else.
STAND_INS: Final = {role: f"#fe{number:02x}01" for number, role in enumerate(ROLES)}
POINTS_PER_INCH: Final = 72
SVG: Final = "{http://www.w3.org/2000/svg}"
XLINK: Final = "{http://www.w3.org/1999/xlink}"

RC: Final[Any] = {
    "font.size": 13,
    "font.family": "sans-serif",
    # The font that measures text; the fonts that the page uses are not much wider.
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 1.0,
    "xtick.major.size": 4,
    "ytick.major.size": 0,
    "hatch.linewidth": 1.0,
}


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a drawing with a note.

    Attributes:
        x: Distance from the left edge, in the drawing's units.
        y: Distance from the top edge, in the drawing's units.
        text: The note.
    """

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart as SVG elements without a namespace.

    Attributes:
        width: Width of the drawing in its units, which are CSS pixels at full size.
        height: Height of the drawing in its units.
        shapes: A ``g`` element.
        points: Points in reading order, from left to right or from top to bottom.
    """

    width: float
    height: float
    shapes: ET.Element
    points: tuple[Point, ...]

    @property
    def markup(self) -> Markup:
        """The shapes as text of an HTML document."""
        return Markup(ET.tostring(self.shapes, encoding="unicode", method="html"))


def figure(width: float, height: float) -> Figure:
    """An empty figure of a size in CSS pixels."""
    size = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
    return Figure(figsize=size, dpi=POINTS_PER_INCH, layout="constrained")


def as_drawing(
    name: str,
    size: tuple[float, float],
    draw: Callable[[Any, Colours], list[tuple[Any, float, float, str]]],
) -> Drawing:
    """Draw a chart for a page.

    Args:
        name: Prefix of every id in the drawing, so that ids are unique on a page.
        size: Width and height in CSS pixels.
        draw: Draws on an empty figure, and returns axes, x, y and text of each point.
    """
    with mpl.rc_context({**RC, "svg.hashsalt": name}):
        canvas = figure(*size)
        placed = draw(canvas, STAND_INS.__getitem__)
        # Lays the figure out, so that axis coordinates can be converted.
        canvas.draw_without_rendering()
        points = []
        for axes, x, y, text in placed:
            right, up = axes.transData.transform((x, y))
            points.append(Point(float(right), size[1] - float(up), text))
        file = StringIO()
        canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return Drawing(*size, _cleaned(file.getvalue(), name), tuple(points))


def _cleaned(text: str, name: str) -> ET.Element:
    """The drawing without metadata, style sheet, namespace and unused ids."""
    for role, colour in STAND_INS.items():
        text = text.replace(colour, f"var(--{role})")
    root = ET.fromstring(text)
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    shapes = ET.Element("g", {"aria-hidden": "true"})
    for child in root:
        if child.tag not in (f"{SVG}metadata", f"{SVG}defs") or child.find(f"{SVG}style") is None:
            shapes.append(child)
    for parent in list(shapes.iter()):
        for child in list(parent):
            if child.tag == f"{SVG}metadata":
                parent.remove(child)
    for element in shapes.iter():
        element.tag = element.tag.removeprefix(SVG)
        element.tail = None
        if element.tag != "text":
            element.text = None
        attributes = dict(element.attrib)
        element.attrib.clear()
        for key, value in attributes.items():
            _keep(element, key, value, (name, used))
    return shapes


def _keep(element: ET.Element, key: str, value: str, ids: tuple[str, set[str]]) -> None:
    name, used = ids
    if key == "id":
        if value in used:
            element.set("id", f"{name}-{value}")
    elif key == f"{XLINK}href":
        element.set("href", value.replace("#", f"#{name}-"))
    elif value.startswith("url(#") or "url(#" in value:
        element.set(key, value.replace("url(#", f"url(#{name}-"))
    else:
        element.set(key, value)


def style_rules() -> str:
    """The custom properties for both schemes, and the styles that all drawings share."""

    def of(palette: Mapping[str, str]) -> str:
        return " ".join(f"--{role}: {colour};" for role, colour in palette.items())

    return (
        f":root {{ color-scheme: light dark; {of(LIGHT)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {of(DARK)} }} }}\n"
        "svg.chart * { stroke-linejoin: round; stroke-linecap: butt; }\n"
        # Overrides the font in each text element, which was only for measuring.
        f"svg.chart text {{ font-family: {FONT} !important; }}\n"
    )
