"""Mooncake Store behind SGLang's hierarchical cache, on stand-ins for SGLang and for the store.

``tests/engines/sglang/test_storage.py`` runs it with SGLang's own host memory and controller.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from blockmgr.ports.unsupported import UnsupportedConfigError
from tests.tiers.fake_store import FakeStore

MODULE = "blockmgr.ports.sglang.storage"
WORDS = 1024  # of a page
DYNAMIC = {"backend_name": "blockmgr", "module_path": MODULE, "class_name": "MooncakeHiCache"}


class HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    found = FakeStore()
    monkeypatch.setattr("blockmgr.tiers.mooncake.MooncakeStore", lambda *_, **__: found)
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["sglang"].__version__ = "0.5.23"  # type: ignore[attr-defined]
    module = ModuleType("sglang.srt.mem_cache.hicache_storage")
    module.HiCacheStorage = HiCacheStorage  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules.pop(MODULE, None)
    yield found
    sys.modules.pop(MODULE, None)


def storage(pool: dict[str, Any] | None = None, ranks: Any = None, **options: Any) -> Any:
    """As SGLang makes it."""
    named = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0}
    named |= {"attn_cp_size": 1, "dcp_rank": 0, "dcp_size": 1, "is_mla_model": False}
    extra = {**DYNAMIC, "master": "host:1", "revision": "1", **options}
    config = SimpleNamespace(model_name="tiny", extra_config=extra, **{**named, **(ranks or {})})
    made = importlib.import_module(MODULE).MooncakeHiCache(config, {})
    page = lambda: torch.zeros(WORDS)  # noqa: E731
    parts = {"dtype": torch.float32, "page_size": 16, "layout": "layer_first", **(pool or {})}
    made.register_mem_pool_host(SimpleNamespace(get_dummy_flat_data_page=page, **parts))
    return made


def page_of(number: int) -> Any:
    return torch.arange(WORDS, dtype=torch.float32) + number


def key_of(number: int) -> str:
    return f"{number:064x}"


def put(made: Any, *numbers: int) -> bool:
    good: bool = made.batch_set([key_of(n) for n in numbers], [page_of(n) for n in numbers])
    return good


def got(made: Any, *numbers: int) -> list[int]:
    """The pages that come back, each with its bytes."""
    targets = [torch.zeros(WORDS) for _ in numbers]
    found = made.batch_get([key_of(n) for n in numbers], targets)
    good = [n for n, page in zip(numbers, found, strict=True) if page is not None]
    for number, page in zip(numbers, found, strict=True):
        assert page is None or torch.equal(page, page_of(number)), "wrong bytes"
    return good


def test_pages_that_one_server_stores_come_back_in_another() -> None:
    first, second = storage(), storage()
    assert put(first, *range(150))  # more than one batch
    assert second.batch_exists([key_of(n) for n in (0, 1, 149, 200, 2)]) == 3
    assert got(second, *range(150)) == list(range(150))
    assert second.exists(key_of(7))
    assert torch.equal(second.get(key_of(7), torch.zeros(WORDS)), page_of(7))
    assert not second.exists(key_of(200))
    assert second.get(key_of(200), torch.zeros(WORDS)) is None
    assert second.set(key_of(200), page_of(200))
    assert got(first, 200) == [200]


def test_a_secret_hides_which_pages_are_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret, 16 bytes")
    assert put(storage(secret_file=str(secret)), 1, 2)
    assert not storage().exists(key_of(1))
    assert got(storage(secret_file=str(secret)), 1, 2) == [1, 2]


def test_a_damaged_page_ends_what_comes_back_and_is_stored_again(store: FakeStore) -> None:
    made = storage()
    put(made, 1, 2, 3)
    good = page_of(2).numpy().tobytes()
    name = next(name for name, data in store.objects.items() if good in data)
    store.objects[name] = store.objects[name][:-1] + b"x"
    assert got(made, 1, 2, 3) == [1]
    made.close()  # its removal has ended
    assert name not in store.objects
    again = storage()
    assert put(again, 1, 2, 3)
    assert got(again, 1, 2, 3) == [1, 2, 3]


def test_no_server_gets_what_a_store_makes_up(store: FakeStore) -> None:
    store.lie = 0.4
    returned = refused = 0
    for _ in range(40):
        made = storage()
        put(made, 1, 2, 3, 4)
        returned += len(got(made, 1, 2, 3, 4))
        refused += made._storage.stats().refused
    assert returned > 10
    assert refused > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": "2"},
        {"pool": {"page_size": 32}},
        {"pool": {"layout": "page_first"}},
        {"pool": {"dtype": torch.bfloat16}},
        {"ranks": {"tp_size": 2}},
        {"ranks": {"tp_rank": 1}},
        {"ranks": {"pp_rank": 1}},
    ],
)
def test_servers_with_another_layout_share_nothing(changes: dict[str, Any]) -> None:
    put(storage(), 1)
    assert got(storage(), 1) == [1]
    assert got(storage(**changes), 1) == []


def test_ranks_that_hold_the_same_latents_share() -> None:
    put(storage(ranks={"is_mla_model": True, "tp_size": 2}), 1)
    assert got(storage(ranks={"is_mla_model": True, "tp_size": 2, "tp_rank": 1}), 1) == [1]


def test_a_store_that_is_gone_is_empty(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    made = storage()
    put(made, 1)
    store.is_down = True
    assert made.batch_exists([key_of(1)]) == 0
    assert got(made, 1, 2) == []
    assert not put(made, 3)
    stats = made._storage.stats()
    assert (stats.failed_calls, stats.skipped_calls) == (1, 2)
    assert [each.message for each in caplog.records] == [
        "blockmgr could not use the store at host:1: the store is gone"
    ]


def test_a_cleared_storage_shares_no_more() -> None:
    made = storage()
    put(made, 1)
    made.clear()
    assert got(made, 1) == []
    put(made, 2)
    assert got(made, 2) == [2]
    assert got(storage(), 1, 2) == [1]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"revision": ""}, UnsupportedConfigError, "give `revision`"),
        ({"interface_v1": 1}, UnsupportedConfigError, "`interface_v1` is not supported"),
        ({"pool": {"dtype": torch.uint8}}, UnsupportedConfigError, "8 bits"),
        ({"size": 1}, TypeError, "unexpected keyword argument 'size'"),
        ({"timeout": 0}, ValueError, "timeout must be"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        storage(**changes)


def test_pools_of_windows_and_states_are_refused() -> None:
    made = storage()
    made.register_mem_host_pool_v2(object(), "kv")
    with pytest.raises(UnsupportedConfigError, match="pool 'swa' is not supported"):
        made.register_mem_host_pool_v2(object(), "swa")
