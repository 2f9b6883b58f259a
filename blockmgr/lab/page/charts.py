"""The charts of a report. Each draws on an empty figure and returns the places that speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from blockmgr.lab.page.words import BINS_MS, age_names, binned, duration, short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.page.paint import Colours

    Placed = list[tuple[Any, float, float, str]]

__all__ = [
    "draw_curve",
    "draw_gaps",
    "draw_lifetimes",
    "draw_outcomes",
    "draw_policies",
    "draw_pool",
]

CURVE_POINTS: Final = 240
# Beyond this the curve is flat, and every label would sit in the same place.
SATURATED: Final = 0.999
CROWDED: Final = 12


def draw_curve(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Hit rate over pool size: LRU at every size, and the two ceilings."""
    axes: Axes = canvas.add_subplot()
    curve = report.curve
    most = max(int(curve.capacities[-1]), report.attainable.working_set_blocks)
    first = curve.longest_request_blocks
    sizes = np.unique(np.geomspace(first, most, CURVE_POINTS).astype(int))
    rates = np.array([100 * curve.hit_rate_at(int(size)) for size in sizes])
    ceiling = 100 * report.attainable.hit_rate
    rows = [report.row("lru", capacity) for capacity in report.capacities]
    blocks = [row.result.num_blocks for row in rows]
    bests = [100 * row.optimum.hit_rate for row in rows]

    axes.axhline(ceiling, color=colour("quiet"), linestyle=(0, (5, 4)), linewidth=1.3)
    axes.fill_between(sizes, rates, color=colour("lru-soft"), alpha=0.35, linewidth=0)
    axes.plot(sizes, rates, color=colour("lru"), linewidth=2.4)
    axes.plot(blocks, bests, color=colour("optimum"), linewidth=1.6, marker="D", markersize=5.5)
    measured = [100 * row.result.hit_rate for row in rows]
    axes.plot(blocks, measured, "o", color=colour("lru"), markersize=6)
    placed: Placed = []
    for row, best, rate in zip(rows, bests, measured, strict=True):
        text = f"{row.result.num_blocks:,} blocks ({row.capacity.text})"
        placed.append((axes, row.result.num_blocks, rate, f"{text}: LRU {rate:.2f} %"))
        placed.append((axes, row.result.num_blocks, best, f"{text}: optimum {best:.2f} %"))

    axes.set_xscale("log")
    axes.set_xlim(sizes[0], most * 1.04)
    axes.set_ylim(0, min(104.0, max(1.0, ceiling) * 1.16))
    _label(axes, f"unbounded pool {ceiling:.1f} %", (sizes[0], ceiling), colour("quiet"), (4, 5))
    at = int(np.argmin(np.abs(np.array(bests) - 0.75 * ceiling)))
    _label(axes, "optimum", (blocks[at], bests[at]), colour("optimum"), (-8, 6), align="right")
    at = int(np.searchsorted(rates, 0.62 * ceiling))
    at = min(at, len(sizes) - 1)
    _label(axes, "LRU", (sizes[at], rates[at]), colour("lru"), (9, -6), top=True)
    _log_blocks(axes, sizes[0], most, 4 if narrow else 7)
    _percent_axis(axes, colour)
    axes.set_xlabel(f"blocks of {report.config.block_size} tokens in the pool")
    _dress(axes, colour, grid="y")
    return placed


def draw_policies(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """How much of the way from LRU to the optimum each policy goes, at each pool size."""
    others = [name for name in report.policies if name != "lru"]
    open_to_gain = [size for size in report.capacities if _gap(report, size) > 0]
    columns = min(len(open_to_gain), 2 if narrow else 6)
    lines = -(-len(open_to_gain) // columns)
    grid = canvas.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    placed: Placed = []
    closed = [
        report.sweep.gap_closed(report.row(name, size)) or 0.0
        for name in others
        for size in open_to_gain
    ]
    low = min(-0.25, *(max(value, -1.0) for value in closed)) - 0.12
    high = max(0.45, *closed) + 0.34
    for axes in grid.flat[len(open_to_gain) :]:
        axes.set_visible(False)
    for axes, size in zip(grid.flat, open_to_gain, strict=False):
        lru = report.row("lru", size)
        gap = _gap(report, size)
        for place, name in enumerate(others):
            row = report.row(name, size)
            value = max(report.sweep.gap_closed(row) or 0.0, -1.0)
            gained = 100 * (row.result.hit_rate - lru.result.hit_rate)
            mark = colour("learned" if name == "adaptive" else "other")
            axes.plot([0, value], [place, place], color=mark, linewidth=2, solid_capstyle="butt")
            axes.plot([value], [place], "o", color=mark, markersize=7)
            side = 1 if gained >= 0 else -1
            _label(
                axes,
                f"{gained:+.1f}",
                (max(value, 0) if side > 0 else 0, place),
                colour("ink"),
                (9 if side > 0 else 6, 0),
                middle=True,
            )
            text = f"{name} at {size.text}: {100 * row.result.hit_rate:.2f} %, "
            text += f"{gained:+.2f} points beside LRU, {value:.0%} of the gap"
            placed.append((axes, value, place, text))
        axes.axvline(0, color=colour("lru"), linewidth=1.8)
        title = f"{size.text} · LRU {100 * lru.result.hit_rate:.1f} %\n"
        axes.set_title(
            f"{title}{100 * gap:.1f} points to gain",
            color=colour("ink"),
            fontsize=12,
            loc="left",
        )
        axes.set_xlim(low, high)
        axes.set_ylim(len(others) - 0.4, -0.6)
        axes.set_yticks(range(len(others)), others)
        axes.xaxis.set_major_locator(FixedLocator([0.0, 0.5] if high < 1 else [0.0, 0.5, 1.0]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        _dress(axes, colour, grid="x")
        axes.spines["left"].set_visible(False)
    return placed


def draw_outcomes(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """What became of all prompt tokens: one bar a reason."""
    axes: Axes = canvas.add_subplot()
    total = sum(outcome.tokens for outcome in report.outcomes)
    placed: Placed = []
    widest = max(outcome.tokens for outcome in report.outcomes) / total
    for place, outcome in enumerate(report.outcomes):
        share = outcome.tokens / total
        role = "found" if outcome.name == "found" else "evicted"
        axes.barh(place, 100 * share, height=0.34, color=colour(role), linewidth=0)
        name = outcome.name if narrow else f"{outcome.name}: {outcome.meaning}"
        _label(axes, name, (0, place - 0.2), colour("ink"), (0, 3))
        value = f"{share:.1%}  ({short_count(outcome.tokens)})"
        _label(axes, value, (100 * share, place), colour("ink"), (7, 0), middle=True)
        placed.append(
            (axes, 100 * share, place, f"{outcome.name}: {outcome.tokens:,} tokens, {share:.2%}")
        )
    axes.set_xlim(0, 100 * widest * (1.5 if narrow else 1.25))
    axes.set_ylim(len(report.outcomes) - 0.6, -0.75)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel("share of all prompt tokens")
    _dress(axes, colour, grid="x")
    axes.spines["left"].set_visible(False)
    return placed


def draw_gaps(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """How long after its last use a block is asked for, and how much of that the pool serves."""
    axes: Axes = canvas.add_subplot()
    wanted = binned(report.unbounded.reuse_gaps_ms)
    found = binned(report.watched.reuse_gaps_ms)
    placed = _histogram(
        axes,
        [("asked for", wanted, colour("rest")), ("found", found, colour("found"))],
        "blocks",
    )
    total = max(1, int(wanted.sum()))
    axes.set_ylabel("blocks")
    peak = int(np.argmax(wanted))
    _label(
        axes,
        f"asked for: {short_count(total)}",
        (peak, wanted[peak]),
        colour("quiet"),
        (0, 5),
        center=True,
    )
    peak = int(np.argmax(found))
    _label(
        axes,
        f"found: {short_count(int(found.sum()))}",
        (peak, found[peak]),
        colour("lru"),
        (0, 5),
        center=True,
    ) if found.any() else None
    _time_axis(axes, narrow)
    axes.set_xlabel("time since the block was last used")
    axes.set_ylim(0, max(1, wanted.max(), found.max()) * 1.18)
    _dress(axes, colour, grid="y")
    return placed


def draw_lifetimes(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """How long evicted blocks had been in the pool, and whether anybody ever found them."""
    axes: Axes = canvas.add_subplot()
    lived, unused = report.watched.lifetimes_ms, report.watched.uses == 0
    every, never = binned(lived), binned(lived[unused])
    placed = _histogram(
        axes,
        [
            ("evicted", every, colour("found")),
            ("never found", never, colour("evicted")),
        ],
        "blocks",
    )
    if len(lived):
        peak = int(np.argmax(never))
        share = float(unused.mean())
        _label(
            axes,
            f"never found: {share:.0%}",
            (peak, every[peak]),
            colour("ink"),
            (0, 5),
            center=True,
        )
    else:
        axes.text(
            0.5,
            0.5,
            "nothing was evicted",
            transform=axes.transAxes,
            ha="center",
            color=colour("quiet"),
        )
    _time_axis(axes, narrow)
    axes.set_xlabel("time from the block's promotion to its eviction")
    axes.set_ylabel("blocks")
    axes.set_ylim(0, max(1, every.max()) * 1.18)
    _dress(axes, colour, grid="y")
    return placed


def draw_pool(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """The pool over time, divided by what its blocks are doing."""
    axes: Axes = canvas.add_subplot()
    frames = report.watched.frames
    start = frames[0].time_ms
    minutes = np.array([(frame.time_ms - start) / 60_000 for frame in frames])
    names = age_names(report.watched.age_bounds_ms)
    bands = [
        ("in use, shared", "shared", [frame.shared for frame in frames]),
        ("in use, alone", "alone", [frame.alone for frame in frames]),
    ]
    bands += [
        (f"idle, used {name}", f"idle-{number}", [frame.idle[number] for frame in frames])
        for number, name in enumerate(names)
    ]
    bands.append(("free", "free", [frame.free for frame in frames]))
    total = report.watched.result.num_blocks
    base = np.zeros(len(frames))
    for _, role, blocks in bands:
        top = base + 100 * np.array(blocks) / total
        axes.fill_between(
            minutes, base, top, color=colour(role), linewidth=0.6, edgecolor=colour("paper")
        )
        base = top
    _band_labels(axes, bands, total, (minutes[-1], colour), narrow=narrow)
    placed: Placed = []
    for number in np.unique(np.linspace(0, len(frames) - 1, min(24, len(frames))).astype(int)):
        counts = ", ".join(
            f"{name} {blocks[number] / total:.0%}" for name, _, blocks in bands if blocks[number]
        )
        busy = 100 * (frames[number].shared + frames[number].alone) / total
        when = duration(frames[number].time_ms - start)
        placed.append((axes, minutes[number], busy, f"after {when}: {counts}"))
    axes.set_xlim(0, max(minutes[-1], 1e-3))
    axes.set_ylim(0, 100)
    axes.set_xlabel("simulated minutes")
    _percent_axis(axes, colour)
    _dress(axes, colour, grid="")
    return placed


def _band_labels(
    axes: Axes,
    bands: list[tuple[str, str, list[int]]],
    total: int,
    end: tuple[float, Colours],
    *,
    narrow: bool,
) -> None:
    """Name each band at its right end; bands too thin for a name give way to their neighbours."""
    last, colour = end
    thinnest = 7.0 if narrow else 5.0
    base, taken = 0.0, -thinnest
    for name, _, blocks in bands:
        height = 100 * blocks[-1] / total
        middle = base + height / 2
        base += height
        if height < 0.5 or middle - taken < thinnest:
            continue
        taken = middle
        text = name.replace(", ", ",\n") if narrow else name
        _label(axes, text, (last, middle), colour("ink"), (7, 0), middle=True, inside=False)


def _histogram(
    axes: Axes, series: list[tuple[str, np.ndarray[Any, Any], str]], unit: str
) -> Placed:
    """Bars over the same bins, one series before the other."""
    placed: Placed = []
    bins = len(BINS_MS) - 1
    for _, counts, fill in series:
        axes.bar(np.arange(bins), counts, width=0.94, color=fill, linewidth=0)
    for number in range(bins):
        if any(counts[number] for _, counts, _ in series):
            span = f"{duration(BINS_MS[number])} to {duration(BINS_MS[number + 1])}"
            said = ", ".join(f"{name} {int(counts[number]):,}" for name, counts, _ in series)
            top = max(int(counts[number]) for _, counts, _ in series)
            placed.append((axes, number, top, f"{span}: {said} {unit}"))
    return placed


def _gap(report: Report, capacity: Any) -> float:
    row = report.row("lru", capacity)
    return row.optimum.hit_rate - row.result.hit_rate


def _time_axis(axes: Axes, narrow: bool) -> None:
    axes.set_xlim(-0.6, len(BINS_MS) - 1.4)
    step = 4 if narrow else 2
    places = list(range(0, len(BINS_MS), step))
    axes.set_xticks([place - 0.5 for place in places], [duration(BINS_MS[p]) for p in places])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(int(value))))


def _log_blocks(axes: Axes, low: int, high: int, most: int) -> None:
    places = [
        float(step * 10**power)
        for power in range(12)
        for step in (1, 2, 5)
        if low <= step * 10**power <= high
    ]
    if len(places) > most:
        places = [place for place in places if str(int(place))[0] == "1"]
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(int(value))))


def _percent_axis(axes: Axes, colour: Colours) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.tick_params(colors=colour("quiet"))


def _dress(axes: Axes, colour: Colours, *, grid: str) -> None:
    if grid:
        axes.grid(axis=grid, color=colour("line"), linewidth=1)  # type: ignore[arg-type]
    axes.tick_params(colors=colour("quiet"), labelcolor=colour("quiet"))
    axes.spines[["left", "bottom"]].set_color(colour("line"))
    axes.spines["left"].set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(colour("quiet"))


def _label(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    colour: str,
    away: tuple[float, float],
    *,
    align: str = "left",
    top: bool = False,
    middle: bool = False,
    center: bool = False,
    inside: bool = True,
) -> None:
    """Write beside a point, so many pixels away from it."""
    axes.annotate(
        text,
        xy=at,
        xytext=away,
        textcoords="offset points",
        ha="center" if center else align,
        va="center" if middle else "top" if top else "bottom",
        color=colour,
        annotation_clip=False,
    ).set_in_layout(not inside)
