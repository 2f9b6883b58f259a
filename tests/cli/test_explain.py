"""``blockmgr explain``."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SMALL = ("explain", "few-shot", "--capacity", "5%", "--block-size", "64")


def test_the_table_says_why_and_stderr_how_to_repeat_it(run: Run) -> None:
    result = run(*SMALL)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("few-shot: ")
    assert [line.split("  ")[0] for line in lines[1:3]] == ["prompt tokens", "found"]
    assert any(line.startswith("evicted") for line in lines)
    assert any("more blocks would have kept" in line for line in lines)
    command = shlex.split(result.stderr.partition("repeat with: ")[2])
    assert run(*command[1:]).stdout == result.stdout


def test_json_sums_to_the_tokens_that_were_missed(run: Run) -> None:
    document = json.loads(run(*SMALL, "--json").stdout)
    missed = document["query_tokens"] - document["hit_tokens"]
    assert sum(document["missed_tokens"].values()) == missed
    steps = document["evicted_tokens_by_more_blocks"]
    assert steps[-1]["tokens"] == document["missed_tokens"]["evicted"]
    assert document["config"]["block_size"] == 64


def test_one_request_is_explained_from_its_first_token_to_its_last(run: Run) -> None:
    result = run(*SMALL, "--request", 3)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    assert rows[0][0] == "0"
    assert rows[0][-1] == "found"
    assert "--request 3" in result.stderr
    document = json.loads(run(*SMALL, "--request", 3, "--json").stdout)
    edges = [document["num_cached_tokens"], *(m["stop"] for m in document["misses"])]
    assert edges[-1] == document["num_tokens"]
    assert [m["start"] for m in document["misses"]] == edges[:-1]
    assert document["request"] == 3


def test_a_model_explains_what_its_groups_refused(run: Run) -> None:
    command = ("explain", "few-shot", "--model", "gemma-3", "--capacity", "10%")
    result = run(*command)
    assert result.exit_code == 0
    names = [line.split("  ")[0] for line in result.stdout.splitlines()[1:]]
    assert "refused by SlidingWindow(width=1024)" in names
    assert "evicted" in names
    assert not any("more blocks" in name for name in names)
    assert "--model gemma-3" in result.stderr
    document = json.loads(run(*command, "--json").stdout)
    assert document["refused_by"] == "SlidingWindow(width=1024)"
    assert document["missed_tokens"]["group"] > 0
    missed = document["query_tokens"] - document["hit_tokens"]
    assert sum(document["missed_tokens"].values()) == missed


def test_one_request_names_the_group_that_refused(run: Run) -> None:
    command = ("explain", "few-shot", "--model", "gemma-3", "--capacity", "10%")
    document = json.loads(run(*command, "--request", 61, "--json").stdout)
    assert document["config"]["groups"][1] == "SlidingWindow(width=1024)"
    assert {"group": 1, "reason": "group", "start": 0, "stop": 256}.items() <= (
        document["misses"][0].items()
    )
    said = run(*command, "--request", 61).stdout
    assert "group 1 has no block there: SlidingWindow(width=1024)" in said
