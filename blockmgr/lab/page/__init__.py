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
    from collections.abc import Iterable
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
    "Extent",
    "Outcome",
    "Report",
    "as_html",
    "check_path",
    "data_of",
    "gather",
    "num_steps",
    "save_picture",
    "save_report",
]

PAGES: Final = (".html", ".htm")


def check_path(
    path: str | Path,
    suffixes: tuple[str, ...] = PAGES,
    *,
    inputs: Iterable[str | Path | None] = (),
) -> Path:
    """``path``, if a report can be saved there.

    Args:
        path: File to write.
        suffixes: Allowed ends of its name.
        inputs: Files that are read and must not be replaced; a None is no file.

    Raises:
        ValueError: It has none of ``suffixes``, there is no such folder, it is a folder or a
            symbolic link, or it is one of ``inputs``.
    """
    return check_output(path, suffixes=suffixes, inputs=inputs)


def save_report(report: Report, path: str | Path) -> Path:
    """Write a report into an HTML file.

    Raises:
        ValueError: As in ``check_path``.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = check_path(path)
    with replacing(target) as file:
        file.write(as_html(report).encode())
    return target
