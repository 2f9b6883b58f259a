"""Memory that runs out, at every allocation of every call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.memory import (
    ALL_CALLS,
    AVAILABLE,
    INTERPRETERS_OWN,
    Apart,
    interpreter_dies,
)

pytestmark = pytest.mark.skipif(
    not AVAILABLE, reason="this interpreter has no _testcapi.set_nomemory"
)


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    with Apart() as process:
        yield process


@pytest.mark.parametrize("name", ALL_CALLS)
def test_a_call_without_memory_changes_nothing_and_leaks_nothing(apart: Apart, name: str) -> None:
    report = apart.run(name)
    if report.broken and report.broken[0].startswith("died with -11") and interpreter_dies():
        pytest.skip("this interpreter ends for lack of memory without blockmgr, too")
    assert report.points > 0
    assert report.broken == []
    assert [line for line in report.other_errors if INTERPRETERS_OWN not in line] == []
