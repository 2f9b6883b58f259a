"""Where forwards of models with states stop, and the states that are cached there."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    FullAttention,
    Priority,
    RecurrentState,
    SequenceStateError,
    StepError,
)
from tests.unit.hybrid import PROMPT, STATE, hybrid, step


def test_stops_are_where_a_state_is_worth_keeping() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    assert manager.stops(handle) == manager.sequence(handle).stops == (8,)
    step(manager, handle, 8)
    assert manager.stops(handle) == ()
    step(manager, handle, 11)
    manager.free(handle)
    parts = manager.admit([*PROMPT[:8], 50, 51, 52, 53, 54, 55])
    assert manager.sequence(parts).num_cached_tokens == 8
    assert manager.stops(parts) == (12,)


def test_no_stop_is_behind_the_tokens_of_a_truncated_sequence() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    manager.truncate(handle, 5)
    assert manager.stops(handle) == ()
    manager.append(handle, [60, 61, 62])
    assert manager.stops(handle) == (8,)


def test_a_long_prompt_stops_halfway() -> None:
    groups = [FullAttention(), RecurrentState()]
    manager = hybrid(4096, groups=groups, halfway_stop_tokens=40)
    prompt = list(range(45))
    assert manager.match(prompt).stops == (20, 44)
    assert manager.stops(manager.admit(prompt)) == (20, 44)
    assert manager.match(range(40)).stops == (36,)
    by_default = hybrid(4096, groups=groups)
    assert by_default.match(range(8192)).stops == (8188,)
    assert by_default.match(range(8193)).stops == (4096, 8192)


@pytest.mark.parametrize(
    ("before_end", "stops"),
    [(None, (8,)), (0, (8, 11)), (1, (8, 10)), (3, (8,)), (4, (7, 8)), (11, (8,))],
)
def test_a_prompt_stops_where_the_next_turn_parts_from_it(
    before_end: int | None, stops: tuple[int, ...]
) -> None:
    manager = hybrid(min_partial_tokens=2, prompt_end_stop=before_end)
    assert manager.match(PROMPT).stops == stops
    assert manager.stops(manager.admit(PROMPT)) == stops
    few = hybrid(min_partial_tokens=4, prompt_end_stop=before_end)
    assert few.match(PROMPT).stops == (8,)  # no state within a block


def test_with_a_margin_stops_leave_room_for_what_a_hit_needs_behind_it() -> None:
    manager = hybrid(stop_margin_tokens=4)
    assert manager.match(PROMPT).stops == (4,)
    assert manager.match(range(12)).stops == (8,)
    assert manager.match(range(3)).stops == ()
    handle = manager.admit(range(17))
    assert manager.stops(handle) == (12,)
    for stop in (12, 17):
        step(manager, handle, stop)
    manager.free(handle)
    parts = [*range(8), *range(50, 59)]
    assert manager.match(parts).num_shared_tokens == 8
    assert manager.match(parts).stops == manager.stops(manager.admit(parts)) == (4, 12)


def test_with_a_margin_all_of_a_prompt_may_be_shared() -> None:
    manager = hybrid(stop_margin_tokens=4)
    handle = manager.admit(range(17))
    for stop in (12, 17):
        step(manager, handle, stop)
    found = manager.match(range(16))
    assert (found.num_cached_tokens, found.num_shared_tokens, found.stops) == (12, 16, ())
    assert manager.match(range(15)).num_shared_tokens == 12
    assert sum(each.num_tokens for each in manager.explain(range(16)).misses) == 4
    parts = hybrid(stop_margin_tokens=1, min_partial_tokens=1)
    handle = parts.admit(range(21))
    for stop in (20, 21):
        step(parts, handle, stop)
    assert parts.match(range(17)).num_shared_tokens == 17
    assert parts.match(range(17), max_cached_tokens=12).num_shared_tokens == 17


def test_a_margin_may_put_a_stop_within_a_block() -> None:
    manager = hybrid(min_partial_tokens=2, prompt_end_stop=0, stop_margin_tokens=1)
    assert manager.match(PROMPT).stops == (8, 10)
    handle = manager.admit(PROMPT)
    for stop in (8, 10, 11):
        step(manager, handle, stop)
    assert manager.match([*PROMPT[:7], 50, 51, 52]).stops == (6, 8)
    assert manager.match([*PROMPT[:6], 50, 51, 52]).stops == (4, 8)  # one token is too few


def turns(manager: BlockManager, *, template: int, answer: int, count: int) -> list[int]:
    """Tokens found in a conversation whose prompts repeat no thoughts.

    A turn asks 13 tokens more, after which the template adds some for this answer only.
    """
    found, said = [], 0
    text: list[int] = []
    for _ in range(count):
        text += range(1000 + said, 1013 + said)
        prompt = [*text, *range(500, 500 + template)]
        handle = manager.admit(prompt)
        found.append(manager.sequence(handle).num_computed_tokens)
        for stop in (*manager.stops(handle), len(prompt)):
            step(manager, handle, stop)
        for token in range(20):  # thoughts and the answer, one token a step
            manager.append(handle, [2000 + said + token])
            step(manager, handle, len(prompt) + token + 1)
        manager.free(handle)
        text += range(2020 + said - answer, 2020 + said)
        said += 100
    return found


@pytest.mark.parametrize("template", [0, 2])
def test_the_next_turn_finds_the_prompt_if_it_repeats_no_thoughts(template: int) -> None:
    groups = [FullAttention(), RecurrentState()]
    options: dict[str, Any] = {"block_size": 32, "groups": groups, "min_partial_tokens": 1}
    asked = [13 + 18 * turn for turn in range(6)]  # 13 tokens of each turn, 5 of each answer
    best = [0, *asked[:-1]]
    manager = hybrid(200, **options, prompt_end_stop=template)
    assert turns(manager, template=template, answer=5, count=6) == best
    # Without the stop, the state of a turn is found one turn later, if at all.
    without = turns(hybrid(200, **options), template=template, answer=5, count=6)
    assert all(found < most for found, most in zip(without[1:], best[1:], strict=True))


def after_one_turn(num_blocks: int) -> BlockManager:
    """A manager with the states after 8 and 9 tokens of a prompt, and after 17 with the answer."""
    groups = [FullAttention(), RecurrentState()]
    manager = hybrid(num_blocks, groups=groups, min_partial_tokens=1, prompt_end_stop=0)
    handle = manager.admit(range(9))
    for stop in (8, 9):
        step(manager, handle, stop)
    manager.append(handle, range(9, 17))
    step(manager, handle, 17)
    manager.free(handle)
    assert [found(manager, length) for length in (9, 17)] == [9, 17]
    return manager


def found(manager: BlockManager, length: int) -> int:
    """Tokens found by a prompt that diverges from the turn after so many tokens."""
    return manager.match([*range(length), 99]).num_cached_tokens


@pytest.mark.parametrize("commits", [True, False])
def test_decode_caches_no_state_inside_a_block(commits: bool) -> None:
    manager = hybrid(min_partial_tokens=1, prompt_end_stop=0)
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    manager.copies_applied(manager.take_copies().ticket)
    if commits:
        manager.commit(handle, 11)
        manager.copies_applied(manager.take_copies().ticket)
    manager.decode([handle], [50])
    manager.copies_applied(manager.take_copies().ticket)
    assert found(manager, 11) == (11 if commits else 8)


def test_the_state_at_the_end_of_a_prompt_is_evicted_first() -> None:
    manager = after_one_turn(18)
    assert manager.stats().free_blocks == 8
    manager.admit(range(50, 80))  # takes 9 blocks
    assert [found(manager, length) for length in (9, 17)] == [8, 17]


def test_the_state_at_the_end_of_a_prompt_evicts_nothing() -> None:
    manager = after_one_turn(17)
    handle = manager.admit(range(50, 73))
    assert manager.stats().free_blocks == 0
    step(manager, handle, 23)
    assert [found(manager, length) for length in (9, 17)] == [9, 17]
    assert manager.match([*range(50, 73), 99]).num_cached_tokens == 0


@pytest.mark.parametrize("before_end", [None, 0])
def test_ends_of_prompts_take_no_look_up_from_ends_of_sequences(before_end: int | None) -> None:
    """A look-up sees 128 tails that continue one block: here two of each conversation."""
    options: dict[str, Any] = {
        "groups": [FullAttention(), RecurrentState()],
        "block_size": 16,
        "debug": 0,
    }
    manager = hybrid(2048, **options, min_partial_tokens=1, prompt_end_stop=before_end)
    for first in range(100, 1100, 10):
        handle = manager.admit(range(first, first + 3))
        step(manager, handle, 3)
        manager.append(handle, range(first + 3, first + 6))
        step(manager, handle, 6)
        manager.free(handle)
    matches = [manager.match(range(first, first + 9)) for first in range(100, 1100, 10)]
    assert [match.num_cached_tokens for match in matches] == [6] * 100
    manager.check_invariants()


def test_the_end_of_a_prompt_is_not_cached_if_look_ups_would_no_longer_see_another_end() -> None:
    options: dict[str, Any] = {"groups": [FullAttention(), RecurrentState()], "block_size": 16}
    manager = hybrid(2048, **options, debug=0, min_partial_tokens=1, prompt_end_stop=0)
    for first in range(1000, 1000 + 128 * 10, 10):
        handle = manager.admit(range(first, first + 3))
        step(manager, handle, 3)
        manager.free(handle)
    assert manager.match(range(1000, 1009)).num_cached_tokens == 3
    step(manager, manager.admit(range(3)), 3)
    assert manager.match(range(1000, 1009)).num_cached_tokens == 3
    assert found(manager, 3) == 0


def test_the_first_turn_that_continues_a_prompt_takes_its_end_over_without_a_copy() -> None:
    manager = after_one_turn(24)
    handle = manager.admit([*range(9), 99])
    assert manager.sequence(handle).num_cached_tokens == 9
    assert len(manager.take_copies()) == 0
    assert found(manager, 9) == 8


def test_the_end_of_a_sequence_that_said_nothing_is_more_than_passed() -> None:
    manager = after_one_turn(24)
    handle = manager.admit(range(30, 39))
    for stop in (8, 9):
        step(manager, handle, stop)
    manager.free(handle)
    free = manager.stats().free_blocks
    manager.admit(range(50, 50 + 4 * (free + 2)))  # takes three blocks more
    assert manager.match([*range(30, 39), 99]).num_cached_tokens == 9
    assert (found(manager, 9), found(manager, 17)) == (8, 8)


def test_the_end_of_a_prompt_that_is_retained_is_more_than_passed() -> None:
    groups = [FullAttention(), RecurrentState()]
    options: dict[str, Any] = {"groups": groups, "min_partial_tokens": 1, "retention": True}
    manager = hybrid(18, **options, prompt_end_stop=0)
    handle = manager.admit(range(9))
    manager.retain(handle, 0, 9, priority=Priority.HIGH)
    for stop in (8, 9):
        step(manager, handle, stop)
    manager.append(handle, range(9, 17))
    step(manager, handle, 17)
    manager.free(handle)
    manager.admit(range(50, 50 + 4 * manager.stats().free_blocks))  # takes one block more
    assert found(manager, 9) == 9


def test_a_sequence_that_resumes_still_stops_at_the_end_of_its_prompt_only() -> None:
    manager = hybrid(min_partial_tokens=1, prompt_end_stop=2)
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    manager.preempt(handle)
    assert manager.stops(handle) == ()
    manager.resume(handle)
    assert manager.stops(handle) == (9,)
    for stop in (9, 11):
        step(manager, handle, stop)
    manager.append(handle, [50, 51, 52, 53])
    step(manager, handle, 15)
    manager.preempt(handle)
    manager.resume(handle)
    assert 13 not in manager.stops(handle)


def test_a_match_names_the_stops_of_its_admission() -> None:
    manager = hybrid(min_partial_tokens=2)
    assert manager.match(PROMPT).stops == (8,)
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    step(manager, handle, 11)
    manager.free(handle)
    parts = [*PROMPT[:7], *range(50, 60)]
    found = manager.match(parts)
    assert (found.num_cached_tokens, found.stops) == (0, (7, 16))
    assert manager.stops(manager.admit(parts, match=found, num_slots=7)) == found.stops
    assert manager.match([*PROMPT, 60]).stops == ()  # the tail of the first one
    assert BlockManager(8, 4).match(PROMPT).stops == ()


def test_a_state_is_cached_where_nothing_stops_if_a_block_is_free() -> None:
    manager = hybrid()
    handle = manager.admit(range(30))
    assert manager.stops(handle) == (28,)
    step(manager, handle, 12)
    before = manager.group_table(STATE)[manager.row(handle), 0]
    assert manager.cache_state(handle)
    assert manager.group_table(STATE)[manager.row(handle), 0] != before
    assert not manager.cache_state(handle)  # it is cached
    assert manager.match(range(20)).num_cached_tokens == 0  # the copy has yet to run
    step(manager, handle, 14)
    assert manager.match(range(20)).num_cached_tokens == 12
    assert not manager.cache_state(handle)  # inside a block
    manager.free(handle)
    for _ in range(2):  # it goes before what a stop has kept, and is not worth an eviction
        handle = manager.admit(range(100, 160))
        step(manager, handle, 60)
        manager.free(handle)
    assert manager.match(range(20)).num_cached_tokens == 0


def test_a_state_that_is_at_no_stop_evicts_nothing() -> None:
    manager = BlockManager(
        10, 4, null_block=True, debug=2, groups=[FullAttention(), RecurrentState()]
    )
    first = manager.admit(range(9))
    step(manager, first, 8)
    step(manager, first, 9)
    manager.free(first)
    second = manager.admit(range(50, 62))
    step(manager, second, 12)
    assert manager.stats().free_blocks == 2
    third = manager.admit([90])
    assert manager.stats().free_blocks == 0
    assert not manager.cache_state(second)
    manager.free(third)
    assert manager.match(range(9)).num_cached_tokens == 8
    assert manager.cache_state(second)


def test_a_state_that_a_forward_may_have_moved_is_not_cached() -> None:
    manager = hybrid()
    handle = manager.admit(PROMPT)
    manager.copies_applied(manager.take_copies().ticket)
    with pytest.raises(StepError, match="cannot cache the state of sequence"):
        manager.cache_state(handle)
    manager.commit(handle, 8)
    manager.preempt(handle)
    with pytest.raises(SequenceStateError):
        manager.cache_state(handle)
    alone = BlockManager(8, 4)
    handle = alone.admit(PROMPT)
    alone.commit(handle, 8)
    assert not alone.cache_state(handle)


@pytest.mark.parametrize("shared", [8, 10])
@pytest.mark.parametrize("limit", ["max_cached_tokens", "match"])
def test_a_limit_of_what_is_taken_does_not_hide_where_prompts_part(limit: str, shared: int) -> None:
    manager = hybrid(groups=[FullAttention(), RecurrentState()], min_partial_tokens=1)
    first = manager.admit([*range(shared), *[50] * 10])
    step(manager, first, shared + 10)
    manager.free(first)
    prompt = [*range(shared), *[51] * 10]
    found = manager.match(prompt)
    assert found.num_cached_tokens == 0
    options: dict[str, Any] = {"match": found, "max_cached_tokens": 0}
    handle = manager.admit(prompt, **{limit: options[limit]})
    assert shared in manager.stops(handle)


def test_a_state_is_found_after_its_sequence_went_back_to_it() -> None:
    """The copy that it goes back with is not the one with which the state was kept."""
    manager = hybrid(groups=[FullAttention(), RecurrentState()])
    handle = manager.admit(PROMPT)
    step(manager, handle, 8)
    step(manager, handle, 11)
    assert manager.truncate(handle, 8) == 8
    assert manager.match(PROMPT).num_cached_tokens == 8


@pytest.mark.parametrize("computed", [0, 8])
def test_prompts_part_where_tokens_differ_whether_or_not_they_are_written(computed: int) -> None:
    manager = hybrid(
        groups=[FullAttention(), RecurrentState()], min_partial_tokens=2, early_commit=True
    )
    first = manager.admit([0, 1, 0, 1, 0, 1, 0, 0, 5])
    manager.commit(first, 8)
    if computed:
        manager.copies_applied(manager.take_copies().ticket)
    second = manager.admit([0, 1, 0, 1, 0, 1, 0, 1, 1])
    assert manager.stops(second) == (7, 8)
