"""Priorities, pins, touches and hints: which blocks are kept, and the order of eviction."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    ManagerConfig,
    NeverFitsError,
    OutOfBlocksError,
    Pin,
    PinBudgetError,
    Priority,
    SequenceStateError,
    UnknownPinError,
    UnknownSequenceError,
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


def test_without_a_word_the_least_recently_used_goes_first(manager: BlockManager) -> None:
    for tokens in (A, B, C):
        serve(manager, tokens)
    assert survivors(manager, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("priority", "left"),
    [
        (Priority.LOW, [2, 0, 1]),
        (Priority.NORMAL, [0, 1, 2]),
        (Priority.EXPECTED, [0, 2, 1]),
        (Priority.HIGH, [0, 2, 1]),
    ],
)
def test_a_retained_prefix_goes_in_the_order_of_its_priority(
    manager: BlockManager, priority: Priority, left: list[int]
) -> None:
    for tokens in (A, B, C):
        serve(manager, tokens)
    if priority is Priority.LOW:
        assert manager.retain_prefix(B, priority=priority) == 2
        assert survivors(manager, 3) == [1, 0, 2]
    else:
        assert manager.retain_prefix(B, priority=priority) == 2
        assert survivors(manager, 3) == left


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


def test_the_last_word_on_a_block_holds(manager: BlockManager) -> None:
    serve(manager, A)
    manager.retain_prefix(A, priority=Priority.HIGH)
    manager.retain_prefix(A, priority=Priority.LOW)
    assert manager.stats().low_priority_blocks == 2
    manager.retain_prefix(A, priority=None)
    stats = manager.stats()
    assert (stats.low_priority_blocks, stats.high_priority_blocks) == (0, 0)


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


@pytest.mark.parametrize(
    ("own", "of_the_twin", "until", "after"),
    [
        ((Priority.HIGH, 2), (Priority.LOW, None), 1, Priority.HIGH),
        ((Priority.HIGH, 2), (Priority.LOW, None), 2, Priority.NORMAL),
        ((Priority.HIGH, None), (Priority.HIGH, 1), 1, Priority.HIGH),
        ((Priority.HIGH, 1), (Priority.HIGH, 3), 2, Priority.HIGH),
        ((Priority.LOW, None), (Priority.HIGH, 3), 2, Priority.HIGH),
    ],
)
def test_of_two_twins_the_higher_or_longer_retention_holds(
    make_manager: MakeManager, own: Any, of_the_twin: Any, until: float, after: Priority
) -> None:
    manager = make_manager(8, 4, retention=True)
    handles = [manager.admit([1] * 5) for _ in range(2)]
    for handle, (priority, ttl) in zip(handles, (own, of_the_twin), strict=True):
        manager.retain(handle, 0, 4, priority=priority, ttl=ttl)
    for handle in handles:
        manager.commit(handle, 4)
    manager.set_time(until)
    [block] = manager.match([1] * 5).block_ids.tolist()
    assert manager.blocks().priority[block] == after


@pytest.mark.parametrize("tokens", [[1] * 9, [2] * 9], ids=["cached", "not cached"])
def test_nothing_is_retained_or_pinned_without_the_option(
    make_manager: MakeManager, tokens: list[int]
) -> None:
    manager = make_manager(8, 4)
    serve(manager, [1] * 8)
    calls: list[Callable[[], object]] = [
        lambda: manager.retain_prefix(tokens, priority=Priority.HIGH),
        lambda: manager.retain_prefix(tokens, priority=None),
        lambda: manager.pin(tokens),
        lambda: manager.unpin(1),
        lambda: manager.pinned(1),
        lambda: manager.set_time(1),
        lambda: manager.time,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="retention"):
            call()


def test_a_retention_holds_until_its_time(manager: BlockManager) -> None:
    manager.set_time(100)
    serve(manager, A)
    manager.retain_prefix(A, priority=Priority.HIGH, ttl=2)
    serve(manager, B)
    serve(manager, C)
    manager.set_time(101.9)
    assert survivors(manager, 3) == [2, 0, 1]


def test_an_expected_conversation_outlasts_unknown_ones(manager: BlockManager) -> None:
    serve(manager, A, expect_reuse=True)
    serve(manager, B)
    serve(manager, C)
    assert survivors(manager, 4) == [2, 0, 0]


def test_a_conversation_that_ends_goes_before_older_ones(manager: BlockManager) -> None:
    serve(manager, A)
    serve(manager, B)
    serve(manager, C, expect_reuse=False)
    assert survivors(manager, 2) == [2, 2, 0]


def test_the_next_turn_uses_up_what_was_expected(manager: BlockManager) -> None:
    serve(manager, A, expect_reuse=True)
    assert manager.stats().expected_blocks == 2
    serve(manager, [*A, 5])
    assert manager.stats().expected_blocks == 0


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


def test_what_another_sequence_still_uses_is_not_given_up(manager: BlockManager) -> None:
    handle = manager.admit([*A, 5])
    manager.commit(handle, 8)
    [fork] = manager.fork(handle)
    manager.free(fork, expect_reuse=False)
    assert manager.stats().low_priority_blocks == 0


def test_pinned_blocks_go_last_and_are_counted_once(manager: BlockManager) -> None:
    serve(manager, [*A, *B])
    serve(manager, C)
    first = manager.pin(A)
    second = manager.pin([*A, 2, 2, 2, 2])
    assert manager.stats().pinned_blocks == 3
    assert (manager.pinned(first), manager.pinned(second)) == (Pin(2, 2), Pin(3, 3))
    manager.unpin(first)
    assert manager.stats().pinned_blocks == 3
    need(manager, 3)
    assert cached(manager, [*A, *B]) == 3
    manager.unpin(second)
    assert manager.stats().pinned_blocks == 0
    assert cached(manager, [*A, *B]) == 3


def test_running_work_gets_pinned_blocks_as_the_last_resort(manager: BlockManager) -> None:
    serve(manager, A)
    serve(manager, B)
    pins = [manager.pin(A), manager.pin(B)]
    assert manager.num_available == 6
    need(manager, 5)
    assert [manager.pinned(pin) for pin in pins] == [Pin(2, 0), Pin(2, 1)]
    assert manager.stats().evicted_pinned_blocks == 3
    for pin in pins:
        manager.unpin(pin)


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


def test_a_pin_covers_what_is_cached_when_it_is_made(manager: BlockManager) -> None:
    pin = manager.pin(A)
    assert manager.pinned(pin) == Pin(0, 0)
    serve(manager, A)
    assert manager.stats().pinned_blocks == 0
    again = manager.pin(A)
    assert manager.pinned(again) == Pin(2, 2)


def test_pins_outlive_forks_truncation_and_the_sequence(manager: BlockManager) -> None:
    handle = manager.admit([*A, 5])
    manager.commit(handle, 8)
    pin = manager.pin(A)
    [fork] = manager.fork(handle)
    manager.truncate(fork, 2)
    manager.append(fork, [7, 7])
    manager.free(handle)
    manager.free(fork)
    assert manager.pinned(pin) == Pin(2, 2)


def test_what_a_waiting_request_touches_goes_last(make_manager: MakeManager) -> None:
    for retention in (False, True):
        manager = make_manager(6, retention=retention)
        for tokens in (A, B, C):
            serve(manager, tokens)
        before = manager.stats()
        assert manager.touch([*A, 0]) == 2
        after = manager.stats()
        assert after.query_tokens == before.query_tokens
        assert after.touched_blocks == 2
        assert survivors(manager, 4) == [2, 0, 0]


def test_touching_leaves_blocks_in_use_alone(manager: BlockManager) -> None:
    handle = manager.admit([*A, 5])
    manager.commit(handle, 8)
    assert manager.touch([*A, 5]) == 0
    assert manager.touch(B) == 0


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


def test_merged_blocks_keep_the_higher_retention(make_manager: MakeManager) -> None:
    for dedup in ("remap", "append_only"):
        manager = make_manager(6, retention=True, dedup=dedup)
        first, second = manager.admit(A), manager.admit(A)
        manager.commit(first, 8)
        manager.retain(second, 0, 8, priority=Priority.HIGH)
        manager.retain(first, 0, 8, priority=Priority.EXPECTED)
        manager.commit(second, 8)
        assert manager.stats().high_priority_blocks == 2


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


def wrong_values(manager: BlockManager) -> dict[str, tuple[type[Exception], str, Any]]:
    handle = manager.admit([*A, 1])
    high = Priority.HIGH
    return {
        "empty range": (
            ValueError,
            r"start and stop must satisfy 0 <= start < stop <= 9 .*got 3 and 3",
            lambda: manager.retain(handle, 3, 3, priority=high),
        ),
        "range past the end": (
            ValueError,
            r"got 0 and 10",
            lambda: manager.retain(handle, 0, 10, priority=high),
        ),
        "negative start": (
            ValueError,
            r"got -1 and 2",
            lambda: manager.retain(handle, -1, 2, priority=high),
        ),
        "pinned by retain": (
            ValueError,
            r"priority must be at most Priority.HIGH",
            lambda: manager.retain_prefix(A, priority=Priority.PINNED),
        ),
        "priority as a number": (
            TypeError,
            r"priority must be a Priority or None, got 3",
            lambda: manager.retain_prefix(A, priority=3),  # type: ignore[arg-type]
        ),
        "no time to live": (
            ValueError,
            r"ttl must be above 0 and finite, got 0",
            lambda: manager.retain_prefix(A, priority=high, ttl=0),
        ),
        "endless time to live": (
            ValueError,
            r"ttl must be above 0 and finite, got inf",
            lambda: manager.retain(handle, 0, 1, priority=high, ttl=float("inf")),
        ),
        "time to live of nothing": (
            ValueError,
            r"ttl must be None where priority is None, got 1",
            lambda: manager.retain_prefix(A, priority=None, ttl=1),
        ),
        "time to live as text": (
            TypeError,
            r"ttl must be a number, got '1'",
            lambda: manager.retain_prefix(A, priority=high, ttl="1"),  # type: ignore[arg-type]
        ),
        "no tokens": (ValueError, r"tokens must not be empty", lambda: manager.pin([])),
        "longer than a row": (NeverFitsError, r"take 7 blocks", lambda: manager.pin([1] * 25)),
        "touch longer than a row": (NeverFitsError, r"take 7", lambda: manager.touch([1] * 25)),
        "time going back": (
            ValueError,
            r"seconds must be finite and at least 5",
            lambda: manager.set_time(4.5),
        ),
        "time that is none": (
            ValueError,
            r"seconds must be finite",
            lambda: manager.set_time(float("nan")),
        ),
        "time beyond floats": (
            ValueError,
            r"seconds must be finite",
            lambda: manager.set_time(10**400),
        ),
        "time as text": (
            TypeError,
            r"seconds must be a number",
            lambda: manager.set_time("5"),  # type: ignore[arg-type]
        ),
        "unknown pin": (UnknownPinError, r"pin 7 is not held", lambda: manager.unpin(7)),
        "no pin at all": (UnknownPinError, r"pin 0 is not held", lambda: manager.pinned(0)),
        "a hint that is no bool": (
            TypeError,
            r"expect_reuse must be a bool or None, got 1",
            lambda: manager.free(handle, expect_reuse=1),  # type: ignore[arg-type]
        ),
        "a dead handle": (
            UnknownSequenceError,
            r"names no live sequence",
            lambda: manager.retain(handle + 1, 0, 1, priority=high),
        ),
        "a dead handle freed": (
            UnknownSequenceError,
            r"names no live sequence",
            lambda: manager.free(handle + 1, expect_reuse=True),
        ),
    }


WRONG = sorted(wrong_values(BlockManager(6, 4, retention=True)))


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named_and_changes_nothing(manager: BlockManager, case: str) -> None:
    manager.set_time(5)
    error, match, call = wrong_values(manager)[case]
    with refused(manager, error, match):
        call()


def test_a_preempted_sequence_holds_nothing_to_retain(manager: BlockManager) -> None:
    handle = manager.admit(A)
    manager.preempt(handle)
    with refused(manager, SequenceStateError, "is preempted"):
        manager.retain(handle, 0, 1, priority=Priority.HIGH)


def test_pinning_past_the_budget_changes_nothing(manager: BlockManager) -> None:
    serve(manager, [*A, *B])
    manager.pin(A)
    serve(manager, C)
    manager.pin(C)
    with refused(
        manager, PinBudgetError, r"need 2 more of the pin budget, 0 of \d+ left"
    ) as caught:
        manager.pin([*A, *B])
    error = caught.value
    assert (error.needed, error.available, error.budget) == (2, 0, 4)


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


@pytest.mark.parametrize(
    "call",
    [
        lambda m, h: m.retain(h, 0, 1, priority=Priority.HIGH),
        lambda m, h: m.retain_prefix(A, priority=Priority.HIGH),
        lambda m, h: m.pin(A),
        lambda m, h: m.unpin(1),
        lambda m, h: m.pinned(1),
        lambda m, h: m.set_time(1),
        lambda m, h: m.time,
        lambda m, h: m.free(h, expect_reuse=True),
    ],
    ids=["retain", "retain_prefix", "pin", "unpin", "pinned", "set_time", "time", "free"],
)
def test_without_retention_its_calls_are_refused(make_manager: MakeManager, call: Any) -> None:
    manager = make_manager()
    handle = manager.admit(A)
    with refused(manager, ValueError, "needs a manager with retention=True"):
        call(manager, handle)


def test_a_pin_budget_needs_retention() -> None:
    with pytest.raises(ValueError, match="max_pinned_blocks must be 0 without retention, got 2"):
        ManagerConfig(num_blocks=4, block_size=2, max_pinned_blocks=2)
    with pytest.raises(ValueError, match=r"max_pinned_blocks must be in \[0, 4\], got 5"):
        ManagerConfig(num_blocks=4, block_size=2, retention=True, max_pinned_blocks=5)
    with pytest.raises(TypeError, match="retention must be a bool, got 1"):
        ManagerConfig(num_blocks=4, block_size=2, retention=1)  # type: ignore[arg-type]


def test_shortage_is_the_same_with_everything_pinned(manager: BlockManager) -> None:
    serve(manager, A)
    serve(manager, B)
    manager.pin(A)
    manager.pin(B)
    handle = manager.admit([7] * 20)
    with refused(manager, OutOfBlocksError, "need 2 blocks, 1 available"):
        manager.admit([8] * 8)
    manager.free(handle)
