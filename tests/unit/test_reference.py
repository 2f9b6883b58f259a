"""The reference page of the manager lists every public member once, under a task."""

from __future__ import annotations

import re
from pathlib import Path

from blockmgr import BlockManager

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "manager.md"


def test_every_member_of_the_manager_is_on_the_page_once() -> None:
    listed = re.findall(r"^\.\. auto\w+:: BlockManager\.(\w+)$", PAGE.read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(name for name in dir(BlockManager) if name[0] != "_")
