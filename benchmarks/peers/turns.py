"""Timing the same work of several systems, in turns.

Like ``benchmarks.measure``, with two differences: a turn is also bounded by time, because one
system may take a thousand times as long as another; and every run is checked, not only the last.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Case", "Effort", "WrongWorkError", "expect", "time_in_turns", "timed", "without_gc"]

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Case(Protocol):
    """One operation of one system that can be timed any number of times."""

    def prepare(self) -> Call:
        """Restores the state before a timed run; returns a function and its arguments."""

    def done(self, result: Any) -> None:
        """Fails if the run did not do its work."""

    def finish(self) -> None:
        """Fails if all runs together did not do their work."""


class WrongWorkError(Exception):
    """A system did not do the work for which it was timed."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raises ``WrongWorkError`` unless the two are equal."""
    if found != wanted:
        raise WrongWorkError(f"{what}: found {found}, expected {wanted}")


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """The function's result, and the nanoseconds it took.

    The smaller of wall time and thread time: the wall clock costs next to nothing to read, and the
    thread's clock does not count time in which another process had the core.
    """
    own = thread_time_ns()
    start = perf_counter_ns()
    result = function(*arguments)
    stop = perf_counter_ns()
    return result, min(stop - start, thread_time_ns() - own)


class Effort:
    """How often and how long to time.

    Args:
        rounds: Turns of each system.
        burst: Timed runs in a turn, at most.
        seconds: Time after which a turn ends, with at least one run.
        warm_up: Runs at the start of a turn that are not counted, at most.
    """

    def __init__(self, rounds: int, burst: int, seconds: float, warm_up: int = 5) -> None:
        self.rounds, self.burst, self.warm_up = rounds, burst, warm_up
        self.nanoseconds = int(seconds * 1e9)


@contextmanager
def without_gc() -> Iterator[None]:
    """Turns off garbage collection during timing, and freezes the objects that are alive.

    Without the freeze, a collection between two runs would visit a million objects of a large pool.
    """
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def time_in_turns(cases: Mapping[str, Case], effort: Effort) -> dict[str, Timing | Exception]:
    """Times every case in turns; one that fails is left out from then on, with its error."""
    runs: dict[str, list[float]] = {name: [] for name in cases}
    failed: dict[str, Exception] = {}
    with without_gc():
        for _ in range(effort.rounds):
            for name, case in cases.items():
                if name in failed:
                    continue
                try:
                    runs[name] += _turn(case, effort)
                except Exception as error:
                    failed[name] = error
        for name, case in cases.items():
            if name not in failed:
                try:
                    case.finish()
                except WrongWorkError as error:
                    failed[name] = error
    return {name: failed.get(name) or Timing.of(runs[name]) for name in cases}


def _turn(case: Case, effort: Effort) -> list[float]:
    _runs(case, effort.warm_up, effort.nanoseconds // 2)
    return _runs(case, effort.burst, effort.nanoseconds)


def _runs(case: Case, at_most: int, nanoseconds: int) -> list[float]:
    seconds: list[float] = []
    until = perf_counter_ns() + nanoseconds
    for _ in range(at_most):
        function, arguments = case.prepare()
        result, nanoseconds = timed(function, *arguments)
        case.done(result)
        seconds.append(nanoseconds * 1e-9)
        del function, arguments, result
        gc.collect(0)  # some systems' requests are reference cycles
        if perf_counter_ns() > until:
            break
    return seconds
