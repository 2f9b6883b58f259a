"""A report as one web page: hit rates, their upper bounds, and reasons for misses.

::

    gather(trace, config) ──► Report ──► as_html, save_report ──► a file that needs no other
                                     ──► save_picture ──► PNG or SVG

Needs the extra ``plot``: matplotlib draws the charts, and Jinja2 templates add a light and a dark
scheme, text, tables and labelled points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blockmgr.errors import MissingExtraError
from blockmgr.files import check_output, replacing

if TYPE_CHECKING:
    from pathlib import Path

try:
    # Fails here, so that the error names the missing extra.
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
except ImportError as error:
    raise MissingExtraError("plot", "drawing a report") from error

from blockmgr.lab.page.facts import Extent, Outcome, Report
from blockmgr.lab.page.gather import gather, num_steps
from blockmgr.lab.page.html import as_html, data_of
from blockmgr.lab.page.picture import save_picture

__all__ = [
    "PAGES",
    "Extent",
    "Outcome",
    "Report",
    "as_html",
    "data_of",
    "gather",
    "num_steps",
    "save_picture",
    "save_report",
]

PAGES: Final = (".html", ".htm")


def save_report(report: Report, path: str | Path) -> Path:
    """Write a report into an HTML file.

    Raises:
        ValueError: Its name ends in neither ``.html`` nor ``.htm``, there is no such folder, or it
            is a folder or a symbolic link.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = check_output(path, suffixes=PAGES)
    with replacing(target) as file:
        file.write(as_html(report).encode())
    return target
