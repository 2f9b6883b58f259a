"""Shared parts of the charts of a report: axes and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from blockmgr.lab.page.words import short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blockmgr.lab.page.paint import Colours

__all__ = [
    "Placed",
    "bar_label",
    "dress",
    "folded",
    "label",
    "legend",
    "log_blocks",
    "percent_axis",
]

Placed = list[tuple[Any, float, float, str]]
"""Places with notes: axes, x, y and text."""

# Fractions of a drawing's width for the name of a bar: in the wide drawing, and at most on a phone,
# where names to the right are wrapped.
ROOM: Final = 0.16
ROOM_LEFT: Final = 0.42
ROOM_RIGHT: Final = 0.2


def bar_label(
    axes: Axes, text: str, at: tuple[float, float], colour: str, *, right: bool, narrow: bool
) -> None:
    """Label a bar: to the left of its top, or above it and to the right."""
    place, height = at
    low, high = axes.get_xlim()
    room = (high - place if right else place - low) / (high - low)
    enough = room > (ROOM if not narrow else ROOM_RIGHT if right else ROOM_LEFT)
    if enough and not right:
        at = (place - 0.5, height)
        label(axes, text, at, colour, (-4, 0), ha="right", va="top")
    else:
        onward = enough or not right
        at = (place - 0.5 if onward else place + 0.5, height)
        label(axes, text, at, colour, (0, 3), ha="left" if onward else "right")


def folded(text: str, narrow: bool) -> str:
    """``name: value``, on two lines if there is little room."""
    return text.replace(": ", "\n") if narrow else text


def log_blocks(axes: Axes, low: int, high: int, most: int) -> None:
    """Ticks at round numbers of blocks, up to a maximum number."""
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


def percent_axis(axes: Axes, colour: Colours) -> None:
    """A vertical axis in percent."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}%"))
    axes.tick_params(colors=colour("quiet"))


def dress(axes: Axes, colour: Colours, *, grid: str) -> None:
    """Sets the colours of axes and grid."""
    if grid:
        axes.grid(axis=grid, color=colour("line"), linewidth=1)  # type: ignore[arg-type]
    axes.tick_params(colors=colour("quiet"), labelcolor=colour("quiet"))
    axes.spines[["left", "bottom"]].set_color(colour("line"))
    axes.spines["left"].set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(colour("quiet"))


def legend(axes: Axes, canvas: Any, colour: Colours, *, narrow: bool) -> None:
    """The names of the lines: beside the axes, or above them if there is little room."""
    handles, names = axes.get_legend_handles_labels()
    place, columns = ("outside upper left", 2) if narrow else ("outside right upper", 1)
    canvas.legend(handles, names, loc=place, ncols=columns, frameon=False, labelcolor=colour("ink"))


def label(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    colour: str,
    away: tuple[float, float],
    *,
    ha: str = "left",
    va: str = "bottom",
    inside: bool = True,
) -> None:
    """Write a label at a distance in pixels from a point; alignments are matplotlib's."""
    axes.annotate(
        text,
        xy=at,
        xytext=away,
        textcoords="offset points",
        ha=ha,
        va=va,
        color=colour,
        annotation_clip=False,
    ).set_in_layout(not inside)
