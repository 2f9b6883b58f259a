"""README is short, its code blocks run as pasted, and its picture matches its code."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from blockmgr.cli import cli
from tests.mutants.planted import CORE, EXTENSION, PYTHON

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
MOST_WORDS = 700


def run(code: str) -> tuple[dict, list[str]]:
    """The names that a pasted block defines, and the lines it prints."""
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    return names, printed.getvalue().splitlines()


def test_readme_has_no_more_words_than_a_reader_takes_in() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_every_block_of_python_prints_what_its_comments_say() -> None:
    assert {language for language, _ in BLOCKS} == {"python"}
    for _, code in BLOCKS:
        expected = re.findall(r"^print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
        assert expected
        assert run(code)[1] == expected


def test_the_other_blocks_are_the_two_commands_that_set_up() -> None:
    """CI runs these two unchanged."""
    commands = re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.M)
    assert len(commands) == 2
    assert all(command.startswith("python -m venv .venv && ") for command in commands)
    assert "pytest" in commands[1]


def test_the_gain_that_readme_shows_is_what_its_command_prints() -> None:
    found = re.search(r"`blockmgr (sweep [^`]*)` finds (\S+) % with LRU and\s(\S+) %", README)
    assert found
    words, *shown = found.groups()
    result = CliRunner().invoke(cli, [*words.split(), "--json"], prog_name="blockmgr")
    rates = [row["hit_rate"] for row in json.loads(result.stdout)["results"]]
    assert [f"{100 * rate:.2f}" for rate in rates] == shown


def test_the_picture_shows_the_blocks_that_the_code_has() -> None:
    names, _ = run(BLOCKS[0][1])
    manager = names["manager"]
    holders: dict[int, list[str]] = {}
    for name in "abc":
        for block in manager.sequence(names[name]).block_ids.tolist():
            holders.setdefault(block, []).append(name)
    picture = (ROOT / "docs" / "images" / "sharing.svg").read_text(encoding="utf-8")
    shown = re.findall(r">block (\d+): ([a-c, ]+)<", picture)
    assert {int(block): who.split(", ") for block, who in shown} == holders
    [copy] = re.findall(r"print\(.*take_copies.*\)  # BlockCopy\((.*)\)$", README, re.M)
    source, destination, tokens = re.findall(r"\d+", copy)
    assert f">{tokens} tokens,<" in picture
    assert f">block {source} to {destination}<" in picture


def test_the_number_of_planted_bugs_is_that_of_the_catalogue() -> None:
    planted = len(CORE) + len(EXTENSION) + len(PYTHON)
    for page in ("README.md", "docs/proof.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        said = re.findall(r"\b(\d+)\s+(?:planted\s+bugs|bugs\s+are\s+planted)", text)
        assert set(said) == {str(planted)}, page


@pytest.mark.parametrize("page", ["README.md", "examples/README.md", "CONTRIBUTING.md"])
def test_every_link_to_a_file_leads_to_one(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [each for each in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in each]
    assert targets
    assert [each for each in targets if not ((ROOT / page).parent / each).exists()] == []
