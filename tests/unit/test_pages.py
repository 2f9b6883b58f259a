"""Pages as readers see them."""

from __future__ import annotations

import inspect
import itertools
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from blockmgr import BlockManager

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
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


def words_of(requirements: list[Any]) -> set[str]:
    """The names of the packages in a dependency group, or among the dependencies of an extra."""
    found: set[str] = set()
    for each in requirements:
        if isinstance(each, dict):
            found |= words_of(PROJECT["dependency-groups"][each["include-group"]])
        else:
            found.add(re.split(r"[\[<>=; ]", each, maxsplit=1)[0].lower())
    return found


def test_the_commands_of_contributing_run_in_the_environment_that_it_sets_up() -> None:
    """Its tools are those of the groups for checks, which do without torch."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tools = set(re.findall(r"\.venv/bin/([\w-]+)", page)) - {"pip", "python"}
    assert {"pytest", "ruff", "mypy", "sphinx-build"} <= tools
    packages = words_of(PROJECT["dependency-groups"]["dev"])
    assert "torch" not in packages
    scripts = {
        script.name: (each.metadata["Name"] or "").lower()
        for each in distributions()
        for script in each.entry_points
        if script.group == "console_scripts"
    }
    unknown = {tool for tool in tools if tool in scripts and scripts[tool] not in packages}
    assert unknown == set()


def test_each_group_and_extra_that_a_page_installs_exists() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    groups = set(re.findall(r"--group ([a-z][a-z-]*)", text))
    extras = re.findall(r"(?:'\.|blockmgr)\[([a-z,]+)\]'", text)
    assert {"dev", "test", "build"} <= groups <= set(PROJECT["dependency-groups"])
    assert extras
    assert set(itertools.chain(*(each.split(",") for each in extras))) <= set(
        PROJECT["project"]["optional-dependencies"]
    )


def test_what_builds_without_isolation_is_what_the_build_requires() -> None:
    group = set(PROJECT["dependency-groups"]["build"])
    assert group >= set(PROJECT["build-system"]["requires"])


def test_the_figures_of_the_questions_are_those_of_the_pages_that_they_name() -> None:
    """A page that is written again from a measurement takes the questions along."""
    pages = {
        name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        for name in ("faq", "costs", "benchmarks", "hybrid-hit-rates")
    }
    said = re.search(
        r"takes (\d+) times .*?and (\d+) times.*?SGLang's (\d+) and (\S+) times",
        pages["faq"].replace("\n", " "),
    )
    assert said
    rows = {
        row: re.search(rf"^\| {row}, .*\| (\S+) x \| (\S+) x \|$", pages["costs"], re.MULTILINE)
        for row in ("warm admit", "decode step")
    }
    shown = [row.groups() for row in rows.values() if row]
    assert said.groups() == (shown[0][0], shown[1][0], shown[0][1], shown[1][1])
    [tree] = re.findall(r"it takes\s+(\S+) times as long", pages["faq"])
    assert re.search(
        rf"^\| cold admit \+ commit \| block \| .* \| {tree} \|", pages["benchmarks"], re.MULTILINE
    )
    tables = pages["hybrid-hit-rates"]
    for row, rates in (
        ("window 1,024, agent_sessions_64.jsonl.gz", ("91.4", "70.1")),
        ("state page 544, ragpulse_64.jsonl.gz", ("31.7", "14.8")),
    ):
        [line] = [each for each in tables.splitlines() if each.startswith(f"| {row} |")][:1]
        assert f"| {' / '.join(rates)} (" in line
        assert all(f"{rate} %" in pages["faq"] for rate in rates)
