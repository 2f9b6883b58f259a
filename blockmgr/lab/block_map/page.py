"""A block map as a self-contained web page, with its panels also as tables.

The page is complete without its script. With it, pointing at a block or moving to it with the arrow
keys shows its title at the bottom and marks the block in every panel.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import numpy as np

from blockmgr.blocks import BlockState
from blockmgr.inspect import ranges
from blockmgr.lab.block_map.facts import STATES, BlockMap, count
from blockmgr.lab.block_map.panels import WIDTH, Panel, panels
from blockmgr.lab.block_map.shapes import add, document
from blockmgr.lab.block_map.style import FONT, PALETTES, patterns, shape_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["as_html"]

MOST_LINES: Final = 2000
MOST_RANGES: Final = 40

PAGE_RULES: Final = f"""
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 {FONT}; margin: 0 auto; padding: 24px 24px 64px; max-width: {WIDTH}px; }}
h1 {{ font-size: 24px; margin: 8px 0; }}
h2 {{ font-size: 17px; margin: 32px 0 2px; }}
p {{ margin: 2px 0 12px; max-width: 76ch; }}
.facts {{ display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 0; padding: 0; list-style: none; }}
.scroll {{ overflow-x: auto; }}
svg.panel {{ display: block; width: 100%; min-width: 720px; height: auto; overflow: visible; }}
summary {{ font-size: 17px; font-weight: 600; margin: 32px 0 8px; cursor: pointer; }}
table {{ border-collapse: collapse; margin: 0 0 24px; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; font-weight: 600; padding: 8px 0 4px; }}
th, td {{ text-align: left; padding: 2px 14px 2px 0; vertical-align: top; }}
th, td {{ border-bottom: 1px solid; }}
th {{ font-weight: 600; }}
td.number {{ text-align: right; }}
.skip {{ position: absolute; left: -999em; }}
.skip:focus {{ position: static; }}
#told {{ position: fixed; left: 0; right: 0; bottom: 0; padding: 8px 24px; min-height: 1.4em;
  border-top: 1px solid; overflow-wrap: anywhere; }}
#told:empty {{ display: none; }}
.b:focus {{ outline: none; }}
.marking .b[data-b]:not(.on) {{ opacity: 0.35; }}
.b.on rect, .b:focus rect {{ stroke-width: 2.5px; stroke-dasharray: none; }}
@media (forced-colors: active) {{ svg.panel {{ forced-color-adjust: none; }} }}
@media print {{ body {{ print-color-adjust: exact; }} #told {{ display: none; }} }}
"""

# The attribute data-b of a shape lists its blocks as ranges. The first shape of a panel gets the
# focus, and the arrow keys move it.
SCRIPT: Final = """
"use strict";
const told = document.getElementById("told");
const shapesOf = new Map();
const blocksOf = shape => {
  const ids = [];
  for (const run of shape.dataset.b.split(", ")) {
    const [first, last = first] = run.split("-").map(Number);
    for (let b = Math.min(first, last); b <= Math.max(first, last); b++) ids.push(b);
  }
  return ids;
};
const all = [...document.querySelectorAll(".b[data-b]")];
for (const shape of all)
  for (const block of blocksOf(shape)) {
    if (!shapesOf.has(block)) shapesOf.set(block, []);
    shapesOf.get(block).push(shape);
  }
let pinned = null;
const mark = shape => {
  for (const other of document.querySelectorAll(".b.on")) other.classList.remove("on");
  document.body.classList.toggle("marking", shape !== null);
  told.textContent = shape ? shape.querySelector("title").textContent : "";
  if (shape)
    for (const block of blocksOf(shape))
      for (const other of shapesOf.get(block)) other.classList.add("on");
};
const shapeAt = event => event.target.closest ? event.target.closest(".b[data-b]") : null;
document.addEventListener("mouseover", event => { if (!pinned) mark(shapeAt(event)); });
document.addEventListener("focusin", event => { if (!pinned) mark(shapeAt(event)); });
document.addEventListener("focusout", () => { if (!pinned) mark(null); });
document.addEventListener("click", event => {
  const shape = shapeAt(event);
  pinned = shape === pinned ? null : shape;
  mark(pinned);
});
const middle = shape => {
  const box = shape.getBBox();
  return [box.x + box.width / 2, box.y + box.height / 2];
};
const away = (shapes, from, key) => {
  const at = shapes.indexOf(from);
  if (key === "ArrowLeft") return shapes[at - 1];
  if (key === "ArrowRight") return shapes[at + 1];
  if (key === "Home") return shapes[0];
  if (key === "End") return shapes[shapes.length - 1];
  const down = key === "ArrowDown" ? 1 : -1;
  const [x, y] = middle(from);
  let best, least = Infinity;
  for (const shape of shapes) {
    const [left, top] = middle(shape);
    const step = down * (top - y), distance = 4 * step + Math.abs(left - x);
    if (step > 2 && distance < least) { best = shape; least = distance; }
  }
  return best;
};
for (const panel of document.querySelectorAll("svg.panel")) {
  const shapes = [...panel.querySelectorAll(".b[data-b]")];
  shapes.forEach((shape, index) => shape.setAttribute("tabindex", index ? "-1" : "0"));
  panel.addEventListener("keydown", event => {
    const from = shapeAt(event);
    if (!from) return;
    if (event.key === "Enter" || event.key === " " || event.key === "Escape") {
      pinned = event.key === "Escape" || pinned ? null : from;
      mark(from);
    } else if (/^(Arrow|Home$|End$)/.test(event.key)) {
      const next = away(shapes, from, event.key);
      if (next) {
        from.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      }
    } else return;
    event.preventDefault();
  });
}
"""


def as_html(shown: BlockMap) -> str:
    """A block map as one self-contained page. The same map gives the same text."""
    root = ET.Element("html", {"lang": "en"})
    head = add(root, "head")
    add(head, "meta", charset="utf-8")
    add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    add(head, "title", shown.title)
    add(head, "style", PAGE_RULES + _page_colours() + shape_rules() + "\n")
    body = add(root, "body")
    add(body, "a", "Skip to the tables", class_="skip", href="#tables")
    main = add(body, "main")
    add(main, "h1", shown.title)
    if shown.facts:
        facts = add(main, "ul", class_="facts")
        for name, value in shown.facts:
            add(facts, "li", f"{name}: {value}")
    fills = add(main, "svg", width=0, height=0, aria_hidden="true", style="position: absolute")
    fills.append(patterns())
    for panel in panels(shown):
        _add_panel(main, panel)
    tables = add(main, "details", id="tables")
    add(tables, "summary", "The same as tables")
    for caption, headings, lines in _tables(shown):
        _add_table(tables, caption, headings, lines)
    # A screen reader reads the title of a shape; this line is for sighted users.
    add(body, "div", "", id="told", aria_hidden="true")
    add(body, "script", SCRIPT)
    return document(root, html=True)


def _page_colours() -> str:
    def of(scheme: str) -> str:
        palette = PALETTES[scheme]
        return (
            f"body, #told {{ background: {palette.paper}; color: {palette.ink}; }}\n"
            f"th, td, #told {{ border-color: {palette.line}; }}\n"
            f"a {{ color: {palette.idle_edge}; }}\n"
            f".b.on rect, .b:focus rect {{ stroke: {palette.ink}; }}\n"
        )

    return of("light") + f"@media (prefers-color-scheme: dark) {{\n{of('dark')}}}\n"


def _add_panel(main: ET.Element, panel: Panel) -> None:
    section = add(main, "section", aria_labelledby=f"{panel.name}-heading")
    add(section, "h2", panel.heading, id=f"{panel.name}-heading")
    add(section, "p", panel.text, id=f"{panel.name}-text")
    scroll = add(section, "div", class_="scroll")
    # Outlines of shapes at the edge extend one unit further.
    box = f"-1 -1 {WIDTH + 2} {panel.height + 2:g}"
    svg = add(
        scroll,
        "svg",
        viewBox=box,
        class_="panel",
        role="group",
        aria_labelledby=f"{panel.name}-heading",
        aria_describedby=f"{panel.name}-text",
    )
    svg.append(panel.shapes)


def _add_table(
    parent: ET.Element, caption: str, headings: Sequence[str], lines: Iterable[Sequence[str]]
) -> None:
    table = add(parent, "table")
    add(table, "caption", caption)
    head = add(add(table, "thead"), "tr")
    for heading in headings:
        add(head, "th", heading, scope="col")
    body = add(table, "tbody")
    for number, line in enumerate(lines):
        row = add(body, "tr")
        if number == MOST_LINES:
            add(row, "td", "and more, left out here", colspan=len(headings))
            break
        add(row, "th", line[0], scope="row")
        for text in line[1:]:
            plain = text.replace(",", "").replace(".", "").replace(" %", "")
            add(row, "td", text, **({"class_": "number"} if plain.isdigit() else {}))


def _tables(
    shown: BlockMap,
) -> Iterator[tuple[str, tuple[str, ...], Iterable[Sequence[str]]]]:
    """Caption, headings and lines of each table that is not empty."""
    total = len(shown.blocks)
    states = [
        (state.name.lower(), f"{number:,}", f"{100 * number / total:.1f} %", STATES[state])
        for state, number in shown.states
    ]
    yield "Blocks by state", ("state", "blocks", "share", "meaning"), states
    headings: tuple[str, ...]
    if shown.groups:
        headings = ("group", "its layers read", "in use", "cached")
        lines = [
            (str(held.number), repr(held.group), f"{held.used:,}", f"{held.cached:,}")
            for held in shown.groups
        ]
        yield "Blocks by group of layers", headings, lines
    if shown.rows:
        headings = ("sequence", "tokens", "computed", "blocks", "shared", "block ids")
        yield "Sequences", headings, _sequence_lines(shown)
    if len(np.flatnonzero(shown.blocks.copy_source >= 0)):
        headings = ("into block", "from block", "tokens", "state")
        yield "Copies that have not run", headings, _copy_lines(shown)
    if shown.blocks.count(BlockState.IDLE):
        headings = ("evicted after", "block", "tokens", "continues")
        yield "Idle blocks in the order of eviction", headings, _idle_lines(shown)
    headings = ("blocks", "state", "shared by", "tokens", "computed", "held by")
    yield "Every block", headings, _block_lines(shown)


def _sequence_lines(shown: BlockMap) -> Iterator[Sequence[str]]:
    for row, (tokens, computed, preempted) in zip(shown.rows, shown.details, strict=True):
        shared = int(np.count_nonzero(shown.blocks.ref_count[row.block_ids] > 1))
        ids = "none: preempted" if preempted else ranges(row.block_ids.tolist(), MOST_RANGES)
        numbers = (tokens, computed, len(row.block_ids), shared)
        yield (row.name, *(f"{number:,}" for number in numbers), ids)


def _copy_lines(shown: BlockMap) -> Iterator[Sequence[str]]:
    blocks = shown.blocks
    for block in np.flatnonzero(blocks.copy_source >= 0).tolist():
        state = "taken, not resolved" if blocks.copy_taken[block] else "pending"
        yield str(block), str(blocks.copy_source[block]), str(blocks.copy_tokens[block]), state


def _idle_lines(shown: BlockMap) -> Iterator[Sequence[str]]:
    blocks = shown.blocks
    for rank, block in enumerate(blocks.eviction_order.tolist()):
        parent = int(blocks.parent[block])
        before = f"block {parent}" if parent >= 0 else "nothing: it begins a prompt"
        yield count(rank, "other"), str(block), str(blocks.num_tokens[block]), before


def _block_lines(shown: BlockMap) -> Iterator[Sequence[str]]:
    """Every block by id; neighbours that are alike share a line."""
    blocks = shown.blocks
    facts = (blocks.state, blocks.ref_count, blocks.num_tokens, blocks.num_computed_tokens)
    look = np.stack((*facts, shown.company, blocks.group), axis=1)
    cuts = 1 + np.flatnonzero(np.any(look[1:] != look[:-1], axis=1))
    for first, stop in itertools.pairwise([0, *cuts.tolist(), len(blocks)]):
        numbers = [f"{int(fact[first]):,}" for fact in facts[1:]]
        names = ", ".join(shown.rows[row].name for row in shown.holders(first))
        ids = str(first) if first == stop - 1 else f"{first}-{stop - 1}"
        if shown.groups and names:
            names += f" (group {blocks.group[first]})"
        yield ids, BlockState(blocks.state[first]).name.lower(), *numbers, names
