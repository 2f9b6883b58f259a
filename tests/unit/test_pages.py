"""Pages as their readers get them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_words_for_a_picture_stand_on_one_line(page: Path) -> None:
    """The site drops a line break there, and a screen reader says ``writesto``."""
    assert re.findall(r"!\[[^\]]*\n[^\]]*\]", page.read_text(encoding="utf-8")) == []
