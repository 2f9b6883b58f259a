"""Planted bugs in groups of layers, which the engines and worlds of ``tests/groups`` find."""

from __future__ import annotations

from tests.mutants.groups.admission import ADMISSION
from tests.mutants.groups.calls import CALLS
from tests.mutants.groups.keeping import KEEPING
from tests.mutants.groups.places import PLACES

GROUPS = (*PLACES, *ADMISSION, *KEEPING, *CALLS)
