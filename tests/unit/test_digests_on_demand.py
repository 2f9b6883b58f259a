"""Blocks that get their digests only when somebody needs them are found and named as before."""

from __future__ import annotations

import random

import pytest

from blockmgr import BlockManager, Priority

SIZE = 4
NUM_BLOCKS = 4_000


def manager_with(prompts: list[list[int]], **options: object) -> BlockManager:
    manager = BlockManager(NUM_BLOCKS, SIZE, retention=True, max_pinned_blocks=2_000, **options)
    for prompt in prompts:
        cache(manager, prompt)
    return manager


def cache(manager: BlockManager, prompt: list[int], **identity: object) -> None:
    handle = manager.admit(prompt, **identity)
    manager.commit(handle, len(prompt))
    manager.free(handle)


def tree_of_prompts(seed: int) -> list[list[int]]:
    """Prompts that diverge from earlier ones anywhere: blocks with one child, and with many."""
    draw = random.Random(seed)
    prompts: list[list[int]] = [[0]]
    for _ in range(150):
        stem = draw.choice(prompts[: draw.choice((1, 3, len(prompts)))])
        cut = draw.randrange(0, len(stem) + 1)
        prompts.append(stem[:cut] + [draw.randrange(9) for _ in range(draw.randrange(1, 60))])
    return prompts


@pytest.mark.parametrize("seed", range(12))
def test_prompts_are_found_to_the_block_wherever_they_part(seed: int) -> None:
    prompts = tree_of_prompts(seed)
    manager = manager_with(prompts, debug=1)
    at_once = manager_with(prompts, events=True, event_blocks=10_000)
    for prompt in [*prompts, *tree_of_prompts(seed + 1000)]:
        found = manager.match([*prompt, 1]).num_cached_tokens
        assert found == at_once.match([*prompt, 1]).num_cached_tokens
    manager.check_invariants()


@pytest.mark.parametrize("seed", range(6))
def test_every_cached_block_has_its_name_when_it_is_asked_for(seed: int) -> None:
    prompts = tree_of_prompts(seed)
    manager = manager_with(prompts)
    for prompt in prompts:
        digests = manager.block_digests(prompt)
        if not digests:
            continue
        pin = manager.pin_digests(digests[-1:])
        assert pin is not None
        assert (pin.num_cached_blocks, pin.digest) == (len(digests), digests[-1])
        manager.unpin(pin.pin)
    manager.check_invariants()


def test_blocks_that_come_after_the_first_name_have_names_too() -> None:
    manager = manager_with([[1] * 40])
    assert manager.retain_digests([b"\0" * 16], priority=Priority.HIGH) == 0
    cache(manager, [2] * 40)
    digests = manager.block_digests([2] * 40)
    assert manager.retain_digests(digests, priority=Priority.HIGH) == len(digests)


def test_names_reach_through_extra_keys_of_any_length() -> None:
    manager = manager_with([])
    identity = {"extras": {1: b"x" * 1_024, 4: b"y"}, "namespace": b"tenant"}
    for last in range(8):  # so many children that the blocks before them get names
        cache(manager, [3] * 28 + [last] * 4, **identity)
    for last in range(8):
        prompt = [3] * 28 + [last] * 4
        assert manager.match([*prompt, 1], **identity).num_cached_tokens == len(prompt)
        digests = manager.block_digests(prompt, **identity)
        pin = manager.pin_digests(digests[-1:], namespace=b"tenant")
        assert pin is not None
        assert pin.num_cached_blocks == len(digests)
        manager.unpin(pin.pin)
    manager.check_invariants()


def test_evicted_siblings_leave_the_others_findable() -> None:
    manager = BlockManager(12, SIZE)
    for child in range(200):
        prompt = [7] * 8 + [child] * 8
        cache(manager, prompt)
        assert manager.match([*prompt, 1]).num_cached_tokens == len(prompt)
    manager.check_invariants()
