"""Calls that name single blocks, admissions with a match, and withdrawals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockmgr import (
    Admission,
    BlockManager,
    Match,
    NeverFitsError,
    OutOfBlocksError,
    StaleMatchError,
    StepError,
    UnknownSequenceError,
)
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve
from tests.unit.snapshot import refused

PROMPT = [1, 2, 3, 4, 5, 6, 7]


# Holds.


def test_a_held_block_outlives_its_sequence_and_is_not_handed_out(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(4, 2)
    seq = serve(manager, PROMPT)
    held = ids(seq)[1]
    manager.acquire([held])
    seq.free()
    assert manager.num_available == 2  # its ancestors are kept as well
    with pytest.raises(OutOfBlocksError):
        manager.admit([9] * 6)
    assert (manager.is_cached(held), manager.ref_count(held)) == (True, 1)
    manager.release([held])
    assert manager.num_available == 4


def test_a_touch_under_a_step_in_flight_leaves_blocks_available(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2, steps_in_flight=1)
    blocks = cache(manager, [1, 1, 0])
    manager.take_copies() if manager.num_available == 4 else None
    before = manager.num_available
    manager.touch_blocks(blocks[:1])
    assert manager.num_available == before


@pytest.mark.parametrize("name", ["acquire", "release", "touch_blocks", "forget"])
def test_a_wrong_block_is_refused_by_name(make_manager: MakeManager, name: str) -> None:
    manager = make_manager(4, 2, null_block=True)
    manager.admit([1, 2])
    for blocks, error in (([0], ValueError), ([4], ValueError), ([-1], ValueError)):
        with refused(manager, error, match="blocks must be in"):
            getattr(manager, name)(blocks)
    for blocks in ("1", 1, [1.5], [None]):
        with refused(manager, TypeError, match="blocks"):
            getattr(manager, name)(blocks)


@pytest.mark.parametrize("name", ["is_cached", "ref_count"])
def test_a_question_about_a_wrong_block_is_refused(make_manager: MakeManager, name: str) -> None:
    manager = make_manager(4, 2)
    for block in (-1, 4):
        with refused(manager, ValueError, match="block must be in"):
            getattr(manager, name)(block)
    with refused(manager, TypeError, match="block"):
        getattr(manager, name)("0")


# Admissions with a match.


def test_a_match_that_is_out_of_date_is_refused(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    blocks = cache(manager, PROMPT)
    found = manager.match(PROMPT)
    manager.forget(blocks[2:3])
    for call in (manager.admit, manager.can_admit):
        with refused(manager, StaleMatchError, match="6 tokens, 4 of them") as caught:
            call(PROMPT, match=found)
        assert (caught.value.expected, caught.value.found) == (6, 4)


def test_a_match_with_part_of_a_block_holds_for_fewer_slots(make_manager: MakeManager) -> None:
    manager = make_manager(12, 4, min_partial_tokens=1)
    cache(manager, PROMPT)
    found = manager.match([*PROMPT[:6], 9])
    assert found.num_cached_tokens == 6
    seq = manager.sequence(manager.admit([*PROMPT[:6], 9], match=found, num_slots=4))
    assert seq.num_cached_tokens == 6


def test_a_call_may_hold_back_other_blocks_than_the_watermark(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2, watermark_blocks=1)
    assert manager.can_admit([1] * 8) is Admission.NEVER
    assert manager.can_admit([1] * 8, watermark_blocks=0) is Admission.NOW
    assert manager.can_admit([1] * 4, watermark_blocks=3) is Admission.NEVER
    manager.admit([1, 1])
    assert manager.can_admit([1] * 4, watermark_blocks=2) is Admission.LATER
    with refused(manager, OutOfBlocksError) as caught:
        manager.admit([2] * 4, watermark_blocks=2)
    assert vars(caught.value) == {
        "needed": 2, "available": 3, "reserved_by_watermark": 2, "of_nodes": False
    }  # fmt: skip
    with refused(manager, NeverFitsError):
        manager.admit([2] * 4, watermark_blocks=10**12)
    manager.admit([2] * 6, watermark_blocks=0)
    assert manager.num_available == 0


@pytest.mark.parametrize(
    ("asked", "error", "name"),
    [
        ({"max_cached_tokens": -1}, ValueError, "max_cached_tokens"),
        ({"max_cached_tokens": 1.0}, TypeError, "max_cached_tokens"),
        ({"watermark_blocks": -1}, ValueError, "watermark_blocks"),
        ({"watermark_blocks": "1"}, TypeError, "watermark_blocks"),
        ({"match": 3}, TypeError, "match"),
        ({"match": Match(-1, 0, np.zeros(0, np.int32))}, ValueError, "match"),
        ({"match": Match(1, 0, np.zeros(0, np.int32)), "read_cache": False}, ValueError, "match"),
        (
            {"match": Match(1, 0, np.zeros(0, np.int32)), "max_cached_tokens": 1},
            ValueError,
            "match",
        ),
    ],
)
def test_a_wrong_limit_is_refused_by_name(
    make_manager: MakeManager, asked: dict[str, Any], error: type[Exception], name: str
) -> None:
    manager = make_manager(4, 2)
    for call in (manager.admit, manager.can_admit):
        with refused(manager, error, match=name):
            call([1, 2], **asked)
    if "match" not in asked:
        with refused(manager, error, match=name):
            manager.match([1, 2], **asked)


# Withdrawals.


def committed_ahead(manager: BlockManager) -> int:
    handle = manager.admit(PROMPT)
    manager.commit(handle, 7)
    return handle


def test_nobody_leaves_with_what_others_have_found_in_the_same_step(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 2, early_commit=True)
    handle = committed_ahead(manager)
    manager.admit(PROMPT)
    with refused(manager, StepError, match="is shared"):
        manager.free(handle, withdraw=True)


@pytest.mark.parametrize("turned", [False, True])
def test_a_twin_that_the_same_forward_writes_takes_the_place(
    make_manager: MakeManager, turned: bool
) -> None:
    """Block 0 can be a twin like any other."""
    manager = make_manager(12, 2, early_commit=True, dedup="append_only")
    first, second = manager.admit(PROMPT), manager.admit(PROMPT)
    if turned:
        first, second = second, first
    for handle in (first, second):
        manager.commit(handle, 7)
    manager.preempt(first, withdraw=True)
    assert manager.match(PROMPT).block_ids.tolist() == manager.block_ids(second)[:3]
    assert manager.match([*PROMPT[:1], 9]).num_cached_tokens == 0
    manager.check_invariants()


# Tables.


def test_blocks_added_since_come_as_plain_ints(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    handle = manager.admit(PROMPT[:3])
    known = manager.block_ids(handle)
    manager.append(handle, [4, 5])
    added = manager.block_ids(handle, len(known))
    assert all(type(block) is int for block in added)
    assert known + added == manager.sequence(handle).block_ids.tolist()
    assert manager.block_ids(handle, 100) == []
    with refused(manager, ValueError, match="start"):
        manager.block_ids(handle, -1)
    manager.free(handle)
    with refused(manager, UnknownSequenceError):
        manager.block_ids(handle)


@pytest.mark.parametrize("third_has_an_earlier_row", [False, True])
def test_what_was_computed_after_a_forgotten_twin_is_not_found_by_way_of_another_sequence(
    third_has_an_earlier_row: bool,
) -> None:
    """With ``append_only``, a sequence may name blocks computed after a twin of its own block."""
    manager = BlockManager(16, 1, dedup="append_only")
    ended = manager.admit([8]) if third_has_an_earlier_row else None
    first = manager.admit([1, 2, 3])
    other = manager.admit([1, 9])
    manager.commit(other, 2)
    manager.commit(first, 3)  # its first block is a twin; its others continue the cached block
    if ended is not None:
        manager.free(ended)
    third = manager.admit([1, 2, 3, 4])
    assert (manager.row(third) < manager.row(first)) == third_has_an_earlier_row
    shared = manager.block_ids(first)[1:]
    assert manager.block_ids(third)[:3] == [manager.block_ids(other)[0], *shared]
    assert manager.forget(manager.block_ids(first)[:1]) == 2
    manager.commit(third, 4)  # computed from blocks that must not be found
    assert manager.match([1, 2, 3, 4, 5]).num_cached_tokens == 1
    assert manager.match([1, 9, 5]).num_cached_tokens == 2
    manager.check_invariants()
