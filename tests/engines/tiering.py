"""``python -m tests.engines.tiering``: the slab inside vLLM's own ``TieringOffloadingManager``.

Without kernels, so that it also runs where vLLM has none for this machine. Chunks go through a host
memory of eight, into the slab, and come back: byte for byte, after a restart too; a chunk with a
flipped bit, and all of them after a reset, are not found. A random play does the same with each of
our eviction policies for the host memory. Then two managers share a real Mooncake Store, where it
is installed. Exit code 1 if something is wrong.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

from blockmgr.tiers import SlabMismatchError
from tests.engines.tiers import flip, has_mooncake

SIZE, HOST, BLOCKS = 16_384, 8, 64
MODULE = "blockmgr.ports.vllm_tiers"


def spec(**changes: Any) -> Any:
    """What the tier reads of vLLM's specification."""
    parallel = {"rank": 0, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1}
    parallel |= {"data_parallel_index": 0, "data_parallel_size": 1}
    named = {"kv_cache_layout": "NHD", "canonical_layout": False, "replicated_layout": False}
    return SimpleNamespace(
        config=SimpleNamespace(
            groups=[SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("a",))],
            model=SimpleNamespace(name="tiny", dtype="float32"),
            cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=SimpleNamespace(**parallel),
            **{**named, **changes},
        )
    )


def key_of(number: int) -> Any:
    return make_offload_key(number.to_bytes(4, "little") * 8, 0)


def content(key: Any, weights: int = 0) -> Any:
    return np.random.default_rng([*key, weights]).integers(0, 256, SIZE, dtype=np.uint8)


class Disk:
    """Calls of ``os`` that fail with some probability, and move a part of what they are given."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.rate = rng, 0.0
        self.patch = pytest.MonkeyPatch()
        for name in ("pread", "preadv", "pwrite", "pwritev", "fsync"):
            self.patch.setattr(os, name, self.hooked(getattr(os, name)))

    def hooked(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if self.rng.random() < self.rate:
                raise OSError(errno.EIO, "Input/output error")
            if plain.__name__ == "pwrite" and self.rng.random() < self.rate:
                given = (given[0], given[1][: len(given[1]) // 8192 * 4096 or None], given[2])
            return plain(*given)

        return call


class World:
    """vLLM's manager with host memory and a slab, or the Mooncake Store of a master."""

    def __init__(self, path: Path | str, policy: str = "lru", **options: Any) -> None:
        region = SharedOffloadRegion(
            engine_id=f"blockmgr_{os.getpid()}_{time.monotonic_ns()}",
            num_chunks=HOST,
            rank=None,
            kv_bytes_per_chunk=SIZE,
            cpu_page_size=SIZE,
        )
        module = {} if policy == "lru" else {"cache_policy_module_path": MODULE}
        primary = CPUPrimaryTierOffloadingManager(
            num_chunks=HOST, mmap_region=region, cache_policy=policy, **module
        )
        config = {"type": "MooncakeStoreTier", "master": path, "timeout": 10.0}
        if isinstance(path, Path):
            config = {"type": "SlabTier", "path": str(path), "bytes_to_use": BLOCKS * SIZE}
        config |= {"module_path": MODULE, "revision": "1", **options.pop("tier", {})}
        view = primary.get_kv_memoryview()
        try:
            self.tier: Any = SecondaryTierFactory.create_secondary_tier(
                config, view, spec(**options)
            )
        except BaseException:
            primary.shutdown()
            raise
        self.manager = TieringOffloadingManager(primary_tier=primary, secondary_tiers=[self.tier])
        self.host = np.frombuffer(view, np.uint8).reshape(HOST, SIZE)
        self.count = self.weights = 0

    def request(self) -> Any:
        self.count += 1
        context = ReqContext(f"r{self.count}")
        self.manager.on_new_request(context)
        return context

    def end_step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def settle(self) -> None:
        for _ in range(1000):
            self.end_step()
            if not self.manager._jobs:
                return
            time.sleep(0.002)
        raise AssertionError("a transfer does not end")

    def store(self, numbers: list[int]) -> None:
        """As a request that computed these chunks."""
        context, keys = self.request(), [key_of(number) for number in numbers]
        planned = self.manager.prepare_store(keys, context)
        if planned is not None and planned.keys_to_store:
            chunks = planned.store_spec.block_ids
            for key, chunk in zip(planned.keys_to_store, chunks, strict=True):
                self.host[chunk] = content(key, self.weights)
            self.manager.complete_store(planned.keys_to_store, context)
        self.manager.on_request_finished(context)

    def load(self, numbers: list[int]) -> list[int]:
        """As a request with these chunks: those that it finds, all of them with their bytes."""
        found = [each for step in self.loading(numbers) for each in step]
        self.settle()
        return found

    def loading(self, numbers: list[int]) -> Iterator[list[int]]:
        """``load`` in steps, between which others may go on."""
        context, keys = self.request(), [key_of(number) for number in numbers]
        for _ in range(1000):
            results = [self.manager.lookup(key, context) for key in keys]
            self.end_step()
            if all(result in (LookupResult.HIT, LookupResult.MISS) for result in results):
                break
            time.sleep(0.002)
            yield []
        hits = [i for i, result in enumerate(results) if result is LookupResult.HIT]
        for i in hits:
            [chunk] = self.manager.prepare_load([keys[i]], context).block_ids
            assert (self.host[chunk] == content(keys[i], self.weights)).all(), "wrong bytes"
            self.manager.complete_load([keys[i]], context)
        self.manager.on_request_finished(context)
        yield [numbers[i] for i in hits]

    def close(self) -> None:
        if hasattr(self.tier, "_pool"):
            self.tier._pool.check_invariants()
        self.host = None
        self.manager.shutdown()


@contextmanager
def world(path: Path | str, **options: Any) -> Iterator[World]:
    opened = World(path, **options)
    try:
        with opened.manager.lock if hasattr(opened.manager, "lock") else tempfile.TemporaryFile():
            yield opened
    finally:
        opened.close()


def stories(folder: Path) -> None:
    path = folder / "kv.slab"
    with world(path) as w:
        for first in range(0, 24, 4):
            w.store(list(range(first, first + 4)))
            w.settle()
        assert w.load([0, 1, 2, 3]) == [0, 1, 2, 3], "evicted from the host, not promoted"
        assert w.tier.counts["stored"] == 24
    with world(path) as w:
        assert w.tier.counts["restored"] == 24
        assert w.load([4, 5, 90, 6]) == [4, 5, 6], "not found after a restart"
        stats = w.manager.get_stats().reduce()
        assert stats["blockmgr:slab_loaded_chunks"] == 3, stats
    flip(path)
    with world(path) as w:
        assert w.load([8, 9, 10]) == [], "damaged chunks were found"
        assert w.tier.counts["refused"] == 3
        w.store([8, 9, 10])
        w.settle()
        assert w.tier.counts["stored"] == 3, "refused chunks were not stored again"
    for changes in ({"tier": {"revision": "2"}}, {"kv_cache_layout": "HND"}):
        with pytest.raises(SlabMismatchError, match=r"made for (revision|kv_cache_layout)"):
            World(path, **changes)
    with world(path) as w:
        assert w.load([8, 9, 10]) == [8, 9, 10]
        w.store([40])
        w.manager.reset_cache()
        if hasattr(w.manager, "on_reset_flushed"):
            w.manager.on_reset_flushed()
        assert w.load([8, 9, 40]) == [], "found after a reset"
        w.store([41])
        w.settle()
    with world(path) as w:
        assert w.tier.counts["restored"] == 0, "came back after a reset"


def shared_stories() -> None:
    from blockmgr.tiers import SharedStoreError
    from blockmgr.tiers.mooncake import MooncakeStore
    from tests.engines.mooncake import master

    with master() as (address, process):
        lender = MooncakeStore(address, lent_bytes=64 << 20)
        with world(address) as w:
            for first in range(0, 24, 4):
                w.store(list(range(first, first + 4)))
                w.settle()
            assert w.load([0, 1, 2, 3]) == [0, 1, 2, 3], "evicted from the host, not promoted"
            assert w.tier.counts["written"] == 24
            with world(address) as other:
                assert other.load([4, 5, 90, 6]) == [4, 5, 6], "not found by another process"
            with world(address, kv_cache_layout="HND") as other:
                assert other.load([4]) == [], "found with another layout"
            w.manager.reset_cache()
            if hasattr(w.manager, "on_reset_flushed"):
                w.manager.on_reset_flushed()
            assert w.load([8, 9]) == [], "found after a reset"
        with world(address, tier={"timeout": 1.0}) as w:
            assert w.load([12]) == [12]
            process.kill()
            process.wait()
            assert w.load([16, 17]) == [], "found in a store that is gone"
            assert w.tier.counts["failed_calls"] == 1
        lender.close()
    with pytest.raises(SharedStoreError, match="nothing answers there"):
        World(address)


def play(folder: Path, policy: str, seed: int) -> int:
    """Random stores, loads and resets; how many chunks were loaded from the slab.

    The disk fails now and then, blocks are damaged, and some lives end without a shutdown. After a
    reset the weights are others, and with the next life those that the slab names again.
    """
    rng = random.Random(seed)
    loaded, path = 0, folder / f"{policy}.slab"
    disk = Disk(rng)
    for _ in range(6):
        options = {"tier": {"eviction": rng.choice(["lru", "arc", "s3fifo", "lfuda"])}}
        with world(path, policy=policy, **options) as w:
            is_crash, open_loads = rng.random() < 0.3, []
            for _ in range(60):
                disk.rate = rng.choice([0, 0, 0, 0.02, 0.3])
                first = rng.randrange(100)
                numbers = list(range(first, first + rng.randint(1, 5)))
                draw = rng.random()
                if draw < 0.02:
                    for each in open_loads:
                        list(each)
                    open_loads.clear()
                    w.settle()
                    w.manager.reset_cache()
                    if hasattr(w.manager, "on_reset_flushed"):
                        w.manager.on_reset_flushed()
                    w.weights += 1
                elif draw < 0.05:
                    damage(path, rng)
                elif draw < 0.5:
                    w.store(numbers)
                else:
                    open_loads.append(w.loading(numbers))
                open_loads = [
                    each
                    for each in open_loads
                    if rng.random() < 0.5 or next(each, None) is not None
                ][-3:]
                if rng.random() < 0.5:
                    w.end_step()
            for each in open_loads:
                list(each)
            w.settle()
            disk.rate = 0
            loaded += w.tier.counts["loaded"]
            if is_crash:
                w.tier._slab._close_files()
    disk.patch.undo()
    return loaded


def damage(path: Path, rng: random.Random) -> None:
    """Writes rubbish into some place of the file behind its first pages."""
    with path.open("r+b") as file:
        file.seek(rng.randrange(3 * 4096, path.stat().st_size - 5000))
        file.write(rng.randbytes(rng.choice([1, 64, 5000])))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        stories(Path(folder))
        for policy in ("lru", "S3FifoPolicy", "ArcPolicy", "LfudaPolicy"):
            print(f"{policy}: {play(Path(folder), policy, seed=1)} chunks loaded, all right")
    if has_mooncake():
        shared_stories()
        print("Mooncake Store: stored, shared, reset and killed, all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
