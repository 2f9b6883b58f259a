"""How many bytes do a block and a sequence row take?

By the manager's own count, and by the growth of the process in a fresh interpreter. Printed, not
timed. Budget: 96 bytes per block and 4 for each of its tokens, and 4 bytes for each column of a
row, fixed when the manager is built. A row's record comes on top of its columns.
"""

from __future__ import annotations

import pytest

from benchmarks.memory import block_budget, bytes_per_block, weights


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_a_block_keeps_its_budget(block_size: int) -> None:
    assert bytes_per_block(block_size) <= block_budget(block_size)


def test_weights(capsys: pytest.CaptureFixture[str]) -> None:
    weighed = list(weights())
    with capsys.disabled():
        for name, budget, measured in weighed:
            limit = "no budget" if budget is None else f"budget {budget:,}"
            print(f"\n{name}: {measured:,.1f} bytes, {limit}", end="")
    resident = [measured for name, _, measured in weighed if name.startswith("resident")]
    assert resident == sorted(resident)  # caching a block touches more of it, never less
