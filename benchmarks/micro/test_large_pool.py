"""Does the cost of a hit grow with the pool?

A pool of 1 M blocks, 256 k of them cached, ids in random order, prompts in turn: every block misses
the processor's caches. Divide by 2,048 for the time per block. Budget: 60 ns per block. Compare
with test_prefix.py, where everything is in cache. Not measured: huge pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.large_pool import LargePoolAdmit, LargePoolMatch

if TYPE_CHECKING:
    from benchmarks.micro.conftest import Timed


@pytest.mark.benchmark(group="1 M blocks, cache-missing", disable_gc=True)
@pytest.mark.parametrize("case", [LargePoolMatch, LargePoolAdmit], ids=["match", "admit"])
def test_large_pool(timed: Timed, case: type[LargePoolMatch]) -> None:
    timed(case())
