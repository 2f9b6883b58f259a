"""Prefix nodes and their blocks: small worlds in which the obvious implementation fails."""

from __future__ import annotations

import numpy as np

from blockmgr import BlockManager
from blockmgr.pool import BlockPool

SIZE = 2


def test_a_match_does_not_stream_into_the_node_after_a_remapped_one() -> None:
    """The second prompt's first blocks are deduplicated; a third prompt takes their ids."""
    manager = BlockManager(12, SIZE)
    first = manager.admit([1, 1, 2, 2, 3, 3, 9])
    second = manager.admit([1, 1, 2, 2, 7, 7, 9])
    manager.commit(first, 7)
    manager.commit(second, 7)
    assert manager.stats().deduplicated_blocks == 2
    third = manager.admit([5, 5, 6, 6, 9])
    manager.commit(third, 5)
    assert manager.match([5, 5, 6, 6, 7, 7, 9]).num_cached_tokens == 4
    assert manager.match([1, 1, 2, 2, 7, 7, 9]).num_cached_tokens == 6
    assert manager.match([1, 1, 2, 2, 3, 3, 9]).num_cached_tokens == 6
    manager.check_invariants()


def test_a_match_does_not_stream_into_a_block_that_is_not_committed() -> None:
    manager = BlockManager(8, SIZE)
    handle = manager.admit([1, 1, 2, 2, 3, 3, 9])
    for computed in (2, 4, 6):
        manager.commit(handle, computed)
        assert manager.match([1, 1, 2, 2, 3, 3, 9]).num_cached_tokens == computed


def test_a_match_does_not_stream_over_a_node_that_was_evicted() -> None:
    """Its id goes to another prompt's node; its descendants were evicted earlier."""
    manager = BlockManager(4, SIZE)
    manager.commit(old := manager.admit([1, 1, 2, 2, 3, 3, 9]), 7)
    manager.free(old)
    manager.commit(new := manager.admit([8, 8, 7, 7, 6]), 5)
    manager.free(new)
    for prompt, cached in (([1, 1, 2, 2, 3, 3, 9], 2), ([8, 8, 2, 2, 9], 2), ([8, 8, 7, 7, 9], 4)):
        assert manager.match(prompt).num_cached_tokens == cached
    manager.check_invariants()


def test_a_match_does_not_stream_over_extras() -> None:
    manager = BlockManager(8, SIZE)
    prompt = [1, 1, 2, 2, 3, 3, 9]
    manager.commit(manager.admit(prompt, extras={1: b"image"}), 7)
    assert manager.match(prompt).num_cached_tokens == 2
    assert manager.match(prompt, extras={1: b"image"}).num_cached_tokens == 6
    assert manager.match(prompt, extras={1: b"image", 2: b"more"}).num_cached_tokens == 4


def test_a_key_that_passes_to_a_twin_takes_what_continues_it_along() -> None:
    """Append-only: the first prompt's blocks are freed, and those of the second replace them."""
    manager = BlockManager(12, SIZE, dedup="append_only")
    first = manager.admit([1, 1, 2, 2, 9])
    second = manager.admit([1, 1, 2, 2, 9])
    manager.commit(first, 5)
    manager.commit(second, 5)
    third = manager.admit([1, 1, 2, 2, 3, 3, 9])
    manager.commit(third, 7)
    for handle in (first, third):
        manager.free(handle)
        manager.check_invariants()
        assert manager.match([1, 1, 2, 2, 3, 3, 9]).num_cached_tokens == 6


def churned() -> BlockManager:
    """A pool in which the ids of nodes and blocks are unrelated."""
    rng = np.random.default_rng(1)
    manager = BlockManager(16, SIZE, max_seqs=4)
    for _ in range(60):
        tokens = rng.integers(0, 3, int(rng.integers(3, 12)))
        manager.commit(handle := manager.admit(tokens), len(tokens))
        manager.append(handle, [int(rng.integers(0, 3))])
        manager.free(handle)
    return manager


def test_every_answer_names_blocks() -> None:
    manager = churned()
    handle = manager.admit([1, 2, 1, 2, 0, 0, 1])
    sequence = manager.sequence(handle)
    table = sequence.block_ids.tolist()
    assert manager.block_tables[handle & 0xFFFF_FFFF, : len(table)].tolist() == table
    slots = manager.slot_mapping(handle, 0, 7).tolist()
    assert slots == [table[i // SIZE] * SIZE + i % SIZE for i in range(7)]
    manager.commit(handle, 7)
    [child] = manager.fork(handle)
    assert manager.sequence(child).block_ids.tolist() == table
    [slot] = manager.decode([child], [2]).tolist()
    own = manager.sequence(child).block_ids.tolist()
    assert slot == own[-1] * SIZE + 1
    plan = manager.take_copies()
    assert (plan.sources.tolist(), plan.destinations.tolist()) == ([table[-1]], [own[-1]])
    assert own[:-1] == table[:-1]
    assert own[-1] != table[-1]
    snapshot = manager.blocks()
    assert snapshot.ref_count[table[0]] == 2
    assert snapshot.parent[table[1]] == table[0]
    manager.copies_applied(plan.ticket)
    manager.check_invariants()


def test_the_order_of_free_blocks_after_a_reset_is_that_of_blocks() -> None:
    """Children first, otherwise in the order of blocks; the block freed last is next."""
    manager = churned()
    snapshot = manager.blocks()
    parent = snapshot.parent.tolist()
    cached = set(np.flatnonzero(snapshot.eviction_rank >= 0).tolist())
    free = [block for block in range(16) if block not in cached]
    assert len(cached) > 6
    due: list[int] = []
    for block in range(16):
        last = block
        while last in cached and last not in {parent[other] for other in cached}:
            cached.remove(last)
            due.insert(0, last)
            last = parent[last]
    manager.reset_prefix_cache()
    handle = manager.admit([0] * (16 * SIZE))
    assert manager.sequence(handle).block_ids.tolist()[: len(due)] == due
    assert sorted(manager.sequence(handle).block_ids.tolist()[len(due) :]) == free


def test_a_log_of_remaps_that_overflowed_names_blocks() -> None:
    manager = churned()
    manager.commit(cached := manager.admit([1, 2, 1, 2, 9]), 5)
    for _ in range(400):
        manager.commit(twin := manager.admit([1, 2, 1, 2, 9], read_cache=False), 5)
        manager.free(twin)
    table = manager.sequence(cached).block_ids.tolist()
    remaps = [(r.index, r.old, r.new) for r in manager.take_remaps()]
    assert remaps == [(i, -1, block) for i, block in enumerate(table)]


class Told:
    """Evicts in the order of idleness, and records the notifications."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks == 6
        self.idle: dict[int, None] = {}
        self.cached: set[int] = set()

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        assert parent == -1 or parent in self.cached
        self.cached.add(block)

    def on_hit(self, block: int) -> None:
        assert block in self.cached

    def on_used(self, block: int) -> None:
        del self.idle[block]

    def on_idle(self, block: int) -> None:
        self.idle[block] = None

    def on_uncached(self, block: int, evicted: bool) -> None:
        self.idle.pop(block, None)
        self.cached.remove(block)

    def victim(self) -> int:
        return next(iter(self.idle))


def test_a_policy_in_python_is_told_of_blocks() -> None:
    made: list[Told] = []

    def make(num_blocks: int) -> Told:
        made.append(Told(num_blocks))
        return made[-1]

    manager = BlockManager(6, SIZE, eviction=make)
    [policy] = made
    for i in range(30):
        tokens = [i % 7, i % 5, i % 3, i % 2, 9]
        table = manager.sequence(handle := manager.admit(tokens)).block_ids.tolist()
        manager.commit(handle, 5)
        held = manager.sequence(handle).block_ids.tolist()
        assert set(held[:2]) <= policy.cached
        assert not policy.idle.keys() & set(table)
        manager.free(handle)
    snapshot = manager.blocks()
    assert set(np.flatnonzero(snapshot.eviction_rank >= 0).tolist()) == set(policy.idle)


def test_the_generation_of_a_block_grows_with_each_content() -> None:
    """Independent of its node: a block that returns with the same id is not the same."""
    pool = BlockPool(3, SIZE)
    seen: dict[int, int] = {}
    for i in range(40):
        [block] = pool.take(1).tolist()
        assert pool.generation(block) >= seen.get(block, 0)
        if i % 3:
            pool.promote(block, [i, i])
        before = pool.generation(block)
        pool.release([block])
        if not i % 3:
            assert pool.generation(block) > before
        seen[block] = before + (not i % 3)
    pool.check_invariants()
