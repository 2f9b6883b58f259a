"""What an admission finds in every group, and what of it fits."""

from __future__ import annotations

import pytest

from blockmgr import (
    Admission,
    BlockManager,
    BlockState,
    ChunkedAttention,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    RecurrentState,
    SlidingWindow,
)
from tests.unit.hybrid import hybrid, step


def test_a_tail_with_a_state_is_found_where_full_attention_has_more() -> None:
    manager = hybrid(groups=[FullAttention(), RecurrentState()], min_partial_tokens=1)
    for length in (12, 6):  # without a stop, so that only the ends have a state
        handle = manager.admit(range(length))
        step(manager, handle, length)
        manager.free(handle)
    assert manager.match(range(10)).num_cached_tokens == 6


def test_a_place_where_prompts_part_is_found_beside_any_number_of_them() -> None:
    """A look-up within a block examines 128 of the blocks that continue a prefix."""
    manager = hybrid(
        2000, groups=[FullAttention(), RecurrentState()], min_partial_tokens=1, debug=0
    )

    def serve(prompt: list[int]) -> int:
        handle = manager.admit(prompt)
        found = manager.sequence(handle).num_cached_tokens
        for stop in (*manager.stops(handle), len(prompt)):
            step(manager, handle, stop)
        manager.copies_applied(manager.take_copies().ticket)
        manager.free(handle)
        return found

    assert [serve([1, 1, last, last]) for last in (3, 4, 5)] == [0, 0, 2]
    assert [serve([2, 2, last, last]) for last in range(3, 200)] == [0, 0, *[2] * 195]
    # A look-up does not reach the first one among the others; the third one finds it again.
    assert [serve([1, 1, last, last]) for last in (6, 7, 8)] == [0, 0, 2]


def serve_to_its_end(manager: BlockManager, prompt: list[int]) -> None:
    handle = manager.admit(prompt)
    for stop in sorted({*manager.stops(handle), len(prompt)}):
        step(manager, handle, stop)
    manager.free(handle)


def test_a_tail_that_no_look_up_sees_is_not_kept() -> None:
    """A look-up within a block examines the last 128 children of a node."""
    groups = [FullAttention(), RecurrentState()]
    manager = hybrid(1000, groups=groups, min_partial_tokens=2, debug=0)
    prompts = [[1, 1, 100 + i] for i in range(300)]
    for prompt in prompts:
        serve_to_its_end(manager, prompt)
    found = [manager.match([*prompt, 7]).num_cached_tokens == 3 for prompt in prompts]
    assert found[-100:] == [True] * 100
    assert manager.match([1, 1, 5]).num_cached_tokens == 2
    # All that are kept are found, and the tail where they diverge.
    assert manager.stats().cached_blocks == len(groups) * (sum(found) + 1)
    manager.check_invariants()


def test_a_full_block_among_many_siblings_is_kept_beside_tails() -> None:
    manager = hybrid(2048, groups=[FullAttention(), SlidingWindow(8)], min_partial_tokens=1)
    head = [1, 2, 3, 4]
    prompts = [[*head, 10, 10, 10, 100 + i] for i in range(140)]
    for prompt in prompts:
        serve_to_its_end(manager, prompt)
    serve_to_its_end(manager, [*head, 7, 7])
    assert {manager.match([*prompt, 0]).num_cached_tokens for prompt in prompts} == {8}


def test_an_end_is_kept_beside_a_whole_block_that_no_look_up_sees() -> None:
    manager = hybrid(2048, groups=[FullAttention(), SlidingWindow(8)], min_partial_tokens=1)
    head = [1, 2, 3, 4]
    for i in range(140):
        serve_to_its_end(manager, [*head, i, i, i, 5])
    serve_to_its_end(manager, [*head, 0, 0])
    assert manager.match([*head, 0, 0, 7]).num_cached_tokens == 6


def test_a_tail_behind_whole_blocks_goes_once_no_look_up_sees_it() -> None:
    manager = hybrid(2048, groups=[FullAttention(), SlidingWindow(8)], min_partial_tokens=1)
    head = [1, 2, 3, 4]
    serve_to_its_end(manager, [*head, 7, 7])
    [whole] = manager.match([*head, 0]).block_ids
    blocks = manager.blocks()
    [tail] = {b for b in blocks.ids(BlockState.IDLE).tolist() if blocks.group[b] == 0} - {whole}
    manager.acquire([tail])
    for i in range(140):
        serve_to_its_end(manager, [*head, i, i, i, 5])
    manager.release([tail])
    assert manager.blocks().state[tail] == BlockState.IDLE
    serve_to_its_end(manager, [*head, 9, 9])
    assert manager.blocks().state[tail] == BlockState.FREE


def test_an_end_at_which_sequences_stop_again_is_seen_again() -> None:
    groups = [FullAttention(), RecurrentState()]
    manager = hybrid(1000, groups=groups, min_partial_tokens=2, debug=0)
    again = [1, 1, 99]
    for prompt in [again, *([1, 1, 100 + i] for i in range(100)), again]:
        serve_to_its_end(manager, prompt)
    for i in range(100):  # with the earlier ones, more than a look-up examines
        serve_to_its_end(manager, [1, 1, 300 + i])
    assert manager.match([*again, 7]).num_cached_tokens == 3
    assert manager.match([1, 1, 100, 7]).num_cached_tokens == 2
    manager.check_invariants()


def prefix_in_a_pool_too_small_for_all() -> tuple[BlockManager, list[int]]:
    """A manager that has 80 tokens of a prompt of 96, and that prompt."""
    manager = hybrid(1 + 32, groups=[FullAttention(), SlidingWindow(4)], debug=0)
    prompt = list(range(80))
    handle = manager.admit(prompt, num_slots=4)
    for stop in range(4, 81, 4):
        manager.reserve(handle, stop)
        step(manager, handle, stop)
    manager.free(handle)
    return manager, [*prompt, *range(100, 116)]


def test_slots_behind_a_cached_prefix_fit_where_those_of_all_would_not() -> None:
    """Windows need no blocks for cached tokens before them."""
    manager, longer = prefix_in_a_pool_too_small_for_all()
    assert manager.can_admit([7] * 96, num_slots=96) is Admission.NEVER
    with pytest.raises(NeverFitsError):
        manager.admit([7] * 96, num_slots=96)
    found = manager.match(longer, num_slots=96)
    assert found.num_cached_tokens == 80
    assert manager.can_admit(longer, num_slots=96) is Admission.NOW
    handle = manager.admit(longer, num_slots=96)
    step(manager, handle, 96)
    manager.free(handle)
    manager.check_invariants()


def test_a_boundary_behind_a_gap_in_a_window_is_none() -> None:
    """A commit does not cache a block that waits for its copy, and the window moves on."""
    manager = hybrid(groups=[FullAttention(), SlidingWindow(9)])
    parent = manager.admit([1])
    step(manager, parent, 1)
    [child] = manager.fork(parent)
    manager.append(child, [1] * 11)
    plan = manager.take_copies()
    manager.commit(child, 12)
    manager.copies_applied(plan.ticket)
    assert manager.group_table(1)[manager.row(child), :3].tolist()[0] == 0
    manager.append(child, [1])
    step(manager, child, 13)
    # After 8 tokens the window starts in the released block; after 12 it does not.
    assert manager.match([1] * 9).num_cached_tokens == 0
    assert manager.match([1] * 14).num_cached_tokens == 12
    manager.check_invariants()


@pytest.mark.parametrize(("spare", "copies"), [(1, 0), (2, 2)])
def test_the_end_where_prompts_part_is_taken_over_if_its_copies_do_not_fit(
    spare: int, copies: int
) -> None:
    manager = hybrid(40, groups=[FullAttention(), RecurrentState()], min_partial_tokens=1, debug=0)
    head = [1, 1, 1, 1, 2, 2]
    for last in (5, 6):
        serve_to_its_end(manager, [*head, last])
    manager.free(manager.admit([*head, 8]))
    cached = 3  # the whole block, the tail after it and the state there
    manager.admit([100] * 4 * (manager.num_available - cached - spare - 1))
    assert manager.num_available == cached + spare
    handle = manager.admit([*head, 7])
    assert manager.sequence(handle).num_cached_tokens == 6
    assert len(manager.take_copies().sources) == copies
    manager.check_invariants()


def test_a_prompt_that_fits_behind_its_prefix_alone_waits_for_other_sequences() -> None:
    manager, longer = prefix_in_a_pool_too_small_for_all()
    other = manager.admit([7] * 16)
    assert manager.can_admit(longer) is Admission.LATER
    with pytest.raises(OutOfBlocksError):
        manager.admit(longer)
    manager.free(other)
    assert manager.can_admit(longer) is Admission.NOW


@pytest.mark.parametrize("width", [4, 8, 16])
def test_a_sequence_that_ends_with_a_chunk_is_found(width: int) -> None:
    """The query after it reads nothing of the group."""
    manager = hybrid(groups=[FullAttention(), ChunkedAttention(width), RecurrentState()])
    serve_to_its_end(manager, list(range(width)))
    assert manager.match(range(width + 1)).num_cached_tokens == width


def test_a_tail_is_taken_over_where_a_whole_block_would_be_copied() -> None:
    manager = hybrid(groups=[FullAttention(), SlidingWindow(8)], min_partial_tokens=1)
    serve_to_its_end(manager, [1, 1, 1, 1, 2, 2])
    beside = manager.admit([1, 1, 1, 1, 2, 2, 2, 2, 9], max_cached_tokens=0)
    step(manager, beside, 9)
    handle = manager.admit([1, 1, 1, 1, 2, 2, 7])
    assert manager.sequence(handle).num_cached_tokens == 6
    assert not len(manager.take_copies().sources)
    manager.check_invariants()
