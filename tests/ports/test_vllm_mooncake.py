"""Mooncake Store as a tier of vLLM, on stand-ins for vLLM's modules and for the store.

``tests/engines/tiering.py`` runs it inside vLLM's own manager, and ``tests/engines/tiers.py`` in a
real engine, both on a real store.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.tiers import SharedStoreError
from tests.ports.vllm_tier_support import (
    LookupResult,
    TierWorld,
    config_of,
    content,
    job,
    key_of,
    stand_ins,
)
from tests.tiers.fake_store import FakeStore

REQUEST = SimpleNamespace(req_id="r1")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    """The store that every tier of a test is connected to."""
    found = FakeStore()
    monkeypatch.setattr("blockmgr.tiers.mooncake.MooncakeStore", lambda *_, **__: found)
    for _ in stand_ins(monkeypatch):
        yield found


class World(TierWorld):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        module = importlib.import_module("blockmgr.ports.vllm_tiers.mooncake_tier")
        spec = SimpleNamespace(config=options.pop("config", config_of()))
        named = {"master": "host:1", "revision": "1", "threads": 1, **options}
        self.tier = module.MooncakeStoreTier(spec, self.view, "MooncakeStoreTier", **named)

    def found(self, keys: range) -> list[int]:
        """As one request asks in two steps."""
        for key in keys:
            self.tier.lookup(key_of(key), REQUEST)
        self.tier.on_schedule_end(None)
        found = {key: self.tier.lookup(key_of(key), REQUEST) for key in keys}
        assert LookupResult.RETRY not in found.values()
        self.tier.on_request_finished(REQUEST)
        return [key for key in keys if found[key] is LookupResult.HIT]

    def counts(self, *names: str) -> list[int]:
        return [self.tier.counts[name] for name in names]


def test_a_secret_hides_what_is_stored(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret, 16 bytes")
    assert World(secret_file=str(secret)).store([1, 2]).success
    assert World().found(range(3)) == []
    assert World(secret_file=str(secret)).found(range(3)) == [1, 2]


def test_what_one_engine_stores_another_one_loads() -> None:
    first, second = World(), World()
    assert first.store([1, 2, 3]).success
    assert second.found(range(5)) == [1, 2, 3]
    assert second.load([1, 2, 3]) == [1, 2, 3]
    assert second.tier.get_stats() == {
        "blockmgr:shared_asked_chunks": 5,
        "blockmgr:shared_found_chunks": 3,
        "blockmgr:shared_loaded_chunks": 3,
    }
    assert not second.tier.get_stats()
    assert first.tier.get_stats() == {"blockmgr:shared_stored_chunks": 3}


def test_a_look_up_waits_for_no_store(store: FakeStore) -> None:
    """The store is asked once a step, for all that was looked up in it."""
    world = World()
    world.store([1])
    store.calls.clear()
    for _ in range(2):
        for key in (1, 2, 3):
            assert world.tier.lookup(key_of(key), REQUEST) is LookupResult.RETRY
    assert not store.calls
    world.tier.on_schedule_end(None)
    [(call, names)] = store.calls
    assert (call, len(names)) == ("exist", 3)
    assert world.tier.lookup(key_of(1), REQUEST) is LookupResult.HIT
    assert world.tier.lookup(key_of(2), REQUEST) is LookupResult.MISS


def test_a_request_asks_anew_for_what_one_before_did_not_find() -> None:
    first, second = World(), World()
    assert second.found(range(3)) == []
    first.store([1])
    assert second.found(range(3)) == [1]


def test_a_damaged_chunk_is_refused_for_good_and_stored_again(store: FakeStore) -> None:
    world = World()
    world.store([1, 2])
    name = next(name for name, data in store.objects.items() if content(2).tobytes() in data)
    data = bytearray(store.objects[name])
    data[-77] ^= 4
    store.objects[name] = bytes(data)
    for key in (1, 2):
        world.tier.lookup(key_of(key), REQUEST)
    world.tier.on_schedule_end(None)
    assert world.load([1, 2]) == [1]
    # Otherwise vLLM would load it again and again for the request.
    assert world.tier.lookup(key_of(2), REQUEST) is LookupResult.MISS
    assert world.tier.lookup(key_of(1), REQUEST) is LookupResult.HIT
    world.tier.shutdown()  # its removal has ended
    assert name not in store.objects
    again = World()
    assert again.store([1, 2]).success
    assert again.load([1, 2]) == [1, 2]


def test_no_engine_loads_what_a_store_makes_up(store: FakeStore) -> None:
    """The store flips bits, swaps objects, loses them and fails; ``load`` compares all bytes."""
    store.lie = 0.4
    loaded = refused = 0
    for _ in range(40):
        world = World()
        world.store([1, 2, 3, 4])
        loaded += len(world.load([1, 2, 3, 4]))
        refused += world.tier.counts["refused"]
        world.tier.shutdown()
    assert loaded > 20
    assert refused > 10


@pytest.mark.parametrize(
    "options",
    [
        {"revision": "2"},
        {"config": config_of(model=SimpleNamespace(name="x", dtype="float32"))},
        {"config": config_of(kv_cache_layout="HND")},
        {"config": config_of(parallel={"tp_size": 2})},
        {"config": config_of(parallel={"rank": 1})},
    ],
)
def test_engines_with_another_layout_share_nothing(options: dict[str, Any]) -> None:
    World().store([1, 2])
    assert World().found(range(5)) == [1, 2]
    other = World(**options)
    assert other.found(range(5)) == []
    assert other.load([1, 2]) == []


def test_data_parallel_engines_share() -> None:
    parallel = {"data_parallel_size": 2, "data_parallel_index": 1}
    World().store([1])
    assert World(config=config_of(parallel=parallel)).load([1]) == [1]


def test_a_store_that_is_gone_is_empty_and_is_asked_again_later(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr("blockmgr.tiers.shared.time.monotonic", lambda: now[0])
    world = World()
    world.store([1])
    store.is_down = True
    assert world.found(range(3)) == []
    assert not world.store([2]).success
    assert world.load([1]) == []
    assert world.found(range(3)) == []
    assert world.counts("failed_calls", "skipped_calls", "missing", "refused") == [1, 3, 0, 0]
    assert [each.message for each in caplog.records] == [
        "blockmgr could not use the store at host:1: the store is gone"
    ]
    store.is_down = False
    now[0] += 6
    assert world.found(range(3)) == [1]
    assert world.load([1]) == [1]
    store.is_down = True
    assert world.found(range(3)) == []
    assert len(caplog.records) == 2


def test_a_call_that_hangs_ends_at_its_deadline(store: FakeStore) -> None:
    """Also when vLLM resets its caches, for which all jobs must have ended."""
    world, free = World(timeout=0.05), threading.Event()
    world.store([1])
    plain, store.get = store.get, lambda *args: (free.wait(), plain(*args))[1]  # type: ignore[method-assign]
    world.tier.submit_load(job(7, [1], [0], {}))
    world.tier.drain_jobs()
    [result] = world.tier.get_finished_jobs()
    assert not result.success
    assert world.counts("failed_calls") == [1]
    world.host[:] = 9
    free.set()
    world.tier.shutdown()
    assert (world.host == 9).all(), "a late call wrote to memory of others"


def test_the_end_of_a_prompt_is_stored_before_its_beginning(store: FakeStore) -> None:
    """So that what there is of a prompt is evicted from its end."""
    world = World()
    store.calls.clear()
    world.store([13, 11, 12], positions={11: 16, 12: 32, 13: 48})
    stored = [store.objects[name] for call, names in store.calls for name in names if call == "put"]
    assert [content(k).tobytes() in data for k, data in zip((13, 12, 11), stored, strict=True)] == [
        True,
        True,
        True,
    ]


def test_after_a_reset_an_engine_shares_no_more() -> None:
    first, second = World(), World()
    first.store([1])
    first.tier.submit_store(job(9, [2], [0], {}))
    first.tier.drain_jobs()
    assert [result.job_id for result in first.tier.get_finished_jobs()] == [9]
    assert first.found(range(5)) == []
    first.store([3])
    assert first.load([3]) == [3]
    assert 3 not in second.found(range(5))


def test_a_shutdown_ends_the_connection(store: FakeStore) -> None:
    world = World()
    world.tier.submit_store(job(1, [1, 2], [0, 1], {}))
    world.tier.shutdown()
    assert store.is_closed
    world.view.release()
    del world.host
    world.memory.close()  # as vLLM does next: nothing views it any more


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"threads": 0}, ValueError, "threads must be"),
        ({"timeout": 0.0}, ValueError, "timeout must be"),
        ({"lent_bytes": "1GB"}, TypeError, "lent_bytes must be an int"),
        ({"master": None}, TypeError, "master must be a str"),
        ({"pool": 1}, TypeError, "unexpected keyword argument 'pool'"),
        ({"revision": ""}, UnsupportedConfigError, "plug-in of vLLM is off"),
    ],
)
def test_wrong_options_are_refused_by_name(
    store: FakeStore, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        World(**options)
    assert not store.calls


def test_a_store_without_memory_for_transfers_is_closed_again(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(size: int) -> memoryview:
        raise OSError("Mooncake cannot register memory")

    monkeypatch.setattr(store, "buffer", fails)
    with pytest.raises(SharedStoreError, match="host:1: Mooncake cannot register memory"):
        World()
    assert store.is_closed


def test_a_master_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(master: str, **_: Any) -> Any:
        raise SharedStoreError(master, "nothing answers there")

    monkeypatch.setattr("blockmgr.tiers.mooncake.MooncakeStore", gone)
    with pytest.raises(SharedStoreError, match="nothing answers there"):
        World()
