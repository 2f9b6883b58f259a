"""Which block is evicted when the pool is full."""

from __future__ import annotations

from blockmgr import BlockManager, OutOfBlocksError
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve
from tests.unit.snapshot import refused


def test_free_blocks_are_handed_out_before_idle_ones(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2)
    cache(manager, [1] * 4)
    manager.admit([2] * 4)
    assert manager.stats().evicted_blocks == 0
    assert manager.match([1] * 5).num_cached_tokens == 4


def test_the_prefix_released_longest_ago_is_evicted_first(make_manager: MakeManager) -> None:
    manager = make_manager(3, 2)
    for token in (1, 2, 3):
        cache(manager, [token] * 2)
    manager.admit([9])
    assert manager.match([1] * 3).num_cached_tokens == 0
    assert manager.match([2] * 3).num_cached_tokens == 2


def test_a_hit_makes_a_block_recent_again(make_manager: MakeManager) -> None:
    manager = make_manager(3, 2)
    cache(manager, [1] * 2)
    cache(manager, [2] * 2)
    cache(manager, [1] * 3)  # hits the first, and needs a third block for its last token
    manager.admit([9] * 4)
    assert manager.match([1] * 3).num_cached_tokens == 2
    assert manager.match([2] * 3).num_cached_tokens == 0


def test_a_look_up_does_not_make_a_block_recent(make_manager: MakeManager) -> None:
    manager = make_manager(2, 2)
    cache(manager, [1] * 2)
    cache(manager, [2] * 2)
    manager.match([1] * 3)
    manager.can_admit([1] * 3)
    manager.admit([9])
    assert manager.match([1] * 3).num_cached_tokens == 0
    assert manager.match([2] * 3).num_cached_tokens == 2


def test_the_tail_of_a_sequence_is_evicted_before_its_head(make_manager: MakeManager) -> None:
    manager = make_manager(3, 2)
    cache(manager, [1] * 6)
    manager.admit([9])
    assert manager.match([1] * 6).num_cached_tokens == 4
    manager.admit([9])
    assert manager.match([1] * 6).num_cached_tokens == 2


def test_a_block_is_never_evicted_before_its_children(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2)
    long = serve(manager, [1] * 6)
    short = serve(manager, [1] * 2 + [2])
    long.free()  # its own two blocks are idle, the shared one is in use
    short.free()
    manager.admit([9] * 6)
    assert manager.match([1] * 3).num_cached_tokens == 2


def test_blocks_in_use_are_never_evicted(make_manager: MakeManager) -> None:
    manager = make_manager(3, 2)
    seq = serve(manager, [1] * 5)
    with refused(manager, OutOfBlocksError):
        manager.admit([2])
    assert manager.match([1] * 5).block_ids.tolist() == ids(seq)[:2]


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


def test_an_allocation_that_fails_evicts_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(5, 2)
    cache(manager, [1] * 4)
    handle = manager.admit([2] * 3)
    manager.admit([8])
    with refused(manager, OutOfBlocksError):
        manager.admit([3] * 5)
    with refused(manager, OutOfBlocksError):
        manager.append(handle, [3] * 6)
    assert manager.match([1] * 5).num_cached_tokens == 4
    assert manager.stats().evicted_blocks == 0


def test_an_evicted_prefix_is_gone_for_good(make_manager: MakeManager) -> None:
    """Also if the block is reused under the same id with other content."""
    manager = make_manager(2, 2)
    cache(manager, [1] * 4)
    cache(manager, [2] * 4)
    assert manager.stats().evicted_blocks == 2
    assert manager.match([1] * 4).num_cached_tokens == 0
    assert manager.match([2] * 4).num_cached_tokens == 2


def test_everything_comes_back_in_the_end(make_manager: MakeManager) -> None:
    manager = make_manager(6, 2, min_partial_tokens=1)
    seqs = [serve(manager, [t, 1, 2]) for t in range(3)]
    for seq in seqs:
        seq.free()
    stats = manager.stats()
    assert (stats.used_blocks, stats.available) == (0, 6)
    assert (stats.idle_blocks, stats.cached_tails) == (6, 3)


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
