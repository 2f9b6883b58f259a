"""Admission: hits, allocated blocks and refusals."""

from __future__ import annotations

import pytest

from blockmgr import Admission, NeverFitsError, OutOfBlocksError, OutOfSequencesError
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve, step
from tests.unit.snapshot import refused, snapshot


def test_a_prompt_gets_a_block_for_every_block_size_tokens_rounded_up(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4)
    seq = manager.sequence(manager.admit([1, 2, 3, 4, 5]))
    assert (seq.num_tokens, seq.num_blocks, seq.num_slots) == (5, 2, 8)
    assert (seq.num_computed_tokens, seq.num_cached_tokens) == (0, 0)
    assert manager.num_available == 6


def test_an_uncomputed_prompt_is_not_found(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    manager.admit([1] * 9)
    assert manager.match([1] * 9).num_cached_tokens == 0


def test_a_computed_prefix_is_shared_block_for_block(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    first = serve(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = manager.sequence(manager.admit([1, 2, 3, 4, 5, 6, 7, 8, 0]))
    assert ids(second)[:2] == ids(first)[:2]
    assert ids(second)[2] != ids(first)[2]
    assert second.num_cached_tokens == second.num_computed_tokens == 8


def test_the_last_token_is_never_served_from_the_cache(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    cache(manager, [1] * 8)
    assert manager.match([1] * 8).num_cached_tokens == 4
    assert manager.match([1] * 9).num_cached_tokens == 8


def test_a_hit_needs_the_whole_prefix_not_the_block_alone(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    cache(manager, [1, 2, 3, 4])
    assert manager.match([9, 2, 3, 4, 5]).num_cached_tokens == 0
    assert manager.match([3, 4, 3, 4, 5]).num_cached_tokens == 0


def test_admission_tells_found_tokens_apart_in_the_stats(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    cache(manager, [1] * 9)
    manager.admit([1] * 9)
    stats = manager.stats()
    assert (stats.query_tokens, stats.hit_tokens, stats.partial_hit_tokens) == (18, 8, 0)
    assert stats.hit_rate == pytest.approx(8 / 18)


def test_match_changes_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    blocks = cache(manager, [1] * 9)
    before = snapshot(manager)
    match = manager.match([1] * 9)
    assert match.block_ids.tolist() == blocks[:2]
    assert match.num_partial_tokens == 0
    assert snapshot(manager) == before


def test_fewer_slots_than_tokens_admit_the_first_chunk(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    seq = manager.sequence(manager.admit(list(range(10)), num_slots=3))
    assert (seq.num_tokens, seq.num_slots, seq.num_blocks) == (10, 4, 1)
    assert seq.tokens.tolist() == list(range(10))
    seq.reserve(8)
    assert (seq.num_slots, seq.tokens.tolist()) == (8, list(range(10)))


def test_a_hit_longer_than_the_slots_is_kept_whole(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    cache(manager, [1] * 7)
    seq = manager.sequence(manager.admit([1] * 7, num_slots=1))
    assert (seq.num_computed_tokens, seq.num_slots) == (6, 6)


def test_more_slots_than_tokens_are_look_ahead(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    seq = manager.sequence(manager.admit([1, 2], num_slots=9))
    assert (seq.num_tokens, seq.num_blocks) == (2, 3)


def test_shortage_of_blocks_says_what_was_needed(make_manager: MakeManager) -> None:
    manager = make_manager(4, 4)
    manager.admit([1] * 9)
    with refused(manager, OutOfBlocksError, "need 2 blocks, 1 available") as caught:
        manager.admit([2] * 8)
    error = caught.value
    assert (error.needed, error.available, error.reserved_by_watermark) == (2, 1, 0)


def test_idle_hits_count_against_what_is_available(make_manager: MakeManager) -> None:
    """Hits cannot be evicted: the prompt needs its hits and its new blocks at the same time."""
    manager = make_manager(4, 2)
    cache(manager, [1] * 4)  # two idle blocks
    manager.admit([2] * 2)  # one free block is left
    with refused(manager, OutOfBlocksError):
        manager.admit([1] * 5 + [3] * 3)
    assert manager.sequence(manager.admit([1] * 5)).num_cached_tokens == 4


def test_hits_in_use_cost_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2)
    serve(manager, [1] * 5)
    assert manager.can_admit([1] * 4 + [2]) is Admission.NOW
    assert manager.can_admit([2] * 5) is Admission.LATER


def test_the_watermark_holds_blocks_back_from_new_work_only(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2, watermark_blocks=1)
    handle = manager.admit([1] * 4)
    assert manager.can_admit([2] * 4) is Admission.LATER
    with refused(manager, OutOfBlocksError) as caught:
        manager.admit([2] * 4)
    assert caught.value.reserved_by_watermark == 1
    manager.append(handle, [1] * 4)
    assert manager.num_available == 0


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


def test_a_row_of_the_table_limits_a_sequence_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, max_blocks_per_seq=2)
    assert manager.block_tables.shape[1] == 2
    with refused(manager, NeverFitsError):
        manager.admit([1] * 5)
    handle = manager.admit([1] * 4)
    with refused(manager, NeverFitsError):
        manager.append(handle, [1])
    with refused(manager, NeverFitsError):
        manager.reserve(handle, 5)
    with refused(manager, NeverFitsError):
        manager.decode([handle], [1])


def test_rows_run_out_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, max_seqs=2)
    manager.admit([1])
    handle = manager.admit([2])
    assert manager.can_admit([3]) is Admission.LATER
    with refused(manager, OutOfSequencesError, "max_seqs") as caught:
        manager.admit([3])
    assert (caught.value.needed, caught.value.available) == (1, 0)
    manager.preempt(handle)  # a preempted sequence keeps its row
    with refused(manager, OutOfSequencesError):
        manager.admit([3])
    manager.free(handle)
    manager.admit([3])


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


@pytest.mark.parametrize("option", ["remap", "append_only"])
def test_two_prompts_of_one_step_share_nothing_until_one_is_computed(
    make_manager: MakeManager, option: str
) -> None:
    manager = make_manager(8, 2, dedup=option)
    first, second = manager.admit([1] * 3), manager.admit([1] * 3)
    assert not set(ids(manager.sequence(first))) & set(ids(manager.sequence(second)))
    step(manager)
    assert manager.match([1] * 3).num_cached_tokens == 2
