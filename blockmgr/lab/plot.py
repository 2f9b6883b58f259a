"""The charts of the lab, drawn by matplotlib; saved pictures have their data beside them."""

from __future__ import annotations

import csv
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blockmgr import __version__
from blockmgr.errors import MissingExtraError
from blockmgr.files import check_output, replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from blockmgr.lab.fleets import FleetRow
    from blockmgr.lab.replay import ReplayResult
    from blockmgr.lab.study import Capacity, Study

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter
except ImportError as error:
    raise MissingExtraError("plot", "drawing a plot") from error

__all__ = ["check_path", "save_fleet_plot", "save_plot"]

# Okabe and Ito's palette: distinct for any colour vision, and in grey.
MEASURED: Final = "#0072B2"
BOUND: Final = "#009E73"
CEILING: Final = "#D55E00"
INK: Final = "#333333"
FAINT: Final = "#DDDDDD"

# As a fraction of the axis: about the width of a tick label such as "1,234,567".
MIN_LABEL_DISTANCE: Final = 0.09

# Of the same palette, each with its own marker; the seventh is the first, dashed.
LINES: Final = (
    *(("#0072B2", "o"), ("#56B4E9", "s"), ("#999999", "^")),
    *(("#009E73", "D"), ("#CC79A7", "v"), ("#E69F00", "P")),
)

STROKES: Final = ("-", "--", ":")
DASHED: Final = (0, (6, 4))

SUFFIXES: Final = (".png", ".svg")

# A fixed salt, so that the same results give the same file; letters stay letters.
STYLE: Final[Any] = {
    "font.size": 9.5,
    "svg.hashsalt": "blockmgr",
    "svg.fonttype": "none",
    # The name of a file, such as one with a dollar sign, is no formula.
    "text.parse_math": False,
}

COLUMNS: Final = (
    "capacity",
    "num_blocks",
    "query_tokens",
    "hit_tokens",
    "hit_rate",
    "evictions",
    "attainable_hit_rate",
)


FLEET_COLUMNS: Final = (
    *("replicas", "num_blocks", "router", "hit_rate", "imbalance", "best_hit_rate"),
    *("event_delay_ms", "event_loss", "event_repair", "decode_replicas"),
)


def check_path(path: str | Path, *, inputs: Iterable[str | Path | None] = ()) -> Path:
    """``path``, if a plot can be saved there and its data beside it as ``.csv``.

    Args:
        path: Picture to write.
        inputs: Files that are read and must not be replaced; a None is no file.

    Raises:
        ValueError: The suffix is neither ``.png`` nor ``.svg``, there is no such folder, or one of
            the two files is a folder, a symbolic link or one of ``inputs``.
    """
    others = tuple(inputs)
    target = check_output(path, suffixes=SUFFIXES, inputs=others, name="plot")
    check_output(target.with_suffix(".csv"), inputs=others, name="the data of the plot")
    return target


def save_plot(study: Study, path: str | Path) -> tuple[Path, Path]:
    """Draw hit rate over capacity, and write the numbers to a CSV of the same name.

    Args:
        study: The study to draw.
        path: PNG or SVG, by its suffix.

    Returns:
        The picture and the CSV.

    Raises:
        ValueError: As ``check_path`` does.
        OSError: A file cannot be written; an old file is unchanged.
    """
    table = (COLUMNS, *_numbers(study))
    return _saved(path, (7.2, 4.3), lambda canvas: _draw_study(canvas, study), table)


def save_fleet_plot(rows: Sequence[FleetRow], path: str | Path) -> tuple[Path, Path]:
    """Draw hit rate and imbalance over the number of replicas, with one line per router.

    Args:
        rows: Rows to draw, except those of fleets that were too small.
        path: PNG or SVG, by its suffix; the numbers go to a CSV of the same name.

    Returns:
        The picture and the CSV.

    Raises:
        ValueError: As ``check_path`` does.
        OSError: A file cannot be written; an old file is unchanged.
    """
    shown = (row for row in rows if row.result is not None)
    table = (FLEET_COLUMNS, *map(_fleet_numbers, shown))
    return _saved(path, (9.0, 4.7), lambda canvas: draw_fleets(canvas, rows), table)


def drawn(size: tuple[float, float], draw: Callable[[Canvas], None], kind: str = "svg") -> bytes:
    """A picture of this size in inches; the same drawing gives the same bytes.

    Args:
        size: Width and height.
        draw: Draws on an empty figure.
        kind: ``"png"`` or ``"svg"``.
    """
    with mpl.rc_context(STYLE):
        canvas = Figure(figsize=size, dpi=160, layout="constrained")
        draw(canvas)
        # The last digits of a layout differ from run to run, and ids in an SVG depend on them.
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")
        for axes in canvas.axes:
            left, bottom, width, height = np.round(axes.get_position().bounds, 4).tolist()
            axes.set_position((left, bottom, width, height))
        stamp = {"Date": None} if kind == "svg" else {"Software": f"blockmgr {__version__}"}
        file = BytesIO()
        canvas.savefig(file, format=kind, metadata=stamp)
    return file.getvalue()


def _saved(
    path: str | Path,
    size: tuple[float, float],
    draw: Callable[[Canvas], None],
    table: Iterable[tuple[object, ...]],
) -> tuple[Path, Path]:
    """A drawing in a file, and the numbers of it in another one."""
    picture = check_path(path)
    content = drawn(size, draw, picture.suffix.lower().lstrip("."))
    with replacing(picture) as file:
        file.write(content)
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(table)
    data = picture.with_suffix(".csv")
    with replacing(data) as file:
        file.write(text.getvalue().encode())
    return picture, data


def draw_curve(
    axes: Axes,
    blocks: Sequence[int],
    rates: Sequence[float],
    *,
    ticks: Sequence[str],
    ceiling: tuple[str, float] | None = None,
    optimum: Sequence[float] = (),
    line: tuple[Any, Any] | None = None,
) -> None:
    """Hit rate over pool size, on a logarithmic axis.

    Args:
        axes: Where to draw.
        blocks: Pool sizes that were replayed, ascending.
        rates: Their hit rates, as fractions.
        ticks: Their names.
        ceiling: Name and hit rate of an unbounded pool.
        optimum: The most that any order of eviction finds at these sizes; empty if unknown.
        line: Sizes and hit rates of a curve through all sizes; None to join the replays.
    """
    sizes, percents = np.array(blocks), 100 * np.array(rates)
    labelled = _spaced(sizes)
    highest = float(percents.max())
    if ceiling is not None:
        highest = max(highest, 100 * ceiling[1])
        at = 100 * ceiling[1]
        axes.axhline(at, color=CEILING, linestyle=DASHED, linewidth=1.4)
        _label(axes, f"{ceiling[0]}: {at:.1f} %", (float(sizes[0]), at), CEILING)
    along, found = (sizes, np.array(rates)) if line is None else line
    axes.plot(along, 100 * found, color=MEASURED, linewidth=1.8)
    axes.plot(sizes, percents, color=MEASURED, marker="o", markersize=5, linestyle="")
    for number in labelled:
        point = (float(sizes[number]), float(percents[number]))
        _label(axes, f"{percents[number]:.1f} %", point, MEASURED)
    if len(optimum):
        style: dict[str, Any] = {"marker": "D", "markersize": 4.5, "linewidth": 1.2}
        axes.plot(sizes, [100 * rate for rate in optimum], color=BOUND, label="optimum", **style)
        axes.legend(loc="lower right", frameon=False)
    axes.set_xscale("log")
    spread = max(1.2, float(sizes[-1] / sizes[0]) ** 0.09)
    axes.set_xlim(sizes[0] / spread**0.5, sizes[-1] * spread)
    axes.set_ylim(0, min(109.0, max(1.0, highest) * 1.15))
    axes.xaxis.set_major_locator(FixedLocator([float(sizes[number]) for number in labelled]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([ticks[number] for number in labelled])
    axes.set_ylabel("token hit rate")
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    dress(axes)


def draw_lines(
    axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], ticks: Sequence[int]
) -> None:
    """Lines by name over sizes on a logarithmic axis, each in its colour and with its marker."""
    for place, (name, (along, values)) in enumerate(lines.items()):
        color, marker = LINES[place % len(LINES)]
        stroke = STROKES[place // len(LINES) % len(STROKES)]
        style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": stroke}
        axes.plot(along, values, label=name, markersize=5, linewidth=1.6, **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{size:,}" for size in ticks])
    dress(axes)


def draw_bars(
    axes: Axes,
    ticks: Sequence[str],
    series: Mapping[str, Sequence[float]],
    bound: tuple[str, Sequence[float]],
) -> None:
    """Bars by name beside each other at each tick, and a bound of all of them."""
    places = np.arange(len(ticks))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        left = places - 0.4 + width * (number + 0.5)
        axes.bar(left, values, width, color=LINES[number % len(LINES)][0], label=name)
    name, values = bound
    axes.hlines(values, places - 0.4, places + 0.4, color=CEILING, linestyle="--", label=name)
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_xticks(places, ticks)
    dress(axes)


def draw_stacks(axes: Axes, ticks: Sequence[str], parts: Mapping[str, Sequence[float]]) -> None:
    """A bar for each tick, of shares by name from the bottom up."""
    base = np.zeros(len(ticks))
    for place, (name, shares) in enumerate(parts.items()):
        color = LINES[place % len(LINES)][0]
        hatch = (None, "//", "..")[place // len(LINES) % 3]
        heights = 100 * np.array(shares)
        axes.bar(ticks, heights, 0.6, base, color=color, label=name, hatch=hatch, edgecolor="white")
        base += heights
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    dress(axes)


def draw_fleets(canvas: Any, rows: Sequence[FleetRow]) -> None:
    """Hit rate and imbalance over replicas, side by side, with one line per router."""
    rates, balance = canvas.subplots(1, 2)
    counted = [(row, row.result) for row in rows if row.result is not None]
    best: dict[int, float] = {}  # with separate replicas, the prefill line is lower
    for row, _ in counted:
        if row.best_hit_rate is not None:
            best[row.replicas] = max(best.get(row.replicas, 0.0), row.best_hit_rate)
    if best:
        ceilings = [100 * rate for rate in best.values()]
        rates.plot(list(best), ceilings, color=CEILING, linestyle=DASHED, label="best possible")
    ticks = sorted({row.replicas for row, _ in counted})
    titles = ("token hit rate", "busiest replica over the mean")
    for place, axes in enumerate((rates, balance)):
        lines: dict[str, tuple[list[float], list[float]]] = {}
        for row, found in counted:
            along, values = lines.setdefault(row.line, ([], []))
            along.append(row.replicas)
            values.append((100 * found.hit_rate, found.imbalance)[place])
        draw_lines(axes, lines, ticks)
        axes.set_xlabel("replicas")
        axes.set_title(titles[place], color=INK)
        axes.set_ylim(bottom=0)
    rates.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    legend_below(canvas, rates)


def legend_below(canvas: Any, axes: Axes) -> None:
    """The names of the lines or bars of ``axes``, below all axes."""
    named = axes.get_legend_handles_labels()
    canvas.legend(*named, loc="outside lower center", ncols=3, fontsize=8)


def dress(axes: Axes) -> None:
    """The grid, and the colours of lines around the drawing."""
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)


def _draw_study(canvas: Canvas, study: Study) -> None:
    runs = sorted(
        zip(study.results, study.capacities, strict=True), key=lambda run: run[0].num_blocks
    )
    axes = canvas.add_subplot()
    best = study.attainable
    draw_curve(
        axes,
        [result.num_blocks for result, _ in runs],
        [result.hit_rate for result, _ in runs],
        ticks=[tick(*run) for run in runs],
        ceiling=None if best is None else ("attainable, unbounded pool", best.hit_rate),
    )
    size = study.config.block_size
    axes.set_xlabel(f"pool size (blocks of {size} tokens, share of the working set)")
    axes.set_title(f"{study.trace}: hit rate over pool size", loc="left", color=INK, pad=10)


def _label(axes: Axes, text: str, point: tuple[float, float], color: str) -> None:
    """Label a point: above the ceiling, below a rising curve."""
    above = color == CEILING
    axes.annotate(
        text,
        xy=point,
        xytext=(-4, 5) if above else (5, -5),
        textcoords="offset points",
        va="bottom" if above else "top",
        color=color,
        # Above the grid, below the curve.
        zorder=1.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )


def _spaced(blocks: npt.NDArray[np.int64]) -> list[int]:
    """Indices of points whose labels do not overlap; always includes both ends."""
    places = np.log(blocks)
    nearest = MIN_LABEL_DISTANCE * (places[-1] - places[0])
    kept = [0]
    for number in range(1, len(places)):
        if places[number] - places[kept[-1]] >= nearest and number < len(places) - 1:
            kept.append(number)
    last = len(places) - 1
    if len(kept) > 1 and places[last] - places[kept[-1]] < nearest:
        kept.pop()
    return kept if last == 0 else [*kept, last]


def tick(result: ReplayResult, capacity: Capacity) -> str:
    """A pool size in blocks, with the requested share below it."""
    share = f"\n{capacity.text}" if capacity.text.endswith("%") else ""
    return f"{result.num_blocks:,}{share}"


def _numbers(study: Study) -> Iterator[tuple[object, ...]]:
    """The row of each capacity, with ``COLUMNS``."""
    ceiling = None if study.attainable is None else study.attainable.hit_rate
    for capacity, result in zip(study.capacities, study.results, strict=True):
        counts = (result.num_blocks, result.query_tokens, result.hit_tokens)
        yield capacity.text, *counts, result.hit_rate, result.evictions, ceiling


def _fleet_numbers(row: FleetRow) -> tuple[object, ...]:
    """The row of a fleet that was large enough, with ``FLEET_COLUMNS``."""
    assert row.result is not None
    numbers = (row.result.hit_rate, row.result.imbalance, row.best_hit_rate)
    way = row.delivery
    how = (None,) * 3 if way is None else (way.delay_ms, way.loss, way.repair)
    decode = 0 if row.split is None else row.split.decode
    return row.replicas, row.num_blocks, row.router, *numbers, *how, decode
