"""What is evicted next, and what it holds: for callers that copy it elsewhere first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    BlockStateError,
    FullAttention,
    Priority,
    RecurrentState,
    SlidingWindow,
)
from blockmgr.groups import Group
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


def test_used_blocks_are_not_in_the_front_and_a_tail_ends_its_prefix() -> None:
    manager = BlockManager(16, 4, min_partial_tokens=2)
    blocks = compute(manager, [1, 2, 3, 4, 5, 6])
    handle = manager.admit([9, 9, 9, 9, 9])
    manager.commit(handle, 5)
    assert manager.stats().cached_tails == 1
    assert manager.idle_front(16).block_ids.tolist() == blocks[1:]
    assert manager.prefix_of(blocks[1]).tokens.tolist() == [1, 2, 3, 4, 5, 6]


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


WINDOW = (FullAttention(), SlidingWindow(5))  # behind n blocks of two tokens, it reads two


def grouped(num_blocks: int = 32, groups: Sequence[Group] = WINDOW, **options: Any) -> BlockManager:
    return BlockManager(num_blocks, 2, null_block=True, groups=groups, **options)


def test_a_prefix_has_what_each_group_reads_behind_it() -> None:
    manager = grouped(groups=[SlidingWindow(5, block_size=1), FullAttention(1)])
    handle = manager.admit(list(range(9)))
    manager.commit(handle, 8)
    tables = [manager.group_table(group)[manager.row(handle)] for group in (0, 1)]
    prefix = manager.prefix_of(int(tables[1][6]))
    assert prefix.is_whole
    assert prefix.block_ids.tolist() == tables[1][0:8:2].tolist()
    parts = sorted(zip(*(column.tolist() for column in prefix.parts), strict=True))
    blocks, contents, groups, starts = zip(*parts, strict=True)
    expected = [(0, start) for start in (4, 5, 6, 7)] + [(1, start) for start in (1, 3, 5, 7)]
    assert sorted(zip(groups, starts, strict=True)) == expected
    assert all(tables[g][s] == b for b, g, s in zip(blocks, groups, starts, strict=True))
    assert manager.contents_of(list(blocks)).tolist() == list(contents)
    assert manager.prefix_of(blocks[0]).tokens.tolist() == list(range(2 * (starts[0] // 2 + 1)))


def test_a_prefix_behind_which_a_group_lacks_something_is_not_whole() -> None:
    manager = grouped()
    handle = manager.admit(list(range(9)))
    manager.commit(handle, 9)
    blocks = manager.block_ids(handle)
    assert not manager.idle_front(32).block_ids.size
    manager.free(manager.admit([99] * (manager.num_available // 2 * 2)))
    assert manager.prefix_of(blocks[3]).is_whole
    prefix = manager.prefix_of(blocks[1])  # the window has left it
    assert (prefix.is_whole, prefix.parts.block_ids.size) == (False, 0)
    assert prefix.block_ids.tolist() == blocks[:2]


def test_the_front_of_several_groups_has_the_places_where_prompts_continue() -> None:
    manager = grouped(64)
    first = compute(manager, list(range(9)))
    second = compute(manager, [0, 1, 2, 3, 20, 21, 22, 23, 24])
    third = compute(manager, [0, 1, 2, 3, 30, 31, 32, 33, 34])  # stops where they diverge
    front = manager.idle_front(64).block_ids.tolist()
    assert front == [first[3], second[3], third[3], first[1]]
    for block in front:
        assert manager.prefix_of(block).is_whole


def test_of_a_path_that_ends_in_a_tail_the_front_has_the_tail_and_the_last_whole_block() -> None:
    manager = grouped(64, min_partial_tokens=1)
    blocks = compute(manager, list(range(9)))
    compute(manager, [50, 51, 52, 53])
    front = manager.idle_front(64).block_ids.tolist()
    assert front[:2] == [blocks[4], blocks[3]]
    assert all(manager.prefix_of(block).is_whole for block in front)
    assert len(set(front)) == len(front)


def test_a_state_that_is_kept_again_is_another_content() -> None:
    manager = grouped(4, [FullAttention(), RecurrentState()])  # room for two blocks and a state
    compute(manager, [1, 2])
    [end] = manager.idle_front(4).block_ids.tolist()
    state = manager.prefix_of(end).parts.block_ids
    before = manager.contents_of(state).tolist()
    blocks = compute(manager, [1, 2, 3, 4])  # takes the state over, and leaves it at its own end
    after = manager.prefix_of(blocks[1]).parts
    assert after.block_ids.tolist() == state.tolist()
    assert after.contents.tolist() != before
    assert manager.contents_of(state).tolist() == after.contents.tolist()


def test_wrong_arguments_are_refused() -> None:
    manager = BlockManager(8, 2)
    for call in (manager.idle_front, BlockPool(8, 2).idle_front):
        with pytest.raises(ValueError, match="most must be at least 0, got -1"):
            call(-1)
        with pytest.raises(TypeError, match="most must be an int"):
            call("1")  # type: ignore[arg-type]
    for block in (-1, 8):
        with pytest.raises(ValueError, match=r"block must be in \[0, 8\)"):
            manager.prefix_of(block)
        with pytest.raises(ValueError, match="blocks must be in"):
            manager.contents_of([0, block])
    assert manager.contents_of([]).tolist() == []


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
