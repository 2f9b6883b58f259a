"""Raises at the lines of a call one by one: ``python -m tests.faults.lines [core | ports]``.

A trace function raises when the call comes to its first line inside the package, to its second, and
so on until it completes. After each, the world must be what it was, or what the call makes of it.
The exception is no ``Exception``: like a ``KeyboardInterrupt`` it can come anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import blockmgr
from tests.faults.calls import CALLS, Call
from tests.faults.ports import PORT_CALLS, PortWorld
from tests.faults.worlds import World

PACKAGE = str(Path(blockmgr.__file__).parent)
LAB = str(Path(PACKAGE) / "lab")


class Struck(BaseException):
    """Raised by the trace function."""


@dataclass
class Report:
    """What happened to one call."""

    lines: int = 0
    """Lines at which it was struck."""
    unchanged: int = 0
    """Of those, lines after which the world was as before."""
    undone: int = 0
    """Lines after which nothing more was held than before; of calls of the ports only."""
    complete: int = 0
    """Lines after which it was as after a whole call, the result lost."""
    broken: list[str] = field(default_factory=list)
    """Lines after which it was neither, or the books were wrong."""


@dataclass
class Lightning:
    """A trace function that strikes at the line event of that number, counted from 1."""

    number: int
    seen: int = 0
    place: str = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Lightning | None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.number:
                name = Path(frame.f_code.co_filename).relative_to(PACKAGE)
                self.place = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise Struck
        return self


def strike(make: Callable[[], Any], number: int) -> Lightning:
    """Makes the call; whether it got so far is in what is returned."""
    lightning = Lightning(number)
    before = sys.gettrace()
    try:
        sys.settrace(lightning)
        make()
    except Struck:
        pass
    finally:
        sys.settrace(before)
    return lightning


def run(call: Call) -> Report:
    """Every line of one call, each in a world of its own."""
    report = Report()
    wanted = call.world()
    call.bind(wanted)()
    complete = wanted.state()
    number = 1
    while True:
        world = call.world()
        before = world.state()
        lightning = strike(call.bind(world), number)
        if not lightning.place:
            return report
        report.lines += 1
        problem = _problem(world)
        state = world.state()
        if problem:
            report.broken.append(f"{lightning.place}: {problem}")
        elif state == before:
            report.unchanged += 1
        elif state == complete:
            report.complete += 1
        elif isinstance(world, PortWorld) and state[1] == before[1]:
            report.undone += 1
        else:
            report.broken.append(f"{lightning.place}: half done")
        number += 1


def _problem(world: World) -> str:
    try:
        world.subject.check_invariants()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


COLUMNS = ("lines", "unchanged", "undone", "complete", "broken")


def main(arguments: list[str], calls: Mapping[str, Call]) -> int:
    """Prints a table; 1 if a call of the core's own interface was left half done."""
    total = dict.fromkeys(COLUMNS, 0)
    print(f"{'call':26}", *(f"{column:>9}" for column in COLUMNS))
    for name in arguments or calls:
        report = run(calls[name])
        row = [report.lines, report.unchanged, report.undone, report.complete, len(report.broken)]
        print(f"{name:26}", *(f"{number:9}" for number in row), flush=True)
        for line in report.broken:
            print(f"    {line}")
        for column, number in zip(COLUMNS, row, strict=True):
            total[column] += number
    print(f"{'all':26}", *(f"{total[column]:9}" for column in COLUMNS))
    return bool(total["broken"])


if __name__ == "__main__":
    which = {"ports": PORT_CALLS, "core": CALLS}
    chosen = which.get(sys.argv[1] if len(sys.argv) > 1 else "")
    names = sys.argv[2:] if chosen else sys.argv[1:]
    sys.exit(main(names, chosen or {**CALLS, **PORT_CALLS}))
