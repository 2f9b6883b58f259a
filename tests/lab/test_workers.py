"""Killed processes of a sweep cost time but no result."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from blockmgr.cli import cli
from blockmgr.lab import workers
from blockmgr.lab.replays import Replays
from blockmgr.lab.request import Request
from blockmgr.lab.trace import Trace
from blockmgr.lab.workers import LOSSES, Task, workers_on

PROMPT = np.arange(3, dtype=np.uint32)
TRACE = Trace("small", (Request(arrival_ms=0, prompt=PROMPT, num_output_tokens=0),))


def square(_: Replays, number: int) -> int:
    return number * number


def square_if_let(_: Replays, number: int, folder: str, kills: int) -> int:
    """The first attempts kill their own process."""
    attempts = Path(folder, str(number))
    with attempts.open("ab") as file:
        file.write(b".")
    if attempts.stat().st_size <= kills:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(tasks: list[Task], jobs: int) -> tuple[list[int], int]:
    """The results, and the number of notifications that a task is done."""
    done: Counter[str] = Counter()
    with workers_on(TRACE, jobs) as processes:
        return processes.run(tasks, lambda: done.update(["done"])), done["done"]


@pytest.mark.parametrize("jobs", [2, 3])
def test_a_killed_process_costs_no_result(jobs: int, tmp_path: Path) -> None:
    tasks: list[Task] = [(square, number) for number in range(6)]
    tasks[3] = (square_if_let, 3, str(tmp_path), 1)
    assert run(tasks, jobs) == ([0, 1, 4, 9, 16, 25], 6)


def test_one_that_is_killed_while_nothing_is_done_is_tried_alone(tmp_path: Path) -> None:
    tasks: list[Task] = [(square_if_let, 5, str(tmp_path), LOSSES - 1)]
    assert run(tasks, 2) == ([25], 1)


def test_what_kills_each_process_ends_with_one_error(tmp_path: Path) -> None:
    tasks: list[Task] = [(square, 2), (square_if_let, 3, str(tmp_path), 1000)]
    with pytest.raises(ChildProcessError, match=f"killed {LOSSES} times") as error:
        run(tasks, 2)
    assert "\n" not in str(error.value)


def test_the_command_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_run_there", die)
    words = ["sweep", "--jobs", "2", "--policies", "lru", "--capacities", "50%"]
    result = CliRunner().invoke(cli, words, prog_name="blockmgr")
    assert result.exit_code == 3
    assert not result.stdout
    assert "error: a process was killed 3 times" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_error_of_a_task_is_raised_as_it_is() -> None:
    with pytest.raises(TypeError, match="multiply"):
        run([(square, 2), (square, "text")], 2)
