"""Draws a manager: its blocks, their states and holders, and the eviction order.

::

    block_map(manager) ──► BlockMap ──► as_svg, as_html ──► a file that needs no other

Works for 8 to 100,000 blocks: above a few thousand shapes, one shape stands for several blocks.
States differ in colour, lightness and pattern; every shape has a title, and the page shows
everything in tables as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blockmgr.files import check_output, replacing
from blockmgr.lab.block_map.facts import BlockMap, block_map
from blockmgr.lab.block_map.page import as_html
from blockmgr.lab.block_map.svg import as_svg

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SUFFIXES", "BlockMap", "as_html", "as_svg", "block_map", "save_block_map"]

SUFFIXES: Final = (".html", ".svg")


def save_block_map(shown: BlockMap, path: str | Path) -> Path:
    """Write a map into a file, as HTML or SVG by its suffix.

    Raises:
        ValueError: The suffix is neither ``.html`` nor ``.svg``, there is no such folder, or it is
            a folder or a symbolic link.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = check_output(path, suffixes=SUFFIXES)
    text = as_svg(shown) if target.suffix.lower() == ".svg" else as_html(shown)
    with replacing(target) as file:
        file.write(text.encode())
    return target
