"""Output of the command line on pages equals what the command prints."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from blockmgr.cli import cli
from blockmgr.config import EVICTION_POLICIES
from blockmgr.lab.workloads import VARIANTS
from tests.sentences import ROOT

GUIDE = (ROOT / "docs" / "guides" / "hit-rate.md").read_text(encoding="utf-8")
SHOWN = [
    ("plan", r"^    (blockmgr plan .*)$"),
    ("explain", r"`(blockmgr\sexplain\schat\s--capacity\s10%)`"),
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


def rows_of(page: str, before: str) -> dict[str, list[str]]:
    """The table after a text on a page: cells by the first cell of their row."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    table = text[text.index(before) :].partition("\n\n|")[2].partition("\n\n")[0]
    lines = [
        [cell.strip(" *`") for cell in line.strip("|").split("|")] for line in table.split("\n")
    ]
    return {name: cells for name, *cells in lines}


def test_the_policies_page_shows_every_policy_and_what_a_sweep_finds() -> None:
    shown = rows_of("policies/index.md", "The generated workload `chat`")
    assert set(EVICTION_POLICIES) <= shown.keys()
    place = next(n for n, text in enumerate(shown["token hit rate, %"]) if text.startswith("5%"))
    # The command by which the page says to repeat it.
    words = ["sweep", "chat", "--min-service-ms", "0", "--service-ms-per-token", "0"]
    words += ["--capacities", "5%", "--jobs", "1", "--json"]
    found = json.loads(CliRunner().invoke(cli, words, prog_name="blockmgr").stdout)
    for result in found["results"]:
        assert shown[result["policy"]][place] == f"{100 * result['hit_rate']:.2f}"
    for table in ("A production chat trace", "The generated workload `agent`"):
        assert set(EVICTION_POLICIES) <= rows_of("policies/index.md", table).keys()


def test_the_guide_names_every_variant_of_a_workload() -> None:
    shown = rows_of("guides/hit-rate.md", "Other parameters have other names")
    assert {name: row[0].strip("`") for name, row in shown.items() if name in VARIANTS} == {
        name: generator for name, (generator, _) in VARIANTS.items()
    }


def test_the_page_of_fleets_shows_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "guides" / "fleet.md").read_text(encoding="utf-8")
    command = re.search(r"^    blockmgr (fleet .*)$", page, flags=re.MULTILINE)
    shown = re.search(r"```text\n(.*?)```", page, flags=re.DOTALL)
    assert command
    assert shown
    printed = CliRunner().invoke(cli, shlex.split(command[1]), prog_name="blockmgr").stdout
    assert [line.split() for line in printed.splitlines()] == [
        line.split() for line in shown[1].splitlines()
    ]
