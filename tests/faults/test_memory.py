"""Memory that runs out, at every allocation of every call."""

from __future__ import annotations

import pytest

from tests.faults.calls import CALLS
from tests.faults.memory import AVAILABLE, run_apart

pytestmark = pytest.mark.skipif(
    not AVAILABLE, reason="this interpreter has no _testcapi.set_nomemory"
)
# nanobind ends the process where it has no memory for an array that shares the core's.
ENDS_THE_PROCESS = {"BlockManager"}
# With no memory left for good, an error object of each attempt is not given back.
KEEPS_ERRORS = {"admit, refused"}


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ENDS_THE_PROCESS])
def test_a_call_without_memory_changes_nothing_and_leaks_nothing(name: str) -> None:
    report = run_apart(name)
    assert report.points > 0
    broken = report.broken
    if name in KEEPS_ERRORS:
        broken = [line for line in broken if not line.endswith("on: leaked")]
    assert broken == []
