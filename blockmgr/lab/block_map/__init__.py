"""Draws a manager: who holds which blocks, in which state, and what is evicted next.

::

    block_map(manager) ──► BlockMap ──► as_svg, as_html ──► a file that needs no other

From 8 to 100,000 blocks: where there are more than some thousand shapes to draw, one stands for
several blocks. A state is told by colour, by lightness and by pattern; every shape has a title,
and the page says everything in tables as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from blockmgr.lab.block_map.facts import BlockMap, block_map
from blockmgr.lab.block_map.page import as_html
from blockmgr.lab.block_map.svg import as_svg

__all__ = ["BlockMap", "as_html", "as_svg", "block_map", "check_path", "save_block_map"]

SUFFIXES: Final = (".html", ".svg")


def check_path(path: str | Path) -> Path:
    """``path`` if a map can be saved there, by its suffix and its folder.

    Raises:
        ValueError: The suffix is neither ``.html`` nor ``.svg``, or there is no such folder.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"output must end in {' or '.join(SUFFIXES)}, got {target.name!r}")
    if not target.parent.is_dir():
        raise ValueError(f"output must go into a folder that exists, got {str(target.parent)!r}")
    return target


def save_block_map(shown: BlockMap, path: str | Path) -> Path:
    """Write a map into a file, as HTML or SVG by its suffix.

    Raises:
        ValueError: The suffix is neither ``.html`` nor ``.svg``, or there is no such folder.
        OSError: The file cannot be written.
    """
    target = check_path(path)
    text = as_svg(shown) if target.suffix.lower() == ".svg" else as_html(shown)
    target.write_text(text, encoding="utf-8", newline="\n")
    return target
