"""A manager with groups of layers, as the tests of groups use it."""

from __future__ import annotations

from typing import Any

from blockmgr import BlockManager, ChunkedAttention, FullAttention, RecurrentState, SlidingWindow

GROUPS = [SlidingWindow(5), FullAttention(), RecurrentState(), ChunkedAttention(8)]
WINDOW, FULL, STATE, CHUNK = range(4)
PROMPT = list(range(11))


def hybrid(num_blocks: int = 64, *, block_size: int = 4, **options: Any) -> BlockManager:
    options = {"groups": GROUPS, "null_block": True, "debug": 2, **options}
    return BlockManager(num_blocks, block_size, max_seqs=4, **options)


def step(manager: BlockManager, handle: int, computed: int) -> None:
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    manager.commit(handle, computed)
