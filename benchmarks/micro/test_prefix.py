"""What does a prefix hit cost, and what does the form of the prompt add?

A prompt whose blocks are all cached is matched, and admitted, from a NumPy array and from a list of
ints. Divide by ``num_tokens / block_size`` for the time per block. Budget: 10 ns per block from an
array. Not measured: the first admission (test_cold.py), and misses of the processor's caches
(test_large_pool.py); blocks and prompt fit in the second-level cache here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cases import Admit, Match

if TYPE_CHECKING:
    from benchmarks.micro.conftest import Timed

forms = pytest.mark.parametrize("as_list", [False, True], ids=["array", "list"])
sizes = pytest.mark.parametrize(
    ("num_tokens", "block_size"), [(32_768, 16), (32_768, 64), (1_024, 16)]
)


@pytest.mark.benchmark(group="match a cached prompt", disable_gc=True)
@forms
@sizes
def test_match(timed: Timed, num_tokens: int, block_size: int, as_list: bool) -> None:
    timed(Match(num_tokens, block_size, as_list=as_list))


@pytest.mark.benchmark(group="admit a cached prompt", disable_gc=True)
@forms
@sizes
def test_admit(timed: Timed, num_tokens: int, block_size: int, as_list: bool) -> None:
    timed(Admit(num_tokens, block_size, as_list=as_list))
