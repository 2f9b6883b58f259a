"""What does a decode step of a whole batch cost?

One ``decode`` call commits what is computed, appends a token to each sequence and returns its slot.
The batch is staggered, so that in every step one sequence in sixteen fills its block and takes
another, from the free queue or by evicting. Budget: 40 µs for 1,024 sequences. Not measured:
``take_copies``, which is empty here, and the construction of the arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cases import DecodeStep

if TYPE_CHECKING:
    from benchmarks.micro.conftest import Timed


@pytest.mark.benchmark(group="decode step", disable_gc=True)
@pytest.mark.parametrize("evicting", [False, True], ids=["free blocks", "evicting"])
@pytest.mark.parametrize("num_seqs", [64, 1024])
def test_decode(timed: Timed, num_seqs: int, evicting: bool) -> None:
    timed(DecodeStep(num_seqs, evicting=evicting))
