"""An exception at any line of the Python layer leaves a consistent state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from blockmgr import BlockManager, Sequence
from blockmgr.pool import BlockPool
from tests.faults.calls import CALLS
from tests.faults.lines import run


def entered(make: Callable[[], Any]) -> set[CodeType]:
    """The functions that a call executes."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        make()
    finally:
        sys.setprofile(before)
    return seen


def code_of(member: Any) -> CodeType | None:
    if isinstance(member, property):
        member = member.fget
    return getattr(getattr(member, "__func__", member), "__code__", None)


def test_every_public_call_is_among_those_that_are_made_to_fail() -> None:
    seen = set[CodeType]().union(*(entered(c.bind(c.world())) for c in CALLS.values()))
    for cls in (BlockManager, Sequence, BlockPool):
        own = [base for base in cls.__mro__ if base.__module__.startswith("blockmgr")]
        known = {name: code_of(member) for base in own for name, member in vars(base).items()}
        public = {name: code for name, code in known.items() if code and name[0] != "_"}
        assert len(public) > 10
        assert [name for name, code in public.items() if code not in seen] == []


@pytest.mark.parametrize("name", CALLS)
def test_a_call_struck_at_any_line_has_done_all_or_nothing(name: str) -> None:
    report = run(CALLS[name])
    assert report.lines > 0
    assert report.broken == []
