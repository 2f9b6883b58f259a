"""Blocks of groups that an early commit promises, before the forward that writes them."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager, ChunkedAttention, FullAttention, SlidingWindow, StepError
from tests.unit.hybrid import hybrid

TEXT = list(range(16))
PROMPT = [*TEXT[:12], 50]


def forward(manager: BlockManager, handle: int, computed: int) -> None:
    manager.commit(handle, computed)
    manager.copies_applied(manager.take_copies().ticket)


def windows(num_blocks: int = 16) -> BlockManager:
    groups = [FullAttention(), SlidingWindow(8)]
    return hybrid(num_blocks, groups=groups, early_commit=True, min_partial_tokens=1, debug=0)


def cache_with_a_gap(manager: BlockManager) -> None:
    """``TEXT`` is cached, but the window lacks its second block."""
    handle = manager.admit([*TEXT, 50])
    for computed in (8, 16, 17):
        forward(manager, handle, computed)
    manager.free(handle)
    units = (manager.stats().free_blocks + 2) // 2
    manager.free(manager.admit(range(100, 100 + 4 * units)))
    assert manager.match([*TEXT, 50]).num_cached_tokens == 16
    assert manager.match(PROMPT).num_cached_tokens == 4


def test_what_is_found_of_a_promise_counts_as_unwritten() -> None:
    manager = windows()
    cache_with_a_gap(manager)
    writer = manager.admit(PROMPT)
    manager.commit(writer, 12)
    reader = manager.admit(PROMPT)
    assert manager.sequence(reader).num_cached_tokens == 12
    manager.truncate(reader, 7)
    with pytest.raises(StepError, match="positions 4 to 6"):
        manager.append(reader, [9])
    manager.copies_applied(manager.take_copies().ticket)
    manager.append(reader, [9])
    source = manager.group_table(1)[manager.row(writer), 1]
    assert source in manager.take_copies().sources
    manager.check_invariants()


def test_a_copy_does_not_wait_for_a_promise_that_it_does_not_read() -> None:
    manager = windows(40)
    cache_with_a_gap(manager)
    manager.commit(manager.admit(PROMPT), 12)
    reader = manager.admit([*TEXT[:14], 90])
    assert manager.sequence(reader).num_cached_tokens == 14
    [child] = manager.fork(reader)
    manager.append(child, [91])
    plan = manager.take_copies()
    assert plan.num_tokens.tolist() == [2] * 4  # from the cached block to both, in each group
    manager.check_invariants()


def test_what_is_written_is_not_merged_with_a_promise() -> None:
    """In the same step, its sequence can be copied from."""
    manager = windows(40)
    parent = manager.admit(TEXT[:1])
    forward(manager, parent, 1)
    [written] = manager.fork(parent)
    cache_with_a_gap(manager)
    manager.append(written, PROMPT[1:])
    forward(manager, written, 12)  # its first block waits for a copy, so none is cached yet
    manager.commit(manager.admit(PROMPT), 12)
    manager.commit(written, 12)
    manager.truncate(written, 7)
    manager.append(written, [9])
    manager.check_invariants()


def test_a_promise_that_is_withdrawn_ends_each_boundary_that_reads_it() -> None:
    manager = windows()
    cache_with_a_gap(manager)
    handle = manager.admit(PROMPT)
    manager.commit(handle, 12)  # the window after 8 and the one after 12 read the second block
    assert manager.match(PROMPT).num_cached_tokens == 12
    manager.free(handle, withdraw=True)
    assert manager.match(PROMPT).num_cached_tokens == 4
    manager.check_invariants()


def test_a_part_that_the_forward_has_yet_to_write_is_not_copied_from() -> None:
    """The node may be written long ago, while its chunk block was released and recomputed."""
    groups = [FullAttention(), ChunkedAttention(4)]
    manager = hybrid(groups=groups, early_commit=True, min_partial_tokens=1)
    first, second = (manager.admit([7, 7, 7, 7, 8]) for _ in range(2))
    for computed in (4, 5):
        manager.commit(first, computed)
        manager.copies_applied(manager.take_copies().ticket)
    assert manager.group_table(1)[manager.row(first), 0] == 0
    manager.commit(second, 4)  # ahead of the forward that writes it
    assert manager.match([7, 7, 7, 9]).num_cached_tokens == 0
    manager.copies_applied(manager.take_copies().ticket)
    assert manager.match([7, 7, 7, 9]).num_cached_tokens == 3


def test_what_a_sequence_takes_back_is_taken_back_in_all_groups() -> None:
    """A sequence may be withdrawn before the forward, unless another needs what it computes."""
    manager = hybrid(groups=[FullAttention(), ChunkedAttention(4)], early_commit=True)
    first, second, third = (manager.admit([7, 7, 7, 7, 8]) for _ in range(3))
    for computed in (4, 5):
        manager.commit(first, computed)
        manager.copies_applied(manager.take_copies().ticket)
    manager.commit(second, 4)
    manager.commit(third, 4)  # merges with the block that the second one writes
    with pytest.raises(StepError, match="shared"):
        manager.free(second, withdraw=True)
    manager.copies_applied(manager.take_copies().ticket)
    manager.free(second)
    manager.free(third)
    fourth = manager.admit([9, 9, 9, 9, 8])
    manager.commit(fourth, 4)
    manager.free(fourth, withdraw=True)
    assert manager.match([9, 9, 9, 9, 8]).num_cached_tokens == 0
    manager.free(first)
    assert manager.num_available == 63


def test_a_block_that_comes_back_to_a_node_is_withdrawn_alone() -> None:
    manager = hybrid(groups=[FullAttention(), ChunkedAttention(4)], early_commit=True)
    first, second = (manager.admit([7, 7, 7, 7, 8]) for _ in range(2))
    for computed in (4, 5):
        manager.commit(first, computed)
        manager.copies_applied(manager.take_copies().ticket)
    manager.commit(second, 4)
    manager.free(second, withdraw=True)
    assert manager.match([7, 7, 7, 7, 8]).num_cached_tokens == 4  # no later query reads the chunk


def test_a_sharer_keeps_its_block_when_another_moves_to_a_promise() -> None:
    """What it has written stays in its block, which it continues in place."""
    groups = [FullAttention(), SlidingWindow(8)]
    manager = hybrid(40, groups=groups, early_commit=True, debug=0)
    parent = manager.admit(TEXT[:9])
    forward(manager, parent, 4)
    forward(manager, parent, 5)
    [sharer] = manager.fork(parent)
    manager.truncate(sharer, 6)
    other = manager.admit(TEXT[:9])
    assert manager.sequence(other).num_cached_tokens == 4
    manager.commit(other, 8)
    manager.commit(parent, 8)
    manager.append(sharer, [99])
    tables = [manager.group_table(group) for group in (0, 1)]
    rows = [manager.row(handle) for handle in (other, parent, sharer)]
    for table in tables:
        promised, moved, kept = table[rows, 1].tolist()
        assert promised == moved != kept
    assert not len(manager.take_copies())
    manager.check_invariants()
