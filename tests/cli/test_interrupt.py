"""SIGINT at any moment of a sweep: one line, exit code 130, and no process remains.

Each moment is a place in the program, so the test does not depend on the speed of the machine.
Every process of the command first imports a module that, at this place, sends SIGINT to all of
them, as a terminal does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blockmgr import interrupt
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.sweep import sweep
from blockmgr.lab.workloads import generate

HOOK = '''
import os, signal, sys

WHERE, MOMENT = {where!r}, {moment!r}
HERE = "worker" if "--multiprocessing-fork" in sys.argv else "command"


def interrupt():
    os.killpg(0, signal.SIGINT)


class Finder:
    """Sends the signal when a module is about to be imported."""

    def find_spec(self, name, path=None, target=None):
        if name == MOMENT:
            interrupt()


def called(event, arguments):
    """Sends the signal when the frame of a function is made."""


if HERE == WHERE:
    if ":" not in MOMENT:
        sys.meta_path.insert(0, Finder())
    else:
        module, function = MOMENT.split(":")

        def watch(frame, event, argument):
            if frame.f_code.co_name == function and frame.f_globals.get("__name__") == module:
                sys.setprofile(None)
                interrupt()

        sys.setprofile(watch)
'''
SWEEP = ("sweep", "parallel-sampling", "--policies", "lru,arc")
IMPORTS = (
    "blockmgr.blocks",
    "numpy",
    "xxhash",
    "blockmgr.cli",
    "click",
    "rich.console",
    "blockmgr.lab.sweep",
)
CALLS = (
    "blockmgr.cli.sweep:sweep",
    "blockmgr.lab.workloads:generate",
    "blockmgr.lab.workers:__init__",
    "multiprocessing.popen_spawn_posix:_launch",
    "blockmgr.lab.workers:run",
    "blockmgr.lab.workers:__exit__",
    "blockmgr.cli.sweep:_table",
)


def as_in_a_terminal() -> None:
    """A shell makes commands in the background ignore SIGINT, and tests may run there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(
    tmp_path: Path,
    where: str,
    moment: str,
    words: tuple[str, ...] = (*SWEEP, "--capacities", "10%,20%", "--jobs", "2"),
) -> tuple[int, bytes]:
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(where=where, moment=moment))
    paths = [str(tmp_path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    done = subprocess.run(
        [sys.executable, "-m", "blockmgr", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        start_new_session=True,
        preexec_fn=as_in_a_terminal,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("moment", [*IMPORTS, *CALLS])
def test_a_command_that_is_interrupted_says_so_in_one_line(tmp_path: Path, moment: str) -> None:
    assert interrupted(tmp_path, "command", moment) == (130, b"error: interrupted\n")


@pytest.mark.parametrize(
    "moment",
    [
        "numpy",
        "blockmgr.blocks",
        "blockmgr.lab.workers",
        "blockmgr.lab.workers:_take_trace",
        "blockmgr.lab.workers:_run_there",
        "blockmgr.lab.replay:run",
    ],
)
def test_processes_of_a_sweep_add_nothing_when_all_are_interrupted(
    tmp_path: Path, moment: str
) -> None:
    assert interrupted(tmp_path, "worker", moment) == (130, b"error: interrupted\n")


def test_a_sweep_that_is_interrupted_leaves_no_process_at_work() -> None:
    """The first replay to finish sends the signal, while others are still running."""

    def interrupt_here() -> None:
        raise KeyboardInterrupt

    trace = generate("chat", 0)
    sizes = parse_capacities("5%,10%,20%")
    with pytest.raises(KeyboardInterrupt):
        sweep(trace, sizes, ReplayConfig(), policies=("lru",), jobs=2, advance=interrupt_here)
    assert multiprocessing.active_children() == []


def test_a_sweep_leaves_handlers_and_masks_as_they_were() -> None:
    handler = signal.getsignal(signal.SIGINT)
    trace = generate("parallel-sampling", 0)
    sweep(trace, parse_capacities("50%"), ReplayConfig(), jobs=2)
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_command_in_the_background_ignores_what_its_shell_lets_it_ignore(tmp_path: Path) -> None:
    line = f"trap '' INT; exec {sys.executable} -m blockmgr sweep parallel-sampling --jobs 1"
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(where="command", moment="click"))
    done = subprocess.run(
        ["bash", "-c", f"{line} --policies lru --capacities 50%"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_other_programs_keep_their_handlers(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(
        "import signal, blockmgr\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        preexec_fn=as_in_a_terminal,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(
    ("argv", "original", "expected"),
    [
        (["/venv/bin/blockmgr", "sweep"], ["/venv/bin/python", "/venv/bin/blockmgr"], True),
        (["-m", "sweep"], ["python", "-m", "blockmgr", "sweep"], True),
        (["-m"], ["python", "-X", "dev", "-m", "blockmgr"], True),
        (["-m"], ["python", "-m", "blockmgr.lab"], False),
        (["-m"], ["python", "-m", "pytest", "blockmgr"], False),
        (["-c"], ["python", "-c", "import blockmgr"], False),
        (["engine.py", "-m", "blockmgr"], ["python", "engine.py", "-m", "blockmgr"], False),
        ([""], ["python"], False),
        ([], [], False),
    ],
)
def test_a_process_knows_whether_it_is_the_command(
    argv: list[str], original: list[str], expected: bool
) -> None:
    assert interrupt.is_command(argv, original) is expected


def test_nothing_slow_is_imported_before_interrupts_are_handled() -> None:
    """Before that, an interrupt ends in a traceback, so no slow import may come earlier."""
    code = (
        "import sys; before = set(sys.modules);"
        f"exec(compile(open({interrupt.__file__!r}).read(), 'interrupt', 'exec'));"
        "sys.exit(', '.join({'pathlib', 'typing', 're'} & (set(sys.modules) - before)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
