"""Planted bugs in groups of layers, which the engines and worlds of ``tests/groups`` find."""

from __future__ import annotations

from tests.mutants.planted.groups.admission import ADMISSION
from tests.mutants.planted.groups.calls import CALLS
from tests.mutants.planted.groups.keeping import KEEPING
from tests.mutants.planted.groups.places import PLACES

GROUPS = (*PLACES, *ADMISSION, *KEEPING, *CALLS)
