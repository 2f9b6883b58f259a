"""What an admission finds in every group, and what of it fits."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from blockmgr import (
    Admission,
    BlockManager,
    BlockState,
    ChunkedAttention,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    RecurrentState,
    SlidingWindow,
    StaleMatchError,
)
from blockmgr.groups import Group
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


LAYOUTS = (
    [FullAttention(), FullAttention(), ChunkedAttention(16)],
    [FullAttention(), SlidingWindow(3), RecurrentState()],
    [FullAttention(), ChunkedAttention(4), SlidingWindow(8)],
    [RecurrentState(), FullAttention(), RecurrentState()],
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("partial", [0, 1])
def test_a_match_that_still_holds_is_never_out_of_date(layout: list[Group], partial: int) -> None:
    """With a match, an admission is refused for the same reason as without it."""
    rng = random.Random(partial)
    verdicts: Counter[Admission] = Counter()
    for _ in range(60):
        manager = hybrid(
            rng.randint(9, 24), groups=layout, block_size=2, min_partial_tokens=partial
        )
        for _ in range(12):
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 16))]
            slots = rng.choice([None, None, rng.randint(1, len(prompt))])
            match = manager.match(prompt, num_slots=slots)
            verdict = manager.can_admit(prompt, num_slots=slots)
            assert manager.can_admit(prompt, num_slots=slots, match=match) is verdict
            verdicts[verdict] += 1
            try:
                handle = manager.admit(prompt, num_slots=slots, match=match)
            except NeverFitsError:
                assert verdict is Admission.NEVER
            except (OutOfBlocksError, OutOfSequencesError):
                assert verdict is Admission.LATER
            else:
                assert verdict is Admission.NOW
                view = manager.sequence(handle)
                assert view.num_cached_tokens == match.num_cached_tokens
                step(manager, handle, min(view.num_tokens, view.num_slots))
                if rng.random() < 0.6:
                    manager.free(handle)
    assert set(verdicts) == set(Admission)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_match_whose_blocks_are_gone_is_out_of_date(layout: list[Group]) -> None:
    manager = hybrid(60, groups=layout, block_size=2)
    serve_to_its_end(manager, [1] * 9)
    match = manager.match([1] * 9)
    assert match.num_cached_tokens == 8
    manager.reset_prefix_cache()
    for call in (manager.admit, manager.can_admit):
        with pytest.raises(StaleMatchError) as caught:
            call([1] * 9, match=match)
        assert (caught.value.expected, caught.value.found) == (8, 0)


def test_a_prompt_that_never_fits_is_told_the_blocks_of_all_groups() -> None:
    windows = [FullAttention(), SlidingWindow(8), SlidingWindow(8)]
    manager = hybrid(60, groups=windows)
    with pytest.raises(NeverFitsError) as caught:
        manager.admit(range(80))
    assert str(caught.value) == (
        "slots for 80 tokens take 60 blocks in 3 groups of layers (computed in parts it fits, with "
        "num_slots of at most 76); the pool has 59"
    )
    assert manager.can_admit(range(80), num_slots=77) is Admission.NEVER
    assert manager.can_admit(range(80), num_slots=76) is Admission.NOW


@pytest.mark.parametrize("slots", [None, 1])
def test_a_prompt_that_fits_in_no_parts_is_told_its_peak(slots: int | None) -> None:
    groups = [FullAttention(), FullAttention(), ChunkedAttention(16)]
    manager = hybrid(11, groups=groups, block_size=2)
    with pytest.raises(NeverFitsError) as caught:
        manager.admit(range(8), num_slots=slots)
    assert str(caught.value) == (
        "a prompt of 8 tokens takes 12 blocks in 3 groups of layers; the pool has 10"
    )


def test_a_prompt_never_fits_if_its_windows_keep_too_much_for_drafts() -> None:
    """At the ninth token, the two before it may be taken back, so the first chunk is kept."""
    groups = [FullAttention(), ChunkedAttention(8)]
    options = {"groups": groups, "block_size": 8, "debug": 0}
    fits = hybrid(4, **options)
    assert fits.can_admit(range(9), num_slots=1) is Admission.NOW
    manager = hybrid(4, **options, max_rollback_tokens=2)
    assert manager.can_admit(range(9), num_slots=1) is Admission.NEVER
    with pytest.raises(NeverFitsError, match="a prompt of 9 tokens takes 4 blocks in 2 groups"):
        manager.admit(range(9), num_slots=1)


def test_a_prompt_that_no_table_holds_is_told_the_length_of_a_row() -> None:
    manager = hybrid(60, groups=[FullAttention(), SlidingWindow(8)], max_blocks_per_seq=4)
    with pytest.raises(NeverFitsError, match="17 tokens take 5 blocks; a block table row holds 4"):
        manager.admit(range(17))


def test_the_slots_that_a_prompt_is_told_are_the_most_that_fit() -> None:
    rng = random.Random(7)
    told = 0
    for _ in range(300):
        layout = rng.choice(LAYOUTS)
        manager = hybrid(
            rng.randint(8, 30), groups=layout, block_size=2, watermark_blocks=rng.choice([0, 2])
        )
        prompt = list(range(rng.randint(1, 40)))
        try:
            manager.free(manager.admit(prompt))
        except NeverFitsError as error:
            found = re.search(r"num_slots of at most (\d+)", str(error))
            now = [n for n in range(1, len(prompt) + 1) if fits_alone(manager, prompt, n)]
            assert bool(found) is bool(now)
            assert not found or int(found[1]) == max(now)
            told += bool(found)
    assert told > 20


def fits_alone(manager: BlockManager, prompt: list[int], slots: int) -> bool:
    return manager.can_admit(prompt, num_slots=slots) is Admission.NOW
