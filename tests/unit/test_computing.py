"""What ``match`` reports about tokens that a running sequence has yet to commit."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager
from tests.unit.engine import cache

PROMPT = list(range(1, 18))


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(64, 4, max_seqs=8, debug=2)


def computing(manager: BlockManager, tokens: list[int] = PROMPT, **key: object) -> int:
    return manager.match(tokens, **key).num_computing_tokens  # type: ignore[arg-type]


def test_a_prompt_that_is_being_computed_can_be_waited_for(manager: BlockManager) -> None:
    assert computing(manager) == 0
    handle = manager.admit(PROMPT)
    assert computing(manager) == 16
    assert computing(manager, PROMPT[:16]) == 12  # the last token must be left to compute
    assert computing(manager, PROMPT[:9] + [0] * 8) == 8
    assert computing(manager, [0, *PROMPT]) == 0
    manager.commit(handle, 9)
    found = manager.match(PROMPT)
    assert (found.num_cached_tokens, found.num_computing_tokens) == (8, 8)
    manager.commit(handle, 17)
    found = manager.match(PROMPT)
    assert (found.num_cached_tokens, found.num_computing_tokens) == (16, 0)


def test_of_several_the_one_that_goes_furthest_counts(manager: BlockManager) -> None:
    short, _ = manager.admit(PROMPT[:5]), manager.admit(PROMPT[:13])
    assert computing(manager) == 12
    manager.commit(short, 5)
    found = manager.match(PROMPT)
    assert (found.num_cached_tokens, found.num_computing_tokens) == (4, 8)


def test_tokens_without_slots_count(manager: BlockManager) -> None:
    handle = manager.admit(PROMPT, num_slots=4)
    assert computing(manager) == 16
    manager.reserve(handle, 8)
    manager.commit(handle, 8)
    found = manager.match(PROMPT)
    assert (found.num_cached_tokens, found.num_computing_tokens) == (8, 8)


def test_it_ends_with_the_sequence(manager: BlockManager) -> None:
    handle = manager.admit(PROMPT)
    manager.preempt(handle)
    assert computing(manager) == 0
    manager.resume(handle)
    assert computing(manager) == 16
    manager.free(handle)
    assert computing(manager) == 0


def test_forks_go_on_when_the_first_ends(manager: BlockManager) -> None:
    handle = manager.admit(PROMPT)
    [child] = manager.fork(handle)
    manager.free(handle)
    assert computing(manager) == 16
    manager.free(child)
    assert computing(manager) == 0


def test_tenants_and_extra_keys_are_told_apart(manager: BlockManager) -> None:
    manager.admit(PROMPT, namespace=b"one", extras={1: b"image"})
    assert computing(manager, namespace=b"one", extras={1: b"image"}) == 16
    assert computing(manager, namespace=b"one", extras={1: b"other"}) == 4
    assert computing(manager, namespace=b"one") == 4
    assert computing(manager, namespace=b"two", extras={1: b"image"}) == 0


def test_after_a_reset_nothing_is_to_come_of_what_ran(manager: BlockManager) -> None:
    handle = manager.admit(PROMPT)
    manager.reset_prefix_cache()
    assert computing(manager) == 0
    manager.commit(handle, 17)
    assert manager.match(PROMPT).num_cached_tokens == 0


def test_no_more_than_may_be_taken_from_the_cache(manager: BlockManager) -> None:
    manager.admit(PROMPT)
    assert computing(manager, max_cached_tokens=7) == 4
    assert computing(manager, max_cached_tokens=8) == 8


def test_part_of_a_block_is_not_counted_twice() -> None:
    manager = BlockManager(64, 4, max_seqs=8, min_partial_tokens=1, debug=2)
    cache(manager, [*PROMPT[:6], 0, 0, 0])
    manager.admit(PROMPT)
    found = manager.match(PROMPT)
    assert (found.num_cached_tokens, found.num_partial_tokens) == (6, 2)
    assert found.num_computing_tokens == 10


def test_without_a_prefix_cache_there_is_nothing_to_wait_for() -> None:
    manager = BlockManager(64, 4, max_seqs=8, prefix_caching=False)
    manager.admit(PROMPT)
    assert computing(manager) == 0


def test_a_scheduler_that_waits_computes_each_token_once(manager: BlockManager) -> None:
    """As in the docs: leave a request in the queue while another computes its prefix."""
    waiting, running, computed = [PROMPT, PROMPT, [*PROMPT[:12], 0, 0]], [], 0
    while waiting or running:
        for prompt in waiting[:]:
            if not computing(manager, prompt):
                waiting.remove(prompt)
                running.append(manager.admit(prompt))
        for handle in running:
            view = manager.sequence(handle)
            computed += view.num_tokens - view.num_computed_tokens
            manager.commit(handle, view.num_tokens)
            manager.free(handle)
        running.clear()
    assert computed == 17 + 1 + 2
