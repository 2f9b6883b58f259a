"""The bound on memory, by the core's own count: docs/design/memory.md has its terms."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager
from blockmgr.config import EVICTION_POLICIES

FEW, MANY = 4_096, 12_288
# Fixed memory of a manager of any size: the smallest log of remaps, and scratch.
FIXED = 16_384
WINDOW = 16 * 1000  # the record of the last requests, at its default length
ROW = 137
# Bytes per block for the data of a policy, rounded up.
POLICY_BYTES = {
    "lru": 0,
    "lfuda": 33.7,
    "s3fifo": 46.9,
    "arc": 78.5,
}


def bytes_a_block(block_size: int = 16, **options: object) -> float:
    """The growth of ``memory_usage`` for one more block."""
    few, many = (
        BlockManager(n, block_size, max_seqs=1, max_blocks_per_seq=8, **options).memory_usage()
        for n in (FEW, MANY)
    )
    return (many - few) / (MANY - FEW)


@pytest.mark.parametrize("num_blocks", [1, 100, 65_536, 1_000_003])
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize(("max_seqs", "columns"), [(1, 8), (256, 2048)])
def test_a_manager_holds_no_more_than_its_bound(
    num_blocks: int, block_size: int, max_seqs: int, columns: int
) -> None:
    manager = BlockManager(num_blocks, block_size, max_seqs=max_seqs, max_blocks_per_seq=columns)
    blocks = num_blocks * (115 + 4.8 * block_size)
    rows = max_seqs * (8 * columns + ROW)
    assert manager.memory_usage() <= blocks + rows + 4 * columns + WINDOW + FIXED


def test_a_row_takes_its_columns_and_one_record() -> None:
    def rows(max_seqs: int) -> int:
        return BlockManager(FEW, 16, max_seqs=max_seqs, max_blocks_per_seq=2048).memory_usage()

    assert rows(101) - rows(1) <= 100 * (8 * 2048 + ROW)


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_a_policy_adds_no_more_than_it_says(eviction: str) -> None:
    added = bytes_a_block(eviction=eviction) - bytes_a_block()
    assert added <= POLICY_BYTES[eviction]
    assert added > POLICY_BYTES[eviction] - 1


def test_a_longer_digest_adds_what_it_is_longer() -> None:
    assert bytes_a_block(digest="sha256") - bytes_a_block() == pytest.approx(
        1.2 * (32 - 16), abs=1e-2
    )


def test_as_many_ghosts_as_blocks_cost_what_the_design_says() -> None:
    with_ghosts, without = (
        BlockManager(MANY, 16, max_seqs=1, max_blocks_per_seq=8, ghost_blocks=count).memory_usage()
        for count in (MANY, 0)
    )
    assert 120 <= (with_ghosts - without) / MANY <= 129


def test_memory_does_not_grow_with_the_sequences_served() -> None:
    manager = BlockManager(512, 4, max_seqs=4, max_blocks_per_seq=32)

    def serve(number: int) -> None:
        prompt = [number * 131 + position // 3 for position in range(100)]
        with manager.sequence(manager.admit(prompt)) as sequence:
            manager.commit(sequence.handle, len(prompt))
            for child in manager.fork(sequence.handle, 2):
                manager.append(child, [1, 2])
                manager.free(child)

    for number in range(40):
        serve(number)
    before = manager.memory_usage()
    for number in range(40, 400):
        serve(number)
    assert manager.stats().evicted_blocks > 5_000
    assert manager.memory_usage() == before
