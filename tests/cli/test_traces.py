"""Traces of every format on the command line: folders, stdin, order, text, any size."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from blockmgr.cli import cli
from blockmgr.lab.stored import StoredRequests

Run = Callable[..., Result]

TRACES = Path(__file__).parents[1] / "lab" / "traces"
MOONCAKE = TRACES / "mooncake.jsonl"


def found(result: Result) -> list[tuple[int, int]]:
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    return [(entry["query_tokens"], entry["hit_tokens"]) for entry in document["results"]]


def test_standard_input_and_folders_are_replayed_like_the_file(run: Run, tmp_path: Path) -> None:
    plain = found(run("replay", str(MOONCAKE), "--capacity", "400", "--json"))
    assert plain == [(2630, 1024)]
    (tmp_path / "one.jsonl").write_bytes(MOONCAKE.read_bytes())
    assert found(run("replay", str(tmp_path), "--capacity", "400", "--json")) == plain
    for words in (["-"], ["--trace", "-"]):
        piped = CliRunner().invoke(
            cli, ["replay", *words, "--capacity", "400", "--json"], input=MOONCAKE.read_bytes()
        )
        assert found(piped) == plain
        assert json.loads(piped.stdout)["trace"] == "stdin"


def test_how_a_trace_is_read_is_part_of_the_command_that_repeats_a_run(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "turned.jsonl"
    path.write_text("\n".join(reversed(MOONCAKE.read_text().splitlines())))
    refused = run("sweep", str(path), "--capacity", "400", "--jobs", "1")
    assert refused.exit_code == 3
    assert "found timestamp 0, expected at least 27482 ms" in refused.stderr
    options = ["--sort", "--tokens-per-id", "512", "--policies", "lru", "--jobs", "1", "--json"]
    first = run("sweep", str(path), "--capacity", "400", *options)
    assert found(first) == [(2630, 1024)]
    command = shlex.split(json.loads(first.stdout)["command"])
    assert "--sort" in command
    assert command[command.index("--tokens-per-id") + 1] == "512"
    again = run(*command[1:], "--jobs", "1")
    assert again.stdout == first.stdout


def test_text_without_a_tokenizer_names_the_option(run: Run) -> None:
    result = run("replay", str(TRACES / "sharegpt.json"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: tokenizer (--tokenizer) must be a folder")


def test_without_a_ceiling_capacities_are_blocks(run: Run) -> None:
    plain = json.loads(run("replay", str(MOONCAKE), "--capacity", "400", "--json").stdout)
    bare = run("replay", str(MOONCAKE), "--capacity", "400", "--json", "--no-attainable")
    document = json.loads(bare.stdout)
    assert document["results"] == plain["results"]
    assert (document["attainable"], document["working_set_blocks"]) == (None, None)
    assert "--no-attainable" in document["command"]
    table = run("replay", str(MOONCAKE), "--capacity", "400", "--no-attainable")
    assert table.exit_code == 0
    assert "unbounded" not in table.stdout
    refused = run("replay", str(MOONCAKE), "--capacity", "400,10%", "--no-attainable")
    assert refused.exit_code == 2
    assert "capacities must be numbers of blocks without attainable rates" in refused.stderr


def test_a_plot_without_a_ceiling_has_none(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    arguments = ["--capacity", "300,400", "--no-attainable", "--plot", str(picture)]
    assert run("replay", str(MOONCAKE), *arguments).exit_code == 0
    assert "attainable, unbounded" not in picture.read_text()
    assert picture.with_suffix(".csv").read_text().splitlines()[1].endswith(",")


def test_an_output_is_not_put_in_the_place_of_a_file_of_the_folder(
    run: Run, tmp_path: Path
) -> None:
    part = tmp_path / "part.jsonl"
    part.write_bytes(MOONCAKE.read_bytes())
    result = run("report", str(tmp_path), "--output", str(part))
    assert result.exit_code == 2
    assert part.read_bytes() == MOONCAKE.read_bytes()


def test_a_replay_without_an_upper_bound_does_not_load_all_requests(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace may be larger than memory."""

    def columns(_: StoredRequests) -> NoReturn:
        raise AssertionError

    path = tmp_path / "trace.jsonl"
    assert run("workload", "chat", "--export", path).exit_code == 0
    asked = ("replay", "--trace", path, "--block-size", 512, "--capacity", 300)
    whole = run(*asked)
    monkeypatch.setattr(StoredRequests, "columns", columns)
    alone = run(*asked, "--no-attainable")
    assert (whole.exit_code, alone.exit_code) == (0, 0)
    assert isinstance(run(*asked).exception, AssertionError)
