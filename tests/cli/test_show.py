"""``blockmgr show``: the state at a given time, as text or as a file, and its errors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from blockmgr import BlockState, __version__
from blockmgr.cli import cli
from blockmgr.inspect import describe
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import Moment, ReplayConfig, replay, replay_until
from blockmgr.lab.workloads import generate

if TYPE_CHECKING:
    from tests.cli.conftest import Run


SMALL = ("show", "--workload", "parallel-sampling", "--capacity", "300")
GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [3, 9]}\n'


@pytest.fixture(scope="module")
def moment() -> Moment:
    return replay_until(generate("parallel-sampling", 0), 300, ReplayConfig(), 40)


def test_the_text_is_that_of_the_manager_at_that_step(run: Run, moment: Moment) -> None:
    result = run(*SMALL, "--step", 40)

    assert result.exit_code == 0
    head, _, text = result.stdout.partition("\n\n")
    assert text == describe(moment.manager, names=moment.names) + "\n"
    assert head.splitlines() == [
        "parallel-sampling: step 40",
        f"simulated time: {moment.time_ms / 1000:,.1f} s",
        "pool: 300 blocks",
        f"waiting requests: {moment.waiting}",
        f"token hit rate so far: {moment.manager.stats().hit_rate:.2%}",
    ]


def test_the_svg_shows_the_blocks_of_that_step(run: Run, moment: Moment, tmp_path: Path) -> None:
    target = tmp_path / "map.svg"

    result = run(*SMALL, "--step", 40, "--output", target)

    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == f"wrote {target}"
    texts = [text.text or "" for text in ET.parse(target).getroot().findall(".//{*}text")]
    blocks = moment.manager.blocks()
    for state in (BlockState.CACHED, BlockState.IDLE, BlockState.FREE):
        if blocks.count(state):
            assert f"{state.name.lower()} {blocks.count(state):,}" in texts
    for name in moment.names.values():
        assert any(text.startswith(f"{name}, ") for text in texts)


def test_the_same_command_writes_the_same_bytes_wherever(run: Run, tmp_path: Path) -> None:
    one, other = tmp_path / "one.svg", tmp_path / "other.svg"
    run(*SMALL, "-o", one)
    run(*SMALL, "-o", other)
    assert one.read_bytes() == other.read_bytes()
    assert run(*SMALL).stdout_bytes == run(*SMALL).stdout_bytes


def test_another_process_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    """The output must not depend on hash seeds or on earlier managers of the process."""
    one, other = tmp_path / "one.svg", tmp_path / "other.svg"
    run(*SMALL, "-o", one)
    subprocess.run(
        [sys.executable, "-m", "blockmgr", *SMALL, "-o", str(other)],
        check=True,
        capture_output=True,
        env={"PYTHONHASHSEED": "7", "PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert one.read_bytes() == other.read_bytes()


def test_a_share_of_the_steps_is_counted_over_the_whole_replay(run: Run) -> None:
    steps = replay(generate("parallel-sampling", 0), 300, ReplayConfig()).steps
    for share, step in (("30%", int(0.3 * steps)), ("0.5", steps // 2), ("100%", steps), ("0", 1)):
        first = run(*SMALL, "--at", share).stdout.splitlines()[0]
        assert first == f"parallel-sampling: step {step:,}"


def test_without_a_place_it_shows_the_middle(run: Run) -> None:
    assert run(*SMALL).stdout == run(*SMALL, "--at", "50%").stdout


def test_a_percentage_is_of_the_working_set(run: Run) -> None:
    result = run("show", "--workload", "chat", "--step", 3)
    working_set = unbounded(generate("chat", 0), ReplayConfig()).working_set_blocks
    assert f"pool: {working_set // 10:,} blocks, 10% of the working set" in result.stdout


@pytest.mark.parametrize("place", [("--at", "30%"), ("--at", "1/3"), ("--step", "7"), ()])
def test_stderr_says_how_to_see_it_again(run: Run, place: tuple[str, ...]) -> None:
    result = run(*SMALL, *place, "--seed", 4)
    told = result.stderr.splitlines()[-1]
    assert told.startswith(f"blockmgr {__version__}, seed 4, repeat with: blockmgr show ")
    command = shlex.split(told.partition("repeat with: ")[2])
    assert ("--at" in command) != ("--step" in command)
    assert run(*command[1:]).stdout == result.stdout


def test_the_file_says_how_to_see_it_without_saying_where_it_lies(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "map.svg"
    run(*SMALL, "--step", 7, "-o", target)
    text = target.read_text(encoding="utf-8")
    [told] = re.findall(r"seen with: ([^<]*)<", text)
    assert str(tmp_path) not in text
    assert run(*shlex.split(told)[1:]).stdout.startswith("parallel-sampling: step 7\n")


def test_the_picture_in_the_guide_says_what_its_command_draws(run: Run, tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    guide = (docs / "guides" / "inspect.md").read_text(encoding="utf-8")
    [command] = [line for line in guide.splitlines() if "--output block-map.svg" in line]
    target = tmp_path / "picture.svg"
    result = run(*shlex.split(command)[1:-1], target)
    assert result.exit_code == 0
    words = [
        [text.text for text in ET.parse(path).getroot().findall(".//{*}text")]
        for path in (target, docs / "images" / shlex.split(command)[-1])
    ]
    assert words[0] == words[1]


def test_a_trace_file_is_shown(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(GOOD * 3, encoding="utf-8")
    result = run("show", "--trace", path, "--capacity", 200, "--step", 1)
    assert result.exit_code == 0
    assert result.stdout.startswith("trace.jsonl: step 1\n")
    assert "request 3" in result.stdout
    assert "--workload" not in result.stderr


def test_options_of_the_replay_reach_it(run: Run) -> None:
    usual, other = run(*SMALL, "--step", 20), run(*SMALL, "--step", 20, "--block-size", 32)
    assert "300 blocks of 16 tokens" in usual.stdout
    assert "300 blocks of 32 tokens" in other.stdout
    chat = ("show", "--workload", "chat", "--step", 600)
    whole, parts = run(*chat), run(*chat, "--min-partial-tokens", 1)
    rates = [re.search(r"so far: (\S+)%", result.stdout) for result in (whole, parts)]
    assert float(rates[0][1]) < float(rates[1][1])  # type: ignore[index]


def test_a_wrong_output_is_told_before_the_replay(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockmgr.cli.options.generate", lambda *_: pytest.fail("too late"))
    assert run(*SMALL, "-o", "map.gif").exit_code == 2


def test_states_have_colours_on_a_terminal_and_none_where_they_are_not_wanted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(*SMALL, "--step", 20)
    assert "\x1b" not in plain.output
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = CliRunner().invoke(cli, [*SMALL, "--step", "20"], color=True)
    assert "\x1b[1;32mC" in coloured.stdout
    assert "\x1b[33mo" in coloured.stdout
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.stdout) == plain.stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in CliRunner().invoke(cli, [*SMALL, "--step", "20"], color=True).stdout


def test_a_model_is_shown_by_group(run: Run) -> None:
    command = ("show", "few-shot", "--model", "gemma-3", "--capacity", "10%", "--step", 30)
    result = run(*command)
    assert result.exit_code == 0
    assert "group 5, SlidingWindow(width=1024): " in result.stdout
    assert "\n  group 1 " in result.stdout
    assert "--model gemma-3" in result.stderr
    document = json.loads(run(*command, "--json").stdout)
    held = document["blocks_by_group"]
    assert [each["group"] for each in held] == ["FullAttention()"] + 5 * [
        "SlidingWindow(width=1024)"
    ]
    states = document["blocks_by_state"]
    assert sum(each["used_blocks"] for each in held) == states["owned"] + states["cached"]
    assert sum(each["cached_blocks"] for each in held) == states["idle"]
    sequence = document["sequences"][0]
    assert len(sequence["block_ids_by_group"]["3"]) == len(sequence["block_ids"])
