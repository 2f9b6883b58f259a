"""What do KV cache events add in vLLM, with its own manager and with blockmgr's port?

Prompts of 2,048 blocks of 16 tokens are allocated and published in chunks. Events are taken after
each chunk, as vLLM's scheduler takes them. The pool is little larger than one prompt, so each block
evicts one. Requests are hashed beforehand. Times are medians of the rounds, in nanoseconds per
block.

Run, with an interpreter that has vLLM 0.32 and blockmgr: python -m benchmarks.events.port
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from vllm import SamplingParams
from vllm.v1.core import kv_cache_manager, kv_cache_utils
from vllm.v1.request import Request

from benchmarks.events.vllm_side import HASH, layout
from benchmarks.events.work import BLOCK_SIZE, BLOCKS, prompts
from blockmgr.ports.vllm.manager import KVCacheManager
from blockmgr.ports.vllm.options import Options

ROUNDS = 6
CHUNKS = (BLOCKS, 128, 1)  # blocks


def manager(ours: bool, events: bool) -> Any:
    about: dict[str, Any] = {
        "kv_cache_config": layout(),
        "max_model_len": 1 << 16,
        "scheduler_block_size": BLOCK_SIZE,
        "hash_block_size": BLOCK_SIZE,
        "enable_kv_cache_events": events,
    }
    return (
        KVCacheManager(Options(), 8, **about) if ours else kv_cache_manager.KVCacheManager(**about)
    )


def cost(ours: bool, events: bool, chunk: int) -> float:
    """Nanoseconds per block."""
    made = manager(ours, events)
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, HASH)
    times = []
    for number, tokens in enumerate(prompts(ROUNDS)):
        params = SamplingParams(max_tokens=1)
        request = Request(str(number), tokens, params, None, block_hasher=hasher)
        start = time.perf_counter()
        while left := request.num_tokens - request.num_computed_tokens:
            made.new_step_starts()
            if made.allocate_slots(request, min(left, chunk * BLOCK_SIZE)) is None:
                raise RuntimeError("no room")
            request.num_computed_tokens += min(left, chunk * BLOCK_SIZE)
            made.take_kv_cache_block_copies()
            made.take_events()
        times.append(time.perf_counter() - start)
        made.new_step_starts()
        made.take_kv_cache_block_copies()
        made.free(request)
        made.take_events()
    return statistics.median(times[1:]) / BLOCKS * 1e9


def main() -> None:
    gc.disable()
    kv_cache_utils.init_none_hash(HASH)
    for chunk in CHUNKS:
        for name, ours in (("vLLM's own manager", False), ("blockmgr", True)):
            off, on = (cost(ours, events, chunk) for events in (False, True))
            print(
                f"{chunk} blocks at a time, {name}: {off:,.0f} ns a block without events, "
                f"{on - off:,.0f} added by them"
            )


if __name__ == "__main__":
    main()
