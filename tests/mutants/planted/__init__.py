"""The planted bugs: those of other block managers, line by line in this one.

A mutant is one replacement in one file. The replaced text must occur exactly once, so a mutant
cannot disappear unnoticed when the code around it changes.
"""

from __future__ import annotations

from tests.mutants.planted.cache import CACHE
from tests.mutants.planted.copies import COPIES
from tests.mutants.planted.extension import EXTENSION
from tests.mutants.planted.groups import GROUPS
from tests.mutants.planted.identity import IDENTITY
from tests.mutants.planted.lifetimes import LIFETIMES
from tests.mutants.planted.nodes import NODES
from tests.mutants.planted.policies import POLICIES
from tests.mutants.planted.python import PYTHON

__all__ = ["CORE", "EXTENSION", "GROUPS", "PYTHON"]

CORE = (*NODES, *CACHE, *COPIES, *IDENTITY, *LIFETIMES, *POLICIES)
