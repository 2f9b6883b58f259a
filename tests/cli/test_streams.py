"""How each command ends: its exit code, one line on stderr, and the state of its files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [3, 9]}\n'
PROGRAM = (sys.executable, "-m", "blockmgr")
COMMANDS = {
    "help": ("--help",),
    "help of a command": ("replay", "--help"),
    "version": ("--version",),
    "doctor": ("doctor",),
    "replay": ("replay", "t.jsonl"),
    "replay, JSON": ("replay", "t.jsonl", "--json"),
    "sweep": ("sweep", "t.jsonl", "--capacities", "100", "--jobs", "1", "--policies", "lru"),
    "sweep, JSON": ("sweep", "t.jsonl", "--capacities", "100", "--jobs", "1", "--json"),
    "plan": ("plan", "t.jsonl", "--hit-rate", "30%"),
    "explain": ("explain", "t.jsonl", "--capacity", "100"),
    "show": ("show", "t.jsonl", "--capacity", "100"),
    "workload": ("workload", "parallel-sampling"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.jsonl").write_text(GOOD * 3, encoding="utf-8")
    return tmp_path


def ended(folder: Path, words: tuple[str, ...], redirection: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdout is redirected by a shell."""
    line = f"exec {shlex.join([*PROGRAM, *words])} {redirection}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, stderr=subprocess.PIPE, text=True, check=False
    )
    # The line before says how the trace was read.
    lines = [line for line in done.stderr.splitlines(True) if not line.startswith("read as ")]
    return done.returncode, "".join(lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_stdout_is_one_line_and_exit_3(folder: Path, name: str) -> None:
    found = ended(folder, COMMANDS[name], ">&-")
    assert found == (3, "error: stdout is closed, but results are written to it\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_that_nobody_reads_is_one_line_and_exit_3(folder: Path, name: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, *COMMANDS[name]],
        cwd=folder,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr.splitlines(True)[-1]) == (
        3,
        "error: stdout was closed before everything was written\n",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_line_and_exit_3(folder: Path, name: str) -> None:
    found = ended(folder, COMMANDS[name], ">/dev/full")
    assert found == (3, "error: [Errno 28] No space left on device\n")


def test_without_stderr_the_results_are_the_same(folder: Path) -> None:
    words = [*PROGRAM, *COMMANDS["replay, JSON"]]
    whole = subprocess.run(words, cwd=folder, capture_output=True, check=True)
    line = f"{shlex.join(words)} 2>&-"
    alone = subprocess.run(["bash", "-c", line], cwd=folder, stdout=subprocess.PIPE, check=False)
    assert (alone.returncode, alone.stdout) == (0, whole.stdout)


def test_what_stdout_cannot_encode_is_shown_as_an_escape(folder: Path) -> None:
    (folder / "Zürich.jsonl").write_text(GOOD, encoding="utf-8")
    done = subprocess.run(
        [*PROGRAM, "replay", "Zürich.jsonl"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert done.stdout.startswith(r"Z\xfcrich.jsonl: 1 requests")


@pytest.mark.parametrize(
    "name",
    [b"plain.jsonl", b"\xff.jsonl", b"a\xffb\xc3\xbc'\\ \x1b\n$x.jsonl", b"\xe20.jsonl", b"-x"],
)
def test_the_command_that_repeats_a_run_does_for_any_file_name(folder: Path, name: bytes) -> None:
    path = os.fsencode(folder) + b"/" + name
    Path(os.fsdecode(path)).write_text(GOOD * 3, encoding="utf-8")
    words = [*PROGRAM, "replay", "--trace", path, "--capacity", "100"]
    first = subprocess.run([*words, "--json"], capture_output=True, check=True, text=True)
    told = subprocess.run(words, capture_output=True, check=True, text=True)
    assert told.stderr.count("\n") == 2  # the first says how the trace was read
    rest = told.stderr.rstrip("\n").partition("repeat with: blockmgr ")[2]
    line = f"{shlex.join(PROGRAM)} {rest} --json"
    again = subprocess.run(["bash", "-c", line], capture_output=True, check=False, text=True)
    assert (again.returncode, again.stdout) == (0, first.stdout)


def test_one_block_and_a_hundred_percent_are_two_pool_sizes(run: Run, folder: Path) -> None:
    result = run("replay", folder / "t.jsonl", "--capacity", "1,100%")
    assert result.exit_code == 0


WRITERS = {
    "report": ("report", "t.jsonl", "--capacity", "100", "--jobs", "1", "-o", "out.html"),
    "show, SVG": ("show", "t.jsonl", "--capacity", "100", "-o", "out.svg"),
    "replay": ("replay", "t.jsonl", "--plot", "out.png"),
    "workload": ("workload", "parallel-sampling", "--export", "out.jsonl"),
    "workload, own": ("workload", "few-shot", "--export", "out.jsonl", "--format", "own"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_run_that_fails_leaves_the_file_that_was_there(folder: Path, name: str) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    target = folder / WRITERS[name][-1 if "own" not in name else 3]
    target.write_bytes(b"precious")
    # No file may exceed one kibibyte: the smallest of these takes several.
    line = f"ulimit -f 1; {shlex.join([*PROGRAM, *WRITERS[name]])}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "error: [Errno 27] File too large"
    assert target.read_bytes() == b"precious"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", WRITERS)
def test_a_symbolic_link_is_refused_before_any_work(
    run: Run, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    monkeypatch.chdir(folder)
    link = Path(WRITERS[name][-1 if "own" not in name else 3])
    Path("target").write_bytes(b"precious")
    link.symlink_to("target")
    result = run(*WRITERS[name])
    assert result.exit_code == 2
    assert "must not be a symbolic link" in result.stderr
    assert result.stderr.count("\n") == 1
    assert Path("target").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("report", "-o"), "t.html"),
        (("show", "-o"), "t.svg"),
        (("replay", "--plot"), "t.png"),
    ],
)
def test_the_trace_that_is_read_is_never_replaced(
    run: Run, folder: Path, words: tuple[str, ...], output: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    trace = folder / output
    trace.write_text(GOOD * 3, encoding="utf-8")
    command, *options = words
    for name in (trace, folder / ".." / folder.name / output):
        result = run(command, trace, "--capacity", "100", *options, name)
        assert result.exit_code == 2
        assert "must not be the file that is read" in result.stderr
        assert trace.read_text(encoding="utf-8") == GOOD * 3


def test_the_numbers_beside_a_plot_do_not_replace_the_trace_either(run: Run, folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    trace = folder / "t.csv"
    trace.write_text(GOOD * 3, encoding="utf-8")
    result = run("replay", trace, "--plot", folder / "t.png")
    assert result.exit_code == 2
    assert "the data of the plot must not be the file that is read" in result.stderr
    assert trace.read_text(encoding="utf-8") == GOOD * 3


def test_a_file_that_was_there_before_is_said_to_be_replaced(run: Run, folder: Path) -> None:
    words = ("show", folder / "t.jsonl", "--capacity", "100", "-o", folder / "map.svg")
    assert f"wrote {folder / 'map.svg'}\n" in run(*words).stderr
    assert f"replaced {folder / 'map.svg'}\n" in run(*words).stderr
