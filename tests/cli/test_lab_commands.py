"""``sweep``, ``plan``, ``workload`` and ``report``: output, files and refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blockmgr.config import EVICTION_POLICIES
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.sweep import sweep
from blockmgr.lab.trace import read_trace
from blockmgr.lab.workloads import generate

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SWEEP = ("sweep", "few-shot", "--capacities", "10%,1500", "--block-sizes", "16,64", "--jobs", 1)
PLAN = ("plan", "few-shot", "--hit-rate", "20%", "--block-size", "16,64")
SHAPE = ("--layers", 32, "--kv-heads", 8, "--head-size", 128, "--dtype", "bfloat16")
REPORT = ("report", "few-shot", "--capacities", "10%", "--policies", "lru,arc", "--jobs", 1)


def test_sweep_prints_a_row_for_each_policy_pool_size_and_block_size(run: Run) -> None:
    result = run(*SWEEP)

    assert result.exit_code == 0
    title, heading, *rows = result.stdout.splitlines()
    assert title == "few-shot: 1,024 requests"
    assert heading.split()[:3] == ["block", "size", "capacity"]
    assert len([row for row in rows if row.strip()]) == 4 * len(EVICTION_POLICIES)


def test_sweep_in_json_says_what_replays_count(run: Run) -> None:
    document = json.loads(run(*SWEEP, "--json", "--policies", "lru,arc").stdout)

    trace = generate("few-shot", 0)
    assert [entry["policy"] for entry in document["results"]] == ["lru", "arc"] * 4
    for entry in document["results"]:
        config = ReplayConfig(block_size=entry["block_size"], eviction=entry["policy"])
        assert entry["hit_tokens"] == replay(trace, entry["num_blocks"], config).hit_tokens
        assert entry["attainable_hit_rate"] == unbounded(trace, config).hit_rate
        assert entry["hit_rate"] <= entry["optimum_hit_rate"] <= entry["attainable_hit_rate"]


def test_plan_says_how_many_blocks_and_gib(run: Run) -> None:
    document = json.loads(run(*PLAN, *SHAPE, "--json").stdout)

    assert document["bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    trace = generate("few-shot", 0)
    for entry in document["results"]:
        assert entry["num_bytes"] == entry["num_blocks"] * entry["block_size"] * 131072
        config = ReplayConfig(block_size=entry["block_size"])
        rate = replay(trace, entry["num_blocks"], config).hit_rate
        assert entry["replayed_hit_rate"] == rate
    sizes = {entry["num_tokens"]: entry["block_size"] for entry in document["results"]}
    assert document["cheapest_block_size"] == {"20%": sizes[min(sizes)]}


def test_plan_as_a_table_marks_the_cheapest_and_leaves_out_gib_without_a_model(run: Run) -> None:
    bare, sized = run(*PLAN), run(*PLAN, *SHAPE)
    assert "GiB" not in bare.stdout
    assert "GiB" in sized.stdout
    assert "131,072 bytes" in sized.stdout
    assert bare.stdout.count("*") == sized.stdout.count("*") == 1


def test_plan_takes_several_hit_rates_either_way(run: Run) -> None:
    one = run(*PLAN, "--hit-rate", "25%", "--json")
    other = run("plan", "few-shot", "--hit-rate", "20%,25%", "--block-size", "16,64", "--json")
    assert one.stdout_bytes == other.stdout_bytes


def test_plan_reads_a_config(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    config = {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    as_file = run(*PLAN, "--json", "--model", tmp_path / "config.json")
    narrower = run(*PLAN, "--json", "--model", tmp_path, "--dtype", "float8_e4m3fn")

    assert json.loads(as_file.stdout)["bytes_per_token"] == 131072
    assert json.loads(narrower.stdout)["bytes_per_token"] == 65536


@pytest.mark.parametrize("format_", ["mooncake", "own"])
def test_workload_exports_a_trace_that_can_be_replayed(
    run: Run, tmp_path: Path, format_: str
) -> None:
    path = tmp_path / "out.jsonl"
    result = run("workload", "chat", "--export", path, "--format", format_)

    assert result.exit_code == 0
    assert f"wrote {path}" in result.stderr
    assert ("not in the file" in result.stderr) is (format_ == "mooncake")
    trace = generate("chat", 0)
    back = read_trace(path)
    assert len(back.requests) == len(trace.requests)
    config = ReplayConfig(block_size=512)
    if format_ == "own":
        assert unbounded(back, config) == unbounded(trace, config)
    else:
        assert 0 < unbounded(back, config).hit_tokens <= unbounded(trace, config).hit_tokens


def test_report_covers_a_fleet_and_a_warm_up(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    extra = ("--replicas", "1,2", "--routers", "session", "--warmup", "25%")
    result = run(*REPORT, *extra, "-o", tmp_path / "page.html", "--json")

    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["warmup_requests"] == 256
    assert [(row["replicas"], row["router"]) for row in document["fleet"]] == [
        (1, "session"),
        (2, "session"),
    ]
    for part in ("--warmup 25%", "--replicas 1,2", "--routers session"):
        assert part in result.stderr


def test_report_covers_the_groups_of_a_model(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    target = tmp_path / "page.html"
    model = ("--model", "qwen3-next", "--min-partial-tokens", "64")
    command = ("report", "few-shot", *model, "--capacities", "50%", "--policies", "lru")
    result = run(*command, "--capacity", "50%", "-o", target, "--json")

    assert result.exit_code == 0
    groups = json.loads(result.stdout)["groups"]
    assert groups["model"]["name"] == "qwen3-next"
    [pool] = groups["by_capacity"]
    assert [group["group"] for group in pool["groups"]] == ["FullAttention()", "RecurrentState()"]
    assert pool["groups"][1]["num_groups"] == 3
    assert "3 x RecurrentState()" in target.read_text(encoding="utf-8")
    assert "--block-size 544" in result.stderr


def test_report_writes_a_page(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    target = tmp_path / "page.html"

    result = run(*REPORT, "-o", target)

    assert result.exit_code == 0
    assert result.stdout.startswith("A pool of ")
    text = target.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert result.stdout.strip() in text
    assert f"wrote {target}" in result.stderr
    # The page does not depend on its path.
    run(*REPORT, "-o", tmp_path / "other.html")
    assert (tmp_path / "other.html").read_bytes() == target.read_bytes()


def test_replay_takes_a_policy(run: Run) -> None:
    small = ("replay", "--workload", "few-shot", "--capacity", "10%", "--json", "--eviction")
    rates = {}
    for policy in ("lru", "arc"):
        document = json.loads(run(*small, policy).stdout)
        assert document["config"]["eviction"] == policy
        [entry] = document["results"]
        config = ReplayConfig(eviction=policy)
        expected = replay(generate("few-shot", 0), entry["num_blocks"], config)
        assert entry["hit_tokens"] == expected.hit_tokens
        rates[policy] = entry["hit_tokens"]
    assert rates["lru"] != rates["arc"]


def test_a_pool_that_is_too_small_has_a_line_without_numbers_and_the_others_are_replayed(
    run: Run,
) -> None:
    words = ("sweep", "chat", "--capacities", "10,5%", "--policies", "lru", "--jobs", 1)
    result = run(*words)
    assert result.exit_code == 0
    small, other = (line for line in result.stdout.splitlines()[2:] if line.strip())
    assert small.split() == ["16", "10", "10", *7 * "\N{EN DASH}"]
    assert other.split()[1:4] == ["5%", "1,133", "lru"]
    assert "10 (10 blocks of 16) is not replayed: the largest request takes 219\n" in result.stderr
    document = json.loads(run(*words, "--json").stdout)
    assert document["too_small"] == [
        {"block_size": 16, "capacity": "10", "least_blocks": 219, "num_blocks": 10}
    ]
    assert [entry["capacity"] for entry in document["results"]] == ["5%"]


def test_a_sweep_counts_from_the_end_of_its_warmup(run: Run) -> None:
    asked = ("sweep", "chat", "--policies", "lru,arc", "--capacities", "20%", "--jobs", 1)
    document = json.loads(run(*asked, "--warmup", "25%", "--json").stdout)
    trace = generate("chat", 0)
    first = len(trace.requests) // 4
    [size] = parse_capacities("20%")
    expected = sweep(trace, [size], ReplayConfig(), policies=("lru", "arc"), warmup=first)
    assert document["warmup_requests"] == first
    assert [entry["hit_tokens"] for entry in document["results"]] == [
        row.result.hit_tokens for row in expected.rows
    ]
    assert (
        run(*shlex.split(document["command"])[1:]).stdout
        == run(*asked, "--warmup", "25%", "--json").stdout
    )
    [title, *_] = run(*asked, "--warmup", "25%").stdout.splitlines()
    assert title.endswith(f"requests, the first {first:,} are not counted")
