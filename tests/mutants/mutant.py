"""A planted bug."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    file: str
    """In ``blockmgr/csrc``, or in ``blockmgr`` if it is Python."""

    before: str
    after: str
    tests: tuple[str, ...] = ()
    """For a bug in Python or the extension: the tests that must find it."""

    profile: str = "all"
    """For a bug in the core: the profile that finds it, if others rarely do."""

    times: int = 1
    """For a bug in the core: a factor on the number of calls, for rare bugs."""
