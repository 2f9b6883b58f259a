"""How the planted bugs of groups are listed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = (
    "tests/unit/test_groups.py",
    "tests/unit/test_group_admission.py",
    "tests/unit/test_group_eviction.py",
    "tests/unit/test_group_promises.py",
    "tests/unit/test_group_stops.py",
    "tests/groups/test_rules.py",
    "tests/groups/test_steps.py",
    "tests/groups/test_shares.py",
    "tests/groups/test_events.py",
    "tests/groups/test_retention.py",
    "tests/groups/test_levels.py",
    "tests/groups/test_holds.py",
    "tests/groups/test_core.py",
    "tests/groups/test_lockstep.py",
)
"""The quickest first."""


def bugs_in(file: str, *bugs: tuple[str, str, str]) -> tuple[Mutant, ...]:
    """Bugs of one file, each with its name, the text before and the text after."""
    return tuple(Mutant(name, file, before, after, TESTS) for name, before, after in bugs)
