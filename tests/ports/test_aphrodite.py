"""The Aphrodite port: the promises of every documented call."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite import (
    Block,
    BlockAllocator,
    CpuGpuBlockAllocator,
    Device,
    NoFreeBlocksError,
    PrefixCachingBlock,
)
from tests.ports.aphrodite_support import (
    Make,
    caching,
    chain,
    ids,
    refused,
    table_of,
)

# ---- allocation -------------------------------------------------------------------------


def test_both_are_block_allocators(make_allocator: Make) -> None:
    allocator = make_allocator()
    assert isinstance(allocator, BlockAllocator)
    assert isinstance(allocator.allocate_mutable(None), Block)
    assert BlockAllocator.NoFreeBlocksError is NoFreeBlocksError


def test_a_mutable_block_is_empty_and_follows_the_one_before(make_allocator: Make) -> None:
    allocator = make_allocator()
    first = allocator.allocate_mutable(None)
    second = allocator.allocate_mutable_block(first)
    assert first.prev_block is None
    assert second.prev_block is first
    assert (first.token_ids, first.num_empty_slots, first.is_full) == ([], 4, False)
    assert first.block_id != second.block_id
    assert allocator.get_num_free_blocks() == 6


def test_an_immutable_block_has_its_tokens_and_is_full(make_allocator: Make) -> None:
    allocator = make_allocator()
    first = allocator.allocate_immutable(None, [1, 2, 3, 4])
    second = allocator.allocate_immutable_block(first, [5, 6, 7, 8])
    assert (second.token_ids, second.is_full, second.num_empty_slots) == ([5, 6, 7, 8], True, 0)
    assert (second.num_tokens_total, second.block_size) == (8, 4)


def test_blocks_can_be_allocated_as_a_chain(make_allocator: Make) -> None:
    allocator = make_allocator()
    first = allocator.allocate_immutable(None, [0] * 4)
    more = allocator.allocate_immutable_blocks(first, [[1] * 4, [2] * 4, [3] * 4])
    assert len(more) == 3
    assert [block.token_ids[0] for block in more] == [1, 2, 3]
    assert more[0].prev_block is first
    assert more[2].prev_block is more[1]
    assert more[-1].num_tokens_total == 16
    assert [block.token_ids[0] for block in more[1:]] == [2, 3]


def test_all_blocks_can_be_used_and_no_more(make_allocator: Make) -> None:
    allocator = make_allocator(3)
    blocks = [allocator.allocate_mutable(None) for _ in range(3)]
    assert len(set(ids(blocks))) == 3
    with refused(allocator, NoFreeBlocksError) as caught:
        allocator.allocate_mutable(None)
    assert (caught.value.needed, caught.value.available) == (1, 0)
    with refused(allocator, NoFreeBlocksError):
        allocator.allocate_immutable(None, [1, 2, 3, 4])
    allocator.free(blocks[0])
    allocator.allocate_mutable(None)


def test_block_ids_can_be_any(make_allocator: Make) -> None:
    for chosen in ([7, 3, 100, 42], range(10, 14)):
        allocator = make_allocator(4, block_ids=chosen)
        assert allocator.all_block_ids == frozenset(chosen)
        blocks = [allocator.allocate_mutable(None) for _ in range(4)]
        assert sorted(b for b in ids(blocks) if b is not None) == sorted(chosen)
        assert allocator.get_physical_block_id(list(chosen)[2]) == 2
        assert allocator.get_num_total_blocks() == 4


# ---- sharing by content -----------------------------------------------------------------


def test_marking_as_accessed_saves_from_eviction() -> None:
    allocator = caching(2)
    one, two = (chain(allocator, [t] * 4)[0] for t in (1, 2))
    kept = one.block_id
    assert kept is not None
    allocator.free(one)
    allocator.free(two)
    allocator.mark_blocks_as_accessed([kept], now=5.0)
    assert allocator.allocate_mutable(None).block_id != kept
    assert chain(allocator, [1] * 4)[0].block_id == kept


def test_a_block_that_becomes_full_is_found() -> None:
    allocator = caching()
    block = allocator.allocate_mutable(None)
    block.append_token_ids([1, 2, 3])
    block.append_token_ids([4])
    assert chain(allocator, [1, 2, 3, 4])[0].block_id == block.block_id


def test_promotion_onto_a_live_twin_changes_the_block_id() -> None:
    allocator = caching()
    [twin] = chain(allocator, [1, 2, 3, 4])
    block = allocator.allocate_mutable(None)
    own = block.block_id
    block.append_token_ids([1, 2, 3, 4])
    assert block.block_id == twin.block_id != own
    assert allocator.get_num_free_blocks() == 7
    assert allocator.promote_to_immutable_block(block) == twin.block_id
    allocator.free(twin)
    assert block.block_id is not None
    allocator.free(block)  # in the original, an assertion fails at one of them
    assert allocator.get_num_free_blocks() == 8


def test_an_extra_hash_keeps_equal_tokens_apart() -> None:
    allocator = caching()
    plain = allocator.allocate_immutable_block(None, [1] * 4)
    adapter = allocator.allocate_immutable_block(None, [1] * 4, extra_hash=-7)
    same = allocator.allocate_immutable_block(None, [1] * 4, extra_hash=-7)
    grown = allocator.allocate_mutable_block(None, extra_hash=-7)
    grown.append_token_ids([1] * 4)
    assert plain.block_id != adapter.block_id == same.block_id == grown.block_id
    assert (plain.extra_hash, adapter.extra_hash) == (None, -7)
    assert plain.content_hash != adapter.content_hash


def test_the_hit_rate_counts_full_blocks_of_prompts() -> None:
    allocator = caching()
    assert allocator.get_prefix_cache_hit_rate() == 0
    chain(allocator, [1] * 4 + [2] * 4)
    assert allocator.get_prefix_cache_hit_rate() == 0
    chain(allocator, [1] * 4 + [3] * 4)
    assert allocator.get_prefix_cache_hit_rate() == 0.25
    assert (allocator.num_queries, allocator.num_hits) == (4, 1)


def test_the_cache_is_reset_only_when_nothing_is_in_use() -> None:
    allocator = caching()
    [block] = chain(allocator, [1, 2, 3, 4])
    assert not allocator.reset_prefix_cache()
    allocator.free(block)
    assert allocator.reset_prefix_cache()
    chain(allocator, [1, 2, 3, 4])
    assert allocator.num_hits == 0


# ---- names of contents ------------------------------------------------------------------


def test_a_content_hash_names_the_whole_prefix() -> None:
    allocator = caching(16)
    one = chain(allocator, [1, 2, 3, 4, 5, 6, 7, 8])
    two = chain(allocator, [1, 2, 3, 4, 5, 6, 7, 8])
    other = chain(allocator, [9, 2, 3, 4, 5, 6, 7, 8])
    assert [b.content_hash for b in one] == [b.content_hash for b in two]
    assert one[1].content_hash != other[1].content_hash
    partial = allocator.allocate_mutable(one[1])
    assert partial.content_hash is None
    later = allocator.allocate_mutable(partial)
    later.append_token_ids([1, 1, 1, 1])
    assert later.content_hash is None  # its parent has no name yet


def test_a_content_hash_is_chained_by_hash_block_tokens() -> None:
    allocator = caching()
    one, two = chain(allocator, [1, 2, 3, 4, 5, 6, 7, 8])
    first = PrefixCachingBlock.hash_block_tokens(True, None, [1, 2, 3, 4])
    assert one.content_hash == first
    second = PrefixCachingBlock.hash_block_tokens(False, first, cur_block_token_ids=[5, 6, 7, 8])
    assert two.content_hash == second


def test_a_content_hash_is_the_same_in_every_process() -> None:
    code = (
        "from blockmgr.ports.aphrodite import PrefixCachingBlock as B;"
        "print(B.hash_block_tokens(True, None, [1, 2, 3], 5))"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        for _ in range(2)
    }
    here = PrefixCachingBlock.hash_block_tokens(True, None, [1, 2, 3], 5)
    assert outputs == {b"%d\n" % here}


@pytest.mark.parametrize(
    "args", [(True, 5, [1]), (False, None, [1]), (True, None, [-1]), (True, None, [2**32])]
)
def test_hash_block_tokens_refuses_what_cannot_be(args: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PrefixCachingBlock.hash_block_tokens(*args)


# ---- forks and copies -------------------------------------------------------------------


def test_a_fork_shares_every_block(make_allocator: Make) -> None:
    allocator = make_allocator()
    blocks = chain(allocator, list(range(10)))
    forked = allocator.fork(blocks[-1])
    assert ids(forked) == ids(blocks)
    assert [b.token_ids for b in forked] == [b.token_ids for b in blocks]
    assert forked[1].prev_block is forked[0]
    assert forked[0] is not blocks[0]
    assert allocator.get_num_free_blocks() == 5
    assert allocator.pool.ref_count([b.in_pool for b in blocks]).tolist() == [2] * 3


def test_the_writer_of_a_shared_block_moves(make_allocator: Make) -> None:
    allocator = make_allocator()
    blocks = chain(allocator, list(range(6)))
    forked = allocator.fork(blocks[-1])
    tail = blocks[-1].block_id
    forked[-1].append_token_ids([9])
    assert blocks[-1].block_id == tail != forked[-1].block_id
    assert (blocks[-1].token_ids, forked[-1].token_ids) == ([4, 5], [4, 5, 9])
    assert allocator.clear_copy_on_writes() == {tail: [forked[-1].block_id]}
    assert allocator.clear_copy_on_writes() == {}
    blocks[-1].append_token_ids([8])  # no longer shared: in place
    assert blocks[-1].block_id == tail
    assert allocator.clear_copy_on_writes() == {}


def test_a_copy_can_be_asked_for_without_a_write(make_allocator: Make) -> None:
    allocator = make_allocator()
    [block] = chain(allocator, [1, 2])
    assert allocator.cow_block_if_not_appendable(block) == block.block_id
    fork = allocator.fork(block)[0]
    assert not allocator.is_appendable(fork)
    own = allocator.cow_block_if_not_appendable(fork)
    assert own == fork.block_id != block.block_id
    assert allocator.is_appendable(fork)
    assert allocator.clear_copy_on_writes() == {block.block_id: [own]}
    allocator.free(fork)
    assert allocator.cow_block_if_not_appendable(fork) is None


def test_a_block_filled_in_the_step_of_its_copy_is_cached_once_the_copy_is_taken() -> None:
    allocator = caching()
    [block] = chain(allocator, [1, 2, 3])
    fork = allocator.fork(block)[0]
    fork.append_token_ids([9])
    after = allocator.allocate_immutable(fork, [5, 6, 7, 8])  # waits like its parent
    assert allocator.num_hits == 0
    assert chain(allocator, [1, 2, 3, 9])[0].block_id != fork.block_id
    copies = allocator.clear_copy_on_writes()
    assert list(copies) == [block.block_id]
    found = chain(allocator, [1, 2, 3, 9, 5, 6, 7, 8])
    assert ids(found) == [fork.block_id, after.block_id]


def test_what_follows_a_block_that_waits_is_not_taken_for_a_beginning() -> None:
    allocator = caching()
    [beginning] = chain(allocator, [5, 6, 7, 8])
    [block] = chain(allocator, [1, 2, 3])
    fork = allocator.fork(block)[0]
    fork.append_token_ids([9])
    after = allocator.allocate_immutable(fork, [5, 6, 7, 8])
    assert after.block_id != beginning.block_id


def test_a_fork_of_blocks_that_wait_is_cached_with_them() -> None:
    allocator = caching()
    [block] = chain(allocator, [1, 2, 3])
    fork = allocator.fork(block)[0]
    fork.append_token_ids([9])
    again = allocator.fork(fork)
    allocator.clear_copy_on_writes()
    more = allocator.allocate_immutable(again[0], [5, 6, 7, 8])
    assert ids(chain(allocator, [1, 2, 3, 9, 5, 6, 7, 8])) == [fork.block_id, more.block_id]


def test_a_waiting_block_that_is_freed_waits_no_more() -> None:
    allocator = caching()
    [block] = chain(allocator, [1, 2, 3])
    fork = allocator.fork(block)[0]
    fork.append_token_ids([9])
    allocator.free(fork)
    assert allocator.clear_copy_on_writes() == {}
    assert allocator.pool.num_cached == 0


# ---- what is computed -------------------------------------------------------------------


def test_blocks_are_computed_when_they_are_marked_so() -> None:
    allocator = caching()
    one = chain(allocator, list(range(12)))
    names = [b for b in ids(one) if b is not None]
    assert allocator.get_common_computed_block_ids([names]) == []
    allocator.mark_blocks_as_computed(names[:1])
    assert allocator.get_common_computed_block_ids([names]) == names[:1]
    assert [block.computed for block in one] == [True, False, False]
    allocator.mark_blocks_as_computed()
    assert allocator.get_common_computed_block_ids([names]) == names[:2]  # never the last one


def test_a_block_that_becomes_full_is_not_computed_before_it_is_marked() -> None:
    """The next forward computes its last token."""
    allocator = caching()
    block = allocator.allocate_mutable(None)
    block.append_token_ids([1, 2, 3, 4])
    assert not block.computed
    allocator.mark_blocks_as_computed()
    assert block.computed


def test_a_block_that_was_evicted_is_not_computed_under_its_next_content() -> None:
    allocator = caching(1)
    [block] = chain(allocator, [1] * 4)
    allocator.mark_blocks_as_computed()
    allocator.free(block)
    [block] = chain(allocator, [2] * 4)
    assert not block.computed


def test_freed_before_it_was_computed_a_block_is_found_and_not_trusted() -> None:
    allocator = caching()
    [block] = chain(allocator, [1] * 4)
    allocator.free(block)
    [again] = chain(allocator, [1] * 4)
    assert allocator.num_hits == 1
    assert not again.computed


# ---- size -------------------------------------------------------------------------------


def test_a_sequence_of_ten_thousand_blocks_is_forked(make_allocator: Make) -> None:
    allocator = make_allocator(10_002, 1)
    blocks = allocator.allocate_immutable_blocks(None, [[i % 251] for i in range(10_000)])
    forked = allocator.fork(blocks[-1])
    assert len(forked) == 10_000
    assert ids(forked) == ids(blocks)
    block: Block | None = forked[-1]
    count = 0
    while block is not None:
        block, count = block.prev_block, count + 1
    assert count == 10_000
    assert forked[-1].num_tokens_total == 10_000
    assert forked[-1].content_hash == blocks[-1].content_hash
    for each in forked:
        allocator.free(each)
    assert allocator.get_num_free_blocks() == 2


def test_branches_of_one_block_are_sequences_of_their_own(make_allocator: Make) -> None:
    allocator = make_allocator(16)
    root = chain(allocator, [1] * 4)[0]
    left, right = (allocator.allocate_immutable(root, [t] * 4) for t in (2, 3))
    assert left.prev_block is root
    assert right.prev_block is root
    assert [b.token_ids[0] for b in allocator.fork(right)] == [1, 3]
    assert [b.token_ids[0] for b in allocator.fork(left)] == [1, 2]


# ---- defects of the original ------------------------------------------------------------


def test_checks_are_there_under_optimization_too() -> None:
    """The original guards every call by ``assert``, which ``python -O`` removes."""
    code = (
        "from blockmgr.ports.aphrodite import PrefixCachingBlockAllocator as A\n"
        "a = A(2, 2); b = a.allocate_mutable(None); a.free(b)\n"
        "try:\n    a.free(b)\nexcept Exception as error:\n    print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == [b"BlockStateError"]


def test_what_follows_a_block_that_was_given_back_does_not_begin_a_prompt() -> None:
    allocator = caching(4, 2)
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
    table = table_of(pools, [1, 2, 3])
    other = table.fork()
    pool = pools.pool_of(Device.GPU).pool
    release = BlockPool.release

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
