"""A report as one picture, for places that cannot show a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

from blockmgr import __version__
from blockmgr.files import replacing
from blockmgr.lab.page.chapters import chapters
from blockmgr.lab.page.paint import LIGHT, RC, figure

if TYPE_CHECKING:
    from blockmgr.lab.page.facts import Report

__all__ = ["save_picture"]

WIDTH: Final = 900
HEADING: Final = 44
HEAD: Final = 70
SHARP: Final = 144


def save_picture(report: Report, path: str | Path) -> Path:
    """Draw all charts of a report, one below the other, in the light scheme.

    Args:
        report: The report to draw.
        path: PNG or SVG, by its suffix.

    Raises:
        ValueError: ``path`` is a symbolic link or a folder, or its folder does not exist.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = Path(path)
    parts = chapters(report)
    heights = [HEAD, *(part.height + HEADING for part in parts)]
    with mpl.rc_context({**RC, "svg.hashsalt": "blockmgr"}):
        canvas = figure(WIDTH, sum(heights))
        canvas.set_facecolor(LIGHT["paper"])
        rows: Any = canvas.subfigures(len(heights), 1, height_ratios=heights)
        title = f"Hit rate of {report.trace}: {report.result.hit_rate:.1%} found"
        left = {"x": 0.02, "ha": "left", "color": LIGHT["ink"]}
        # Prevents a dollar sign in a file name from starting a formula.
        rows[0].suptitle(title, fontsize=22, parse_math=False, **left)
        for row, part in zip(rows[1:], parts, strict=True):
            row.suptitle(part.heading, fontsize=16, **left)
            part.draw(report, row, LIGHT.__getitem__, narrow=False)
        kind = target.suffix.lower().lstrip(".")
        stamp = {"Date": None} if kind == "svg" else {"Software": f"blockmgr {__version__}"}
        with replacing(target) as file:
            canvas.savefig(file, format=kind, dpi=SHARP, metadata=stamp)
    return target
