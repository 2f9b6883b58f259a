"""vLLM's scheduler with four KV cache managers, for a model that is never loaded.

Two yardsticks run beside vLLM's own manager and blockmgr's: vLLM's with an early return of a few
lines of Python, which shows how much of the gain needs no native code; and one that does nothing,
which shows what the scheduler itself costs.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched import scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

from blockmgr.ports.vllm import register
from blockmgr.ports.vllm.manager import KVCacheManager as Ours
from blockmgr.ports.vllm.options import Options

__all__ = ["ARMS", "NOTHING", "make_scheduler", "start_of_a_pool"]

# Longer than the models of tests can be: none of them runs.
MODEL_LENGTH = 1 << 19
os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
NOTHING = "a manager that does nothing"


class EarlyReturn(KVCacheManager):
    """vLLM's own, with a shortcut for a running request that needs no block and fills none."""

    def allocate_slots(self, request: Any, num_new_tokens: int, *more: Any, **named: Any) -> Any:
        group = self.coordinator.single_type_managers[0]
        num_cached = group.num_cached_block.get(request.request_id)
        if num_cached is not None and not more and named.keys() <= {"num_lookahead_tokens"}:
            end = request.num_computed_tokens + num_new_tokens
            slots = end + named.get("num_lookahead_tokens", 0)
            room = len(group.req_to_blocks[request.request_id]) * group.block_size
            if slots <= room and end // group.block_size <= num_cached:
                return self.empty_kv_cache_blocks
        return super().allocate_slots(request, num_new_tokens, *more, **named)


class Nothing(KVCacheManager):
    """Does no work and stores nothing: every prompt finds its shared head."""

    head = 0

    def new_step_starts(self) -> None:
        pass

    def get_computed_blocks(self, request: Any, *more: Any) -> Any:
        return self.empty_kv_cache_blocks, self.head if request.num_output_tokens == 0 else 0, 0

    def allocate_slots(self, *arguments: Any, **named: Any) -> Any:
        return self.empty_kv_cache_blocks

    def get_blocks(self, request_id: str) -> Any:
        return self.empty_kv_cache_blocks

    def free(self, request: Any) -> None:
        pass

    def estimate_cached_tokens(self, request: Any) -> int:
        return 0


ARMS = {
    "vLLM": KVCacheManager,
    "vLLM with an early return": EarlyReturn,
    "blockmgr": None,
    NOTHING: Nothing,
}


def layout(num_blocks: int, block_size: int) -> KVCacheConfig:
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


def make_scheduler(
    arm: str, model: Path, *, num_blocks: int, block_size: int, max_seqs: int
) -> tuple[Any, bool]:
    """A scheduler, and whether vLLM would hash its requests."""
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_seqs,
            max_num_batched_tokens=8192,
            max_model_len=MODEL_LENGTH,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
        model_config=ModelConfig(
            model=str(model), dtype="float32", seed=0, max_model_len=MODEL_LENGTH
        ),
        cache_config=CacheConfig(
            block_size=block_size, cache_dtype="auto", enable_prefix_caching=True
        ),
        device_config=DeviceConfig("cpu"),
        additional_config={"blockmgr": {}} if ARMS[arm] is None else {},
    )
    config.scheduler_config.async_scheduling = False
    config.cache_config.block_size = block_size
    config.cache_config.num_gpu_blocks = num_blocks
    register()
    stock = scheduler.KVCacheManager
    try:
        scheduler.KVCacheManager = ARMS[arm] or stock
        made = scheduler.Scheduler(
            vllm_config=config,
            kv_cache_config=layout(num_blocks, block_size),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            log_stats=True,
        )
    finally:
        scheduler.KVCacheManager = stock
    is_ours = isinstance(made.kv_cache_manager, Ours)
    assert is_ours == (ARMS[arm] is None), f"{arm} uses another manager"
    return made, config.cache_config.enable_prefix_caching and ARMS[arm] is not Nothing


def resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _start(arm: str, num_blocks: int, block_size: int) -> tuple[float, int]:
    about: dict[str, Any] = {
        "kv_cache_config": layout(num_blocks, block_size),
        "max_model_len": MODEL_LENGTH,
        "scheduler_block_size": block_size,
        "hash_block_size": block_size,
    }
    gc.collect()
    before, begun = resident(), time.thread_time()
    made = Ours(Options(), 1024, **about) if ARMS[arm] is None else KVCacheManager(**about)
    taken = time.thread_time() - begun
    more = resident() - before
    del made
    return taken, more


def start_of_a_pool(arm: str, num_blocks: int, block_size: int) -> tuple[float, int]:
    """Seconds to build the manager, and the bytes it takes; measured in its own process."""
    with multiprocessing.get_context("fork").Pool(1) as one:
        return one.apply(_start, (arm, num_blocks, block_size))
