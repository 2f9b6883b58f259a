"""What clients write into SGLang's requests never costs a page of its cache.

The modules of SGLang that the cache imports are stand-ins; ``tests/engines/sglang`` runs SGLang.
"""

from __future__ import annotations

import importlib
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.ports.hostile import Life, all_values

torch = pytest.importorskip("torch", reason="the group 'test-torch'")

PAGE, PAGES = 2, 8


@dataclass
class Key:
    """A ``RadixKey``."""

    token_ids: Any
    extra_key: Any = None
    cache_salt: Any = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def raw_token_ids(self) -> Any:
        return self.token_ids


class Base:
    """The part of SGLang's base class that the cache inherits."""

    def lock(self, node: Any) -> Any:
        return SimpleNamespace(node=node, receipt=self.inc_lock_ref(node))  # type: ignore[attr-defined]

    def unlock(self, lock: Any) -> None:
        if lock is not None:
            self.dec_lock_ref(lock.node)  # type: ignore[attr-defined]

    def update_eviction_metrics(self, count: int, start: float) -> None:
        pass


def record(*names: str) -> Any:
    def init(self: Any, *values: Any, **named: Any) -> None:
        vars(self).update(dict(zip(names, values, strict=False)) | named)

    return type("Record", (), {"__init__": init})


RECORDS = {
    "DecLockRefParams": (), "DecLockRefResult": (), "EvictParams": ("num_tokens",),
    "EvictResult": (), "IncLockRefResult": (), "InsertParams": (), "InsertResult": (),
    "MatchPrefixParams": ("key",), "MatchResult": ("device_prefix_len", "last_device_node"),
}  # fmt: skip


@pytest.fixture
def cache_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    modules: dict[str, dict[str, Any]] = {
        "sglang": {}, "sglang.srt": {}, "sglang.srt.mem_cache": {},
        "sglang.srt.mem_cache.base_prefix_cache": {
            "BasePrefixCache": Base, **{name: record(*RECORDS[name]) for name in RECORDS},
        },
        "sglang.srt.mem_cache.radix_cache": {"RadixKey": Key},
    }  # fmt: skip
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    made = importlib.import_module("blockmgr.ports.sglang.cache")
    yield made
    del sys.modules["blockmgr.ports.sglang.cache"]


class Engine:
    """The cache, and what SGLang's scheduler has around it: rows and free slots."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.free = list(range(PAGE, PAGE * (PAGES + 1)))
        self.rows = torch.zeros((1, 16), dtype=torch.int64)
        allocator = SimpleNamespace(
            size=PAGE * PAGES, device="cpu",
            free_segment=lambda slots, start_pos: self.free.extend(slots.tolist()),
        )  # fmt: skip
        rows = SimpleNamespace(req_to_token=self.rows, write=self.rows.__setitem__)
        self.cache = module.PrefixCache(
            SimpleNamespace(
                disable=False, page_size=PAGE, enable_metrics=False, req_to_token_pool=rows,
                token_to_kv_pool_allocator=allocator,
            )
        )  # fmt: skip

    def admit(self) -> Any:
        """A request of three computed pages."""
        slots, self.free = self.free[: 3 * PAGE], self.free[3 * PAGE :]
        self.rows[0, : len(slots)] = torch.tensor(slots)
        kv = SimpleNamespace(req_pool_idx=0, cache_protected_len=0, cache_inserted_len=0)
        return SimpleNamespace(
            full_untruncated_fill_ids=array("q", range(3 * PAGE)), extra_key=None, cache_salt=None,
            kv=kv, lock=None, last_node=None,
        )  # fmt: skip

    def finish(self, request: Any) -> None:
        """Frees the slots that are not the cache's, and evicts everything."""
        self.free += self.rows[0, request.kv.cache_protected_len : 3 * PAGE].tolist()
        self.cache.unlock(request.lock)
        self.cache.evict(SimpleNamespace(num_tokens=self.cache.evictable_size()))
        assert sorted(self.free) == list(range(PAGE, PAGE * (PAGES + 1)))
        assert self.cache.total_size() == 0


def matches(engine: Engine, request: Any) -> None:
    engine.cache.match_prefix(SimpleNamespace(key=key_of(request)))


def touches(engine: Engine, request: Any) -> None:
    engine.cache.touch_prefix(key_of(request))


def checkpoints(engine: Engine, request: Any) -> None:
    engine.cache.checkpoint(request, up_to=3 * PAGE)


def key_of(request: Any) -> Key:
    return Key(request.full_untruncated_fill_ids, request.extra_key, request.cache_salt)


@pytest.mark.parametrize("field", ["extra_key", "cache_salt"])
@pytest.mark.parametrize("call", [matches, touches, checkpoints])
def test_a_request_of_sglang_gives_all_slots_back_or_is_refused_by_name(
    cache_class: Any, call: Callable[[Engine, Any], None], field: str
) -> None:
    def make() -> Life:
        engine = Engine(cache_class)

        def given(request: Any, value: Any) -> None:
            setattr(request, field, value)
            call(engine, request)

        def after(request: Any, _: Any) -> None:
            engine.finish(request)

        return Life(engine.cache.pool, engine.admit, given, after)

    all_values(make, {field})
