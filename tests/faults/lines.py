"""Raises at the lines of a call one by one: ``python -m tests.faults.lines [CALL ...]``.

A trace function raises when the call reaches its first line inside the package, its second, and so
on until it completes; with ``--instructions``, before its first instruction of Python code, its
second, and so on. After each, the world must be as before the call or as after a complete call. The
exception is not an ``Exception``: like a ``KeyboardInterrupt`` it can occur anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import blockmgr
from tests.faults.calls import CALLS, Call
from tests.faults.worlds import World

PACKAGE = str(Path(blockmgr.__file__).parent)
LAB = str(Path(PACKAGE) / "lab")


class Struck(BaseException):
    """Raised by the trace function."""


@dataclass
class Report:
    """What happened to one call."""

    lines: int = 0
    """Lines at which it was interrupted."""
    unchanged: int = 0
    """Of those, lines after which the world was unchanged."""
    complete: int = 0
    """Lines after which the world was as after a complete call, with the result lost."""
    broken: list[str] = field(default_factory=list)
    """Lines after which it was none of these, or the books were wrong."""


@dataclass
class Lightning:
    """A trace function that raises at the line event of that number, counted from 1."""

    number: int
    instructions: bool = False
    seen: int = 0
    place: str = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Lightning | None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "call":
            frame.f_trace_opcodes = self.instructions
        if event == ("opcode" if self.instructions else "line"):
            self.seen += 1
            if self.seen == self.number:
                name = Path(frame.f_code.co_filename).relative_to(PACKAGE)
                self.place = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise Struck
        return self


def strike(make: Callable[[], Any], number: int, instructions: bool = False) -> Lightning:
    """Makes the call; the returned trace function shows whether it got that far."""
    lightning = Lightning(number, instructions)
    before = sys.gettrace()
    try:
        sys.settrace(lightning)
        make()
    except Struck:
        pass
    finally:
        sys.settrace(before)
    return lightning


def run(call: Call, instructions: bool = False) -> Report:
    """Interrupts one call at every line, each time in its own world."""
    report = Report()
    complete = _state_after(call, call.bind)
    number = 1
    while True:
        world = call.world()
        before = world.state()
        lightning = strike(call.bind(world), number, instructions)
        if not lightning.place:
            return report
        report.lines += 1
        number += 1
        state = world.state()
        if problem := _problem(world):
            report.broken.append(f"{lightning.place}: {problem}")
        elif state == before:
            report.unchanged += 1
        elif state == complete:
            report.complete += 1
        else:
            report.broken.append(f"{lightning.place}: half done")


def _state_after(call: Call, bind: Callable[[World], Callable[[], Any]]) -> Any:
    world = call.world()
    bind(world)()
    return world.state()


def _problem(world: World) -> str:
    try:
        world.subject.check_invariants()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


COLUMNS = ("lines", "unchanged", "complete", "broken")


def main(arguments: list[str], instructions: bool) -> int:
    """Prints a table; 1 if a call was left half done."""
    total = dict.fromkeys(COLUMNS, 0)
    print(f"{'call':38}", *(f"{column:>9}" for column in COLUMNS))
    for name in arguments or CALLS:
        found = run(CALLS[name], instructions)
        row = [found.lines, found.unchanged, found.complete, len(found.broken)]
        print(f"{name:38}", *(f"{number:9}" for number in row), flush=True)
        for line in found.broken:
            print(f"    {line}")
        for column, number in zip(COLUMNS, row, strict=True):
            total[column] += number
    print(f"{'all':38}", *(f"{total[column]:9}" for column in COLUMNS))
    return bool(total["broken"])


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--instructions"]
    sys.exit(main(words, "--instructions" in sys.argv))
