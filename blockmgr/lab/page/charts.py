"""The charts of a report. Each draws on an empty figure and returns its labelled points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from blockmgr.explain import MissReason
from blockmgr.lab.page.bands import Band, pool_bands, pool_frames
from blockmgr.lab.page.parts import (
    Placed,
    bar_label,
    dress,
    folded,
    label,
    log_blocks,
    percent_axis,
)
from blockmgr.lab.page.words import BINS_MS, binned, duration, short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.page.paint import Colours

__all__ = [
    "COLUMNS",
    "COLUMNS_NARROW",
    "draw_curve",
    "draw_gaps",
    "draw_lifetimes",
    "draw_outcomes",
    "draw_policies",
    "draw_pool",
    "gap",
]

CURVE_POINTS: Final = 240
COLUMNS: Final = 6
COLUMNS_NARROW: Final = 2
# Shares below it are shown as "below", not as 0.
LEAST_SHARE: Final = 0.001
MINUS: Final = "\N{MINUS SIGN}"
# Misses that more blocks can avoid have a different colour.
OUTCOME_ROLES: Final = {None: "found", MissReason.EVICTED: "evicted"}


def draw_curve(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Hit rate over pool size: LRU at every size, or between replays, and the two ceilings."""
    axes: Axes = canvas.add_subplot()
    rows = [report.row("lru", capacity) for capacity in report.capacities]
    blocks = [row.result.num_blocks for row in rows]
    measured = [100 * row.result.hit_rate for row in rows]
    most = max(blocks[-1], report.attainable.working_set_blocks)
    sizes, rates = np.array(blocks), np.array(measured)
    if report.curve is not None:
        sizes, rates, most = _curve_line(axes, report, most, colour)
    ceiling = 100 * report.bound_of_all
    axes.axhline(ceiling, color=colour("quiet"), linestyle=(0, (5, 4)), linewidth=1.3)
    axes.fill_between(sizes, rates, color=colour("lru-soft"), alpha=0.35, linewidth=0)
    axes.plot(sizes, rates, color=colour("lru"), linewidth=2.4)
    axes.plot(blocks, measured, "o", color=colour("lru"), markersize=6)
    placed: Placed = []
    for row, rate in zip(rows, measured, strict=True):
        text = f"{row.result.num_blocks:,} blocks ({row.capacity.text})"
        placed.append((axes, row.result.num_blocks, rate, f"{text}: LRU {rate:.2f}%"))
        if row.optimum is not None:
            best = 100 * row.optimum.hit_rate
            placed.append((axes, row.result.num_blocks, best, f"{text}: optimum {best:.2f}%"))

    axes.set_xscale("log")
    axes.set_xlim(sizes[0], most * 1.04)
    axes.set_ylim(0, min(104.0, max(1.0, ceiling) * 1.16))
    pool = "unbounded pool" if report.full_attention is None else "full attention, unbounded"
    label(axes, f"{pool} {ceiling:.1f}%", (sizes[0], ceiling), colour("quiet"), (4, 5))
    bests = [100 * row.optimum.hit_rate for row in rows if row.optimum is not None]
    if bests:
        axes.plot(blocks, bests, color=colour("optimum"), linewidth=1.6, marker="D", markersize=5.5)
        at = int(np.argmin(np.abs(np.array(bests) - 0.75 * ceiling)))
        label(axes, "optimum", (blocks[at], bests[at]), colour("optimum"), (-8, 6), ha="right")
    at = min(int(np.searchsorted(rates, 0.62 * ceiling)), len(sizes) - 1)
    label(axes, "LRU", (sizes[at], rates[at]), colour("lru"), (9, -6), va="top")
    log_blocks(axes, sizes[0], most, 4 if narrow else 9)
    percent_axis(axes, colour)
    axes.set_xlabel(f"blocks of {report.config.block_size} tokens in the pool")
    dress(axes, colour, grid="y")
    return placed


def _curve_line(axes: Axes, report: Report, most: int, colour: Colours) -> tuple[Any, Any, int]:
    """Sizes and rates of the curve, and the largest pool; draws the error, if there is one."""
    curve = report.curve
    assert curve is not None
    most = max(most, int(curve.capacities[-1]))
    first = curve.longest_request_blocks
    sizes = np.unique(np.geomspace(first, most, CURVE_POINTS).astype(int))
    rates = np.array([100 * curve.hit_rate_at(int(size)) for size in sizes])
    if curve.hit_rate_errors is not None:
        errors = np.array([100 * curve.error_at(int(size)) for size in sizes])
        low, high = np.maximum(0, rates - errors), np.minimum(100, rates + errors)
        band = axes.fill_between(sizes, low, high, color=colour("lru-soft"), linewidth=0)
        band.set_zorder(1.5)
    return sizes, rates, most


def draw_policies(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Percentage points of hit rate of each policy relative to LRU, at each pool size."""
    others = [name for name in report.policies if name != "lru"]
    sizes = [size for size in report.capacities if gap(report, size) > 0]
    columns = min(len(sizes), COLUMNS_NARROW if narrow else COLUMNS)
    lines = -(-len(sizes) // columns)
    grid = canvas.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(sizes) :]:
        axes.set_visible(False)
    gains = {
        (name, size): 100 * (report.row(name, size).result.hit_rate - _lru(report, size))
        for name in others
        for size in sizes
    }
    reach = max(1.0, *(abs(gain) for gain in gains.values()))
    placed: Placed = []
    for axes, size in zip(grid.flat, sizes, strict=False):
        for place, name in enumerate(others):
            gain = gains[name, size]
            role = "found" if gain >= 0 else "evicted"
            axes.barh(place, gain, height=0.5, color=colour(role), linewidth=0)
            text = _signed(gain)
            away, align = ((-5, 0), "right") if text[0] == MINUS else ((5, 0), "left")
            label(axes, text, (gain, place), colour("ink"), away, ha=align, va="center")
            placed.append((axes, gain, place, _policy_text(report, name, size)))
        axes.axvline(0, color=colour("ink"), linewidth=1.2)
        heading = f"{size.text} · LRU {100 * _lru(report, size):.1f}%"
        room = f"{heading}\nat most +{100 * gap(report, size):.1f}"
        axes.set_title(room, color=colour("ink"), fontsize=12, loc="left", linespacing=1.4)
        axes.set_xlim(-1.75 * reach, 1.75 * reach)
        axes.set_ylim(len(others) - 0.4, -0.6)
        axes.set_yticks(range(len(others)), others)
        axes.set_xticks([])
        dress(axes, colour, grid="")
        axes.spines[["left", "bottom"]].set_visible(False)
    return placed


def _signed(gain: float) -> str:
    """Percentage points with their sign; empty if they round to zero."""
    text = f"{gain:+.1f}"
    return "0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def _policy_text(report: Report, name: str, size: Any) -> str:
    row = report.row(name, size)
    gain = 100 * (row.result.hit_rate - _lru(report, size))
    closed = "" if row.gap_closed is None else f", {row.gap_closed:.0%} of the gap"
    rate = f"{name} at {size.text}: {100 * row.result.hit_rate:.2f}%"
    return f"{rate}, {gain:+.2f} points beside LRU{closed}".replace("-", MINUS)


def draw_outcomes(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """All prompt tokens by outcome, with one bar per reason."""
    axes: Axes = canvas.add_subplot()
    total = sum(outcome.tokens for outcome in report.outcomes)
    placed: Placed = []
    widest = max(outcome.tokens for outcome in report.outcomes) / total
    for place, outcome in enumerate(report.outcomes):
        share = outcome.tokens / total
        role = OUTCOME_ROLES.get(outcome.reason, "unseen")
        axes.barh(place, 100 * share, height=0.34, color=colour(role), linewidth=0)
        name = outcome.name if narrow else f"{outcome.name}: {outcome.meaning}"
        label(axes, name, (0, place - 0.2), colour("ink"), (0, 3))
        few = 0 < share < LEAST_SHARE
        text = f"under {LEAST_SHARE:.1%}" if few else f"{share:.1%}"
        value = f"{text}  ({short_count(outcome.tokens)})"
        label(axes, value, (100 * share, place), colour("ink"), (7, 0), va="center")
        placed.append(
            (axes, 100 * share, place, f"{outcome.name}: {outcome.tokens:,} tokens, {share:.2%}")
        )
    axes.set_xlim(0, 100 * widest * (1.5 if narrow else 1.25))
    axes.set_ylim(len(report.outcomes) - 0.6, -0.75)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}%"))
    axes.set_xlabel("share of all prompt tokens")
    dress(axes, colour, grid="")
    axes.spines["left"].set_visible(False)
    return placed


def draw_gaps(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Time since the last use of requested blocks, and the part that the pool finds."""
    axes: Axes = canvas.add_subplot()
    wanted = binned(report.seen.asked_gaps_ms)
    found = binned(report.seen.reuse_gaps_ms)
    series = [("asked for", wanted, colour("unseen")), ("found", found, colour("found"))]
    placed = _histogram(axes, series)
    _time_axis(axes, report, narrow)
    if wanted.any():
        late = int(np.argmax(wanted - found))
        text = folded(f"asked for: {short_count(int(wanted.sum()))}", narrow)
        bar_label(axes, text, (late, wanted[late]), colour("quiet"), right=True, narrow=narrow)
    if found.any():
        peak = int(np.argmax(found))
        text = f"found: {short_count(int(found.sum()))}"
        top = max(found[peak], wanted[peak])
        bar_label(axes, text, (peak, top), colour("lru"), right=False, narrow=narrow)
    axes.set_xlabel("time since the block was last used")
    axes.set_ylim(0, max(1, wanted.max(), found.max()) * 1.16)
    axes.set_ylabel("blocks")
    dress(axes, colour, grid="y")
    return placed


def draw_lifetimes(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Time that evicted blocks had been in the pool, and whether a prompt found them."""
    axes: Axes = canvas.add_subplot()
    lived, unused = report.seen.lifetimes_ms, report.seen.uses == 0
    every, never = binned(lived), binned(lived[unused])
    series = [("evicted", every, colour("found")), ("never found", never, colour("evicted"))]
    placed = _histogram(axes, series)
    _time_axis(axes, report, narrow)
    if len(lived):
        share = float(unused.mean())
        peak = int(np.argmax(never))
        text = f"never found: {share:.0%}"
        bar_label(axes, text, (peak, every[peak]), colour("unused"), right=False, narrow=narrow)
        late = int(np.argmax(every - never))
        text = folded(f"found before: {1 - share:.0%}", narrow)
        height = every[late] if late != peak else every[late] / 2
        bar_label(axes, text, (late, height), colour("lru"), right=True, narrow=narrow)
    else:
        said = axes.text(0.5, 0.5, "nothing was evicted", color=colour("quiet"), ha="center")
        said.set_transform(axes.transAxes)
    axes.set_xlabel("time from the block's promotion to its eviction")
    axes.set_ylabel("blocks")
    axes.set_ylim(0, max(1, every.max()) * 1.16)
    dress(axes, colour, grid="y")
    return placed


def draw_pool(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """The pool over time, in stacked bands of blocks by state."""
    axes: Axes = canvas.add_subplot()
    bands, (times, busy) = pool_bands(report), pool_frames(report)
    total = report.result.num_blocks
    minutes = (np.array(times) - times[0]) / 60_000
    base = np.zeros(len(times))
    for band in bands:
        top = base + 100 * band.blocks / total
        filled = axes.fill_between(minutes, base, top, color=colour(band.role), label=band.name)
        filled.set(linewidth=0.5, edgecolor=colour("paper"))
        base = top
    if narrow:
        canvas.legend(loc="outside upper left", frameon=False, labelcolor=colour("ink"))
    else:
        _band_labels(axes, bands, total, (minutes[-1], colour))
    placed: Placed = []
    for number in np.unique(np.linspace(0, len(times) - 1, min(24, len(times))).astype(int)):
        counts = ", ".join(
            f"{band.name} {band.blocks[number] / total:.0%}"
            for band in bands
            if band.blocks[number]
        )
        when = duration(times[number] - times[0])
        text = f"after {when}: {counts}"
        placed.append((axes, minutes[number], 100 * busy[number] / total, text))
    axes.set_xlim(0, max(minutes[-1], 1e-3))
    axes.set_ylim(0, 100)
    axes.set_xlabel("simulated minutes")
    percent_axis(axes, colour)
    dress(axes, colour, grid="")
    return placed


def _band_labels(axes: Axes, bands: list[Band], total: int, end: tuple[float, Colours]) -> None:
    """Label every band that occurs, at its right end, next to its colour.

    Labels keep their order and a distance, and stay inside the height of the drawing. Otherwise a
    band that is thin or empty at the end would have no label.
    """
    last, colour = end
    nearest = 5.5
    named: list[tuple[Band, float]] = []
    base = 0.0
    for band in bands:
        height = 100 * float(band.blocks[-1]) / total
        if band.blocks.any():
            named.append((band, base + height / 2))
        base += height
    places = [middle for _, middle in named]
    for number in range(1, len(places)):
        places[number] = max(places[number], places[number - 1] + nearest)
    limit = 100.0
    for number in reversed(range(len(places))):
        places[number] = limit = min(places[number], limit)
        limit -= nearest
    for (band, _), place in zip(named, places, strict=True):
        square = axes.annotate(
            "\N{BLACK SQUARE}",
            xy=(last, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour(band.role),
            annotation_clip=False,
        )
        square.set_in_layout(False)
        label(axes, band.name, (last, place), colour("ink"), (19, 0), va="center", inside=False)


def _histogram(axes: Axes, series: list[tuple[str, Any, str]]) -> Placed:
    """Bars over the same bins, with one series in front of the other."""
    placed: Placed = []
    bins = len(BINS_MS) - 1
    for _, counts, fill in series:
        axes.bar(np.arange(bins), counts, width=0.94, color=fill, linewidth=0)
    for number in range(bins):
        if any(counts[number] for _, counts, _ in series):
            span = f"{duration(BINS_MS[number])} to {duration(BINS_MS[number + 1])}"
            said = ", ".join(f"{name} {int(counts[number]):,}" for name, counts, _ in series)
            top = max(int(counts[number]) for _, counts, _ in series)
            placed.append((axes, number, top, f"{span}: {said} blocks"))
    return placed


def _lru(report: Report, capacity: Any) -> float:
    """The baseline hit rate: that of LRU without hints."""
    row = report.row("lru", capacity)
    return (row.baseline or row.result).hit_rate


def gap(report: Report, capacity: Any) -> float:
    """The possible gain over LRU without hints, as a fraction."""
    return report.bound(capacity) - _lru(report, capacity)


def _time_axis(axes: Axes, report: Report, narrow: bool) -> None:
    """The bins in which any block was requested or evicted, the same for both charts."""
    seen = np.flatnonzero(binned(report.seen.asked_gaps_ms) + binned(report.seen.lifetimes_ms))
    first, last = (int(seen[0]), int(seen[-1])) if len(seen) else (0, len(BINS_MS) - 2)
    axes.set_xlim(first - 0.6, last + 0.6)
    step = max(1, -(-(last - first + 1) // (5 if narrow else 10)))
    edges = range(first, last + 2, step)
    axes.set_xticks([edge - 0.5 for edge in edges], [duration(BINS_MS[edge]) for edge in edges])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(int(value))))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
