"""Which block is evicted when the pool is full."""

from __future__ import annotations

from blockmgr import BlockManager, OutOfBlocksError
from tests.conftest import MakeManager
from tests.unit.engine import cache, serve
from tests.unit.snapshot import refused


def test_eviction_ends_when_everything_is_pinned(make_manager: MakeManager) -> None:
    """Sources and destinations of a taken plan are not victims, and the search ends."""
    manager = make_manager(4, 2, min_partial_tokens=0)
    seq = serve(manager, [1] * 4)
    seq.truncate(3)
    seq.append([2])
    ticket = manager.take_copies().ticket
    seq.free()
    assert manager.num_available == 1
    manager.admit([9])
    with refused(manager, OutOfBlocksError):
        manager.admit([9])
    manager.copies_applied(ticket)
    manager.admit([9])


def test_an_admission_evicts_any_number_of_blocks_in_order(make_manager: MakeManager) -> None:
    for num_evicted in (1, 7, 8, 9, 24, 25, 50, 64):
        manager = make_manager(64, 2)
        first, second = list(range(64)), list(range(100, 164))
        cache(manager, first)
        cache(manager, second)
        order = [*ids_of(manager, first), *ids_of(manager, second)]
        handle = manager.admit([9] * (2 * num_evicted))
        assert manager.sequence(handle).block_ids.tolist() == order[:num_evicted]
        assert manager.stats().evicted_blocks == num_evicted
        manager.check_invariants()
        left_of_first = max(32 - num_evicted, 0)
        assert manager.match([*first, 0]).num_cached_tokens == 2 * left_of_first
        left_of_second = min(64 - num_evicted, 32)
        assert manager.match([*second, 0]).num_cached_tokens == 2 * left_of_second


def ids_of(manager: BlockManager, prompt: list[int]) -> list[int]:
    """The cached blocks of a prompt, the deepest first."""
    return manager.match([*prompt, 0]).block_ids.tolist()[::-1]
