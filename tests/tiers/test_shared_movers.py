"""Movers and engines on a store that others share: the same bytes and tokens, or none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("torch", reason="movers move tensors")

from blockmgr.tiers import MooncakeTier, SharedStorage, TierConfig, shared_key_bytes
from blockmgr.tiers.storages import HostStorage
from tests.ports.engine_models import VOCAB  # noqa: F401  # skips this file without transformers
from tests.ports.test_engine_tiers import GREEDY, first_turns, host_and, talk, tiered, truth
from tests.tiers.fake_store import FakeStore
from tests.tiers.support import PROMPT, in_tier
from tests.tiers.test_movers import Device

__all__ = ["truth"]  # a fixture


class SharedDevice(Device):
    """A device with the store as its last tier."""

    def __init__(self, store: FakeStore, *, has_host: bool = False, **options: Any) -> None:
        size = Device().blocks.size
        shared = SharedStorage(
            store, {"model": "tiny"}, block_bytes=size, key_bytes=shared_key_bytes(2), **options
        )
        tiers = [TierConfig(num_blocks=32, shared=shared, ahead=99)]
        storages: list[Any] = [shared]
        if has_host:
            tiers.insert(0, TierConfig(num_blocks=16, ahead=99))
            storages.insert(0, HostStorage(16, size))
        super().__init__(*tiers, storages=storages)
        self.shared = shared

    def look_up(self, tokens: list[int]) -> int:
        """Tokens that the store has."""
        number = self.manager.look_up(tokens)
        while self.manager.is_looking_up(number):
            self.mover.poll()
            self.mover.wait()
        return in_tier(self.manager, tokens)[-1]

    def close(self) -> None:
        self.mover.close()
        self.shared.close()


@pytest.mark.parametrize("has_host", [False, True], ids=["alone", "after host memory"])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_another_device_loads_what_was_stored(batch: int, has_host: bool) -> None:
    store = FakeStore()
    first, second = (SharedDevice(store, has_host=has_host) for _ in range(2))
    first.shared.batch = second.shared.batch = batch
    first.fill(PROMPT)
    first.settle()
    assert second.look_up(PROMPT) == 8
    assert second.loaded(PROMPT) == 8
    for device in (first, second):
        device.close()
        device.manager.check_invariants()


def test_the_end_of_a_prompt_is_stored_first() -> None:
    store = FakeStore()
    device = SharedDevice(store)
    device.shared.batch = 3
    device.fill(PROMPT)
    device.settle()
    puts = [names for call, names in store.calls if call == "put"]
    assert [len(names) for names in puts] == [1, 3]
    assert list(store.objects) == [name for names in puts for name in names]
    device.look_up(PROMPT)
    device.close()


@pytest.mark.parametrize("lost", range(4))
def test_of_a_store_that_loses_a_block_the_run_before_it_is_loaded(lost: int) -> None:
    store = FakeStore()
    device = SharedDevice(store, has_host=True)
    device.shared.batch = 3
    device.fill(PROMPT)
    device.settle()
    *_, names = (names for call, names in store.calls if call == "put")
    order = [name for call, part in store.calls if call == "put" for name in part][::-1]
    assert names
    del store.objects[order[lost]]
    other = SharedDevice(store)
    assert other.look_up(PROMPT) == 2 * lost
    assert other.loaded(PROMPT) == 2 * lost
    again = SharedDevice(store, has_host=True)  # goes through its host memory
    again.manager.prefetch(PROMPT)
    again.settle()
    assert in_tier(again.manager)[0] == 2 * lost
    for each in (device, other, again):
        each.close()


class Stuck(FakeStore):
    """A store that does not answer until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def reach(self, call: str, names: Any) -> None:
        assert self.may_go_on.wait(60)
        super().reach(call, names)


def test_a_store_that_hangs_holds_up_no_other_tier() -> None:
    store = Stuck()
    device = SharedDevice(store, has_host=True, timeout=60)
    device.fill(PROMPT)
    device.mover.poll()
    while in_tier(device.manager)[0] < 8:
        device.mover.wait()
    for first in (50, 60, 70):  # more than a mover has threads
        device.manager.look_up([first] * 5)
        device.fill([first] * 3)
        device.mover.poll()
        device.mover.wait()
    device.lose()
    device.mover._timeout = 0.01
    handle = device.manager.admit(PROMPT, load=True)
    for _ in range(1000):
        if not device.manager.is_loading(handle):
            break
        device.mover.poll()
        device.mover.wait()
    assert not device.manager.is_loading(handle)
    assert device.manager.sequence(handle).num_computed_tokens == 8
    device.manager.free(handle)
    store.may_go_on.set()
    device.settle()
    device.close()


def test_a_store_that_is_gone_costs_hits_only() -> None:
    store = FakeStore()
    device = SharedDevice(store)
    store.is_down = True
    assert device.look_up(PROMPT) == 0
    device.fill(PROMPT)
    device.settle()
    assert in_tier(device.manager) == (0,)
    assert isinstance(device.mover.last_error, ConnectionError)
    assert device.shared.stats().skipped_calls > 0
    device.close()
    device.manager.check_invariants()


class Buggy(FakeStore):
    """A store with a bug."""

    def exist(self, names: Any) -> list[bool]:
        raise RuntimeError("a bug of the store")


def test_a_look_up_that_cannot_begin_is_not_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SharedDevice(FakeStore())
    numbers = [device.manager.look_up([first] * 5) for first in range(3)]
    with monkeypatch.context() as no_threads:
        no_threads.setattr(device.mover._reader, "submit", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            device.mover.poll()
    assert not any(map(device.manager.is_looking_up, numbers))
    device.close()


def test_a_store_with_a_bug_leaves_no_look_up_open() -> None:
    device = SharedDevice(Buggy())
    number = device.manager.look_up(PROMPT)
    device.mover.poll()
    with pytest.raises(RuntimeError, match="a bug of the store"):
        device.mover.drain()
    assert not device.manager.is_looking_up(number)
    device.close()


# Engines.


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    store = FakeStore()
    monkeypatch.setattr("blockmgr.tiers.mooncake.MooncakeStore", lambda *_, **__: store)
    return store


MOONCAKE = MooncakeTier(master="127.0.0.1:1")


@pytest.mark.parametrize("has_host", [False, True], ids=["alone", "after host memory"])
def test_a_second_engine_finds_the_conversations_of_the_first(
    has_host: bool, store: FakeStore, truth: Any
) -> None:
    for cached in ([0, 0, 0, 0, 60, 60, 60, 60], [56, 56, 56, 56, 64, 64, 64, 64]):
        engine = tiered(*host_and(MOONCAKE, has_host=has_host))
        assert talk(engine) == (truth[0], cached)
        engine.close()


def test_a_store_that_lies_costs_hits_and_never_tokens(store: FakeStore, truth: Any) -> None:
    store.lie = 0.4
    for _ in range(3):
        engine = tiered(MOONCAKE)
        assert talk(engine)[0] == truth[0]
        engine.close()


def test_an_engine_goes_on_when_its_store_is_gone(store: FakeStore, truth: Any) -> None:
    engine = tiered(MOONCAKE)
    store.is_down = True
    assert talk(engine) == (truth[0], [0] * 8)
    engine.close()


def test_queued_prompts_are_asked_for_at_once(store: FakeStore) -> None:
    talk(tiered(MOONCAKE), turns=1)
    engine = tiered(MOONCAKE)
    store.calls.clear()
    engine.generate(first_turns(), GREEDY)
    asked = [i for i, (call, _) in enumerate(store.calls) if call == "exist"]
    read = [i for i, (call, _) in enumerate(store.calls) if call == "get"]
    assert len(asked) == 4
    assert asked[0] < read[0]
    engine.close()


def test_an_engine_whose_weights_changed_shares_nothing(store: FakeStore) -> None:
    engine = tiered(MOONCAKE)
    _, cached = talk(engine, turns=1)
    engine.reset()
    assert talk(engine, turns=1)[1] == cached == [0] * 4
    engine.close()
    assert talk(tiered(MOONCAKE), turns=1)[1] == [56] * 4
