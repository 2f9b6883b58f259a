"""What does the end of a sequence cost?

A sequence of cached blocks that no other sequence holds is freed: each block goes to the idle
queue. Divide by ``num_tokens / 16`` for the time per block. Budget: 5 ns per block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cases import Free

if TYPE_CHECKING:
    from benchmarks.micro.conftest import Timed


@pytest.mark.benchmark(group="free", disable_gc=True)
@pytest.mark.parametrize("num_tokens", [1_024, 32_768])
def test_free(timed: Timed, num_tokens: int) -> None:
    timed(Free(num_tokens))
