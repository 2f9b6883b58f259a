"""Defects of the original of the Aphrodite port, each shown to be absent here."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from blockmgr import BlockStateError
from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite import (
    Block,
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    NaiveBlock,
    NaiveBlockAllocator,
    NoFreeBlocksError,
    PrefixCachingBlockAllocator,
)


def fill(allocator: PrefixCachingBlockAllocator, tokens: list[int]) -> Block:
    block = allocator.allocate_mutable(None)
    block.append_token_ids(tokens)
    return block


def test_a_duplicate_of_a_block_in_use_is_merged_and_both_can_be_freed() -> None:
    """The original fails an assertion when the duplicate, or later its twin, is freed."""
    allocator = PrefixCachingBlockAllocator(4, 4)
    twin = fill(allocator, [1, 2, 3, 4])
    duplicate = fill(allocator, [1, 2, 3, 4])
    assert duplicate.block_id == twin.block_id
    assert allocator.refcounter.get(0 if twin.block_id is None else twin.block_id) == 2
    allocator.free(twin)
    assert duplicate.block_id is not None
    allocator.free(duplicate)
    assert allocator.get_num_free_blocks() == 4
    allocator.pool.check_invariants()


def test_a_duplicate_of_a_cached_block_in_no_use_is_merged() -> None:
    """The original fails an assertion at once."""
    allocator = PrefixCachingBlockAllocator(4, 4)
    twin = fill(allocator, [1, 2, 3, 4])
    kept = twin.block_id
    allocator.free(twin)
    duplicate = fill(allocator, [1, 2, 3, 4])
    assert duplicate.block_id == kept
    assert allocator.get_num_free_blocks() == 3
    allocator.free(duplicate)
    assert allocator.get_num_free_blocks() == 4
    allocator.pool.check_invariants()


def test_a_duplicate_in_the_middle_of_a_sequence_is_merged() -> None:
    allocator = PrefixCachingBlockAllocator(8, 2)
    one = allocator.allocate_immutable_blocks(None, [[1, 1], [2, 2], [3, 3]])
    first = allocator.allocate_immutable(None, [1, 1])
    second = allocator.allocate_mutable(first)
    second.append_token_ids([2])
    second.append_token_ids([2])
    third = allocator.allocate_immutable(second, [3, 3])
    assert [b.block_id for b in (first, second, third)] == [b.block_id for b in one]
    assert allocator.get_num_free_blocks() == 5


@pytest.mark.parametrize("caches", [False, True])
def test_a_fork_is_not_bounded_by_the_recursion_limit(caches: bool) -> None:
    """The original raises RecursionError at 1,500 blocks."""
    count = sys.getrecursionlimit() + 500
    allocator: NaiveBlockAllocator | PrefixCachingBlockAllocator
    if caches:
        allocator = PrefixCachingBlockAllocator(count, 1)
    else:
        allocator = NaiveBlockAllocator(NaiveBlock, count, 1)
    block = None
    for i in range(count):
        block = allocator.allocate_mutable(block)
        block.append_token_ids([i % 5])
    assert block is not None
    forked = allocator.fork(block)
    assert [b.block_id for b in forked][-1] == block.block_id
    assert len(forked) == count
    _ = forked[-1].content_hash, forked[-1].num_tokens_total


def test_the_block_used_last_is_not_the_first_to_go() -> None:
    """The original evicts the block freed first, even if it was used since."""
    allocator = PrefixCachingBlockAllocator(3, 4)
    names = []
    for t in (1, 2, 3):
        block = fill(allocator, [t] * 4)
        names.append(block.block_id)
        allocator.free(block)
    allocator.free(allocator.allocate_immutable(None, [1] * 4))  # used again
    assert allocator.allocate_mutable(None).block_id == names[1]
    assert allocator.allocate_mutable(None).block_id == names[2]


def test_whatever_the_order_of_freeing_a_child_goes_before_its_parent() -> None:
    """The original uses the caller's order and strands the descendants of an evicted block."""
    allocator = PrefixCachingBlockAllocator(3, 2)
    blocks = allocator.allocate_immutable_blocks(None, [[1, 1], [2, 2], [3, 3]])
    names = [b.block_id for b in blocks]
    for block in blocks:
        allocator.free(block)
    assert [allocator.allocate_mutable(None).block_id for _ in range(3)] == names[::-1]


def test_computed_blocks_are_really_tracked() -> None:
    """The original has a stub that never finds computed blocks."""
    allocator = PrefixCachingBlockAllocator(4, 2)
    blocks = allocator.allocate_immutable_blocks(None, [[1, 1], [2, 2], [3, 3]])
    names = [b.block_id for b in blocks if b.block_id is not None]
    allocator.mark_blocks_as_computed(names)
    assert allocator.get_common_computed_block_ids([names]) == names[:2]


def test_a_sequence_with_nothing_computed_shares_nothing_computed() -> None:
    """The original ignores such a sequence, so it skips tokens that only others have computed."""
    allocator = PrefixCachingBlockAllocator(4, 2)
    one = allocator.allocate_immutable_blocks(None, [[1, 1], [2, 2]])
    other = allocator.allocate_immutable_blocks(None, [[3, 3], [4, 4]])
    names = [[b.block_id for b in part if b.block_id is not None] for part in (one, other)]
    allocator.mark_blocks_as_computed(names[0])
    assert allocator.get_common_computed_block_ids(names) == []


def test_an_adapter_is_part_of_what_a_block_stands_for() -> None:
    """The original compares only tokens."""
    allocator = PrefixCachingBlockAllocator(4, 2)
    plain = allocator.allocate_immutable_block(None, [1, 1])
    adapter = allocator.allocate_immutable_block(None, [1, 1], extra_hash=1)
    assert plain.block_id != adapter.block_id


def test_a_copy_that_finds_no_block_loses_none() -> None:
    """The original releases the shared block before it allocates another."""
    allocator = NaiveBlockAllocator(NaiveBlock, 1, 4)
    block = allocator.allocate_mutable(None)
    block.append_token_ids([1])
    fork = allocator.fork(block)[0]
    with pytest.raises(NoFreeBlocksError):
        fork.append_token_ids([2])
    assert fork.block_id == block.block_id
    assert allocator.refcounter.get(0) == 2


def test_a_copy_is_planned_from_the_block_that_was_shared() -> None:
    """Both the original and the port are correct here."""
    allocator = NaiveBlockAllocator(NaiveBlock, 4, 4)
    block = allocator.allocate_mutable(None)
    block.append_token_ids([1])
    fork = allocator.fork(block)[0]
    fork.append_token_ids([2])
    assert allocator.clear_copy_on_writes() == {block.block_id: [fork.block_id]}


def test_checks_are_there_under_optimization_too() -> None:
    """The original guards every call by ``assert``, which ``python -O`` removes."""
    import subprocess

    code = (
        "from blockmgr.ports.aphrodite import PrefixCachingBlockAllocator as A\n"
        "a = A(2, 2); b = a.allocate_mutable(None); a.free(b)\n"
        "try:\n    a.free(b)\nexcept Exception as error:\n    print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == [b"BlockStateError"]


def test_what_follows_a_block_that_was_given_back_does_not_begin_a_prompt() -> None:
    allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
    first = allocator.allocate_mutable(None)
    first.append_token_ids([1, 2])
    second = allocator.allocate_mutable(first)
    allocator.free(first)
    second.append_token_ids([3, 4])
    assert allocator.allocate_immutable(None, [3, 4]).block_id != second.block_id


def test_a_block_is_not_moved_as_what_one_given_back_before_it_was_cached_for() -> None:
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 4, 4, 2)
    blocks = allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4]], Device.GPU)
    allocator.free(blocks[0])
    allocator.swap(blocks, Device.GPU, Device.CPU)
    again = allocator.allocate_immutable_block(None, [1, 2], Device.CPU)
    assert again.block_id != blocks[1].block_id


def test_a_release_that_is_interrupted_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise freeing the sequence again would take the blocks of another one away."""
    pools = CpuGpuBlockAllocator.create("naive", 4, 0, 2)
    table = BlockTable(2, pools)
    table.allocate([1, 2, 3])
    other = table.fork()
    pool = pools.pool_of(Device.GPU).pool
    release = type(pool).release

    def interrupted(self: BlockPool, blocks: list[int]) -> None:
        release(self, blocks)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.free()
    table.free()
    assert pool.ref_count(other.physical_block_ids).tolist() == [1, 1]
    other.free()
    assert pools.get_num_free_blocks(Device.GPU) == 4
    pool.check_invariants()


def test_a_release_that_is_refused_changes_nothing() -> None:
    allocator = NaiveBlockAllocator(NaiveBlock, 4, 2)
    block = allocator.allocate_mutable(None)
    assert block.block_id is not None
    allocator.refcounter.decr(block.block_id)
    with pytest.raises(BlockStateError):
        allocator.free(block)
    assert block.block_id is not None


def test_copies_that_were_taken_when_an_interrupt_came_are_returned_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator = NaiveBlockAllocator(NaiveBlock, 4, 2)
    block = allocator.allocate_mutable(None)
    block.append_token_ids([1])
    fork = allocator.fork(block)[0]
    fork.append_token_ids([2])

    class Ids(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(allocator, "_ids", Ids())
        with pytest.raises(KeyboardInterrupt):
            allocator.clear_copy_on_writes()
    assert allocator.clear_copy_on_writes() == {block.block_id: [fork.block_id]}
