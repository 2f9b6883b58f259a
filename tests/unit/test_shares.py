"""The separate state of each partition: policy, retention, pins and hit rate curve."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from blockmgr import BlockManager, PinBudgetError, PolicyError, Priority, UnknownPinError
from blockmgr.blocks import Pin
from blockmgr.config import EVICTION_POLICIES
from blockmgr.pool import BlockPool
from tests.fingerprints import fingerprint
from tests.reference_policies import Lfuda

A, B = b"tenant a", b"tenant b"
POLICIES = [*EVICTION_POLICIES, Lfuda]


def serve(manager: BlockManager, tokens: list[int], namespace: bytes) -> int:
    """Admits, commits and frees a prompt; returns the tokens found."""
    handle = manager.admit(tokens, namespace=namespace)
    found = manager.sequence(handle).num_cached_tokens
    manager.commit(handle, len(tokens))
    manager.free(handle)
    return found


def prompt(number: int, blocks: int = 1) -> list[int]:
    return [number] * (2 * blocks) + [0]


@pytest.mark.parametrize(
    ("eviction", "retention", "quotas", "ghosts", "steps"),
    list(itertools.product(POLICIES, [False, True], [{}, {A: 5, B: 4}], [0, 6], [0, 1])),
)
def test_all_options_go_together_in_a_manager(
    eviction: Any, retention: bool, quotas: dict[bytes, int], ghosts: int, steps: int
) -> None:
    manager = BlockManager(
        12,
        2,
        eviction=eviction,
        retention=retention,
        max_pinned_blocks=4 if retention else 0,
        quotas=quotas,
        ghost_blocks=ghosts,
        steps_in_flight=steps,
        debug=2,
    )
    for number in range(12):
        for namespace in (A, B, b""):
            serve(manager, prompt(number % 5), namespace)
            if retention and number == 3:
                manager.retain_prefix(prompt(3)[:2], priority=Priority.HIGH, namespace=namespace)
            if retention and number == 4 and not quotas:
                manager.pin(prompt(4)[:2], namespace=namespace)
            if steps:
                plan = manager.take_copies()
                manager.copies_applied(plan.ticket)
                manager.complete(plan.ticket)
    manager.check_invariants()
    assert all(manager.match(prompt(3), namespace=n).num_cached_tokens == 2 for n in quotas) or (
        not retention
    )


@pytest.mark.parametrize(
    ("eviction", "retention", "quotas", "ghosts"),
    list(itertools.product(POLICIES, [False, True], [{}, {A: 5, B: 4}], [0, 6])),
)
def test_all_options_go_together_in_a_pool(
    eviction: Any, retention: bool, quotas: dict[bytes, int], ghosts: int
) -> None:
    pool = BlockPool(
        12, 2, eviction=eviction, retention=retention, quotas=quotas, ghost_blocks=ghosts
    )
    for number in range(12):
        for namespace in (A, B, b""):
            tokens = prompt(number % 5)[:2]
            found = pool.acquire_prefix(tokens, namespace=namespace).tolist()
            if not found:
                found = pool.take(1, namespace=namespace).tolist()
                assert pool.promote(found[0], tokens, namespace=namespace) == found[0]
            if retention and number == 3:
                pool.retain(found, priority=Priority.HIGH)
            pool.release(found)
    pool.check_invariants()
    if retention:
        assert all(pool.find(prompt(3)[:2], namespace=n).size for n in (A, B, b""))
    if ghosts:
        assert all(pool.hit_rate_curve(n).query_tokens == 24 for n in quotas)


@pytest.mark.parametrize("eviction", POLICIES)
def test_what_one_tenant_asks_for_trains_nobody_elses_policy(eviction: Any) -> None:
    def answers(others: int) -> list[int]:
        manager = BlockManager(24, 2, eviction=eviction, quotas={A: 6, B: 6}, ghost_blocks=24)
        seen = []
        for number in range(40):
            seen.append(serve(manager, prompt(number * number % 9), A))
            for other in range(others):
                serve(manager, prompt(other + number), B)
                serve(manager, prompt(other), b"")
        return [*seen, *manager.hit_rate_curve(A).hit_tokens.tolist()]

    assert answers(0) == answers(3)


def test_a_policy_of_ones_own_is_made_for_each_share_and_told_of_no_other() -> None:
    class Noting(Lfuda):
        def __init__(self, capacity: int) -> None:
            super().__init__(capacity)
            self.told: set[int] = set()
            made.append((capacity, self.told))

        def on_idle(self, block: int) -> None:
            self.told.add(block)
            super().on_idle(block)

    made: list[tuple[int, set[int]]] = []
    manager = BlockManager(12, 2, eviction=Noting, quotas={A: 5, B: 4})
    assert [capacity for capacity, _ in made] == [3, 5, 4]
    for namespace in (b"", A, B):
        serve(manager, prompt(1), namespace)
    assert [len(told) for _, told in made] == [1, 1, 1]
    assert len(set.union(*(told for _, told in made))) == 3
    made.clear()
    whole = BlockManager(4, 2, eviction=Noting, quotas={A: 4})
    assert [capacity for capacity, _ in made] == [4], "a share without blocks has no policy"
    serve(whole, prompt(1), A)
    whole.check_invariants()


def test_a_victim_of_another_share_is_refused() -> None:
    class Grabbing(Lfuda):
        def victim(self) -> int:
            return 0  # the first block, which belongs to no quota

    manager = BlockManager(4, 2, eviction=Grabbing, quotas={A: 2})
    serve(manager, prompt(1), b"")
    for number in range(4):
        serve(manager, prompt(number), A)
    assert manager.match(prompt(1)).num_cached_tokens == 2
    with pytest.raises(PolicyError, match="victim must be an idle block, got 0"):
        manager.check_policy()


def test_each_share_has_a_pin_budget_in_proportion_to_its_size() -> None:
    manager = BlockManager(12, 2, retention=True, max_pinned_blocks=7, quotas={A: 4, B: 2})
    for namespace in (A, b""):
        serve(manager, prompt(1, 2), namespace)
    for namespace in (A, B):
        serve(manager, prompt(2), namespace)
    pin = manager.pin(prompt(1, 2)[:4], namespace=A)
    with pytest.raises(PinBudgetError) as refused:
        manager.pin(prompt(2)[:2], namespace=A)
    assert (refused.value.needed, refused.value.available, refused.value.budget) == (1, 0, 2)
    other = manager.pin(prompt(2)[:2], namespace=B)
    common = manager.pin(prompt(1, 2)[:4])
    assert len({pin, other, common}) == 3
    assert manager.stats().pinned_blocks == 5
    assert manager.stats().pins == 3
    manager.unpin(other)
    assert manager.pinned(pin).num_cached_blocks == 2
    assert manager.stats().pins == 2
    manager.unpin(pin)
    manager.unpin(common)
    assert manager.stats().pinned_blocks == 0


def test_a_pin_is_found_in_its_share_also_beside_shares_without_a_budget() -> None:
    names = [bytes([number]) for number in range(9)]
    sizes = [1, 8, 1, 1, 8, 1, 8, 1, 1]
    quotas = dict(zip(names, sizes, strict=True))
    manager = BlockManager(40, 2, retention=True, max_pinned_blocks=10, quotas=quotas)
    pins: dict[int, bytes] = {}
    for name in (b"", *names):
        serve(manager, prompt(1, 2), name) if quotas.get(name) != 1 else None
        try:
            pins[manager.pin(prompt(1, 2)[:2], namespace=name)] = name
        except PinBudgetError:
            assert quotas[name] == 1
    assert sorted(pins.values()) == [b"", *(name for name in names if quotas[name] == 8)]
    for pin in pins:
        assert manager.pinned(pin).num_cached_blocks == 1
    for held, pin in enumerate(pins):
        assert manager.stats().pins == len(pins) - held
        manager.unpin(pin)
        with pytest.raises(UnknownPinError, match=str(pin)):
            manager.unpin(pin)
    for slot in range(-2, 12):
        with pytest.raises(UnknownPinError):
            manager.pinned(1 << 40 | slot & 0xFFFFFFFF)


def test_time_passes_in_every_share() -> None:
    manager = BlockManager(12, 2, retention=True, quotas={A: 4, B: 2})
    for namespace in (A, B, b""):
        serve(manager, prompt(1), namespace)
        manager.retain_prefix(prompt(1)[:2], priority=Priority.HIGH, ttl=2.0, namespace=namespace)
    assert manager.stats().high_priority_blocks == 3
    manager.set_time(1)
    assert manager.stats().expired_blocks == 0
    manager.set_time(2)
    assert (manager.stats().expired_blocks, manager.stats().high_priority_blocks) == (3, 0)


def test_an_evicted_block_is_explained_by_the_share_it_was_evicted_from() -> None:
    manager = BlockManager(12, 2, quotas={A: 2}, ghost_blocks=12)
    for number in range(3):
        serve(manager, prompt(number), A)
    miss = manager.explain(prompt(0), namespace=A).misses[0]
    assert miss.reason.name == "EVICTED"
    assert miss.more_blocks == (2,)
    assert manager.hit_rate_curve(A).num_blocks == 2
    assert manager.hit_rate_curve().num_blocks == 10


def test_a_share_without_blocks_has_no_curve() -> None:
    manager = BlockManager(2, 2, quotas={A: 2}, ghost_blocks=2)
    with pytest.raises(ValueError, match="a namespace that the quotas leave blocks"):
        manager.hit_rate_curve()
    with pytest.raises(TypeError, match="namespace must be bytes"):
        manager.hit_rate_curve("text")  # type: ignore[arg-type]


def test_the_map_of_blocks_shows_levels_of_every_share() -> None:
    manager = BlockManager(12, 2, retention=True, quotas={A: 4})
    for namespace in (A, b""):
        serve(manager, prompt(1), namespace)
        serve(manager, prompt(2), namespace)
    manager.retain_prefix(prompt(1)[:2], priority=Priority.HIGH, namespace=A)
    found = manager.match(prompt(1), namespace=A).block_ids[0]
    low = manager.match(prompt(2), namespace=A).block_ids[0]
    shown = manager.blocks()
    assert shown.priority[found] == Priority.HIGH
    assert shown.eviction_rank[low] < shown.eviction_rank[found]


# Pools.


def test_a_pool_gives_each_namespace_its_own_blocks() -> None:
    pool = BlockPool(6, 2, quotas={A: 2})
    mine = pool.take(2, namespace=A).tolist()
    with pytest.raises(Exception, match="1 block"):
        pool.take(1, namespace=A)
    assert pool.quota_usage(A).available == 0
    assert pool.quota_usage(b"").available == 4
    other = pool.take(1).tolist()
    with pytest.raises(ValueError, match=f"blocks must be of the share .* got {other[0]} of"):
        pool.promote(other[0], [1, 2], namespace=A)
    with pytest.raises(ValueError, match=f"blocks must be of the share .* got {mine[0]} of"):
        pool.promote(mine[0], [1, 2])
    pool.promote(mine[0], [1, 2], namespace=A)
    with pytest.raises(ValueError, match="at index 1"):
        pool.promote([mine[1], other[0]], [3, 4, 5, 6], parent=mine[0])
    moved = pool.make_writable(other[0], 0)
    pool.release([moved, *mine])
    assert pool.evict(1, namespace=A).tolist() == [mine[0]]
    pool.check_invariants()


def test_a_pool_keeps_what_is_retained_or_pinned() -> None:
    pool = BlockPool(3, 2, retention=True, max_pinned_blocks=1)
    blocks = pool.take(3).tolist()
    for number, block in enumerate(blocks):
        pool.promote(block, [number, number])
    pool.retain(blocks[:1], priority=Priority.HIGH, ttl=5.0)
    pin = pool.pin(blocks[1])
    assert [pool.priority(block) for block in blocks] == [
        Priority.HIGH,
        Priority.PINNED,
        Priority.NORMAL,
    ]
    with pytest.raises(PinBudgetError):
        pool.pin(blocks[2])
    pool.release(blocks)
    assert pool.take(1).tolist() == blocks[2:]
    pool.set_time(5)
    assert pool.time == 5
    assert pool.take(1).tolist() == blocks[:1]
    assert pool.pinned(pin).num_cached_blocks == 1
    pool.unpin(pin)
    assert pool.priority(blocks[1]) == Priority.NORMAL
    pool.check_invariants()


def test_a_pool_merges_retention_with_the_block() -> None:
    pool = BlockPool(4, 2, retention=True)
    first, second = pool.take(2).tolist()
    pool.promote(first, [1, 2])
    pool.retain([second], priority=Priority.HIGH)
    assert pool.promote(second, [1, 2]) == first
    assert pool.priority(first) == Priority.HIGH


def test_a_pool_without_retention_says_so() -> None:
    pool = BlockPool(4, 2)
    for call in (
        lambda: pool.retain([0], priority=Priority.HIGH),
        lambda: pool.pin(0),
        lambda: pool.unpin(1),
        lambda: pool.set_time(1),
        lambda: pool.time,
    ):
        with pytest.raises(ValueError, match="needs a pool with retention=True"):
            call()
    with pytest.raises(ValueError, match="hit_rate_curve needs"):
        pool.hit_rate_curve()
    with pytest.raises(TypeError, match="found must be a bool"):
        pool.acquire([], found=1)  # type: ignore[arg-type]


def test_a_pool_counts_what_larger_pools_would_have_found() -> None:
    pool = BlockPool(2, 2, ghost_blocks=2)
    for number in (1, 2, 3, 1):
        tokens = [number, number]
        found = pool.acquire_prefix(tokens).tolist() or [pool.promote(int(pool.take()[0]), tokens)]
        pool.release(found)
    curve = pool.hit_rate_curve()
    assert (curve.num_blocks, curve.query_tokens) == (2, 8)
    assert curve.hit_tokens.tolist() == [0, 0, 0, 2, 2]


def test_a_pool_tells_its_policy_of_what_a_request_has_found_and_not_of_forks() -> None:
    hits: list[int] = []

    class Counting(Lfuda):
        def on_hit(self, block: int) -> None:
            hits.append(block)
            super().on_hit(block)

    pool = BlockPool(4, 2, eviction=Counting)
    blocks = pool.take(2).tolist()
    pool.promote(blocks, [1, 2, 3, 4])
    pool.acquire(blocks, found=False)
    assert hits == []
    pool.acquire(blocks)
    assert hits == blocks
    assert pool.acquire_prefix([1, 2, 9, 9]).tolist() == blocks[:1]
    assert hits == [*blocks, blocks[0]]
    pool.check_invariants()


def test_a_pool_reports_a_broken_policy() -> None:
    class Broken(Lfuda):
        def on_idle(self, block: int) -> None:
            raise RuntimeError("broken")

    pool = BlockPool(2, 2, eviction=Broken)
    block = pool.take().tolist()[0]
    pool.promote(block, [1, 2])
    pool.release([block])
    with pytest.raises(PolicyError):
        pool.check_policy()
    with pytest.raises(PolicyError):
        pool.check_invariants()


def test_a_prompt_longer_than_the_pool_counts_as_looked_up_whole() -> None:
    pool = BlockPool(2, 2, ghost_blocks=2)
    pool.acquire_prefix(list(range(100)))
    assert pool.hit_rate_curve().query_tokens == 100


def test_a_chain_of_no_blocks_teaches_a_policy_nothing() -> None:
    pool = BlockPool(64, 1, eviction="arc")
    pool.promote(pool.take(4), [1, 2, 3, 4])
    before = fingerprint(pool)
    assert pool.promote([], []).tolist() == []
    assert fingerprint(pool) == before


def test_a_pin_says_what_it_covers_and_what_is_left() -> None:
    pool = BlockPool(4, 2, retention=True, max_pinned_blocks=4)
    chain = pool.promote(pool.take(3), [1, 2, 3, 4, 5, 6])
    pin = pool.pin(int(chain[-1]))
    pool.release(chain)
    assert pool.pinned(pin) == Pin(3, 3)
    pool.take(2)
    assert pool.pinned(pin) == Pin(3, 2)
