"""Draws a manager: who holds which blocks, in which state, and what is evicted next.

::

    block_map(manager) ──► BlockMap ──► as_svg, as_html ──► a file that needs no other

From 8 to 100,000 blocks: where there are more than some thousand shapes to draw, one stands for
several blocks. A state is told by colour, by lightness and by pattern; every shape has a title,
and the page says everything in tables as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blockmgr.files import check_output, replacing
from blockmgr.lab.block_map.facts import BlockMap, block_map
from blockmgr.lab.block_map.page import as_html
from blockmgr.lab.block_map.svg import as_svg

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["BlockMap", "as_html", "as_svg", "block_map", "check_path", "save_block_map"]

SUFFIXES: Final = (".html", ".svg")


def check_path(path: str | Path, *, inputs: Iterable[str | Path | None] = ()) -> Path:
    """``path`` if a map can be saved there.

    Args:
        path: File to write.
        inputs: Files that are read, which must not be replaced; None stands for no file.

    Raises:
        ValueError: The suffix is neither ``.html`` nor ``.svg``, there is no such folder, it is a
            folder or a symbolic link, or it is one of ``inputs``.
    """
    return check_output(path, suffixes=SUFFIXES, inputs=inputs)


def save_block_map(shown: BlockMap, path: str | Path) -> Path:
    """Write a map into a file, as HTML or SVG by its suffix.

    Raises:
        ValueError: As ``check_path`` does.
        OSError: The file cannot be written; an old file is unchanged.
    """
    target = check_path(path)
    text = as_svg(shown) if target.suffix.lower() == ".svg" else as_html(shown)
    with replacing(target) as file:
        file.write(text.encode())
    return target
