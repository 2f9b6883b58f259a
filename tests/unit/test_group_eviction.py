"""Which boundaries are evicted, and how many, where several go for one request."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    FullAttention,
    Match,
    Priority,
    SlidingWindow,
)
from blockmgr.config import EVICTION_POLICIES
from tests.specification.boundaries import ModelBoundaries

SIZE = 4
UNITS = 32
PROMPT = list(range(SIZE * UNITS))


def windows(
    free_blocks: int, *, widths: tuple[int, int] = (6, 10), fork_at: int = 0
) -> tuple[BlockManager, int]:
    """``PROMPT`` is cached, computed in chunks that end at units 12, ``fork_at`` and 22.

    The second result is a fork that stays there.
    """
    groups = (FullAttention(), *map(SlidingWindow, widths))
    manager = BlockManager(
        3 * UNITS + free_blocks + 1,
        SIZE,
        max_seqs=4,
        groups=groups,
        null_block=True,
        steps_in_flight=1,
    )
    handle = manager.admit(PROMPT)
    child = -1
    for unit in sorted({12, fork_at, 22, UNITS} - {0}):
        ticket = manager.take_copies().ticket
        manager.copies_applied(ticket)
        manager.commit(handle, SIZE * unit)
        manager.complete(ticket)
        if unit == fork_at:
            [child] = manager.fork(handle)
    manager.free(handle)
    return manager, child


def found(manager: BlockManager, units: int) -> int:
    """The units that a prompt finds which goes on otherwise after so many of ``PROMPT``."""
    return manager.match([*PROMPT[: SIZE * units], 999]).num_cached_tokens // SIZE


def fresh(units: int) -> list[int]:
    return [1000 + i for i in range(SIZE * units)]


@pytest.mark.parametrize("units", range(2, 14))
def test_no_more_boundaries_are_evicted_than_a_request_needs(units: int) -> None:
    manager, _ = windows(3)
    manager.admit(fresh(units))
    # Each boundary that was only passed frees a block of each window at most.
    assert 0 <= manager.stats().free_blocks < 2
    manager.check_invariants()


def test_of_a_path_that_was_committed_in_chunks_the_deepest_boundary_goes_first() -> None:
    manager, _ = windows(0)
    manager.admit(fresh(8))
    # The last boundary stays, and its windows, the last three units.
    kept = [units for units in range(1, UNITS - 3) if found(manager, units) == units]
    assert kept == list(range(1, len(kept) + 1))
    assert 12 < len(kept) < 22
    manager.check_invariants()


@pytest.mark.parametrize("units", range(20, 30))
def test_a_part_that_a_step_reads_is_not_freed_with_those_beside_it(units: int) -> None:
    manager, fork = windows(16, widths=(2, 3), fork_at=units)
    end = manager.truncate(fork, SIZE * (units - 5)) + 3
    manager.append(fork, [999] * 3)
    manager.reserve(fork, end)
    manager.take_copies()  # its forward reads the windows before the three tokens
    manager.commit(fork, end)
    waiting = manager.stats().fenced_blocks
    assert waiting
    manager.admit(fresh(12))
    assert manager.stats().fenced_blocks == waiting
    manager.check_invariants()


@pytest.mark.parametrize("leaves", ["free", "preempt", "truncate", "reparent"])
def test_a_path_is_found_at_its_end_though_others_evicted_that_boundary(leaves: str) -> None:
    """Behind a running sequence, a passed boundary is evicted first, and frees nothing there."""
    manager = BlockManager(
        28, SIZE, max_seqs=4, groups=(FullAttention(), SlidingWindow(8)), null_block=True
    )
    beam = manager.admit([999])
    handle = manager.admit(PROMPT[:17])
    for computed in (16, 17):
        manager.copies_applied(manager.take_copies().ticket)
        manager.commit(handle, computed)
    manager.append(handle, PROMPT[17:21])
    manager.copies_applied(manager.take_copies().ticket)
    manager.commit(handle, 21)
    others = manager.admit(fresh(manager.num_available // 2))
    assert not manager.num_available
    match leaves:
        case "free":
            manager.free(handle)
        case "preempt":
            manager.preempt(handle)
        case "truncate":
            assert manager.truncate(handle, 19) == 19
            manager.free(handle)  # it used these blocks until here
        case "reparent":
            manager.reparent([handle, beam], [1, 1])
    assert found(manager, 5) == 5
    manager.free(others)
    manager.check_invariants()


# Prompts that diverge anywhere.


def prompt_of(number: int, units: int) -> list[int]:
    return [1000 * number + i for i in range(SIZE * units)]


def run_prompt(manager: BlockManager, tokens: list[int], **options: Any) -> int:
    """The units that a prompt found; retained, if a priority is given."""
    handle = manager.admit(tokens)
    units = manager.sequence(handle).num_cached_tokens // SIZE
    if options:
        manager.retain(handle, 0, len(tokens), **options)
    manager.commit(handle, len(tokens))
    manager.free(handle)
    return units


def units_left_of_the_middle(
    *, finds: bool, misses: bool, retained: bool = False, rounds: int = 1
) -> int:
    """What a prompt finds that diverges in the middle of an older one, which others have followed.

    Args:
        finds: A prompt before has continued from a passed boundary.
        misses: One has found less than full attention had, because a passed boundary was gone.
        retained: All have a high priority.
        rounds: How often such an older one has come, and others that have followed it.
    """
    groups = (FullAttention(), SlidingWindow(8))
    manager = BlockManager(110, SIZE, max_seqs=4, groups=groups, null_block=True, retention=True)
    options = {"priority": Priority.HIGH} if retained else {}
    run_prompt(manager, prompt_of(1, 12), **options)
    if finds:
        assert run_prompt(manager, [*prompt_of(1, 6), 5], **options) == 6
    for number in range(2, 8):
        run_prompt(manager, prompt_of(number, 8), **options)
    if misses:
        assert run_prompt(manager, [*prompt_of(1, 9), 6], **options) < 9
    for start in range(20, 20 + 10 * rounds, 10):
        run_prompt(manager, prompt_of(start, 12), **options)
        for number in range(start + 1, start + 5):
            run_prompt(manager, prompt_of(number, 6), **options)
    manager.check_invariants()
    return manager.match([*prompt_of(start, 6), 999]).num_cached_tokens // SIZE


def test_what_is_passed_stays_longer_where_prompts_diverge_anywhere() -> None:
    assert units_left_of_the_middle(finds=True, misses=True) == 6


def test_what_is_passed_goes_first_unless_prompts_find_it_and_miss_it() -> None:
    assert units_left_of_the_middle(finds=False, misses=False) < 6
    assert units_left_of_the_middle(finds=False, misses=True) < 6
    assert units_left_of_the_middle(finds=True, misses=False) < 6


def test_what_is_passed_goes_first_again_when_enough_blocks_have_gone() -> None:
    assert units_left_of_the_middle(finds=True, misses=True, rounds=10) < 6


def test_what_is_retained_goes_after_all_that_is_passed() -> None:
    assert units_left_of_the_middle(finds=True, misses=True, retained=True) < 6


# Turns of conversations: each prompt continues the one before it, and its answer.

ASK, ANSWER, WINDOW, CONVERSATIONS, TURNS = 32, 8, 64, 4, 10


def turn(manager: BlockManager, prompt: list[int], answer: list[int]) -> int:
    """Serves a request in chunks of 64 tokens, then token by token; returns what it found."""

    def computed(number: int) -> None:
        manager.copies_applied(manager.take_copies().ticket)
        manager.commit(handle, number)

    hit = looked_up(manager, prompt)
    handle = manager.admit(prompt, num_slots=max(1, hit.num_cached_tokens), match=hit)
    found = done = manager.sequence(handle).num_cached_tokens
    while done < len(prompt):
        done = min(done + 64, len(prompt))
        manager.reserve(handle, done)
        computed(done)
    for token in answer:
        manager.append(handle, [token])
        done += 1
        computed(done)
    manager.free(handle)
    return found


def looked_up(manager: BlockManager, prompt: list[int]) -> Match:
    """The most that has a margin of cached tokens behind it."""
    hit, margin = manager.match(prompt), manager.config.stop_margin_tokens
    if hit.num_shared_tokens < hit.num_cached_tokens + margin:
        hit = manager.match(prompt, max_cached_tokens=max(0, hit.num_cached_tokens - margin))
    return hit


def text(conversation: int, start: int, stop: int) -> list[int]:
    return [1_000_000 * (conversation + 1) + place for place in range(start, stop)]


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
@pytest.mark.parametrize("room", [1.0, 1.25])
@pytest.mark.parametrize("margin", [0, 1, SIZE])
def test_old_turns_of_a_conversation_keep_no_windows(
    eviction: str, room: float, margin: int
) -> None:
    """All that the next turns read fits 572 blocks: full attention, and each last window.

    With a margin, each window has a block more.
    """
    groups = [FullAttention(), SlidingWindow(WINDOW), SlidingWindow(WINDOW)]
    manager = BlockManager(
        int((572 + (8 if margin else 0)) * room) + 1,
        SIZE,
        null_block=True,
        groups=groups,
        eviction=eviction,
        stop_margin_tokens=margin,
        min_partial_tokens=int(margin == 1),
    )
    found = attainable = 0
    for number in range(TURNS):
        start = number * (ASK + ANSWER)
        for each in range(CONVERSATIONS):
            end = start + ASK
            found += turn(manager, text(each, 0, end), text(each, end, end + ANSWER))
            attainable += max(0, start - -(-margin // SIZE) * SIZE)
    manager.check_invariants()
    assert found >= 0.95 * attainable


def conversation(**options: Any) -> BlockManager:
    """Three turns; the ends of the first two have windows that only passed boundaries need."""
    manager = BlockManager(
        200, SIZE, null_block=True, groups=[FullAttention(), SlidingWindow(16)], **options
    )
    for number in range(3):
        start = 40 * number
        turn(manager, text(0, 0, start + 32), text(0, start + 32, start + 40))
    return manager


def crowded(manager: BlockManager, num_evicted: int = 40) -> None:
    """Takes the blocks of all passed boundaries, and of few others."""
    others = 0
    while manager.stats().evicted_blocks < num_evicted:
        turn(manager, text(100 + others, 0, 60), [])
        others += 1


def at(manager: BlockManager, tokens: int) -> int:
    return looked_up(manager, [*text(0, 0, tokens), 5, 5, 5, 5]).num_cached_tokens


def test_the_end_of_the_last_turn_outlives_those_before_it() -> None:
    manager = conversation()
    assert [at(manager, n) for n in (40, 80, 120)] == [40, 80, 120]
    crowded(manager)
    assert [at(manager, n) for n in (40, 80, 120)] == [0, 0, 120]


@pytest.mark.parametrize("margin", [0, 1, SIZE])
def test_an_earlier_turn_from_which_prompts_continue_again_is_kept(margin: int) -> None:
    manager = conversation(stop_margin_tokens=margin, min_partial_tokens=int(margin == 1))
    turn(manager, [*text(0, 0, 40), *[7] * 8], [])
    crowded(manager)
    # Behind the first turn, the rest of the path is cached, but no window.
    assert [at(manager, n) for n in (40, 80, 120)] == [40 - margin, 40, 120 - margin]


def test_a_retained_turn_is_kept() -> None:
    manager = BlockManager(
        200,
        SIZE,
        null_block=True,
        groups=[FullAttention(), SlidingWindow(16)],
        retention=True,
    )
    turn(manager, text(0, 0, 40), [])
    assert manager.retain_prefix(text(0, 0, 41), priority=Priority.HIGH) == 10
    for number in (1, 2):
        turn(manager, text(0, 0, 40 * number + 40), [])
    crowded(manager)
    assert at(manager, 40) == 40


def with_margin(margin: int, build: Any) -> Any:
    """The pool is small, because the specification scans all of it."""
    return build(
        100,
        SIZE,
        null_block=True,
        groups=[FullAttention(), SlidingWindow(16)],
        stop_margin_tokens=margin,
        min_partial_tokens=int(margin == 1),
    )


@pytest.mark.parametrize("margin", [0, 1, SIZE, 2 * SIZE])
@pytest.mark.parametrize("users", [2, 3])
@pytest.mark.parametrize("build", [BlockManager, ModelBoundaries])
def test_a_prompt_that_others_share_is_kept(margin: int, users: int, build: Any) -> None:
    """With a margin, they continue before its end, and its end is what they need."""
    manager = with_margin(margin, build)
    for number in range(users):
        turn(manager, [*text(0, 0, 40), *[number] * 20], [])
    crowded(manager, 20)
    assert at(manager, 40) == 40 - margin


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_a_system_prompt_is_kept_though_what_its_last_user_left_is_evicted(eviction: str) -> None:
    """Between two of its users the pool has room for other prompts, and for their ends only."""
    groups = [FullAttention(), SlidingWindow(WINDOW)]
    manager = BlockManager(211, SIZE, null_block=True, groups=groups, eviction=eviction)
    found = []
    for user in range(8):
        found.append(turn(manager, [*text(0, 0, 128), *text(100 + user, 0, 200)], []))
        turn(manager, text(200 + user, 0, 300), [])
    manager.check_invariants()
    assert found == [0, 0] + [128] * 6


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
@pytest.mark.parametrize(
    "groups",
    [
        (SlidingWindow(SIZE * UNITS),),
        (FullAttention(), SlidingWindow(SIZE * UNITS)),
        (FullAttention(), ChunkedAttention(SIZE * UNITS * 2)),
        (FullAttention(), FullAttention()),
    ],
    ids=str,
)
def test_a_path_within_its_windows_gets_shorter_from_its_end(
    groups: tuple[Any, ...], eviction: Any
) -> None:
    each = len(groups)
    manager = BlockManager(
        each * UNITS + 1, SIZE, max_seqs=8, groups=groups, null_block=True, eviction=eviction
    )
    handle = manager.admit(PROMPT)
    manager.commit(handle, len(PROMPT))
    manager.free(handle)
    for taken in range(1, 8):
        manager.admit(fresh(1), namespace=bytes([taken]))
        # A path loses an eighth of its units at a time.
        assert UNITS - taken - UNITS // 8 <= found(manager, UNITS) <= UNITS - taken
        manager.check_invariants()


def test_a_path_loses_its_end_up_to_where_its_chunk_begins() -> None:
    groups = (FullAttention(), ChunkedAttention(SIZE * 20))
    manager = BlockManager(2 * UNITS + 1, SIZE, max_seqs=64, groups=groups, null_block=True)
    handle = manager.admit(PROMPT)
    manager.commit(handle, len(PROMPT))
    manager.free(handle)
    lengths = [found(manager, UNITS)]
    # The chunk that ended has left 20 units free.
    for taken in range(10 + 12):
        manager.admit(fresh(1), namespace=bytes([taken]))
        lengths.append(found(manager, UNITS))
    assert lengths[0] == UNITS
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[9] == UNITS > lengths[11]
    assert lengths[-1] == 20
    manager.check_invariants()
