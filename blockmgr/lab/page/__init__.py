"""A report as one web page: what a pool finds, what it could find, and why it does not.

::

    gather(trace, config) ──► Report ──► as_html, save_report ──► a file that needs no other
                                     ──► save_picture ──► PNG or SVG

Needs the extra ``plot``: matplotlib draws, and the page gives its drawings a light and a dark
scheme, words, tables and places that speak.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from blockmgr.errors import MissingExtraError

try:
    import matplotlib  # noqa: F401  (for the modules below, which could not say what is missing)
except ImportError as error:
    raise MissingExtraError("plot", "drawing a report") from error

from blockmgr.lab.page.facts import Outcome, Report, gather, num_steps
from blockmgr.lab.page.html import as_html
from blockmgr.lab.page.picture import save_picture

__all__ = [
    "Outcome",
    "Report",
    "as_html",
    "check_path",
    "gather",
    "num_steps",
    "save_picture",
    "save_report",
]

PAGES: Final = (".html", ".htm")


def check_path(path: str | Path, suffixes: tuple[str, ...] = PAGES) -> Path:
    """``path`` if a report can be saved there, by its suffix and its folder.

    Raises:
        ValueError: It has none of ``suffixes``, or there is no such folder.
    """
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise ValueError(f"output must end in {' or '.join(suffixes)}, got {target.name!r}")
    if not target.parent.is_dir():
        raise ValueError(f"output must go into a folder that exists, got {str(target.parent)!r}")
    return target


def save_report(report: Report, path: str | Path) -> Path:
    """Write a report into an HTML file.

    Raises:
        ValueError: The suffix is not ``.html``, or there is no such folder.
        OSError: The file cannot be written.
    """
    target = check_path(path)
    target.write_text(as_html(report), encoding="utf-8", newline="\n")
    return target
