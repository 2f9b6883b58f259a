"""Runs a program that may have a bug, and classifies the outcome."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}
MOST_STALLED = 180  # seconds with almost no processor time, after which a process is stuck
LEAST_PROGRESS = 0.5  # processor seconds in that time: polling also takes some
KEPT = 600  # last characters of a program's output


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a run found the bug, how, and the processor time it took."""

    how: str
    """Empty if it found nothing; else ``failed``, ``crashed`` or ``endless``."""

    said: str
    seconds: float

    @property
    def found(self) -> bool:
        return bool(self.how)


def run(
    command: Sequence[str | Path],
    seconds: float,
    memory: int,
    folder: Path,
    *,
    variables: Mapping[str, str] | None = None,
    refusals: Sequence[int] = (1,),
) -> Outcome:
    """Runs a command within limits on processor seconds and on bytes of memory.

    A run that uses up its time, or that makes no progress, is endless: without a bug it takes a
    small part of that time.

    Raises ValueError for an exit status that no failing test has.
    """
    limit = max(round(seconds), 1)

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **(variables or {})},
            preexec_fn=bounded,  # noqa: PLW1509 -- it only sets limits
            start_new_session=True,
        )
        stalled, used = waited(process)
        output.seek(0)
        said = output.read().decode(errors="replace")[-KEPT:]
    if stalled or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome("endless", said, used)
    if process.returncode in CRASHES:
        return Outcome("crashed", said, used)
    if process.returncode not in (0, *refusals):
        raise ValueError(f"{command} ended with {process.returncode}\n{said}")
    return Outcome("failed" if process.returncode else "", said, used)


def waited(process: subprocess.Popen[bytes]) -> tuple[bool, float]:
    """Waits for the process, or kills it if it is stuck; returns that and its time."""
    known, last, pause = 0.0, time.monotonic(), 0.005
    stalled = False
    while True:
        pid, status, usage = os.wait4(process.pid, 0 if stalled else os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return stalled, usage.ru_utime + usage.ru_stime
        used = processor_time(process.pid)
        if used > known + LEAST_PROGRESS:
            known, last = used, time.monotonic()
        elif time.monotonic() - last > MOST_STALLED:
            os.killpg(process.pid, signal.SIGKILL)
            stalled = True
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def processor_time(pid: int) -> float:
    """The time of a process and of children it has waited for; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")
