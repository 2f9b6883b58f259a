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
