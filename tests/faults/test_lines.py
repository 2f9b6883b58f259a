"""An exception at every line of the Python layer leaves things whole."""

from __future__ import annotations

import pytest

from tests.faults.calls import CALLS
from tests.faults.lines import run
from tests.faults.ports import PORT_CALLS

# They answer nothing that their caller could lose; what is written is forgotten either way.
MAY_FINISH = {
    "tgi.copies",
    "slots.copy_kv",
    "aphrodite.cow",
    "aphrodite, naive.cow",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_struck_at_any_line_has_done_all_or_nothing(name: str) -> None:
    report = run(CALLS[name])
    assert report.lines > 0
    assert report.broken == []


@pytest.mark.parametrize("name", PORT_CALLS)
def test_a_port_struck_at_any_line_has_done_nothing_and_loses_nothing(name: str) -> None:
    """A call that had finished all the same would have an answer that nobody got."""
    report = run(PORT_CALLS[name])
    assert report.lines > 0
    assert report.broken == []
    assert report.complete == 0 or name in MAY_FINISH
    assert report.first_part == 0 or PORT_CALLS[name].first_part
