"""What is evicted next, and what it holds: for callers that copy it elsewhere first."""

from __future__ import annotations

import math

import pytest

from blockmgr import BlockManager, BlockStateError, FullAttention, Priority, SlidingWindow
from blockmgr.pool import BlockPool


def compute(manager: BlockManager, tokens: list[int], namespace: bytes = b"") -> list[int]:
    """Computes and frees a prompt; its blocks."""
    handle = manager.admit(tokens, namespace=namespace)
    manager.commit(handle, len(tokens))
    blocks = manager.block_ids(handle)
    manager.free(handle)
    return blocks


def test_the_front_has_the_ends_of_what_is_idle_in_the_order_of_use() -> None:
    manager = BlockManager(16, 2)
    first, second = compute(manager, [1, 2, 3, 4]), compute(manager, [1, 2, 5, 6])
    third = compute(manager, [7, 8, 9])
    assert manager.idle_front(16).block_ids.tolist() == [first[1], second[1], third[0]]
    assert manager.idle_front(1).block_ids.tolist() == [first[1]]
    assert manager.idle_front(0).block_ids.tolist() == []


def test_used_blocks_and_tails_are_not_in_the_front() -> None:
    manager = BlockManager(16, 4, min_partial_tokens=2)
    blocks = compute(manager, [1, 2, 3, 4, 5, 6])
    handle = manager.admit([9, 9, 9, 9, 9])
    manager.commit(handle, 5)
    assert manager.stats().cached_tails == 1
    assert manager.idle_front(16).block_ids.tolist() == blocks[:1]


def test_a_content_has_a_number_that_no_other_one_gets() -> None:
    manager = BlockManager(2, 2)
    seen = set()
    for i in range(8):
        compute(manager, [i % 2, 1, 2])
        compute(manager, [5, 5, 5, 5])
        front = manager.idle_front(2)
        seen.update(front.contents.tolist())
    assert len(seen) == 8
    again = manager.idle_front(2)
    assert again.contents.tolist() == front.contents.tolist()


def test_a_prefix_has_its_blocks_tokens_namespace_and_extra_keys() -> None:
    manager = BlockManager(8, 2)
    handle = manager.admit([1, 2, 3, 4, 5], namespace=b"tenant", extras={1: b"image"})
    manager.commit(handle, 5)
    blocks = manager.block_ids(handle)
    prefix = manager.prefix_of(blocks[1])
    assert prefix.block_ids.tolist() == blocks[:2]
    assert (prefix.tokens.tolist(), prefix.namespace) == ([1, 2, 3, 4], b"tenant")
    assert prefix.extras == {1: b"image"}
    assert b"tenant" not in repr(prefix).encode()
    with pytest.raises(BlockStateError, match="it is not cached"):
        manager.prefix_of(blocks[2])


def test_a_prefix_ends_before_what_is_not_written_yet() -> None:
    manager = BlockManager(8, 2, early_commit=True)
    handle = manager.admit([1, 2, 3])
    manager.commit(handle, 3)
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    manager.append(handle, [4])
    manager.commit(handle, 4)
    blocks = manager.block_ids(handle)
    assert manager.prefix_of(blocks[1]).block_ids.tolist() == blocks[:1]
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    assert manager.prefix_of(blocks[1]).block_ids.tolist() == blocks


def test_what_is_retired_is_neither_in_the_front_nor_a_prefix() -> None:
    manager = BlockManager(8, 2)
    blocks = compute(manager, [1, 2, 3])
    kept = compute(manager, [4, 5, 6], namespace=b"a")
    manager.retire()
    assert manager.idle_front(8).block_ids.tolist() == kept[:1]
    with pytest.raises(BlockStateError):
        manager.prefix_of(blocks[0])


def test_each_share_has_a_part_of_the_front() -> None:
    manager = BlockManager(16, 2, quotas={b"a": 8})
    own = [compute(manager, [i, i], b"a")[0] for i in range(4)]
    others = [compute(manager, [i, i])[0] for i in range(4)]
    assert manager.idle_front(4).block_ids.tolist() == [*others[:2], *own[:2]]


def test_a_pool_has_the_same_calls() -> None:
    pool = BlockPool(8, 2)
    blocks = pool.take(3).tolist()
    pool.promote(blocks, [1, 2, 3, 4, 5, 6], namespace=b"a")
    pool.release(blocks[::-1])
    front = pool.idle_front(8)
    assert front.block_ids.tolist() == blocks[2:]
    prefix = pool.prefix_of(blocks[2])
    assert (prefix.block_ids.tolist(), prefix.namespace) == (blocks, b"a")
    assert prefix.contents.tolist()[2:] == front.contents.tolist()


def test_wrong_arguments_and_groups_of_layers_are_refused() -> None:
    manager = BlockManager(8, 2)
    for call in (manager.idle_front, BlockPool(8, 2).idle_front):
        with pytest.raises(ValueError, match="most must be at least 0, got -1"):
            call(-1)
        with pytest.raises(TypeError, match="most must be an int"):
            call("1")  # type: ignore[arg-type]
    for block in (-1, 8):
        with pytest.raises(ValueError, match=r"block must be in \[0, 8\)"):
            manager.prefix_of(block)
    groups = BlockManager(9, 2, null_block=True, groups=[FullAttention(), SlidingWindow(4)])
    with pytest.raises(ValueError, match="needs a single group of layers"):
        groups.idle_front(8)
    with pytest.raises(ValueError, match="needs a single group of layers"):
        groups.prefix_of(1)


@pytest.mark.parametrize("kind", ["manager", "pool"])
def test_a_prefix_says_what_retain_set_for_its_blocks(kind: str) -> None:
    if kind == "manager":
        manager = BlockManager(8, 2, retention=True)
        manager.set_time(3.0)
        handle = manager.admit([1, 2, 3, 4, 5, 6, 7])
        manager.commit(handle, 7)
        manager.retain(handle, 0, 2, priority=Priority.HIGH)
        manager.retain(handle, 2, 4, priority=Priority.LOW, ttl=4.0)
        blocks = manager.block_ids(handle)[:3]
        manager.free(handle, expect_reuse=True)  # a hint is no retention
        holder: BlockManager | BlockPool = manager
    else:
        pool = BlockPool(8, 2, retention=True)
        pool.set_time(3.0)
        blocks = pool.promote(pool.take(3), [1, 2, 3, 4, 5, 6]).tolist()
        pool.retain(blocks[:1], priority=Priority.HIGH)
        pool.retain(blocks[1:2], priority=Priority.LOW, ttl=4.0)
        holder = pool
    prefix = holder.prefix_of(blocks[2])
    assert prefix.levels.tolist() == [Priority.HIGH, Priority.LOW, -1]
    assert prefix.until == [math.inf, 7.0, math.inf]
    holder.set_time(7.0)
    assert holder.prefix_of(blocks[2]).levels.tolist() == [Priority.HIGH, -1, -1]
    plain = BlockPool(8, 2)
    block = plain.promote(int(plain.take(1)[0]), [1, 2])
    assert (plain.prefix_of(block).levels.tolist(), plain.prefix_of(block).until) == ([], [])


def test_a_block_with_other_content_has_no_retention_of_before() -> None:
    pool = BlockPool(1, 2, retention=True)
    block = pool.promote(int(pool.take(1)[0]), [1, 2])
    pool.retain([block], priority=Priority.HIGH)
    pool.release([block])
    block = pool.promote(int(pool.take(1)[0]), [3, 4])
    assert pool.prefix_of(block).levels.tolist() == [-1]
