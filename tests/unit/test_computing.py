"""What ``match`` reports about tokens that a running sequence has yet to commit."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager

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


def test_it_ends_with_the_sequence(manager: BlockManager) -> None:
    handle = manager.admit(PROMPT)
    manager.preempt(handle)
    assert computing(manager) == 0
    manager.resume(handle)
    assert computing(manager) == 16
    manager.free(handle)
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
