"""What does a new block cost, from admission to promotion, digest included?

A prompt that is not cached is admitted and committed: every block is allocated, filled, hashed and
promoted. The blocks are free ones, or each evicts the cached block of an earlier prompt. Divide by
``num_tokens / 16`` for the time per block. Budget: 100 ns per block with the default digest. Not
measured: page faults of a fresh pool, whose pages are touched first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cases import ColdAdmit

if TYPE_CHECKING:
    from benchmarks.micro.conftest import Timed


@pytest.mark.benchmark(group="admit and commit a new prompt", disable_gc=True)
@pytest.mark.parametrize("evicting", [False, True], ids=["free blocks", "evicting"])
@pytest.mark.parametrize("num_tokens", [1_024, 32_768])
def test_admit_and_commit(timed: Timed, num_tokens: int, evicting: bool) -> None:
    timed(ColdAdmit(num_tokens, evicting=evicting), rounds=200)
