"""Priorities, pins, touches and hints: which blocks are kept, and the order of eviction."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    ManagerConfig,
    PinBudgetError,
    Priority,
    UnknownPinError,
)
from blockmgr.config import EVICTION_POLICIES
from tests.conftest import MakeManager
from tests.unit.snapshot import refused

A, B, C = [1] * 8, [2] * 8, [3] * 8  # two blocks of four tokens each


@pytest.fixture
def manager(make_manager: MakeManager) -> BlockManager:
    return make_manager(6, retention=True, max_pinned_blocks=4)


def serve(manager: BlockManager, tokens: list[int], **hint: Any) -> None:
    """Admit, compute and end one request."""
    handle = manager.admit(tokens)
    manager.commit(handle, len(tokens))
    manager.free(handle, **hint)


def cached(manager: BlockManager, tokens: list[int]) -> int:
    """Leading full blocks of the prompt that are cached."""
    return len(manager.match([*tokens, 0]).block_ids)


def need(manager: BlockManager, num_blocks: int) -> None:
    """Running work that takes this many blocks and caches nothing."""
    manager.free(manager.admit([9], num_slots=num_blocks * manager.config.block_size))


def survivors(manager: BlockManager, num_blocks: int) -> list[int]:
    need(manager, num_blocks)
    return [cached(manager, tokens) for tokens in (A, B, C)]


def test_a_range_of_a_running_sequence_is_kept_once_it_ends(manager: BlockManager) -> None:
    handle = manager.admit([*A, *B, 5])
    assert manager.retain(handle, 3, 5, priority=Priority.HIGH) == 2
    manager.commit(handle, 16)
    manager.free(handle)
    assert manager.blocks().count(3) == 4
    need(manager, 4)
    assert cached(manager, [*A, *B]) == 2


def test_what_is_retained_before_it_is_computed_is_lost_with_its_content(
    manager: BlockManager,
) -> None:
    handle = manager.admit(A)
    manager.retain(handle, 0, 8, priority=Priority.HIGH, ttl=5)
    manager.free(handle)  # nothing was committed
    serve(manager, A)
    assert manager.stats().high_priority_blocks == 0
    manager.set_time(10)
    assert manager.stats().expired_blocks == 0


def test_a_block_stands_no_lower_than_what_continues_it(manager: BlockManager) -> None:
    handle = manager.admit([*A, 7])
    manager.commit(handle, 8)
    manager.retain(handle, 4, 8, priority=Priority.HIGH)
    manager.retain(handle, 0, 4, priority=Priority.LOW)
    manager.free(handle)
    first, second = manager.match([*A, 7]).block_ids.tolist()
    assert manager.blocks().priority[[first, second]].tolist() == [Priority.HIGH, Priority.HIGH]
    manager.retain_prefix(A, priority=None)
    assert manager.blocks().priority[[first, second]].tolist() == [Priority.NORMAL] * 2


def test_an_expired_retention_is_as_if_it_had_never_been(manager: BlockManager) -> None:
    serve(manager, A)
    manager.retain_prefix(A, priority=Priority.HIGH, ttl=2)
    serve(manager, B)
    serve(manager, C)
    assert manager.stats().high_priority_blocks == 2
    manager.set_time(2)
    assert (
        manager.blocks().eviction_order.tolist()
        == manager.blocks().ids(3)[[1, 0, 3, 2, 5, 4]].tolist()
    )
    assert survivors(manager, 3) == [0, 1, 2]
    assert manager.stats().expired_blocks == 2


def test_one_conversation_that_ends_does_not_speak_for_another(manager: BlockManager) -> None:
    serve(manager, [*A, *B], expect_reuse=True)
    serve(manager, [*A, *C], expect_reuse=False)
    blocks = manager.blocks()
    # Only its own blocks are lowered; the other's hint keeps the shared ones.
    assert manager.stats().low_priority_blocks == 2
    shared = manager.match([*A, 0]).block_ids
    assert blocks.priority[shared].tolist() == [Priority.EXPECTED] * 2


def test_what_others_continue_is_not_given_up_with_one_of_them(manager: BlockManager) -> None:
    serve(manager, [*A, *B], expect_reuse=False)
    serve(manager, [*A, *C], expect_reuse=False)
    # The common prefix outlasts the blocks of each.
    assert manager.stats().low_priority_blocks == 4
    shared = manager.match([*A, 0]).block_ids
    assert manager.blocks().priority[shared].tolist() == [Priority.NORMAL] * 2


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_a_pool_full_of_pins_admits_what_one_without_pins_does(eviction: str) -> None:
    plain = BlockManager(6, 4, eviction=eviction)
    pinned = BlockManager(6, 4, eviction=eviction, retention=True, max_pinned_blocks=6)
    for manager in (plain, pinned):
        for tokens in (A, B, C):
            serve(manager, tokens)
    for tokens in (A, B, C):
        pinned.pin(tokens)
    for size in range(1, 8):
        tokens = list(range(50, 50 + 4 * size))
        assert pinned.can_admit(tokens) is plain.can_admit(tokens)
        assert pinned.num_available == plain.num_available
        if size <= 6:
            plain.free(plain.admit(tokens))
            pinned.free(pinned.admit(tokens))
            pinned.check_invariants()


def test_what_a_step_in_flight_may_read_goes_after_what_was_touched_meanwhile(
    make_manager: MakeManager,
) -> None:
    for retention in (False, True):
        manager = make_manager(4, retention=retention, steps_in_flight=1)
        serve(manager, A)
        handle = manager.admit(B)
        manager.commit(handle, len(B))
        ticket = manager.take_copies().ticket
        manager.copies_applied(ticket)
        manager.free(handle)
        assert manager.touch([*A, 0]) == 2
        manager.complete(ticket)
        need(manager, 2)
        assert [cached(manager, tokens) for tokens in (A, B)] == [0, 2]


def test_every_idle_block_of_a_lower_priority_goes_first() -> None:
    for eviction, seed in itertools.product(EVICTION_POLICIES, range(3)):
        manager = BlockManager(12, 1, eviction=eviction, retention=True, max_pinned_blocks=3)
        chains = [[10 * i + seed, 10 * i + 1, 10 * i + 2] for i in range(1, 5)]
        for tokens in chains:
            serve(manager, tokens)
        levels = [Priority.HIGH, Priority.LOW, Priority.EXPECTED]
        for tokens, level in zip(chains, levels, strict=False):
            manager.retain_prefix(tokens, priority=level)
        manager.pin(chains[3])
        running = []
        for _ in range(12):
            before = manager.blocks()
            lowest = before.priority[before.ids(3)].min()
            running.append(manager.admit([1000 + len(running)]))
            manager.check_invariants()
            gone = before.ids(3)[manager.blocks().state[before.ids(3)] != 3]
            assert before.priority[gone].tolist() == [lowest], eviction
        assert manager.stats().evicted_pinned_blocks == 3


# Refusals.


def test_there_are_no_more_pins_than_the_budget(manager: BlockManager) -> None:
    serve(manager, A)
    pins = [manager.pin(A) for _ in range(4)]
    with refused(manager, PinBudgetError, r"need 1 more of the pin budget, 0 of \d+ left"):
        manager.pin(A)
    manager.unpin(pins[1])
    fresh = manager.pin(A)
    assert fresh not in pins
    with refused(manager, UnknownPinError):
        manager.unpin(pins[1])


def test_a_pin_budget_needs_retention() -> None:
    with pytest.raises(ValueError, match="max_pinned_blocks must be 0 without retention, got 2"):
        ManagerConfig(num_blocks=4, block_size=2, max_pinned_blocks=2)
    with pytest.raises(ValueError, match=r"max_pinned_blocks must be in \[0, 4\], got 5"):
        ManagerConfig(num_blocks=4, block_size=2, retention=True, max_pinned_blocks=5)
    with pytest.raises(TypeError, match="retention must be a bool, got 1"):
        ManagerConfig(num_blocks=4, block_size=2, retention=1)  # type: ignore[arg-type]
