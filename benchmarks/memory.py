"""The memory per block and per row, by the manager's own count and by the system's."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from blockmgr import BlockManager

__all__ = ["block_budget", "bytes_per_block", "bytes_per_row", "weights"]

# Even, so that rounding up inside cannot blur the difference.
FEW, MANY = 65_536, 262_144
COLUMNS = 2048
REPOSITORY = Path(__file__).resolve().parents[1]


def block_budget(block_size: int) -> int:
    """Bytes a block may take: its record, index, digest and tokens."""
    return math.ceil(115 + 4.8 * block_size)


def row_budget(max_blocks: int) -> int:
    """Bytes a sequence may take: its block table, the copy that callers see, its record."""
    return 8 * max_blocks + 137


def bytes_per_block(block_size: int) -> float:
    """The growth of ``memory_usage`` for one more block."""
    few, many = (
        BlockManager(n, block_size, max_seqs=1, max_blocks_per_seq=COLUMNS).memory_usage()
        for n in (FEW, MANY)
    )
    return (many - few) / (MANY - FEW)


def bytes_per_row(max_blocks: int) -> float:
    """The growth of ``memory_usage`` for one more sequence."""
    few, many = (
        BlockManager(FEW, 16, max_seqs=n, max_blocks_per_seq=max_blocks).memory_usage()
        for n in (256, 1024)
    )
    return (many - few) / (1024 - 256)


def whole(num_blocks: int, block_size: int, max_seqs: int, max_blocks: int) -> tuple[int, int]:
    """The budget of one manager, and its ``memory_usage``."""
    budget = num_blocks * block_budget(block_size) + max_seqs * row_budget(max_blocks)
    manager = BlockManager(num_blocks, block_size, max_seqs=max_seqs, max_blocks_per_seq=max_blocks)
    return budget, manager.memory_usage()


def weights() -> Iterator[tuple[str, float | None, float]]:
    """Name, budget and measured size of each quantity, in bytes."""
    for block_size in (16, 256):
        yield f"a block of {block_size}", block_budget(block_size), bytes_per_block(block_size)
    yield f"a row of {COLUMNS:,} blocks", row_budget(COLUMNS), bytes_per_row(COLUMNS)
    budget, measured = whole(FEW, 16, 256, COLUMNS)
    yield f"{FEW:,} blocks of 16, 256 rows", budget, measured
    if Path("/proc/self/statm").exists():
        # In a process of its own, which has built no other manager.
        command = [sys.executable, "-m", "benchmarks.startup", "--one", str(MANY), "lru"]
        printed = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
        found = json.loads(printed)
        yield "resident, a block of 16, built", None, found["resident_built"]
        yield "resident, a block of 16, cached", block_budget(16), found["resident_cached"]
