"""``blockmgr fleet``: the table, JSON, the plot, one replica beside ``replay``, wrong commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from blockmgr.lab.fleet import Split, best_hit_rate
from blockmgr.lab.models import named
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.routers import ROUTERS
from blockmgr.lab.trace import read_trace, write_trace
from blockmgr.lab.workloads import generate

Run = Callable[..., Result]


@pytest.fixture
def run(run: Run) -> Run:
    """Runs in this process unless a test changes that."""

    def here(command: str, *words: object) -> Result:
        jobs = ("--jobs", "1") if command == "fleet" and "--jobs" not in words else ()
        return run(command, *words, *jobs)

    return here


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "chats.jsonl"
    write_trace(generate("chat", 1, conversations=20), path)
    return path


def test_one_replica_counts_byte_for_byte_what_replay_counts(run: Run, chats: Path) -> None:
    every = ["--routers", "all", "--event-delay-ms", "50", "--event-loss", "10%"]
    one = run("fleet", chats, "--replicas", "1", "--capacity", "900", *every, "--json")
    plain = run("replay", chats, "--capacity", "900", "--json")
    [expected] = json.loads(plain.stdout)["results"]
    for key in ("capacity", "hit_rate"):
        del expected[key]
    for entry in json.loads(one.stdout)["results"]:
        [counted] = entry["of_replicas"]
        assert counted == expected
    assert [entry["router"] for entry in json.loads(one.stdout)["results"]] == list(ROUTERS)


def test_every_router_at_every_size_has_a_row_and_the_command_repeats_it(
    run: Run, chats: Path
) -> None:
    result = run("fleet", chats, "--replicas", "1,2", "--capacity", "900", "--json")
    document = json.loads(result.stdout)
    names = [(entry["replicas"], entry["router"]) for entry in document["results"]]
    assert names == [(size, name) for size in (1, 2) for name in ROUTERS if name != "events"]
    again = run(*shlex.split(document["command"])[1:])
    assert again.stdout == result.stdout
    table = run("fleet", chats, "--replicas", "1,2", "--capacity", "900")
    rate = f"{document['results'][-1]['hit_rate']:.2%}"
    assert rate in table.stdout.splitlines()[-1]


def test_two_processes_print_what_one_prints(run: Run, chats: Path) -> None:
    arguments = ["--replicas", "1,2", "--routers", "session,random", "--capacity", "900", "--json"]
    one = run("fleet", chats, *arguments)
    two = run("fleet", chats, *arguments, "--jobs", "2")
    assert two.exit_code == 0, two.stderr
    assert two.stdout == one.stdout


def test_a_fleet_whose_replicas_are_too_small_has_a_line_without_numbers(
    run: Run, chats: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "fleet.svg"
    arguments = ["--replicas", "1,500", "--routers", "session", "--capacity", "900"]
    result = run("fleet", chats, *arguments, "--plot", picture)
    assert result.exit_code == 0, result.stderr
    *_, last = result.stdout.splitlines()
    assert last.split() == ["500", "1", "session", *["\N{EN DASH}"] * 7]
    assert "best possible" in picture.read_text()
    data = picture.with_suffix(".csv").read_text().splitlines()
    assert data[0] == (
        "replicas,num_blocks,router,hit_rate,imbalance,best_hit_rate,"
        "event_delay_ms,event_loss,event_repair,decode_replicas"
    )
    assert [line.split(",")[0] for line in data[1:]] == ["1"]
    none = run("fleet", chats, "--replicas", "500", "--capacity", "900")
    assert none.exit_code == 2
    assert "for 500 replicas, since the largest request of chats.jsonl takes" in none.stderr


def test_events_have_a_row_for_each_way_that_they_travel(
    run: Run, chats: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "lost.svg"
    ways = ["--event-delay-ms", "0,400", "--event-loss", "0,50%", "--event-repair", "replay,none"]
    arguments = ["--replicas", "2", "--routers", "session,events", "--capacity", "900", *ways]
    result = run("fleet", chats, *arguments, "--json", "--plot", picture)
    document = json.loads(result.stdout)
    told = [entry.get("events") for entry in document["results"]]
    assert told[0] is None
    assert [(way["delay_ms"], way["loss"], way["repair"]) for way in told[1:]] == [
        (delay, loss, repair)
        for delay in (0, 400)
        for loss, repair in ((0, "replay"), (0.5, "replay"), (0.5, "none"))
    ]
    assert "events, 400 ms late, 50% lost, repair none" in picture.read_text()
    assert picture.with_suffix(".csv").read_text().splitlines()[-1].endswith(",400,0.5,none,0")
    assert run(*shlex.split(document["command"])[1:]).stdout == result.stdout


def test_replicas_that_prefill_and_others_that_decode_have_rows_beside_those_that_do_both(
    run: Run, chats: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "apart.svg"
    arguments = ["--replicas", "2,1+1,500+1", "--routers", "session", "--capacity", "900"]
    arguments += ["--send-ms-per-token", "0.5"]
    result = run("fleet", chats, *arguments, "--json")
    both, apart, small = json.loads(result.stdout)["results"]
    assert both["replicas"] == apart["replicas"] == 2
    assert (apart["prefill"], apart["decode"], apart["decode_router"]) == (1, 1, "least-loaded")
    [decoded] = apart["of_decode_replicas"]
    trace = read_trace(chats)
    assert apart["best_hit_rate"] == best_hit_rate(trace, Split(1, 1), 450, ReplayConfig())
    assert apart["sent_tokens"] == decoded["query_tokens"] - decoded["hit_tokens"]
    assert (small["replicas"], small["too_small"]) == (501, True)
    table = run("fleet", chats, *arguments, "--plot", picture)
    lines = {line.split()[0]: line.split() for line in table.stdout.splitlines() if line.strip()}
    assert lines["2"][-2:] == ["\N{EN DASH}"] * 2
    assert lines["1+1"][-2] == f"{apart['sent_tokens']:,}"
    assert lines["500+1"][-8:] == ["\N{EN DASH}"] * 8
    assert "session, 1/2 decode" in picture.read_text()
    assert picture.with_suffix(".csv").read_text().splitlines()[-1].endswith(",1")


def test_reuse_of_parts_has_no_bound_beside_it(run: Run, chats: Path) -> None:
    arguments = ["--replicas", "1", "--routers", "random", "--capacity", "900"]
    result = run("fleet", chats, *arguments, "--min-partial-tokens", "1")
    assert result.stdout.splitlines()[-1].split()[4] == "\N{EN DASH}"


def test_a_fleet_that_is_asked_for_too_much_prefill_says_so(run: Run, chats: Path) -> None:
    asked = ("fleet", chats, "--capacity", "900", "--replicas", "1,2", "--router", "session")
    slow = run(*asked, "--prefill-ms-per-token", "100")
    assert "prefill load above 1 in 2 of 2 rows" in slow.stderr
    document = json.loads(run(*asked, "--prefill-ms-per-token", "100", "--json").stdout)
    assert all(row["prefill_load"] > 1 for row in document["results"])
    assert "load above" not in run(*asked, "--prefill-ms-per-token", "0").stderr


def test_a_fleet_has_its_memory_its_gpus_and_the_price_that_was_given(run: Run) -> None:
    asked = ("fleet", "chat", "--replicas", "1,2", "--router", "session", "--capacity", "4000")
    priced = ("--model", "gemma-3", "--gpus", "4", "--gpu-price", "2.5")
    one, two = json.loads(run(*asked, *priced, "--json").stdout)["results"]
    assert (one["gpus"], one["price_per_hour"]) == (4, 10)
    assert (two["gpus"], two["price_per_hour"]) == (8, 20)
    assert one["gib"] == 2 * two["gib"] == 4000 * named("gemma-3").bytes_per_block(16) / 2**30
    table = run(*asked, *priced).stdout
    assert "20.00" in table
    assert "price" not in run(*asked).stdout
