"""``--tiers`` of ``replay``, ``sweep``, ``plan`` and ``report``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.tiered import ReplayTier
from blockmgr.lab.workloads import generate

if TYPE_CHECKING:
    from tests.cli.conftest import Run

CHAT = ("chat", "--block-size", 64)
TIERS = ("--tiers", "host=300,disk=900")


def test_replay_says_where_each_token_came_from(run: Run) -> None:
    document = json.loads(run("replay", *CHAT, "--capacity", 400, *TIERS, "--json").stdout)

    tiers = (ReplayTier(name="host", num_blocks=300), ReplayTier(name="disk", num_blocks=900))
    config = ReplayConfig(block_size=64, min_service_ms=0, service_ms_per_token=0, tiers=tiers)
    found = replay(generate("chat", 0), 400, config)
    [result] = document["results"]
    by_tier = result["by_tier"]
    assert found.by_tier is not None
    assert by_tier == found.by_tier.as_plain
    hits = [tier["hit_tokens"] for tier in by_tier["tiers"]]
    parts = [by_tier["device_tokens"], *hits, by_tier["computed_tokens"]]
    assert sum(parts) == result["query_tokens"]
    assert min(parts) > 0
    assert result["hit_rate"] == found.hit_rate
    assert document["config"]["store"] == "idle"


def test_the_table_has_a_line_for_each_memory(run: Run) -> None:
    lines = run("replay", *CHAT, "--capacity", 400, *TIERS).stdout.splitlines()
    assert "where the tokens of prompts came from, store=idle, one request at a time" in lines
    names = ["device", "host", "disk", "computed", "found", "one LRU pool"]
    rows = {name: line.split(name)[1].split() for name in names for line in lines if name in line}
    shares = [float(rows[name][-1].rstrip("%")) for name in ("computed", "found")]
    assert sum(shares) == pytest.approx(100)
    assert rows["one LRU pool"][0] == "1,600"


def test_service_times_hold_if_they_are_given_or_links_take_time(run: Run) -> None:
    model = ("--model", "llama-3-8b", "--links", "1GB/s,500MB/s")
    for more, times in (((), (0, 0)), (("--min-service-ms", 7), (7, 0)), (model, (500, 30))):
        asked = ("replay", *CHAT, "--capacity", 400, *TIERS, *more, "--json")
        document = json.loads(run(*asked).stdout)
        config = document["config"]
        assert (config["min_service_ms"], config["service_ms_per_token"]) == times
    host, disk = config["tiers"]
    assert host["ms_per_block"] == 1000 * 131072 * 64 / 1e9
    assert disk["ms_per_block"] == 2 * host["ms_per_block"]
    [result] = document["results"]
    first = result["by_tier"]["tiers"][0]
    assert first["stored_bytes"] == first["stored_blocks"] * 131072 * 64
    assert result["by_tier"]["load_p99_ms"] >= result["by_tier"]["load_mean_ms"] > 0


def test_a_replay_with_tiers_is_repeated_by_what_it_prints(run: Run) -> None:
    links = ("--links", "1GB/s,500MB/s", "--model", "llama-3-8b", "--store", "release")
    links += ("--prefetch",)
    first = run("replay", *CHAT, "--capacity", "400", *TIERS, *links, "--json")
    command = shlex.split(json.loads(first.stdout)["command"])
    assert run(*command[1:], "--json").stdout == first.stdout


def test_sweep_compares_sizes_of_a_host(run: Run) -> None:
    sizes = ("--capacity", 400, "--policies", "lru", "--jobs", 1, "--tiers", "host=100,300")
    result = run("sweep", *CHAT, *sizes)
    assert result.exit_code == 0, result.stderr
    assert "host 100" in result.stdout
    rows = json.loads(run("sweep", *CHAT, *sizes, "--json").stdout)["results"]
    assert [row["by_tier"]["tiers"][0]["num_blocks"] for row in rows] == [100, 300]
    assert rows[0]["hit_rate"] < rows[1]["hit_rate"] <= rows[1]["optimum_hit_rate"]


def test_plan_says_what_a_host_adds(run: Run) -> None:
    wanted = ("plan", *CHAT, "--hit-rate", "50%")
    [alone] = json.loads(run(*wanted, "--min-service-ms", 0, "--json").stdout)["results"]
    [row] = json.loads(run(*wanted, "--tiers", "host=50%", "--json").stdout)["results"]
    with_tiers = row["with_tiers"]["by_tier"]
    found = row["with_tiers"]["hit_tokens"] / row["with_tiers"]["query_tokens"]
    assert found > row["replayed_hit_rate"] >= 0.5
    assert with_tiers["tiers"][0]["name"] == "host"
    assert "with_tiers" not in alone
    assert "with tiers" in run(*wanted, "--tiers", "host=50%").stdout


def test_report_has_a_chapter_on_tiers(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    sizes = ("--capacity", 400, "--capacities", "400,800", "--policies", "lru", "--jobs", 1)
    result = run("report", *CHAT, *sizes, *TIERS, "-o", page, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["tiers"]
    assert [row["capacity"] for row in rows] == ["400", "800"]
    text = page.read_text()
    assert "What slower memory adds" in text
    for row in rows:
        assert f"{row['hit_tokens'] / row['query_tokens']:.2%}" in text


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("replay", *CHAT, "--store", "release"), "--store needs --tiers"),
        (("replay", *CHAT, "--prefetch"), "--prefetch needs --tiers"),
        (("sweep", *CHAT, "--links", "1GB/s"), "--links needs --tiers"),
        (("replay", *CHAT, "--tiers", "host=5,6"), "one size for each tier, as in host=10%"),
        (("plan", "chat", "--hit-rate", "9%", "--block-size", "16,32", *TIERS), "one block size"),
        (("replay", *CHAT, "--tiers", "5%"), "tiers must be sizes by name"),
        (("replay", *CHAT, "--tiers", "host=1GiB"), "tiers in bytes need a model (--model)"),
        (("replay", *CHAT, *TIERS, "--links", "1GB/s"), "links must be one for each of 2 tiers"),
        (("replay", "chat", *TIERS, "--model", "gemma-3"), "tiers must be empty with groups"),
    ],
)
def test_wrong_tiers_are_refused_by_name(run: Run, command: tuple[str, ...], error: str) -> None:
    result = run(*command)
    assert result.exit_code == 2
    assert error in result.stderr
