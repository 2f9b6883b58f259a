"""Draws the hit-rate curve of a study, and writes its data to a file beside it."""

from __future__ import annotations

import csv
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blockmgr import __version__
from blockmgr.errors import MissingExtraError
from blockmgr.files import check_output, replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

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
CEILING: Final = "#D55E00"
INK: Final = "#333333"
FAINT: Final = "#DDDDDD"

# As a fraction of the axis: about the width of a tick label such as "1,234,567".
MIN_LABEL_DISTANCE: Final = 0.09

# Of the same palette, one per router, each with its own marker; the seventh is the first, dashed.
LINES: Final = (
    *(("#0072B2", "o"), ("#56B4E9", "s"), ("#999999", "^")),
    *(("#009E73", "D"), ("#CC79A7", "v"), ("#E69F00", "P")),
)

STROKES: Final = ("-", "--", ":")

SUFFIXES: Final = (".png", ".svg")

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
    picture = _saved(path, (7.2, 4.3), lambda figure: _draw(figure.add_subplot(), study))
    data = picture.with_suffix(".csv")
    _write_csv(data, COLUMNS, _numbers(study))
    return picture, data


def _saved(path: str | Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> Path:
    """Saves a drawing of this size in inches."""
    picture = check_path(path)
    # A fixed salt and no date, so that the same study gives the same file.
    with mpl.rc_context({"font.size": 9.5, "svg.hashsalt": "blockmgr", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, dpi=160, layout="constrained")
        draw(figure)
        kind = picture.suffix.lower().lstrip(".")
        stamp = {"Date": None} if kind == "svg" else {"Software": f"blockmgr {__version__}"}
        with replacing(picture) as file:
            figure.savefig(file, format=kind, metadata=stamp)
    return picture


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
    picture = _saved(path, (9.0, 4.7), lambda figure: _draw_fleets(figure, rows))
    data = picture.with_suffix(".csv")
    shown = [row for row in rows if row.result is not None]
    _write_csv(data, FLEET_COLUMNS, map(_fleet_numbers, shown))
    return picture, data


def _draw_fleets(figure: Figure, rows: Sequence[FleetRow]) -> None:
    rates, balance = figure.subplots(1, 2)
    drawn = [(row, row.result) for row in rows if row.result is not None]
    best: dict[int, float] = {}  # with separate replicas, the prefill line is lower
    for row, _ in drawn:
        if row.best_hit_rate is not None:
            best[row.replicas] = max(best.get(row.replicas, 0.0), row.best_hit_rate)
    if best:
        ceilings = [100 * rate for rate in best.values()]
        rates.plot(
            list(best), ceilings, color=CEILING, linestyle=(0, (6, 4)), label="best possible"
        )
    for place, router in enumerate(dict.fromkeys(row.line for row, _ in drawn)):
        own = [(row.replicas, result) for row, result in drawn if row.line == router]
        sizes = [size for size, _ in own]
        color, marker = LINES[place % len(LINES)]
        stroke = STROKES[place // len(LINES) % len(STROKES)]
        style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": stroke}
        style |= {"markersize": 5, "linewidth": 1.6}
        rates.plot(sizes, [100 * result.hit_rate for _, result in own], label=router, **style)
        balance.plot(sizes, [result.imbalance for _, result in own], label=router, **style)
    for axes, title in ((rates, "token hit rate"), (balance, "busiest replica over the mean")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted({row.replicas for row, _ in drawn})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([str(size) for size in sorted({row.replicas for row, _ in drawn})])
        axes.set_xlabel("replicas")
        axes.set_title(title, color=INK)
        axes.grid(visible=True, color=FAINT, linewidth=0.7)
        axes.set_ylim(bottom=0)
    rates.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    figure.legend(
        *rates.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )


def _draw(axes: Axes, study: Study) -> None:
    runs = sorted(
        zip(study.results, study.capacities, strict=True), key=lambda run: run[0].num_blocks
    )
    blocks = np.array([result.num_blocks for result, _ in runs])
    rates = np.array([100 * result.hit_rate for result, _ in runs])
    labelled = _spaced(blocks)

    ceiling = 0.0
    if study.attainable is not None:
        ceiling = 100 * study.attainable.hit_rate
        axes.axhline(ceiling, color=CEILING, linestyle=(0, (6, 4)), linewidth=1.4)
        text = f"attainable, unbounded pool: {ceiling:.1f} %"
        _label(axes, text, (blocks[0], ceiling), CEILING)
    axes.plot(blocks, rates, color=MEASURED, marker="o", markersize=5, linewidth=1.8)
    for number in labelled:
        point = (blocks[number], rates[number])
        _label(axes, f"{rates[number]:.1f} %", point, MEASURED)

    axes.set_xscale("log")
    spread = max(1.2, float(blocks[-1] / blocks[0]) ** 0.09)
    axes.set_xlim(blocks[0] / spread**0.5, blocks[-1] * spread)
    axes.set_ylim(0, min(109.0, max(1.0, ceiling, *rates) * 1.15))
    axes.xaxis.set_major_locator(FixedLocator([float(blocks[number]) for number in labelled]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([_tick(*runs[number]) for number in labelled])
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_xlabel(
        f"pool size (blocks of {study.config.block_size} tokens, share of the working set)"
    )
    axes.set_ylabel("token hit rate")
    title = f"{study.trace}: hit rate over pool size"
    # Prevents a dollar sign in a file name from starting a formula.
    axes.set_title(title, loc="left", color=INK, pad=10, parse_math=False)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)


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


def _tick(result: ReplayResult, capacity: Capacity) -> str:
    """A pool size in blocks, with the requested share below it."""
    share = f"\n{capacity.text}" if capacity.text.endswith("%") else ""
    return f"{result.num_blocks:,}{share}"


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    text = StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    with replacing(path) as file:
        file.write(text.getvalue().encode())


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
