"""A call of a port and the core's own calls that do the same work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CALLS", "Loop", "Pair"]

CALLS = 50
"""Calls in a timed run: one alone is near the resolution of the clock."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Pair:
    """``port`` and ``core`` each build a call that leaves the state unchanged."""

    name: str
    port: Callable[[], Call]
    core: Callable[[], Call]


class Loop:
    """A call as a case for ``benchmarks.measure``."""

    count = CALLS

    def __init__(self, call: Call) -> None:
        self._call = call

    def prepare(self) -> None:
        pass

    def run(self) -> None:
        for _ in range(CALLS):
            self._call()

    def check(self) -> None:
        self._call()  # asserts its result where there is one to check
