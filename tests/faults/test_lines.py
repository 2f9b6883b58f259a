"""An exception at every line of the Python layer leaves things whole."""

from __future__ import annotations

import pytest

from tests.faults.calls import CALLS
from tests.faults.lines import run
from tests.faults.ports import PORT_CALLS


@pytest.mark.parametrize("name", CALLS)
def test_a_call_struck_at_any_line_has_done_all_or_nothing(name: str) -> None:
    report = run(CALLS[name])
    assert report.lines > 0
    assert report.broken == []


@pytest.mark.parametrize("name", PORT_CALLS)
def test_a_port_struck_at_any_line_leaves_the_core_in_order(name: str) -> None:
    """What the port itself remembers may be half done: an adapter is to be thrown away then."""
    report = run(PORT_CALLS[name])
    assert report.lines > 0
    assert [line for line in report.broken if not line.endswith(": half done")] == []


@pytest.mark.parametrize("name", ["nano.allocate", "tgi.allocate", "tgi.commit"])
def test_a_request_that_is_admitted_in_vain_holds_nothing(name: str) -> None:
    assert run(PORT_CALLS[name]).broken == []
