"""Stand-ins for vLLM's modules, and a world with one of our tiers on them."""

from __future__ import annotations

import enum
import hashlib
import mmap
import sys
from collections.abc import Collection, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from blockmgr.ports.vllm_tiers import interface

SIZE, CHUNKS, BLOCKS = 4096, 8, 6


class LookupResult(enum.Enum):
    MISS, HIT, RETRY = 1, 2, 3


class JobResult(NamedTuple):
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    def __init__(self, spec: Any, view: memoryview, kind: str, detector: Any) -> None:
        assert view.strides is not None
        self.block_size_bytes = view.strides[0]


class AsyncLookupManager:
    """Asks when it is flushed, and not on a thread."""

    def __init__(self, tier_type: str) -> None:
        self.users: dict[bytes, set[str]] = {}
        self.found: dict[bytes, bool] = {}

    def lookup(self, key: bytes, req_context: Any) -> bool | None:
        self.users.setdefault(key, set()).add(req_context.req_id)
        return self.found.get(key)

    def flush(self) -> None:
        asked = [key for key in self.users if key not in self.found]
        if asked:
            self.found |= zip(asked, self.batch_lookup(asked, None), strict=True)

    def batch_lookup(self, keys: list[bytes], req_context: Any) -> list[bool]:
        raise NotImplementedError

    def mark_miss(self, keys: Collection[bytes]) -> None:
        self.found |= dict.fromkeys(set(keys) & set(self.found), False)

    def cleanup(self, req_id: str) -> None:
        for key, users in list(self.users.items()):
            users.discard(req_id)
            if not users:
                self.found.pop(key, None)
                del self.users[key]

    def shutdown(self) -> None:
        self.users.clear()


class CachePolicy:
    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity


class Stats(dict[str, int]):
    def increase_counter(self, name: str, count: int) -> None:
        self[name] = count


TIERING = "vllm.v1.kv_offload.tiering"
MODULES: dict[str, dict[str, Any]] = {
    "vllm": {"__version__": "0.33.0"},
    "vllm.platforms": {
        "current_platform": SimpleNamespace(device_type="x", get_device_name=lambda: "card")
    },
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": {
        "OffloadingConnectorStats": Stats
    },
    "vllm.v1.kv_offload.base": {
        "LookupResult": LookupResult,
        "Medium": SimpleNamespace(STORAGE="storage"),
        "OffloadingCounterMetadata": str,
        "RequestOffloadingContext": object,
    },
    f"{TIERING}.base": {"JobResult": JobResult, "SecondaryTierManager": SecondaryTierManager},
    f"{TIERING}.async_lookup": {"AsyncLookupManager": AsyncLookupManager},
    "vllm.v1.kv_offload.cpu.policies.base": {"CachePolicy": CachePolicy},
}
OURS = [
    f"blockmgr.ports.vllm_tiers.{name}"
    for name in ("jobs", "slab_tier", "mooncake_tier", "policies")
]


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, names in MODULES.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(interface, "check_installed", lambda: None)
    for name in OURS:
        sys.modules.pop(name, None)
    yield
    for name in OURS:
        sys.modules.pop(name, None)


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest() + bytes(4)


def config_of(**changes: Any) -> Any:
    parallel = {"rank": 0, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1}
    parallel |= {"data_parallel_index": 0, "data_parallel_size": 1, **changes.pop("parallel", {})}
    named = {"kv_cache_layout": "NHD", "canonical_layout": False, "replicated_layout": False}
    group = SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("a", "b"))
    parts = {
        "groups": [group],
        "model": SimpleNamespace(name="tiny", dtype="float32"),
        "cache": SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        "parallel": SimpleNamespace(**parallel),
    }
    return SimpleNamespace(**{**parts, **named, **changes})


def job(number: int, keys: list[int], chunks: list[int], positions: dict[int, int]) -> Any:
    known = {key_of(k): position for k, position in positions.items()}
    context = SimpleNamespace(get_offload_key_position=known.get)
    return SimpleNamespace(
        job_id=number,
        keys=[key_of(k) for k in keys],
        chunk_ids=np.array(chunks),
        req_context=context,
    )


def content(key: int) -> Any:
    return np.frombuffer(hashlib.sha256(b"bytes %d" % key).digest() * (SIZE // 32), np.uint8)


class TierWorld:
    """A tier over eight chunks of host memory; a chunk holds the bytes of its key."""

    tier: Any

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, CHUNKS * SIZE)
        self.host = np.frombuffer(self.memory, np.uint8).reshape(CHUNKS, SIZE)
        self.view = memoryview(self.host)
        self.jobs = 0

    def settle(self) -> list[Any]:
        for running in self.tier._jobs:
            for task in running.tasks:
                task.result(timeout=60)
        return list(self.tier.get_finished_jobs())

    def store(self, keys: list[int], positions: dict[int, int] | None = None) -> Any:
        for chunk, key in enumerate(keys):
            self.host[chunk] = content(key)
        self.jobs += 1
        self.tier.submit_store(job(self.jobs, keys, list(range(len(keys))), positions or {}))
        return self.settle()[0]

    def load(self, keys: list[int]) -> list[int]:
        """The keys that are loaded, each with its bytes."""
        self.host[:] = 0
        self.jobs += 1
        self.tier.submit_load(job(self.jobs, keys, list(range(len(keys))), {}))
        [result] = self.settle()
        whole = [key_of(key) for key in keys]
        good = whole if result.success else list(result.successful_keys or ())
        found = [key for key, known in zip(keys, whole, strict=True) if known in good]
        for key in found:
            assert (self.host[keys.index(key)] == content(key)).all(), "wrong bytes"
        return found

    def found(self, keys: range) -> list[int]:
        look = self.tier.lookup
        return [key for key in keys if look(key_of(key), None) is LookupResult.HIT]
