"""Which blocks are stored, and when: one way to write after the other."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import Priority
from blockmgr.tiers import DiskTier, HostTier, TierConfig, TieredManager
from tests.tiers.support import PROMPT, compute, evict, in_tier, loading, managed, store, tier

SHORT = PROMPT[:5]


def test_second_touch_stores_nothing_that_was_used_once() -> None:
    manager = managed(tier(16, store="second_touch"))
    compute(manager, PROMPT)
    assert store(manager) == []
    assert store(manager) == []


def test_second_touch_stores_what_a_request_has_found() -> None:
    manager = managed(tier(16, store="second_touch"))
    compute(manager, SHORT)
    compute(manager, PROMPT)  # finds the first two blocks, and adds two
    assert [len(each) for each in store(manager)] == [2]
    assert in_tier(manager) == (4,)


def test_second_touch_stores_what_was_evicted_and_computed_again() -> None:
    manager = managed(tier(16, store="second_touch"))
    compute(manager, PROMPT, namespace=b"a", extras={1: b"image"})
    assert store(manager) == []
    evict(manager)
    compute(manager, PROMPT, namespace=b"b")
    assert store(manager) == []  # of another namespace
    compute(manager, PROMPT, namespace=b"a", extras={1: b"image"})
    assert [len(each) for each in store(manager)] == [4]
    assert in_tier(manager, namespace=b"a", extras={1: b"image"}) == (8,)


def test_second_touch_passes_on_to_the_next_tier_what_was_loaded() -> None:
    manager = managed(tier(16), tier(16, store="second_touch"))
    compute(manager, PROMPT)
    store(manager)
    assert store(manager) == []
    evict(manager)
    _, load = loading(manager)
    manager.loads_done(load.ticket, 3)
    assert [(each.target, len(each)) for each in store(manager)] == [(1, 3)]


def test_second_touch_remembers_as_much_as_the_tier_holds() -> None:
    manager = managed(tier(2, store="second_touch"))
    for number in (1, 2, 3):
        compute(manager, [number] * 3)
    assert store(manager) == []
    evict(manager)
    for number in (1, 3):
        compute(manager, [number] * 3)
    store(manager)
    assert [in_tier(manager, [i] * 3) for i in (1, 3)] == [(0,), (2,)]


def test_release_stores_all_that_nobody_uses() -> None:
    manager = managed(TierConfig(num_blocks=16, store="release"), num_blocks=32)
    handle = manager.admit(PROMPT)
    manager.commit(handle, 9)
    assert store(manager) == []
    manager.free(handle)
    assert [len(each) for each in store(manager)] == [4]


def test_commit_stores_what_a_running_sequence_has_computed() -> None:
    manager = managed(TierConfig(num_blocks=16, store="commit"), num_blocks=32)
    handle = manager.admit(PROMPT)
    manager.commit(handle, 5)
    assert [len(each) for each in store(manager)] == [2]
    assert store(manager) == []
    manager.commit(handle, 9)
    assert [len(each) for each in store(manager)] == [2]
    manager.append(handle, [1])
    assert store(manager) == []
    manager.decode([handle], [2])
    assert [len(each) for each in store(manager)] == [1]
    manager.preempt(handle)
    assert store(manager) == []


def test_commit_stores_what_runs_in_a_small_tier_once() -> None:
    manager = managed(TierConfig(num_blocks=2, store="commit"), num_blocks=32)
    for number in (1, 2):
        handle = manager.admit([number] * 5)
        manager.commit(handle, 5)
    assert [len(each) for each in store(manager)] == [2]
    assert [len(each) for each in store(manager)] == [2]
    assert store(manager) == []


def test_commit_waits_for_the_end_of_the_step() -> None:
    with pytest.raises(ValueError, match="steps_in_flight must be 0 with a tier that stores at"):
        managed(TierConfig(num_blocks=16, store="commit"), steps_in_flight=1)


@pytest.mark.parametrize("way", ["release", "commit"])
def test_the_next_tier_gets_at_once_what_is_in_a_tier(way: str) -> None:
    manager = managed(tier(32), tier(32, ahead=None, store=way), num_blocks=32)
    compute(manager, PROMPT)
    assert [(each.target, len(each)) for each in store(manager)] == [(0, 4)]
    assert [(each.target, len(each)) for each in store(manager)] == [(1, 4)]
    assert store(manager) == []


@pytest.mark.parametrize("way", ["idle", "second_touch", "release", "commit"])
def test_a_plan_that_fails_settles_nothing(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = managed(tier(16, store=way))
    for tokens in (SHORT, SHORT, [7, 7, 7], [7, 7, 7]):
        compute(manager, tokens)
    serials = iter([1])  # for the first store only

    with monkeypatch.context() as patch:
        patch.setattr(manager._tiers[0], "take_serials", lambda _: next(serials))
        with pytest.raises(StopIteration):
            manager.take_stores()
    assert [len(each) for each in store(manager)] == [2, 1]


@pytest.mark.parametrize("kind", [TierConfig, HostTier, DiskTier])
def test_a_wrong_way_to_store_is_named(kind: Any) -> None:
    size: dict[str, Any] = {"num_blocks": 4} if kind is TierConfig else {"bytes_to_use": 4}
    if kind is DiskTier:
        size["path"] = "kv.slab"
    with pytest.raises(ValueError, match="store must be one of idle, second_touch, release, co"):
        kind(**size, store="late")
    with pytest.raises(TypeError, match="store must be one of"):
        kind(**size, store=None)


# Levels of retention.


def kept(number: int, *, ttl: float | None = None, priority: Priority = Priority.HIGH) -> Any:
    return {"tokens": [number] * 3, "priority": priority, "ttl": ttl}


def crowd(manager: TieredManager, *numbers: int) -> None:
    """Stores prompts of one block each, the first one first."""
    for number in numbers:
        compute(manager, [number] * 3)
        store(manager)


def there(manager: TieredManager, *numbers: int) -> list[int]:
    return [number for number in numbers if in_tier(manager, [number] * 3)[0]]


def test_a_level_goes_along_to_the_tier() -> None:
    manager = managed(tier(3), retention=True)
    compute(manager, [1, 1, 1])
    manager.retain_prefix(**kept(1))
    store(manager)
    evict(manager)
    crowd(manager, 2, 3, 4, 5)
    assert there(manager, 1, 2, 3, 4, 5) == [1, 4, 5]


def test_a_level_goes_along_from_tier_to_tier() -> None:
    manager = managed(tier(16), tier(3), retention=True)
    compute(manager, [1, 1, 1])
    manager.retain_prefix(**kept(1))
    for number in (1, 2, 3, 4, 5):
        compute(manager, [number] * 3)
        store(manager)
        store(manager)
    assert [i for i in (1, 2, 3, 4, 5) if in_tier(manager, [i] * 3)[1]] == [1, 4, 5]


def test_a_level_ends_in_the_tier_when_it_ends_on_the_device() -> None:
    manager = managed(tier(3), retention=True)
    manager.set_time(5.0)
    compute(manager, [1, 1, 1])
    manager.retain_prefix(**kept(1, ttl=10.0))
    store(manager)
    evict(manager)
    crowd(manager, 2, 3, 4)
    assert there(manager, 1, 2) == [1]
    manager.set_time(15.0)
    crowd(manager, 5)
    assert there(manager, 1, 3) == [3]


def test_a_level_that_has_ended_before_the_store_ends_is_none() -> None:
    manager = managed(tier(3), retention=True)
    compute(manager, [1, 1, 1])
    manager.retain_prefix(**kept(1, ttl=10.0))
    [each] = manager.take_stores()
    manager.set_time(10.0)
    manager.stores_done(each.ticket, 1)
    crowd(manager, 2, 3, 4)
    assert there(manager, 1) == []


def test_a_new_level_reaches_what_is_in_the_tier_already() -> None:
    manager = managed(tier(3), retention=True)
    crowd(manager, 1, 2)
    evict(manager)
    assert manager.retain_prefix(**kept(1)) == 0  # only the tier has it
    crowd(manager, 3, 4, 5)
    assert there(manager, 1, 2) == [1]


def test_a_level_that_was_withdrawn_on_the_device_ends_in_the_tier_with_the_next_store() -> None:
    manager = managed(tier(3), retention=True)
    handle = manager.admit([1, 1, 1])
    manager.commit(handle, 3)
    manager.retain(handle, 0, 2, priority=Priority.HIGH)
    manager.free(handle)
    store(manager)
    handle = manager.admit([1, 1, 1])
    manager.retain(handle, 0, 2, priority=None)
    store(manager)
    manager.free(handle)
    store(manager)
    evict(manager)
    crowd(manager, 2, 3, 4)
    assert there(manager, 1) == []
