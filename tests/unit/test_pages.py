"""Pages as readers see them."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from blockmgr import BlockManager

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_words_for_a_picture_stand_on_one_line(page: Path) -> None:
    """The site drops a line break there, so a screen reader would read ``writesto``."""
    assert re.findall(r"!\[[^\]]*\n[^\]]*\]", page.read_text(encoding="utf-8")) == []


def test_every_attack_on_the_page_of_attacks_can_be_run() -> None:
    page = (ROOT / "docs" / "attacked.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)[2:]
    for attack in rows:
        files = re.findall(r"(?<![\w./])(?:tests|benchmarks)/[\w/]+(?:\.py)?", attack)
        modules = [name.replace(".", "/") for name in re.findall(r"python -m ([\w.]+)", attack)]
        assert files or modules, attack
        for each in files:
            assert (ROOT / each).exists(), each
        for each in modules:
            assert (ROOT / f"{each}.py").exists() or (ROOT / each / "__main__.py").exists(), each


def test_the_quick_start_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `pip install '\.\[([a-z,]+)\]'` \|", page, re.MULTILINE)
    assert {extra for each in listed for extra in each.split(",")} == set(
        project["optional-dependencies"]
    )


def test_each_call_with_arguments_says_on_the_page_of_verbs_when_it_raises() -> None:
    page = (ROOT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    assert ".. contract:: blockmgr.manager.BlockManager\n" in page
    for name, call in inspect.getmembers(BlockManager, inspect.isfunction):
        arguments = list(inspect.signature(call).parameters)[1:]
        if not name.startswith("_") and arguments:
            _, found, raises = (inspect.getdoc(call) or "").partition("\nRaises:\n")
            assert found, name
            assert "UnknownSequenceError" in raises or not {"handle", "handles"} & {*arguments}
