"""The chapter of a report about what clients know of their sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FuncFormatter

from blockmgr.lab.hint_models import HINT_MODELS
from blockmgr.lab.page.chapter import Chapter, Table
from blockmgr.lab.page.parts import dress, legend, log_blocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.page.paint import Colours
    from blockmgr.lab.page.parts import Placed
    from blockmgr.lab.sweep import SweepRow

__all__ = ["draw_sessions", "session_chapters", "sessions_data"]

STYLES: Final = (
    *(("router-1", "s"), ("router-2", "^"), ("router-3", "v")),
    *(("router-6", "o"), ("router-0", "P"), ("group-0-soft", "X")),
)
"""Role and marker of the line of each model, so that they differ in more than colour."""

NOTHING: Final = "\N{EN DASH}"


def session_chapters(report: Report) -> list[Chapter]:
    """The chapter for traces that name sessions."""
    if not report.hinted:
        return []
    said = "; ".join(f"{name}: {HINT_MODELS[name].text}" for name in report.hinted)
    best, row = max(
        ((name, row) for name, rows in report.hinted.items() for row in rows),
        key=lambda pair: _gain(pair[1]),
    )
    text = f"What LRU gains, in points, if clients say more than their prompts ({said})."
    if not report.config.groups:
        text += " The table has the share of the gap to the optimum that this closes, in brackets."
    return [
        Chapter(
            name="sessions",
            heading="What the ends of sessions are worth",
            text=text,
            description=(
                "Points of hit rate above LRU over blocks in the pool, a line for each model of "
                f"what clients say. The largest gain is {_gain(row):.2f} "
                f"points, with {best} at {row.capacity.text}."
            ),
            height=380,
            tall=400,
            draw=draw_sessions,
            tables=(_table(report),),
        )
    ]


def draw_sessions(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Points of hit rate above LRU without hints, with one line per model, and the optimum."""
    axes: Axes = canvas.add_subplot()
    placed: Placed = []
    [rows, *_] = report.hinted.values()
    blocks = [row.result.num_blocks for row in rows]
    lines: list[tuple[str, str, str, list[float]]] = [
        (name, *style, [row.result.hit_rate for row in found])
        for (name, found), style in zip(report.hinted.items(), STYLES, strict=False)
    ]
    bests = [row.optimum.hit_rate for row in rows if row.optimum is not None]
    if bests:
        lines.append(("optimum", "optimum", "D", bests))
    for name, role, marker, rates in lines:
        gains = [100 * (rate - _baseline(row)) for row, rate in zip(rows, rates, strict=True)]
        style = {"marker": marker, "markersize": 6, "linewidth": 1.8}
        axes.plot(blocks, gains, label=name, color=colour(role), **style)  # type: ignore[arg-type]
        for row, gain, rate in zip(rows, gains, rates, strict=True):
            text = f"{row.result.num_blocks:,} blocks ({row.capacity.text}), {name}: {rate:.2%}"
            placed.append((axes, row.result.num_blocks, gain, f"{text}, {gain:+.2f} points"))
    placed.sort(key=lambda point: point[1])
    axes.axhline(0, color=colour("lru"), linewidth=1.8)
    axes.set_xscale("log")
    log_blocks(axes, blocks[0], blocks[-1], 4 if narrow else 9)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}"))
    axes.set_xlabel(f"blocks of {report.config.block_size} tokens in the pool")
    dress(axes, colour, grid="y")
    legend(axes, canvas, colour, narrow=narrow)
    return placed


def _baseline(row: SweepRow) -> float:
    """The hit rate of LRU without hints."""
    return (row.baseline or row.result).hit_rate


def _gain(row: SweepRow) -> float:
    """Points above LRU without hints."""
    return 100 * (row.result.hit_rate - _baseline(row))


def _table(report: Report) -> Table:
    headings = ("capacity", "blocks", "LRU", *report.hinted, "optimum")
    rows = []
    for at_size in zip(*report.hinted.values(), strict=True):
        [first, *_] = at_size
        bound = NOTHING if first.optimum is None else f"{first.optimum.hit_rate:.2%}"
        cells = [first.capacity.text, f"{first.result.num_blocks:,}", f"{_baseline(first):.2%}"]
        rows.append((*cells, *map(_cell, at_size), bound))
    return Table("Hit rate by what clients say", headings, tuple(rows))


def _cell(row: SweepRow) -> str:
    gap = row.gap_closed
    return f"{row.result.hit_rate:.2%}" + ("" if gap is None else f" ({gap:.0%})")


def sessions_data(report: Report) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [
        {
            "hints": name,
            "capacity": row.capacity.text,
            "num_blocks": row.result.num_blocks,
            "hit_rate": row.result.hit_rate,
            "gap_closed": row.gap_closed,
        }
        for name, rows in report.hinted.items()
        for row in rows
    ]
