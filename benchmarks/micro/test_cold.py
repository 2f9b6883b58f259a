"""What does a new block cost, from admission to being findable, digest included?

A prompt nobody has seen is admitted and committed: every block is taken, filled, hashed and
promoted. Either from free blocks, or by evicting the cached block of an earlier prompt each time.
Divide by ``num_tokens / 16`` for the time of a block. Budget: 100 ns a block with the default
digest. Not measured: page faults of a fresh pool, whose pages are touched first.
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
