"""One fixture: times a case and checks afterwards that it did its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from benchmarks.cases import Case


class Timed(Protocol):
    """Times a case; ``rounds`` runs after ten to warm up, one preparation before each."""

    def __call__(self, case: Case, *, rounds: int = 400) -> None: ...


@pytest.fixture
def timed(benchmark: BenchmarkFixture) -> Timed:
    """Times one call in a round, and writes the divisor to the JSON."""

    def time(case: Case, *, rounds: int = 400) -> None:
        benchmark.extra_info["count"] = case.count
        benchmark.pedantic(case.run, setup=case.prepare, rounds=rounds, warmup_rounds=10)
        case.check()

    return time
