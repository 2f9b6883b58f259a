"""Where forwards of models with states stop, and the states that are cached there."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import BlockManager, FullAttention, RecurrentState, SequenceStateError, StepError
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
