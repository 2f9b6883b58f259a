"""Mooncake Store behind SGLang's own host memory and controller, which move pages on threads.

Run where SGLang is installed (``tests/engines/sglang/run``); elsewhere it is skipped. Its copies
between host and device need a GPU, so pages begin and end in host memory here.
"""

from __future__ import annotations

import importlib.util
from queue import Queue
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("needs SGLang: see tests/engines/sglang/run", allow_module_level=True)

from tests.engines.sglang import stand_ins  # noqa: F401  isort: skip  before anything of SGLang

import torch
from sglang.srt.managers.cache_controller import (
    HiCacheController,
    PrefetchOperation,
    StorageOperation,
)
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_storage_hash_str

from blockmgr.ports.unsupported import UnsupportedConfigError
from tests.tiers.fake_store import FakeStore

PAGE, SLOTS = 4, 1200
PROMPT = list(range(100, 100 + 150 * PAGE))  # more than one batch of SGLang's
EXTRA = {"backend_name": "blockmgr", "class_name": "MooncakeHiCache", "revision": "1"}
EXTRA |= {"module_path": "blockmgr.ports.sglang.storage", "master": "host:1"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    found = FakeStore()
    monkeypatch.setattr("blockmgr.tiers.mooncake.MooncakeStore", lambda *_, **__: found)
    return found


class Server:
    """A controller over host memory, with what its threads call."""

    def __init__(self, layout: str = "layer_first", **extra: Any) -> None:
        device = MHATokenToKVPool(SLOTS, PAGE, torch.float32, 2, 8, 2, "cpu", False)
        self.host = MHATokenToKVPoolHost(
            device._mha_buffer_info(), 1.0, 0, PAGE, layout, pin_memory=False,
            device_capacity_tokens=SLOTS, start_layer=0, end_layer=1,
        )  # fmt: skip
        config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, False, "tiny")
        config.extra_config = EXTRA | extra
        made: Any = HiCacheController.__new__(HiCacheController)
        made.mem_pool_host = made.storage_host_pool = self.host
        made.page_size, made.prefetch_sync_queue = PAGE, Queue()
        made.storage_backend = StorageBackendFactory.create_backend("dynamic", config, self.host)
        made.storage_backend.register_mem_pool_host(self.host)
        made.storage_backend.register_mem_host_pool_v2(self.host, PoolName.KV)
        made.page_get_func, made.page_set_func = made._generic_page_get, made._generic_page_set
        self.controller = made

    def store(self, key: RadixKey) -> int:
        """Writes K/V that follows from the tokens, and stores it; the tokens that are stored."""
        slots = torch.arange(len(key.token_ids))
        self.host.kv_buffer.copy_(contents(self.host))
        hashes = get_storage_hash_str(key, None, page_size=PAGE)
        operation = StorageOperation(slots, key, hash_value=hashes)
        self.controller._page_backup(operation)
        return int(operation.completed_tokens)

    def load(self, key: RadixKey) -> int:
        """The tokens of a prompt that come back, all with their K/V."""
        self.host.kv_buffer.zero_()
        operation = PrefetchOperation("r", key)
        operation.hash_value, count = self.controller._storage_hit_query(operation)
        operation.host_indices = torch.arange(count)
        pages = self.controller._page_transfer(operation)
        count = pages * PAGE
        dim = 2 if self.host.layout == "layer_first" else 1
        good = contents(self.host).narrow(dim, 0, count)
        assert torch.equal(self.host.kv_buffer.narrow(dim, 0, count), good), "wrong K/V"
        return count


def contents(host: Any) -> Any:
    random = torch.Generator().manual_seed(3)
    return torch.rand(host.kv_buffer.shape, generator=random)


def key_of(salt: str | None = None, adapter: str | None = None) -> RadixKey:
    from array import array

    return RadixKey(array("q", PROMPT), extra_key=adapter, cache_salt=salt)


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_a_second_server_loads_what_the_first_one_stored(layout: str, store: FakeStore) -> None:
    assert Server(layout).store(key_of()) == len(PROMPT)
    assert Server(layout).load(key_of()) == len(PROMPT)
    other = {"layer_first": "page_first", "page_first": "layer_first"}[layout]
    assert Server(other).load(key_of()) == 0


def test_another_salt_or_adapter_finds_nothing(store: FakeStore) -> None:
    Server().store(key_of(salt="a", adapter="x"))
    server = Server()
    assert server.load(key_of(salt="a", adapter="x")) == len(PROMPT)
    for other in (key_of(), key_of(salt="b", adapter="x"), key_of(salt="a", adapter="y")):
        assert server.load(other) == 0


def test_a_damaged_page_ends_the_prefix(store: FakeStore) -> None:
    server = Server()
    server.store(key_of())
    name = list(store.objects)[70]
    store.objects[name] = store.objects[name][:-1] + bytes([store.objects[name][-1] ^ 1])
    count = server.load(key_of())
    assert 0 < count < len(PROMPT)
    assert server.controller.storage_backend._storage.stats().refused == 1


def test_a_store_that_lies_or_is_gone_costs_pages_and_nothing_else(store: FakeStore) -> None:
    server = Server()
    server.store(key_of())
    store.is_down = True
    assert server.load(key_of()) == 0
    assert server.store(key_of()) == 0
    store.is_down, store.lie = False, 0.3
    assert sum(Server().load(key_of()) for _ in range(20)) > 0


def test_models_with_windows_are_refused(store: FakeStore) -> None:
    with pytest.raises(UnsupportedConfigError, match="pool 'swa'"):
        Server().controller.storage_backend.register_mem_host_pool_v2(object(), PoolName.SWA)


def test_servers_share_a_real_store_until_it_is_gone() -> None:
    pytest.importorskip("mooncake.store", reason="needs blockmgr[mooncake]", exc_type=ImportError)
    from tests.engines.mooncake import LENT, master

    with master() as (address, process):
        first = Server(master=address, lent_bytes=LENT)
        second = Server(master=address, timeout=1.0)
        assert first.store(key_of()) == len(PROMPT)
        assert second.load(key_of()) == len(PROMPT)
        assert second.load(key_of(salt="b")) == 0
        process.kill()
        assert second.load(key_of(adapter="x")) == 0
        assert second.store(key_of(adapter="x")) == 0
        for server in (second, first):
            server.controller.storage_backend.close()


def test_each_method_takes_what_sglang_passes(store: FakeStore) -> None:
    """The class is abstract if a method is missing, and SGLang passes these parameters."""
    import inspect

    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    kind = type(Server().controller.storage_backend)
    for name in ("get", "batch_get", "set", "batch_set", "exists", "batch_exists"):
        ours, theirs = (inspect.signature(getattr(each, name)) for each in (kind, HiCacheStorage))
        assert list(ours.parameters) == list(theirs.parameters), name
