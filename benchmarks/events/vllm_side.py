"""vLLM's part, run by an interpreter that has vLLM: prints one JSON document."""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import msgspec
import torch
from vllm import SamplingParams
from vllm import __version__ as VERSION
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_manager, kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from benchmarks.events.work import BLOCK_SIZE, BLOCKS, POOL, first_frame, prompts

HASH = get_hash_fn_by_name("sha256_cbor")


def layout() -> Any:
    """A pool for one group of full attention."""
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float16
    )
    return KVCacheConfig(
        num_blocks=POOL + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


def manager(events: bool) -> Any:
    return kv_cache_manager.KVCacheManager(
        layout(),
        max_model_len=1 << 20,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        enable_kv_cache_events=events,
    )


class Timed:
    """A function, and the total time it took."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any, **key: Any) -> Any:
        start = time.perf_counter()
        result = self.function(*args, **key)
        self.seconds += time.perf_counter() - start
        return result


def cache(events: bool, rounds: int) -> tuple[float, float, Any]:
    """Nanoseconds per block of ``cache_full_blocks``, and of a ``get_new_blocks`` that evicts."""
    made = manager(events)
    pool = made.block_pool
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, HASH)
    stored, evicted, batch = [], [], None
    pool.cache_full_blocks = Timed(pool.cache_full_blocks)
    pool.get_new_blocks = Timed(pool.get_new_blocks)
    for number, tokens in enumerate(prompts(rounds)):
        request = Request(
            str(number), tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher
        )
        pool.cache_full_blocks.seconds = pool.get_new_blocks.seconds = 0.0
        made.allocate_slots(request, request.num_tokens)
        stored.append(pool.cache_full_blocks.seconds)
        evicted.append(pool.get_new_blocks.seconds)
        request.num_computed_tokens = request.num_tokens
        made.free(request)
        if events:
            taken = made.take_events()
            batch = batch or KVEventBatch(ts=0.0, events=taken)
    return min(stored) / BLOCKS * 1e9, min(evicted[1:]) / BLOCKS * 1e9, batch


def replay(batch: Any) -> float:
    publisher = ZmqEventPublisher(0, "inproc://nobody-listens", "tcp://127.0.0.1:57552")
    publisher.publish(batch)
    try:
        return first_frame("tcp://127.0.0.1:57552")
    finally:
        publisher.shutdown()


def main() -> None:
    rounds = int(sys.argv[1])
    gc.disable()
    kv_cache_utils.init_none_hash(HASH)
    result: dict[str, Any] = {"version": f"vLLM {VERSION}"}
    batch = None
    for events in (False, True):
        stored, evicted, batch = cache(events, rounds)
        name = "on" if events else "off"
        result |= {f"stored, events {name}": stored, f"evicted, events {name}": evicted}
    encoder = msgspec.msgpack.Encoder()
    runs = []
    for _ in range(20):
        start = time.perf_counter()
        payload = encoder.encode(batch)
        runs.append(time.perf_counter() - start)
    result["made and encoded"] = min(runs) / BLOCKS * 1e9
    result["bytes a block"] = len(payload) / BLOCKS
    result["first frame of an idle replay, ms"] = replay(batch)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
