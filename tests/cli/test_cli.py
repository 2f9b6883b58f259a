"""The command line: exit codes, streams, and the report of a run about itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import blockmgr.lab
from blockmgr import __version__
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.workloads import generate
from blockmgr.tiers import Slab

if TYPE_CHECKING:
    from tests.cli.conftest import Run


SMALL = ("replay", "--workload", "parallel-sampling", "--capacity", "10%,300")
GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [3, 9]}\n'


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(GOOD * 3, encoding="utf-8")
    return path


def test_replay_without_arguments_prints_a_table(run: Run) -> None:
    result = run("replay")

    assert result.exit_code == 0
    assert result.stdout.startswith("shared-prompt: 1,024 requests")
    assert "unbounded" in result.stdout.splitlines()[-1]


def test_another_seed_gives_another_result(run: Run) -> None:
    one, other = (json.loads(run(*SMALL, "--json", "--seed", s).stdout) for s in (1, 2))
    assert one["attainable"]["query_tokens"] != other["attainable"]["query_tokens"]


def test_a_trace_file_is_replayed(run: Run, trace_file: Path) -> None:
    result = run("replay", "--trace", trace_file, "--capacity", "100%,9", "--json")

    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["trace"] == "trace.jsonl"
    # 600 tokens are 37 full blocks of 16, found by the second and the third request.
    assert document["attainable"]["hit_tokens"] == 2 * 37 * 16
    assert [entry["hit_tokens"] for entry in document["results"]] == [2 * 37 * 16, 0]
    assert document["results"][1]["rejected"] == 3


def test_a_malformed_trace_is_named_with_line_and_column(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(GOOD + GOOD.replace("600", "6000"), encoding="utf-8")

    result = run("replay", "--trace", path)

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr == (
        f"error: {path}:2:60: found 2 hash_ids for input_length 6000, "
        "expected 12, one for each 512 tokens\n"
    )


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"timestamp": -1}, "found timestamp -1, expected a number in [0, "),
        ({"timestamp": 4}, "found timestamp 4, expected at least 5 ms, as before"),
        (
            {"hash_ids": [4, 9]},
            "found id 9 after id 4 in hash_ids, expected it after id 3, as in line 1: "
            "an id stands for its prefix too",
        ),
    ],
)
@pytest.mark.parametrize("command", ["replay", "sweep", "explain", "show", "plan --hit-rate 9%"])
def test_a_line_that_contradicts_the_one_before_is_named(
    run: Run, tmp_path: Path, command: str, second: dict[str, object], message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    first = {**json.loads(GOOD), "timestamp": 5}
    path.write_text(f"{json.dumps(first)}\n{json.dumps({**first, **second})}\n", encoding="utf-8")

    result = run(*command.split(), path)

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {path}:2:")
    assert message in result.stderr


@pytest.mark.parametrize("command", ["replay", "explain"])
def test_requests_larger_than_the_pool_are_told_with_the_smallest_that_holds_them(
    run: Run, trace_file: Path, command: str
) -> None:
    told = "3 of 3 requests are larger than a pool of 9 blocks and count as missed; from 38 blocks"
    assert told in run(command, trace_file, "--capacity", 9).stderr
    assert "larger than a pool" not in run(command, trace_file, "--capacity", 38).stderr


def test_replay_tells_the_manager_the_truth_if_asked_to(run: Run) -> None:
    chat = ("replay", "chat", "--capacity", "2%", "--json")
    told = json.loads(run(*chat, "--hints", "truth").stdout)
    untold = json.loads(run(*chat).stdout)

    assert told["config"]["hints"] == "truth"
    assert "--hints truth" in told["command"]
    config = ReplayConfig(hints="truth")
    [entry] = told["results"]
    assert (
        entry["hit_tokens"] == replay(generate("chat", 0), entry["num_blocks"], config).hit_tokens
    )
    assert entry["hit_tokens"] > untold["results"][0]["hit_tokens"]


def test_a_source_stands_for_a_workload_or_a_trace(run: Run, trace_file: Path) -> None:
    named = run("replay", "parallel-sampling", *SMALL[3:], "--json")
    assert (
        json.loads(named.stdout)["results"] == json.loads(run(*SMALL, "--json").stdout)["results"]
    )
    command = json.loads(named.stdout)["command"]
    assert command.startswith("blockmgr replay parallel-sampling --capacity 10%,300 ")
    assert run(*shlex.split(command)[1:]).stdout == named.stdout
    assert json.loads(run("replay", trace_file, "--json").stdout)["trace"] == "trace.jsonl"


def test_the_singular_and_the_plural_of_an_option_are_the_same(run: Run, trace_file: Path) -> None:
    one = ("sweep", trace_file, "--jobs", 1, "--json", "--policies", "lru")
    plural = run(*one, "--capacities", "50,60", "--block-sizes", "16,64")
    assert plural.exit_code == 0
    assert run(*one, "--capacity", "50,60", "--block-size", "16,64").stdout == plural.stdout


def test_an_empty_trace_is_bad_input(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    result = run("replay", "--trace", tmp_path / "empty.jsonl")
    assert result.exit_code == 3
    assert ":1:1: found the end of the file, expected a request" in result.stderr


def test_debug_shows_where_an_error_came_from(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    result = run("replay", "--trace", tmp_path / "empty.jsonl", "--debug")
    assert result.exit_code == 3
    assert "Traceback" in result.stderr


def test_a_block_size_the_ids_cannot_be_cut_into_is_a_wrong_command(
    run: Run, trace_file: Path
) -> None:
    result = run("replay", "--trace", trace_file, "--block-size", 48)
    assert result.exit_code == 2
    assert "block_size must divide 512" in result.stderr


def test_no_command_prints_the_help_and_is_wrong(run: Run) -> None:
    result = run()
    assert result.exit_code == 2
    assert "doctor" in result.stderr


def test_a_hit_rate_below_the_one_demanded_exits_with_1(run: Run) -> None:
    result = run(*SMALL, "--min-hit-rate", "99%")
    assert result.exit_code == 1
    assert "unbounded" in result.stdout
    assert "is below --min-hit-rate 99.00%" in result.stderr


def test_a_hit_rate_as_demanded_exits_with_0(run: Run) -> None:
    assert run(*SMALL, "--min-hit-rate", "0.2").exit_code == 0


def test_plot_writes_a_picture_and_its_data(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    target = tmp_path / "curve.png"

    result = run(*SMALL, "--json", "--plot", target)

    assert result.exit_code == 0
    assert target.read_bytes().startswith(b"\x89PNG\r\n")
    assert (tmp_path / "curve.csv").exists()
    assert json.loads(result.stdout)
    assert f"wrote {target}" in result.stderr


def test_a_missing_extra_is_one_line_and_exit_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Makes the module look as if it had not been imported.
    monkeypatch.delitem(sys.modules, "blockmgr.lab.plot", raising=False)
    monkeypatch.delattr(blockmgr.lab, "plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    result = run(*SMALL, "--plot", tmp_path / "curve.png")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert (
        result.stderr
        == "error: drawing a plot needs an extra; in a clone of blockmgr: pip install '.[plot]'\n"
    )


def test_without_click_the_command_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['click'] = None; import blockmgr.__main__ as m; "
        "sys.argv = ['blockmgr', 'replay']; m.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: the command line needs an extra; in a clone of blockmgr: pip install '.[cli]'\n"
    )


def test_doctor_prints_versions_extras_and_device(run: Run) -> None:
    result = run("doctor")
    assert result.exit_code == 0
    assert result.stderr == ""
    for name in ("blockmgr", "python", "numpy", "xxhash", "extra cli", "extra plot", "device"):
        assert name in result.stdout
    assert __version__ in result.stdout


def test_doctor_says_whether_memory_for_a_tier_is_free(run: Run) -> None:
    result = run("doctor", "--host-tier", "1MiB")
    assert (result.exit_code, "0.0 GiB wanted" in result.stdout) == (0, True)
    result = run("doctor", "--host-tier", "4096TiB", "--json")
    assert result.exit_code == 1
    assert "4194304.0 GiB wanted" in json.loads(result.stdout)["host tier"]


def test_doctor_looks_at_the_file_of_a_tier_and_leaves_it_as_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockmgr.tiers.ground.TRIAL_BYTES", 2**20)
    path = tmp_path / "kv.slab"
    found = json.loads(run("doctor", "--disk-tier", str(path), "--json").stdout)
    assert found["disk tier"] == "no file yet"
    assert "GiB are free" in found["disk space"]
    assert "GB/s read, measured with 1 MiB on one thread" in found["disk speed"]
    assert not list(tmp_path.iterdir())
    slab = Slab(path, {"model": "tiny"}, num_blocks=4, block_bytes=8, key_bytes=4)
    held = run("doctor", "--disk-tier", str(path))
    assert (held.exit_code, "it is open already" in held.stderr) == (3, True)
    slab.close()
    before = path.read_bytes()
    found = json.loads(run("doctor", "--disk-tier", str(path), "--json").stdout)
    assert "for model tiny, block_bytes 8, num_blocks 4" in found["disk tier"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv.slab"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "words"),
    [("letter", "another file, or damaged"), ("none/kv.slab", "there is no folder"), ("", "Is a")],
)
def test_doctor_refuses_what_is_no_slab_as_an_engine_would(
    run: Run, tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "letter").write_text("not a slab")
    result = run("doctor", "--disk-tier", str(tmp_path / name))
    assert (result.exit_code, words in result.stderr) == (3, True)
    result = run("doctor", "--disk-tier", str(tmp_path / "new"), "--disk-size", "4096TiB")
    assert (result.exit_code, "it needs" in result.stderr) == (3, True)
    assert run("doctor", "--disk-size", "1").exit_code == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [("blockmgr re", ["replay", "report"]), ("blockmgr replay --evic", ["--eviction"])],
)
def test_a_shell_is_offered_commands_and_options(words: str, offered: list[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
    text = page.read_text(encoding="utf-8")
    [variable] = re.findall(r'eval "\$\((_\w+)=bash_source blockmgr\)"', text)
    position = str(len(words.split()) - 1)
    answers = {variable: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": position}
    program = "import sys; sys.argv[0] = 'blockmgr'; from blockmgr.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **answers},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"plain,{word}" for word in offered]


def test_version_is_printed(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"blockmgr {__version__}\n")


@pytest.mark.parametrize("command", ["replay", "show", "doctor"])
def test_help_is_data(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"blockmgr {command}" in result.stdout


def test_python_m_blockmgr_works_without_a_terminal_and_with_no_color() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blockmgr", *SMALL],
        capture_output=True,
        text=True,
        check=False,
        env={"NO_COLOR": "1", "PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[0] == "unbounded"


def test_importing_the_package_loads_no_extra() -> None:
    program = (
        "import sys, blockmgr, blockmgr.lab, blockmgr.lab.study, blockmgr.lab.workloads; "
        "print([m for m in ('click', 'rich', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr
