"""The look of block maps: a light and a dark palette, patterns, style sheets.

Hues are Okabe and Ito's, which any colour vision can distinguish; without colour, states differ in
lightness and pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FONT", "PALETTES", "Palette", "patterns", "shape_rules"]

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """The colours of a page.

    Attributes:
        paper: Background.
        ink: Text.
        quiet: Less important text.
        line: Hairlines, and the outlines of free blocks.
        owned: Owned blocks.
        owned_edge: Their outlines.
        owned_rest: Slots of owned blocks that hold no token.
        awaited: Tokens that are not computed.
        cached: Cached blocks.
        cached_edge: Their outlines.
        idle: Ground of idle blocks.
        idle_edge: Their hatching and outlines.
        fenced: Ground of fenced blocks.
        fenced_edge: Their dots and outlines.
        null: Ground of the null block.
        null_edge: Its hatching and outline.
    """

    paper: str
    ink: str
    quiet: str
    line: str
    owned: str
    owned_edge: str
    owned_rest: str
    awaited: str
    cached: str
    cached_edge: str
    idle: str
    idle_edge: str
    fenced: str
    fenced_edge: str
    null: str
    null_edge: str


PALETTES: Final = {
    "light": Palette(
        paper="#ffffff",
        ink="#1f2328",
        quiet="#57606a",
        line="#b6bec8",
        owned="#e69f00",
        owned_edge="#8f6200",
        owned_rest="#fff6e0",
        awaited="#f7d283",
        cached="#0f7a5f",
        cached_edge="#064a38",
        idle="#d5ebfa",
        idle_edge="#0072b2",
        fenced="#f6e4ef",
        fenced_edge="#a3447f",
        null="#e4e7eb",
        null_edge="#57606a",
    ),
    "dark": Palette(
        paper="#14171a",
        ink="#e6edf3",
        quiet="#9ea7b1",
        line="#59626c",
        owned="#e69f00",
        owned_edge="#ffc649",
        owned_rest="#2b2413",
        awaited="#7a5a14",
        cached="#008a66",
        cached_edge="#38c79d",
        idle="#12303f",
        idle_edge="#56b4e9",
        fenced="#3a2233",
        fenced_edge="#d78cba",
        null="#2a3036",
        null_edge="#9ea7b1",
    ),
}
"""Palettes by their names in ``prefers-color-scheme``."""


def patterns() -> ET.Element:
    """A ``defs`` element with the fill patterns and the arrow head."""
    defs = ET.Element("defs")
    size = "7"
    strokes = {
        "idle": "M-1,8 L8,-1 M-1,1 L1,-1 M6,8 L8,6",
        "fenced": "M1.75,1.75 h0.01 M5.25,5.25 h0.01",
        "null": "M-1,8 L8,-1 M-1,-1 L8,8",
    }
    for name, stroke in strokes.items():
        pattern = ET.SubElement(
            defs,
            "pattern",
            {"id": f"{name}-fill", "width": size, "height": size, "patternUnits": "userSpaceOnUse"},
        )
        ET.SubElement(pattern, "rect", {"width": size, "height": size, "class": f"{name}-ground"})
        ET.SubElement(pattern, "path", {"d": stroke, "class": f"{name}-hatch"})
    box = {"viewBox": "0 0 10 10", "refX": "9", "refY": "5", "markerWidth": "7"}
    marker = ET.SubElement(
        defs, "marker", {"id": "arrow", "markerHeight": "7", "orient": "auto", **box}
    )
    ET.SubElement(marker, "path", {"d": "M0,0 L10,5 L0,10 z", "class": "arrow-head"})
    return defs


def shape_rules() -> str:
    """The style sheet of the shapes, for both kinds of pages."""
    fixed = (
        f"text {{ font: 12px {FONT}; }}",
        ".small { font-size: 10px; }",
        ".strong { font-weight: 600; }",
        ".end { text-anchor: end; }",
        ".on-block { text-anchor: middle; font-size: 10.5px; paint-order: stroke;"
        " stroke-width: 2.5px; stroke-linejoin: round; }",
        ".on-block.small { font-size: 9px; }",
        "rect { stroke-width: 0.75px; }",
        ".label { pointer-events: none; }",
        ".unused { stroke-dasharray: 2 2; }",
        ".copy { fill: none; stroke-width: 1.6px; }",
        ".idle { fill: url(#idle-fill); }",
        ".fenced { fill: url(#fenced-fill); }",
        ".null { fill: url(#null-fill); }",
        ".idle-hatch, .null-hatch { stroke-width: 1.2px; fill: none; }",
        # Dots: lines of zero length with round ends.
        ".fenced-hatch { stroke-width: 2.2px; stroke-linecap: round; }",
    )
    light = "\n".join(_coloured(PALETTES["light"]))
    dark = "\n".join(f"  {rule}" for rule in _coloured(PALETTES["dark"]))
    return "\n".join((*fixed, light, f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}"))


def _coloured(palette: Palette) -> Iterator[str]:
    yield f"text {{ fill: {palette.ink}; }}"
    yield f".paper {{ fill: {palette.paper}; }}"
    yield f".quiet, .small {{ fill: {palette.quiet}; }}"
    yield f".tick {{ stroke: {palette.line}; }}"
    yield f".free {{ fill: {palette.paper}; stroke: {palette.line}; }}"
    yield f".owned {{ fill: {palette.owned}; stroke: {palette.owned_edge}; }}"
    yield f".cached {{ fill: {palette.cached}; stroke: {palette.cached_edge}; }}"
    patterned = {
        "idle": (palette.idle, palette.idle_edge),
        "fenced": (palette.fenced, palette.fenced_edge),
        "null": (palette.null, palette.null_edge),
    }
    for name, (ground, edge) in patterned.items():
        yield f".{name}, .{name}-hatch {{ stroke: {edge}; }}"
        yield f".{name}-ground {{ fill: {ground}; }}"
    yield f".owned-rest {{ fill: {palette.owned_rest}; stroke: {palette.owned_edge}; }}"
    yield f".idle-rest {{ fill: {palette.paper}; stroke: {palette.idle_edge}; }}"
    yield f".cached-rest {{ fill: {palette.paper}; stroke: {palette.cached_edge}; }}"
    yield f".awaited {{ fill: {palette.awaited}; }}"
    yield f".copy {{ stroke: {palette.ink}; }}"
    yield f".arrow-head {{ fill: {palette.ink}; }}"
    yield f".on-block {{ fill: {palette.ink}; stroke: {palette.paper}; }}"
    yield f".cached-block .on-block {{ fill: #ffffff; stroke: {PALETTES['light'].cached_edge}; }}"
