"""A planted bug."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    function: str
    """Its qualified name, without namespaces: ``Pool::pin``, or ``Stream.judge`` in Python."""

    before: str
    """A pattern that the function has once, whatever white space is between its tokens."""

    after: str
    tests: tuple[str, ...] = ()
    """For a bug in Python or the extension: the tests that must find it."""

    profile: str = "all"
    """For a bug in the core: the profile that finds it, if others rarely do. For one of groups: a
    profile that may find it, so that its tests need not run."""

    times: int = 1
    """For a bug in the core: a factor on the number of calls, for rare bugs."""

    python: bool = False
    """Whether it is in Python, not in C++."""
