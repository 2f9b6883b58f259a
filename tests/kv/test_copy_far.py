"""Blocks whose offsets need more than 31 or 32 bits, in a sparse memory mapping."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from blockmgr.kv import KVBlocks, Segment
from tests.kv.pools import plan_of, sequential

STRIDE = 1 << 20
FAR = [0, 5, 2047, 2048, 3000, 4096, 6143]
"""Around 2^31 and 2^32 bytes, and beyond."""


@pytest.fixture(scope="module")
def memory() -> np.ndarray:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        mapping = mmap.mmap(-1, 6144 * STRIDE, flags=flags)
    except OSError as error:
        pytest.skip(f"no 6 GiB of addresses: {error}")
    return np.frombuffer(mapping, np.uint8)


def segment(memory: np.ndarray, **figures: int) -> Segment:
    usual = {"num_rows": 2, "row_stride": 4096, "row_bytes": 64, "token_bytes": 16}
    return Segment(
        name="far",
        tensor=torch.from_numpy(memory),
        num_blocks=6144,
        block_stride=STRIDE,
        **{**usual, **figures},
    )


def rows_of(memory: np.ndarray, block: int) -> np.ndarray:
    start = block * STRIDE
    return memory[start : start + 8192].reshape(2, 4096)[:, :80]


@pytest.mark.parametrize("access_bytes", [16, 1])
def test_far_blocks_are_copied_like_near_ones(
    memory: np.ndarray, backend: str, access_bytes: int
) -> None:
    rng = np.random.default_rng(0)
    for block in FAR:
        rows_of(memory, block)[:] = rng.integers(0, 256, (2, 80), np.uint8)
    blocks = KVBlocks(
        [segment(memory)], block_size=4, backend=backend, access_bytes=access_bytes, max_pairs=8
    )
    expected = {block: rows_of(memory, block).copy() for block in FAR}

    copies = [(6143, 0, 4), (2048, 3000, 3), (4096, 5, 1)]
    for source, destination, num_tokens in copies:
        size = num_tokens * 16
        expected[destination][:, :size] = expected[source][:, :size]
    blocks.copy(plan_of(*copies))

    moves = [(2047, 6143), (6143, 4096), (3000, 2047), (0, 3000)]
    names = sequential(list(range(6144)), moves)
    whole = {block: rows[:, :64].copy() for block, rows in expected.items()}
    for block in FAR:
        expected[block][:, :64] = whole[names[block]]
    blocks.copy_blocks(moves)

    swap = [(2048, 6143), (6143, 2048)]
    pair = expected[2048][:, :64].copy(), expected[6143][:, :64].copy()
    expected[6143][:, :64], expected[2048][:, :64] = pair
    blocks.copy_blocks(swap, semantics="simultaneous")

    expected[4096][:, :64] = 0
    blocks.zero([4096])
    for block in FAR:
        assert np.array_equal(rows_of(memory, block), expected[block]), block
    touched = np.flatnonzero([memory[b * STRIDE : b * STRIDE + 80].any() for b in range(6144)])
    assert set(touched.tolist()) <= set(FAR)
