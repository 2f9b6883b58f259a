"""The hit rates that a live manager estimates for other pool sizes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockmgr import BlockManager, ManagerConfig, OutOfBlocksError
from tests.unit.engine import cache, serve, step
from tests.unit.snapshot import refused


def firsts(manager: BlockManager, *numbers: int) -> None:
    """Caches one full block for each number, with a tail beside it while it is computed."""
    for number in numbers:
        cache(manager, [number, number, 0])


def test_a_block_is_found_from_its_place_on() -> None:
    manager = BlockManager(4, 2, ghost_blocks=4)
    firsts(manager, 1, 2, 3, 4, 1)
    curve = manager.hit_rate_curve()
    # Between its two uses came 2, 3 and 4, and a tail in use: the hit needs 5 blocks.
    assert curve.hit_tokens.tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert (curve.num_blocks, curve.max_blocks, curve.query_tokens) == (4, 8, 15)
    assert curve.hit_rate_at(5) == 2 / 15
    assert curve.hit_rate_at(4) == 0
    manager.check_invariants()


def test_a_resumed_sequence_is_no_look_up() -> None:
    manager = BlockManager(8, 2, ghost_blocks=4)
    seq = serve(manager, [1, 1, 2, 2, 0])
    seq.preempt()
    seq.resume()
    curve = manager.hit_rate_curve()
    assert curve.query_tokens == 5
    assert curve.hit_tokens[-1] == 0


def test_before_the_first_admission_every_rate_is_zero() -> None:
    assert BlockManager(4, 2, ghost_blocks=4).hit_rate_curve().hit_rate_at(8) == 0.0


def test_a_snapshot_does_not_follow_the_manager() -> None:
    manager = BlockManager(4, 2, ghost_blocks=4)
    before = manager.hit_rate_curve()
    firsts(manager, 1, 1)
    assert before.query_tokens == 0
    assert before.hit_tokens[-1] == 0


def test_blocks_that_wait_for_a_step_are_in_use() -> None:
    manager = BlockManager(4, 2, ghost_blocks=4, steps_in_flight=1)
    handle = manager.admit([1, 1, 0])
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    manager.commit(handle, 3)
    manager.free(handle)
    manager.check_invariants()
    serve_again = manager.admit([1, 1, 0])
    assert manager.hit_rate_curve().hit_tokens[0] == 2
    manager.free(serve_again)
    manager.complete(plan.ticket)
    manager.check_invariants()


def test_all_memory_is_taken_at_construction() -> None:
    manager = BlockManager(64, 2, ghost_blocks=64)
    firsts(manager, *range(300))
    before = manager.memory_usage()
    firsts(manager, *range(1000))
    assert manager.memory_usage() == before
    assert before > BlockManager(64, 2).memory_usage()


def test_a_shortage_leaves_the_places_as_they_were() -> None:
    manager = BlockManager(4, 2, ghost_blocks=4)
    firsts(manager, 1, 2, 3, 4)
    serve(manager, [7] * 6)
    with refused(manager, OutOfBlocksError):
        manager.admit([1, 1, 0, 0, 0])
    assert step(manager) == []
    manager.check_invariants()


@pytest.mark.parametrize(
    "options", [{}, {"ghost_blocks": 4, "prefix_caching": False}], ids=["no ghosts", "no cache"]
)
def test_a_manager_that_follows_nothing_has_no_curve(options: dict[str, Any]) -> None:
    manager = BlockManager(4, 2, **options)
    with refused(manager, ValueError, "ghost_blocks"):
        manager.hit_rate_curve()


@pytest.mark.parametrize("size", [-1, 9])
def test_a_size_beyond_the_curve_is_refused(size: int) -> None:
    curve = BlockManager(4, 2, ghost_blocks=4).hit_rate_curve()
    with pytest.raises(ValueError, match=r"num_blocks must be in \[0, 8\]"):
        curve.hit_rate_at(size)


def test_curves_of_other_managers_cannot_be_subtracted() -> None:
    small, large = (BlockManager(4, 2, ghost_blocks=n).hit_rate_curve() for n in (4, 5))
    with pytest.raises(ValueError, match="earlier curve"):
        large - small
    with pytest.raises(TypeError):
        large - 1  # type: ignore[operator]


def test_a_later_curve_cannot_be_subtracted() -> None:
    manager = BlockManager(4, 2, ghost_blocks=4)
    early = manager.hit_rate_curve()
    firsts(manager, 1)
    with pytest.raises(ValueError, match="earlier curve"):
        early - manager.hit_rate_curve()


@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, ValueError), (2**30, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)],
)
def test_ghost_blocks_out_of_bounds_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="ghost_blocks"):
        ManagerConfig(num_blocks=4, block_size=2, ghost_blocks=value)


@pytest.mark.parametrize("seed", range(6))
def test_a_block_computed_again_beside_its_twin_moves_nothing(seed: int) -> None:
    """A prompt that ends with a full block recomputes it, and commit finds its twin."""
    rng = random.Random(seed)
    first = BlockManager(6, 1, ghost_blocks=12)
    others = {size: BlockManager(size, 1) for size in range(4, 19)}
    for _ in range(60):
        prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 4))]
        for manager in (first, *others.values()):
            cache(manager, prompt)
    curve = first.hit_rate_curve()
    assert first.stats().deduplicated_blocks > 0
    for size, manager in others.items():
        assert curve.hit_tokens[size] == manager.stats().hit_tokens
