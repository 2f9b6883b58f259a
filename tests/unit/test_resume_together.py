"""Preempted sequences that come back in one call, and share again what they have in common."""

from __future__ import annotations

import pytest

from blockmgr import (
    BlockManager,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    RecurrentState,
    SequenceStateError,
    SlidingWindow,
    UnknownSequenceError,
)
from tests.conftest import MakeManager
from tests.unit.engine import cache, step
from tests.unit.snapshot import refused

PROMPT = [1, 2, 3, 4, 5, 6]


def samples(manager: BlockManager, n: int, prompt: list[int] | None = None) -> list[int]:
    """Sequences with one prompt, none of which is computed."""
    first = manager.admit(prompt or PROMPT)
    return [first, *manager.fork(first, n - 1)]


def preempt(manager: BlockManager, handles: list[int]) -> None:
    for handle in reversed(handles):
        manager.preempt(handle)


def tables(manager: BlockManager, handles: list[int]) -> list[list[int]]:
    return [manager.sequence(handle).block_ids.tolist() for handle in handles]


def test_samples_fit_where_they_were_and_one_by_one_they_do_not(make_manager: MakeManager) -> None:
    manager = make_manager(3, 4)
    handles = samples(manager, 4)
    assert manager.stats().used_blocks == 2
    preempt(manager, handles)
    manager.resume(handles[0])
    with pytest.raises(OutOfBlocksError):
        manager.resume(handles[1])
    manager.preempt(handles[0])
    manager.resume_together(handles)
    assert manager.stats().used_blocks == 2
    assert tables(manager, handles) == [tables(manager, handles)[0]] * 4


def test_a_tree_shares_each_of_its_branches(make_manager: MakeManager) -> None:
    manager = make_manager(16, 2)
    trunk = manager.admit([1, 2, 3])
    [left, right] = manager.fork(trunk, 2)
    manager.append(left, [10, 11, 12])
    manager.append(right, [20, 21, 22])
    leaves = [left, *manager.fork(left, 2), right, *manager.fork(right, 2), trunk]
    manager.append(leaves[1], [13])
    assert manager.stats().used_blocks == 7
    preempt(manager, leaves)
    manager.resume_together(leaves)
    assert manager.stats().used_blocks == 6  # the trunk shares the block that a branch continues
    assert [manager.sequence(h).tokens.tolist()[3:] for h in leaves[:4]] == [
        [10, 11, 12], [10, 11, 12, 13], [10, 11, 12], [20, 21, 22]
    ]  # fmt: skip


def test_slots_behind_tokens_are_not_shared(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    handles = samples(manager, 2)
    preempt(manager, handles)
    manager.resume_together(handles, num_slots=7)
    first, second = tables(manager, handles)
    assert first[0] == second[0]
    assert first[1] != second[1]
    long = manager.admit(list(range(1, 10)))
    [short] = manager.fork(long)
    manager.truncate(short, 5)
    preempt(manager, [*handles, short, long])
    manager.resume_together([short, long], num_slots=7)  # look-ahead of the shorter one alone
    first, second = tables(manager, [short, long])
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_what_must_be_computed_again_is_shared_when_room_is_short(
    make_manager: MakeManager,
) -> None:
    """The shorter one computes its last token again, in a block that the longer one has cached."""
    manager = make_manager(3, 4)
    long = manager.admit([1, 2, 3, 4, 5, 6, 7, 8])
    [short] = manager.fork(long)
    step(manager)
    manager.decode([long], [9])
    step(manager)
    assert manager.stats().used_blocks == 3
    preempt(manager, [long, short])
    manager.resume_together([long, short])
    assert [manager.sequence(h).num_cached_tokens for h in (long, short)] == [4, 4]
    assert tables(manager, [long])[0][:2] == tables(manager, [short])[0]
    preempt(manager, [long, short])
    roomy = make_manager(9, 4)
    other = roomy.admit([1, 2, 3, 4, 5, 6, 7, 8])
    [less] = roomy.fork(other)
    step(roomy)
    roomy.decode([other], [9])
    step(roomy)
    preempt(roomy, [other, less])
    roomy.resume_together([other, less])
    assert [roomy.sequence(h).num_cached_tokens for h in (other, less)] == [8, 4]


def test_all_or_none_come_back(make_manager: MakeManager) -> None:
    manager = make_manager(6, 2)
    handles = [manager.admit([n] * 4) for n in range(3)]
    preempt(manager, handles)
    manager.admit([9, 9])
    with refused(manager, OutOfBlocksError) as caught:
        manager.resume_together(handles)
    assert (caught.value.needed, caught.value.available) == (6, 5)


def test_more_than_the_pool_has_never_comes_back_together(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2)
    handles = [manager.admit([n] * 8, num_slots=2) for n in range(2)]
    preempt(manager, handles)
    with refused(manager, NeverFitsError, "8 blocks together"):
        manager.resume_together(handles)
    with refused(manager, NeverFitsError):
        manager.resume_together(handles, num_slots=9)
    manager.resume_together(handles, num_slots=4)


def test_the_watermark_is_lowered_as_far_as_they_need(make_manager: MakeManager) -> None:
    manager = make_manager(3, 2, watermark_blocks=2)
    first = manager.admit([1])
    [second] = manager.fork(first)
    manager.append(first, [2, 3])
    manager.append(second, [4])
    preempt(manager, [first, second])
    manager.resume_together([first, second])
    assert manager.stats().used_blocks == 3
    held = make_manager(4, 2, watermark_blocks=2)
    handles = [held.admit([n]) for n in range(2)]
    preempt(held, handles)
    held.fork(held.admit([9]))
    with refused(held, OutOfBlocksError) as caught:
        held.resume_together(handles)
    assert caught.value.reserved_by_watermark == 2


def test_several_that_continue_one_end_share_or_copy_it(make_manager: MakeManager) -> None:
    """One of them could have taken the cached end over."""
    manager = make_manager(16, 4, min_partial_tokens=1)
    ended = manager.admit(PROMPT)
    step(manager)
    manager.free(ended)
    handles = [manager.admit([*PROMPT, last], read_cache=False) for last in (7, 8)]
    preempt(manager, handles)
    manager.resume_together(handles)
    assert [manager.sequence(h).num_cached_tokens for h in handles] == [6, 6]
    assert [copy.num_tokens for copy in manager.take_copies()] == [2, 2]


def test_what_one_finds_is_kept_before_another_takes_blocks(make_manager: MakeManager) -> None:
    manager = make_manager(5, 2)
    finds, first = manager.admit([5, 5, 6]), manager.admit([1] * 4)
    preempt(manager, [finds, first])
    second = manager.admit([2, 2])
    preempt(manager, [second])
    for token in (5, 8, 9):
        cache(manager, [token, token, 0])  # the block that is found would be evicted first
    manager.resume_together([first, second, finds])
    assert manager.sequence(finds).num_cached_tokens == 2
    assert manager.sequence(finds).tokens.tolist() == [5, 5, 6]
    assert manager.match([5, 5, 0]).num_cached_tokens == 2


def test_states_are_each_sequences_own(make_manager: MakeManager) -> None:
    groups = [FullAttention(), RecurrentState(), SlidingWindow(4)]
    manager = make_manager(32, 4, groups=groups, null_block=True)
    handles = samples(manager, 3)
    held = manager.stats().used_blocks
    preempt(manager, handles)
    manager.resume_together(handles)
    assert manager.stats().used_blocks == held
    rows = [manager.row(handle) for handle in handles]
    assert len({int(manager.group_table(1)[row, 0]) for row in rows}) == 3
    assert len({tuple(manager.group_table(2)[row].tolist()) for row in rows}) == 1


def test_a_wrong_batch_changes_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    handles = samples(manager, 2)
    with refused(manager, SequenceStateError, "running"):
        manager.resume_together(handles)
    preempt(manager, handles)
    with refused(manager, ValueError, "distinct"):
        manager.resume_together([*handles, handles[0]])
    with refused(manager, UnknownSequenceError):
        manager.resume_together([*handles, 2**40])
    with refused(manager, ValueError, "num_slots"):
        manager.resume_together(handles, num_slots=0)
    manager.resume_together([])
    assert [manager.sequence(h).is_preempted for h in handles] == [True, True]
