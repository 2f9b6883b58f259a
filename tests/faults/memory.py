"""Fails the allocations of a call one by one: ``python -m tests.faults.memory [CALL ...]``.

``_testcapi.set_nomemory`` makes the interpreter's own allocators fail from one allocation to
another. Each call is made with its first allocation failing, with its second, and so on until it
completes; each time with only that allocation failing and with all later ones failing too. After
each attempt memory is available again, and the world must be unchanged. Every call has its own fork
of the process.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tests.faults.calls import CALLS, NATIVE_CALLS, Call

try:
    from _testcapi import remove_mem_hooks, set_nomemory
except ImportError:  # not every interpreter comes with it
    set_nomemory = remove_mem_hooks = None

AVAILABLE = set_nomemory is not None
ALL_CALLS = {**CALLS, **NATIVE_CALLS}
# When CPython 3.11 has no memory for a frame object, it loses the current error and reports this.
INTERPRETERS_OWN = "SystemError: error return without exception set"
# CPython 3.12 and 3.13 crash when they create a function or generator without memory.
GENERATOR = """
from _testcapi import remove_mem_hooks, set_nomemory
def make(numbers):
    return any(number in (1, 2) for number in numbers)
for start in range(64):
    try:
        set_nomemory(start, 0)
        make((3, 4))
    except MemoryError:
        pass
    finally:
        remove_mem_hooks()
"""
REPEATS = 5
MANY_POINTS = 5_000  # no call has as many; more means a bug in this test


@dataclass
class Report:
    """What happened to one call."""

    points: int = 0
    """Attempts in which an allocation failed, or no further one was left to fail."""
    refused: int = 0
    """Of those, attempts that raised and changed nothing."""
    completed: int = 0
    """Attempts that completed with the usual result."""
    other_errors: list[str] = field(default_factory=list)
    """Errors other than MemoryError."""
    broken: list[str] = field(default_factory=list)
    """Faults, by point."""


def attempt(make: Callable[[], Any], start: int, stop: int) -> tuple[bool, BaseException | None]:
    """Makes the call with the allocations in ``[start, stop)`` failing; 0: all from start on."""
    error: BaseException | None = None
    try:
        set_nomemory(start, stop)
        make()
    except BaseException as raised:
        remove_mem_hooks()
        error = raised.with_traceback(None)
    finally:
        remove_mem_hooks()
    return error is None, error


def leaks(make: Callable[[], Any], start: int, stop: int) -> bool:
    """Whether attempts that fail there leave more behind each time.

    The first attempts may fill caches of the interpreter and of the core.
    """
    held = 0
    for again in range(3 + REPEATS):
        if again == 3:
            gc.collect()
            held = sys.getallocatedblocks()
        done, error = attempt(make, start, stop)
        del error
        if done:
            return False
    gc.collect()  # objects that an error refers to in a cycle
    return sys.getallocatedblocks() - held >= REPEATS


def run(call: Call) -> Report:
    """Makes every allocation of one call fail, alone and together with all later ones."""
    report = Report()
    wanted = call.world()
    call.bind(wanted)()
    expected = wanted.state()
    gc.disable()
    del [MemoryError() for _ in range(64)][:]  # fills the interpreter's free list of them
    limit = 0
    for persistent in (True, False):
        world = call.world()
        make = call.bind(world)
        for start in range(MANY_POINTS):
            before = world.state()
            done, error = attempt(make, start, 0 if persistent else start + 1)
            report.points += 1
            where = f"{start}{' on' if persistent else ''}"
            if done:
                report.completed += 1
                if world.state() != expected:
                    report.broken.append(f"{where}: completed, and left something else")
                if persistent or start > limit:
                    break
                world = call.world()
                make = call.bind(world)
                continue
            if not isinstance(error, MemoryError):
                report.other_errors.append(f"{where}: {type(error).__name__}: {error}")
            del error
            if world.state() != before:
                report.broken.append(f"{where}: raised, and changed something")
                world = call.world()
                make = call.bind(world)
                continue
            world.subject.check_invariants()
            report.refused += 1
            if leaks(make, start, 0 if persistent else start + 1):
                report.broken.append(f"{where}: leaked")
            if world.state() != before:
                world = call.world()  # with full caches, the call may need no allocation
                make = call.bind(world)
        else:
            report.broken.append("never completed")
        limit = start
    return report


def run_in_fork(name: str) -> Report:
    """The same in a fork of this process, which may crash."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            os.dup2(errors.fileno(), 2)
            code = 1
            try:
                json.dump(asdict(run(ALL_CALLS[name])), out)
                out.flush()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        errors.seek(0)
        if code:
            return Report(broken=[f"died with {code}: {errors.read()[-500:]}"])
        return Report(**json.load(out))


@functools.cache
def interpreter_dies() -> bool:
    """Whether lack of memory crashes this interpreter even without blockmgr."""
    child = subprocess.run([sys.executable, "-c", GENERATOR], capture_output=True, check=False)
    return child.returncode < 0


class Apart:
    """A process that has imported everything once, and forks for each call.

    Not the process of the tests: it has threads, and a fork would inherit their locks.
    """

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.memory", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def run(self, name: str) -> Report:
        """Runs the call of this name in the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return Report(**json.loads(self._process.stdout.readline()))

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def serve() -> None:
    """Reads names, one per line, and answers each with a report on a line."""
    for line in sys.stdin:
        print(json.dumps(asdict(run_in_fork(line.rstrip("\n")))), flush=True)


def main(arguments: list[str]) -> int:
    if not AVAILABLE:
        print("this interpreter has no _testcapi.set_nomemory")
        return 2
    gc.collect()
    gc.freeze()  # imported objects are no garbage: the leak check skips them
    if arguments == ["--serve"]:
        serve()
        return 0
    total = Report()
    print(f"{'call':24} {'points':>7} {'refused':>8} {'completed':>10} {'broken':>7}")
    for name in arguments or ALL_CALLS:
        report = run_in_fork(name)
        print(
            f"{name:24} {report.points:7} {report.refused:8} {report.completed:10} "
            f"{len(report.broken):7}",
            flush=True,
        )
        for line in (*report.broken[:5], *report.other_errors[:3]):
            print(f"    {line}")
        total.points += report.points
        total.refused += report.refused
        total.broken += report.broken
    print(f"{total.points} points, {total.refused} refused, {len(total.broken)} broken")
    return bool(total.broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
