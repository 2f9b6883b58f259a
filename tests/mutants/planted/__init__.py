"""The planted bugs: those of other block managers, line by line in this one.

Each file beside this one has entries such as

    counts_a_pin_twice = ["Pool::pin", "++pins;", "pins += 2;", { times = 4 }]

with the name of the bug, the function that gets it, a pattern that occurs once in the function
(`tests.mutants.anchor`), what replaces it, and fields of `Mutant` that differ from the usual.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tests.mutants.mutant import Mutant

__all__ = ["CORE", "EXTENSION", "GROUPS", "OF_GROUPS", "PYTHON"]

OF_GROUPS = (
    "tests/unit/test_groups.py",
    "tests/unit/test_group_admission.py",
    "tests/unit/test_group_eviction.py",
    "tests/unit/test_group_promises.py",
    "tests/unit/test_group_stops.py",
    "tests/groups/test_loads.py",
    "tests/groups/test_rules.py",
    "tests/groups/test_fixed_tables.py",
    "tests/groups/test_block_sizes.py",
    "tests/groups/test_steps.py",
    "tests/groups/test_shares.py",
    "tests/groups/test_events.py",
    "tests/groups/test_retention.py",
    "tests/groups/test_levels.py",
    "tests/groups/test_holds.py",
    "tests/groups/test_lockstep.py",
    "tests/groups/test_random.py",
)
"""The tests that must find a bug of groups of layers, the quickest first."""


def register(*names: str, **usual: Any) -> tuple[Mutant, ...]:
    """The bugs of these files, in order."""
    found = []
    for name in names:
        text = (Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8")
        for bug, (function, before, after, *options) in tomllib.loads(text).items():
            fields: dict[str, Any] = dict(usual)
            for more in options:
                fields |= more
            fields["tests"] = tuple(fields.get("tests", ()))
            found.append(Mutant(bug, function, before, after, **fields))
    return tuple(found)


CORE = register(
    "nodes",
    "cache",
    "copies",
    "identity",
    "lifetimes",
    "policies",
    "interface",
    "families",
    "resize",
)
EXTENSION = register("extension")
PYTHON = register("python", python=True)
GROUPS = register(
    "groups/places",
    "groups/admission",
    "groups/keeping",
    "groups/calls",
    "groups/fixed_tables",
    tests=OF_GROUPS,
    profile="groups",
)
GROUPS += register("groups/block_sizes", tests=OF_GROUPS, profile="sizes")
GROUPS += register("groups/rings", tests=("tests/groups/test_rings.py",), profile="uncached")
GROUPS += register("groups/replays", tests=("tests/groups/test_replays.py",), profile="uncached")
GROUPS += register("groups/bare", tests=("tests/groups/test_bare.py",))
GROUPS += register("groups/beside", tests=OF_GROUPS, profile="groups")
