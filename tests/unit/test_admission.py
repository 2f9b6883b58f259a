"""Admission: hits, allocated blocks and refusals."""

from __future__ import annotations

import pytest

from blockmgr import Admission, NeverFitsError, OutOfBlocksError
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve
from tests.unit.snapshot import refused, snapshot


def test_the_last_token_is_never_served_from_the_cache(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    cache(manager, [1] * 8)
    assert manager.match([1] * 8).num_cached_tokens == 4
    assert manager.match([1] * 9).num_cached_tokens == 8


def test_match_changes_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    blocks = cache(manager, [1] * 9)
    before = snapshot(manager)
    match = manager.match([1] * 9)
    assert match.block_ids.tolist() == blocks[:2]
    assert match.num_partial_tokens == 0
    assert snapshot(manager) == before


def test_shortage_of_blocks_says_what_was_needed(make_manager: MakeManager) -> None:
    manager = make_manager(4, 4)
    manager.admit([1] * 9)
    with refused(manager, OutOfBlocksError, "need 2 blocks, 1 available") as caught:
        manager.admit([2] * 8)
    error = caught.value
    assert (error.needed, error.available, error.reserved_by_watermark) == (2, 1, 0)


def test_an_admission_that_takes_nothing_always_fits(make_manager: MakeManager) -> None:
    """All its blocks are already in use, so the watermark has nothing to hold back."""
    manager = make_manager(3, 2, watermark_blocks=1)
    serve(manager, [1] * 4)
    manager.append(manager.handles()[0], [1])
    assert manager.num_available == 0
    assert manager.can_admit([1] * 5, num_slots=1) is Admission.NEVER  # 5 tokens need 3 blocks
    assert manager.can_admit([1] * 3, num_slots=1) is Admission.NOW
    assert manager.sequence(manager.admit([1] * 3, num_slots=1)).num_cached_tokens == 2
    assert manager.can_admit([2] * 3, num_slots=1) is Admission.LATER


def test_what_never_fits_is_told_apart_from_what_does_not_fit_yet(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(4, 2, watermark_blocks=1)
    assert manager.can_admit([1] * 6) is Admission.NOW
    assert manager.can_admit([1] * 7) is Admission.NEVER
    with refused(manager, NeverFitsError, "7 tokens take 4 blocks.* has 4, 1 of them held back"):
        manager.admit([1] * 7)
    with refused(manager, NeverFitsError, "9 tokens take 5 blocks.* has 4$"):
        manager.admit([1] * 9, watermark_blocks=0)
    with refused(manager, NeverFitsError):
        manager.admit([1], num_slots=7)


@pytest.mark.parametrize("slots", [2**31, 2**62, 2**63 - 1])
def test_slots_beyond_everything_never_fit(make_manager: MakeManager, slots: int) -> None:
    manager = make_manager(8, 4)
    handle, preempted = manager.admit([1]), manager.admit([2])
    manager.preempt(preempted)
    assert manager.can_admit([1], num_slots=slots) is Admission.NEVER
    with refused(manager, NeverFitsError):
        manager.admit([1], num_slots=slots)
    with refused(manager, NeverFitsError):
        manager.reserve(handle, slots)
    with refused(manager, NeverFitsError):
        manager.resume(preempted, num_slots=slots)


def test_the_null_block_is_never_handed_out(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2, null_block=True)
    assert manager.stats().capacity == 3
    seq = serve(manager, [1] * 6)
    assert 0 not in ids(seq)
    with refused(manager, NeverFitsError):
        manager.admit([1] * 7)


def test_handles_carry_row_and_generation(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    handle = manager.admit([1])
    assert manager.row(handle) == handle & 0xFFFFFFFF
    manager.free(handle)
    again = manager.admit([1])
    assert again != handle
    assert manager.row(again) == handle & 0xFFFFFFFF
