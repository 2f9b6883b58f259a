"""blockmgr's part: the cost of storing, evicting and encoding a block, and of a replay."""

from __future__ import annotations

import gc
import time

import numpy as np

from benchmarks.events.work import BLOCK_SIZE, BLOCKS, POOL, first_frame, prompts, sizes
from blockmgr import BlockManager
from blockmgr.events import Encoder, Publisher


def measure(digest: str, rounds: int) -> dict[str, float]:
    """Nanoseconds per block, best of the rounds; milliseconds to the first frame of a replay."""
    gc.disable()
    result: dict[str, float] = {}
    for events in (False, True):
        stored, evicted = _cache(events, digest, rounds)
        name = "on" if events else "off"
        result |= {f"stored, events {name}": stored, f"evicted, events {name}": evicted}
    result |= _encode(digest, rounds)
    result["first frame of an idle replay, ms"] = _replay(digest)
    return result


def _manager(events: bool, digest: str) -> BlockManager:
    return BlockManager(POOL, BLOCK_SIZE, max_seqs=8, events=events, digest=digest)


def _best(runs: list[float]) -> float:
    return min(runs) / BLOCKS * 1e9


def _cache(events: bool, digest: str, rounds: int) -> tuple[float, float]:
    manager = _manager(events, digest)
    stored, evicted = [], []
    for tokens in prompts(rounds):
        prompt = np.asarray(tokens, np.uint32)
        # From the second prompt on, each block evicts one: the pool is little larger than a prompt.
        start = time.perf_counter()
        handle = manager.admit(prompt)
        between = time.perf_counter()
        manager.commit(handle, len(prompt))
        stored.append(time.perf_counter() - between)
        evicted.append(between - start)
        manager.free(handle)
        if events:
            manager.take_events()
    return _best(stored), _best(evicted[1:])


def _encode(digest: str, rounds: int) -> dict[str, float]:
    manager, encoder = _manager(True, digest), Encoder(BLOCK_SIZE, rank=0, epoch=1)
    taken, encoded, size = [], [], 0
    for tokens in prompts(rounds):
        manager.reset_prefix_cache()
        manager.take_events()
        handle = manager.admit(np.asarray(tokens, np.uint32))
        manager.commit(handle, len(tokens))
        start = time.perf_counter()
        events = manager.take_events()
        between = time.perf_counter()
        payloads = list(encoder.batches(events, 0.0))
        encoded.append(time.perf_counter() - between)
        taken.append(between - start)
        size = sizes(payloads)
        manager.free(handle)
    return {
        "taken out": _best(taken),
        "made and encoded": _best(encoded),
        "bytes a block": size / BLOCKS,
    }


def _replay(digest: str) -> float:
    manager = _manager(True, digest)
    with Publisher(manager, BLOCK_SIZE, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0") as publisher:
        handle = manager.admit(np.asarray(next(prompts(1)), np.uint32))
        manager.commit(handle, BLOCKS * BLOCK_SIZE)
        publisher.publish()
        return first_frame(str(publisher.replay_endpoint))
