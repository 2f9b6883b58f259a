"""Which boundaries are evicted, and how many, where several go for one request."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager, FullAttention, SlidingWindow

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
