"""What does a fork cost, and how does it grow with blocks and children?

Children share every block, so nothing is copied but block tables. They are freed between rounds,
untimed. Budget: 6 µs for 2,048 blocks and 8 children.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cases import Fork

if TYPE_CHECKING:
    from benchmarks.micro.conftest import Timed


@pytest.mark.benchmark(group="fork", disable_gc=True)
@pytest.mark.parametrize("num_children", [1, 8])
@pytest.mark.parametrize("num_blocks", [64, 2048])
def test_fork(timed: Timed, num_blocks: int, num_children: int) -> None:
    timed(Fork(num_blocks, num_children))
