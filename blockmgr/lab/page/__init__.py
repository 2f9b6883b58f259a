"""A report as one web page: what a pool finds, what it could find, and why it does not.

::

    gather(trace, config) ──► Report ──► as_html, save_report ──► a file that needs no other
                                     ──► save_picture ──► PNG or SVG

Needs the extra ``plot``: matplotlib draws, and templates of Jinja2 give its drawings a light and a
dark scheme, words, tables and labelled points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blockmgr.errors import MissingExtraError
from blockmgr.files import check_output, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

try:
    # For the modules below, which could not say what is missing.
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
    """``path`` if a report can be saved there.

    Args:
        path: File to write.
        suffixes: What its name may end in.
        inputs: Files that are read, which must not be replaced; None stands for no file.

    Raises:
        ValueError: It has none of ``suffixes``, there is no such folder, it is a folder or a
            symbolic link, or it is one of ``inputs``.
    """
    return check_output(path, suffixes=suffixes, inputs=inputs)


def save_report(report: Report, path: str | Path) -> Path:
    """Write a report into an HTML file.

    Raises:
        ValueError: As ``check_path`` does.
        OSError: The file cannot be written; an old file is unchanged.
    """
    target = check_path(path)
    with replacing(target) as file:
        file.write(as_html(report).encode())
    return target
