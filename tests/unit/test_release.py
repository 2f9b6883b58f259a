"""Free, preempt and resume."""

from __future__ import annotations

import pytest

from blockmgr import (
    BlockManager,
    BlockState,
    UnknownSequenceError,
)
from tests.conftest import MakeManager
from tests.unit.engine import serve
from tests.unit.snapshot import refused

CALLS = {
    "reserve": (1,),
    "append": ([1],),
    "commit": (1,),
    "truncate": (1,),
    "fork": (),
    "free": (),
    "preempt": (),
    "resume": (),
    "slot_mapping": (0, 1),
    "sequence": (),
    "row": (),
}


def test_a_stale_handle_does_not_reach_the_next_owner_of_its_row(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4, max_seqs=1)
    stale = manager.admit([1])
    manager.free(stale)
    manager.admit([2])
    for name, args in CALLS.items():
        with refused(manager, UnknownSequenceError, "names no live sequence"):
            getattr(manager, name)(stale, *args)


@pytest.mark.parametrize("handle", [0, -1, 5, 2**32 + 77, 2**62, -(2**63)])
def test_a_handle_never_given_out_is_unknown(make_manager: MakeManager, handle: int) -> None:
    manager = make_manager(8, 4, max_seqs=2)
    manager.admit([2])
    for name, args in CALLS.items():
        with refused(manager, UnknownSequenceError):
            getattr(manager, name)(handle, *args)
    with refused(manager, UnknownSequenceError):
        manager.decode([handle], [1])
    with refused(manager, UnknownSequenceError):
        manager.reparent([handle], [0])


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_number_larger_than_any_handle_is_unknown_too(
    make_manager: MakeManager, name: str
) -> None:
    manager = make_manager()
    manager.admit([2])
    with refused(manager, UnknownSequenceError, "handle of 71 bits") as error:
        getattr(manager, name)(2**70, *CALLS[name])
    assert error.value.handle == 2**70
    with refused(manager, UnknownSequenceError, "handle of 100001 bits"):
        getattr(manager, name)(1 << 100_000, *CALLS[name])


def test_another_managers_handle_is_unknown(make_manager: MakeManager) -> None:
    """Even though this manager has a sequence in the same row, admitted in the same way."""
    mine, yours = make_manager(), make_manager()
    kept, foreign = mine.admit([1, 2, 3]), yours.admit([1, 2, 3])
    assert mine.row(kept) == yours.row(foreign)
    with refused(mine, UnknownSequenceError):
        mine.free(foreign)
    with refused(mine, UnknownSequenceError):
        mine.decode([foreign], [4])
    assert mine.handles() == [kept]


def test_what_grew_past_the_watermark_can_come_back(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2, watermark_blocks=2)
    seq = serve(manager, [1] * 3)
    seq.append([1] * 5)  # the whole pool: no prompt of this length would be admitted
    seq.preempt()
    seq.resume()
    assert seq.num_blocks == 4


def test_the_with_statement_frees(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    with manager.sequence(manager.admit([1] * 5)) as seq:
        assert seq.num_blocks == 2
    assert manager.handles() == []


def test_the_with_statement_frees_after_an_error_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    with pytest.raises(RuntimeError, match="forward"), manager.sequence(manager.admit([1])):
        raise RuntimeError("forward failed")
    assert manager.handles() == []


def test_the_with_statement_leaves_a_sequence_freed_inside_alone(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4, max_seqs=1)
    with manager.sequence(manager.admit([1])) as seq:
        seq.free()
        other = manager.admit([2])
    assert manager.handles() == [other]


def test_views_are_equal_if_they_name_the_same_sequence(make_manager: MakeManager) -> None:
    manager, other = make_manager(8, 4), make_manager(8, 4)
    handle = manager.admit([1])
    assert manager.sequence(handle) == manager.sequence(handle)
    assert hash(manager.sequence(handle)) == hash(manager.sequence(handle))
    assert manager.sequence(handle) != manager.sequence(manager.admit([1]))
    assert manager.sequence(handle) != other.sequence(other.admit([1]))
    assert manager.sequence(handle) != handle


def test_a_view_says_what_it_names(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    seq = serve(manager, [1] * 5)
    assert "running, 5 tokens, 5 computed, 2 blocks" in repr(seq)
    seq.preempt()
    assert "preempted" in repr(seq)
    seq.free()
    assert "freed" in repr(seq)


def test_what_a_view_returns_is_a_copy(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    seq = manager.sequence(manager.admit([1, 2]))
    seq.tokens[0] = 9
    seq.block_ids[0] = 7
    assert seq.tokens.tolist() == [1, 2]
    assert str(seq.tokens.dtype) == "uint32"
    assert manager.block_tables[seq.row, 0] == seq.block_ids[0]


def test_a_block_that_a_pending_copy_reads_is_not_idle_when_its_run_is_given_back() -> None:
    """A long table is released as a run, but one of its blocks is still the source of a copy."""
    manager = BlockManager(32, 2, min_partial_tokens=1)
    first = manager.admit(list(range(1, 13)))
    manager.commit(first, 12)
    second = manager.admit([1, 2, 3, 4, 5, 99, 98])  # takes one token of the third block
    [copy] = list(plan := manager.take_copies())
    assert copy.num_tokens == 1
    manager.free(first)
    manager.check_invariants()
    assert manager.blocks().state[copy.source] == BlockState.CACHED
    manager.copies_applied(plan.ticket)
    manager.check_invariants()
    manager.free(second)
    manager.check_invariants()
