"""What does a slab cost beside the offloading tiers of vLLM: its files, and its books in memory?

Run ``python -m benchmarks.offloading FOLDER`` with an interpreter that has vLLM. Both tiers get
jobs of eight chunks from one host memory, on four threads each, in turns; loads are proved and
compared with what was stored. vLLM's tier uses its C extension. The books are those of vLLM's tier
in host memory and of ``BlockPool``, for chains of 64 blocks that evict others.
"""

from __future__ import annotations

import argparse
import mmap
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xxhash
from rich.console import Console
from rich.table import Table
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs import io
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from blockmgr.pool import BlockPool
from blockmgr.ports.vllm_tiers import SlabTier

THREADS, CHUNKS_A_JOB, CHAIN = 4, 8, 64
SIZES = {"64 KiB": (1 << 16, 1024), "2 MiB": (1 << 21, 64)}  # bytes of a chunk, and chunks


def spec() -> Any:
    """What the tiers read of vLLM's specification."""
    parallel = {"rank": 0, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1}
    parallel |= {"data_parallel_index": 0, "data_parallel_size": 1}
    config = SimpleNamespace(
        groups=[SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("a",))],
        model=SimpleNamespace(name="tiny", dtype="float32"),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=SimpleNamespace(**parallel, is_parallelism_agnostic=True),
        kv_cache_layout="NHD",
        canonical_layout=False,
        replicated_layout=False,
    )
    return SimpleNamespace(config=config, kv_events_config=None, blocks_per_chunk=1)


def keys_of(first: int, count: int) -> list[Any]:
    return [make_offload_key(i.to_bytes(8, "little") * 4, 0) for i in range(first, first + count)]


def run(tier: Any, submit: Callable[[Any], None], keys: list[Any]) -> float:
    """Seconds until all jobs have ended, each of which must bring all of its chunks."""
    starts = range(0, len(keys), CHUNKS_A_JOB)
    context, left = ReqContext("r"), len(starts)
    begin = time.perf_counter()
    for number, at in enumerate(starts):
        part = keys[at : at + CHUNKS_A_JOB]
        chunks = np.arange(at, at + len(part))
        submit(TransferJob(number, part, chunks, submit is tier.submit_load, context))
    while left:
        for result in tier.get_finished_jobs():
            assert result.success
            left -= 1
        time.sleep(0.0002)
    return time.perf_counter() - begin


def transfers(folder: str, size: int, count: int, rounds: int) -> dict[str, float]:
    """Medians of what each tier stores and loads, in bytes a second; and the share of proofs."""
    memory = mmap.mmap(-1, size * count)
    host = np.frombuffer(memory, np.uint8).reshape(count, size)
    source = np.random.default_rng(0).integers(0, 256, host.shape, np.uint8)
    view = memoryview(host)
    slab: Any = SlabTier(
        spec(), view, "SlabTier", path=f"{folder}/kv.slab", bytes_to_use=size * count,
        threads=THREADS, revision="1",
    )  # fmt: skip
    rates: dict[str, list[float]] = defaultdict(list)
    for turn in range(rounds):
        keys = keys_of(turn * count, count)
        arms = ["slab", "files"]
        random.Random(turn).shuffle(arms)
        for name in arms:
            files = f"{folder}/files"
            half = THREADS // 2
            tier = slab if name == "slab" else FileSystemTierManager(
                spec(), view, "fs", files, n_read_threads=half, n_write_threads=half
            )  # fmt: skip
            host[:] = source
            rates[f"{name} store"].append(host.nbytes / run(tier, tier.submit_store, keys))
            host[:] = 0
            rates[f"{name} load"].append(host.nbytes / run(tier, tier.submit_load, keys))
            assert np.array_equal(host, source)
            if name == "files":
                tier.shutdown()
                shutil.rmtree(files)
    slab.shutdown()
    found = {name: statistics.median(each) for name, each in rates.items()}
    begin = time.thread_time()
    for chunk in host:
        xxhash.xxh3_128_digest(chunk)
    proof = time.thread_time() - begin
    found["proof"] = proof * found["slab load"] / (THREADS * host.nbytes)
    return found


def vllm_books(chains: int) -> Callable[[int], tuple[float, float, float]]:
    """Seconds of a store, a look-up and a load of a chain, in vLLM's host memory of some chains."""
    manager = CPUOffloadingManager(chains * CHAIN)

    def turn(number: int) -> tuple[float, float, float]:
        context, keys = ReqContext(f"r{number}"), keys_of(number * CHAIN, CHAIN)
        manager.on_new_request(context)
        times = [time.perf_counter()]
        manager.prepare_store(keys, context)
        manager.complete_store(keys, context)
        times.append(time.perf_counter())
        for key in keys:
            manager.lookup(key, context)
        times.append(time.perf_counter())
        manager.prepare_load(keys, context)
        manager.complete_load(keys, context)
        times.append(time.perf_counter())
        manager.on_request_finished(context)
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]

    return turn


def our_books(chains: int) -> Callable[[int], tuple[float, float, float]]:
    """The same in a pool, from tokens."""
    pool = BlockPool(chains * CHAIN, 16)

    def turn(number: int) -> tuple[float, float, float]:
        tokens = np.arange(CHAIN * 16, dtype=np.uint32)
        tokens[0] = number
        times = [time.perf_counter()]
        blocks = pool.take(CHAIN)
        pool.promote(blocks, tokens)
        pool.release(blocks[::-1])
        times.append(time.perf_counter())
        found = pool.find(tokens)
        times.append(time.perf_counter())
        pool.acquire(found)
        pool.release(found[::-1])
        times.append(time.perf_counter())
        assert len(found) == CHAIN
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]

    return turn


def books(turns: int) -> list[tuple[float, ...]]:
    """Medians in nanoseconds a block: of vLLM's tier, and of a pool."""
    sides = vllm_books(64), our_books(64)
    times: tuple[list[Any], list[Any]] = [], []
    for number in range(turns):
        for side, found in zip(sides, times, strict=True):
            found.append(side(number))
    return [tuple(np.median(each[64:], axis=0) * 1e9 / CHAIN) for each in times]


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    assert io._HAS_FSIO_C, "vLLM's C extension does not load here"
    table = Table("chunks", "GB/s", "slab", "vLLM's files", "ratio")
    for label, (size, count) in SIZES.items():
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            found = transfers(folder, size, count, args.rounds)
        for what in ("store", "load"):
            ours, theirs = found[f"slab {what}"], found[f"files {what}"]
            cells = f"{ours / 1e9:.2f}", f"{theirs / 1e9:.2f}", f"{ours / theirs:.2f}"
            table.add_row(label, what, *cells)
        table.add_row(label, "proof, of the threads' time", f"{found['proof']:.1%}", "", "")
    costs = Table("books, ns a block", "vLLM's host memory", "BlockPool", "ratio")
    theirs, ours = books(300)
    for what, a, b in zip(("store", "look-up", "load"), theirs, ours, strict=True):
        costs.add_row(what, f"{a:,.0f}", f"{b:,.0f}", f"1/{a / b:.0f}")
    for each in (table, costs):
        Console().print(each)


if __name__ == "__main__":
    main()
