"""What pages show of the command line's output is what the command prints."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from blockmgr.cli import cli
from tests.sentences import ROOT

GUIDE = (ROOT / "docs" / "guides" / "hit-rate.md").read_text(encoding="utf-8")
SHOWN = [
    ("plan", r"^    (blockmgr plan .*)$"),
    ("explain", r"`(blockmgr explain chat\s--capacity 10%)`"),
]


def after(pattern: str) -> tuple[list[str], list[str]]:
    """A command of the guide, and the lines it shows for it."""
    found = re.search(pattern, GUIDE, flags=re.MULTILINE)
    assert found
    lines = re.search(r"```text\n(.*?)```", GUIDE[found.end() :], flags=re.DOTALL)
    assert lines
    return shlex.split(found.group(1))[1:], lines.group(1).splitlines()


@pytest.mark.parametrize(("name", "pattern"), SHOWN)
def test_the_guide_shows_what_the_command_prints(name: str, pattern: str) -> None:
    words, shown = after(pattern)
    assert words[0] == name
    printed = CliRunner().invoke(cli, words, prog_name="blockmgr").stdout.splitlines()
    kept = [line for line in printed if line.strip()]
    assert [line.split() for line in shown if line.strip()] == [
        line.split() for line in kept[-len(shown) :]
    ]


def test_the_guide_draws_its_conclusions_from_these_numbers() -> None:
    _, lines = after(SHOWN[1][1])
    blocks = [int(line.split()[0].replace(",", "")) for line in lines if "would have kept" in line]
    half, whole = blocks[1], blocks[3]
    assert f"Half of what was evicted costs {half:,} blocks, the other half {whole - half:,}" in (
        GUIDE.replace("\n", " ")
    )
    _, rows = after(SHOWN[0][1])
    gib = {tuple(row.split()[:2]): float(row.split()[4]) for row in rows[1:]}
    assert round(100 * (gib["60%", "256"] / gib["60%", "16"] - 1)) == 11
    assert 1.45 < gib["85%", "256"] / gib["85%", "16"] < 1.55
