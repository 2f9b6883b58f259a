"""The style sheet and the script of a report page."""

from __future__ import annotations

from typing import Final

from blockmgr.lab.block_map.style import FONT

__all__ = ["PAGE_RULES", "SCRIPT"]

PAGE_RULES: Final = f"""
* {{ box-sizing: border-box; }}
body {{ font: 16px/1.5 {FONT}; margin: 0; background: var(--paper); color: var(--ink);
  -webkit-text-size-adjust: 100%; }}
header, main, footer {{ max-width: 908px; margin: 0 auto; padding: 0 24px; }}
header {{ padding-top: 40px; }}
h1 {{ font-size: 30px; line-height: 1.2; letter-spacing: -0.01em; margin: 0 0 4px;
  overflow-wrap: anywhere; }}
h2 {{ font-size: 20px; line-height: 1.3; margin: 0 0 4px; }}
p {{ margin: 0 0 12px; max-width: 72ch; }}
.under {{ color: var(--quiet); margin-bottom: 24px; }}
.summary {{ font-size: 19px; line-height: 1.5; max-width: 64ch; margin: 0 0 24px; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px;
  margin: 0 0 16px; padding: 0; background: var(--line); border: 1px solid var(--line);
  border-radius: 8px; overflow: hidden; }}
.tiles div {{ background: var(--paper); padding: 14px 16px; }}
.tiles dt {{ color: var(--quiet); font-size: 14px; }}
.tiles dd {{ margin: 0; font-size: 26px; font-weight: 600; letter-spacing: -0.01em;
  font-variant-numeric: tabular-nums; }}
.tiles .lru {{ color: var(--lru); }}
.tiles .optimum {{ color: var(--optimum); }}
nav ul {{ display: flex; flex-wrap: wrap; gap: 4px 20px; list-style: none; margin: 0; padding: 0; }}
a {{ color: var(--lru); text-underline-offset: 3px; }}
section {{ margin: 56px 0 0; }}
section p {{ color: var(--quiet); }}
figure {{ margin: 8px 0 0; position: relative; }}
svg.chart {{ display: block; width: 100%; height: auto; overflow: visible; }}
svg.narrow {{ display: none; }}
.point {{ fill: transparent; outline: none; }}
.ring {{ fill: none; stroke: transparent; stroke-width: 2px; }}
.point:hover + .ring, .point:focus + .ring {{ stroke: var(--ink); }}
#told {{ position: absolute; z-index: 1; max-width: min(320px, 92vw); padding: 6px 10px;
  background: var(--ink); color: var(--paper); border-radius: 6px; font-size: 14px;
  line-height: 1.35; pointer-events: none; transition: opacity 0.12s; }}
#told[hidden] {{ display: none; }}
details {{ margin: 12px 0 0; }}
summary {{ cursor: pointer; color: var(--lru); width: max-content; max-width: 100%; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 8px 0; font-size: 14px;
  font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; color: var(--quiet); padding: 4px 0; }}
th, td {{ padding: 4px 20px 4px 0; text-align: right; border-bottom: 1px solid var(--line); }}
th {{ font-weight: 600; }}
th:first-child {{ text-align: left; }}
tbody th {{ font-weight: 400; }}
code {{ font: 14px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }}
footer {{ margin-top: 64px; padding-top: 16px; padding-bottom: 48px; color: var(--quiet);
  font-size: 14px; }}
.skip {{ position: absolute; left: -999em; }}
.skip:focus {{ left: 16px; top: 8px; background: var(--paper); padding: 8px 12px; }}
a:focus-visible, summary:focus-visible, .scroll:focus-visible {{ outline: 2px solid var(--lru);
  outline-offset: 3px; border-radius: 2px; }}
@media (max-width: 640px) {{
  header, main, footer {{ padding-left: 16px; padding-right: 16px; }}
  header {{ padding-top: 24px; }}
  h1 {{ font-size: 25px; }}
  .summary {{ font-size: 17px; }}
  .tiles {{ grid-template-columns: 1fr 1fr; }}
  .tiles dd {{ font-size: 22px; }}
  svg.wide {{ display: none; }}
  svg.narrow {{ display: block; }}
}}
@media (prefers-reduced-motion: reduce) {{ * {{ transition: none !important; }} }}
@media (forced-colors: active) {{ svg.chart {{ forced-color-adjust: none; }} }}
@media print {{
  body {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; font-size: 11pt; }}
  nav, #told, .skip {{ display: none; }}
  section {{ margin-top: 28px; break-inside: avoid; }}
  details:not([open]) {{ display: none; }}
  a {{ color: inherit; }}
}}
"""

# One point of a chart is in the tab order; the arrow keys move from there.
SCRIPT: Final = """
"use strict";
const told = document.getElementById("told");
const tell = point => {
  if (!point) { told.hidden = true; return; }
  told.textContent = point.getAttribute("aria-label");
  told.hidden = false;
  const at = point.getBoundingClientRect();
  const width = told.offsetWidth, height = told.offsetHeight;
  const middle = at.left + at.width / 2 - width / 2;
  const most = document.documentElement.clientWidth - width - 8;
  const above = at.top - height - 8;
  told.style.left = `${window.scrollX + Math.max(8, Math.min(most, middle))}px`;
  told.style.top = `${window.scrollY + (above > 4 ? above : at.bottom + 8)}px`;
};
const pointAt = event => event.target.closest ? event.target.closest(".point") : null;
const pointsOf = point => [...point.closest("svg").querySelectorAll(".point")];
for (const chart of document.querySelectorAll("svg.chart"))
  chart.querySelector(".point")?.setAttribute("tabindex", "0");
// On the document: a drawing that listens for focus itself would become a place to stop at.
document.addEventListener("mouseover", event => tell(pointAt(event)));
document.addEventListener("focusout", () => tell(null));
document.addEventListener("focusin", event => {
  const point = pointAt(event);
  if (!point) return;
  for (const other of pointsOf(point)) other.setAttribute("tabindex", other === point ? "0" : "-1");
  tell(point);
});
document.addEventListener("keydown", event => {
  const from = pointAt(event);
  if (!from) return;
  if (event.key === "Escape") { tell(null); return; }
  const points = pointsOf(from), last = points.length - 1, at = points.indexOf(from);
  const to = {
    ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  points[Math.max(0, Math.min(last, to))].focus();
});
"""
