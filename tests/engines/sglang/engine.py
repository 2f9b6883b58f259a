"""SGLang's scheduler in one process, without a model: an oracle keeps the K/V of each slot.

For each token to compute, the worker first reads the slots of all earlier tokens, then writes into
the token's slot a number that stands for this token and all before it. The next token is drawn from
that number, so wrong K/V also shows in the output.
"""

from __future__ import annotations

from tests.engines.sglang import stand_ins  # noqa: F401  isort: skip  before anything of SGLang

import json
import random
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.distributed import bootstrap
from sglang.srt.layers.dp_attention import get_dp_tp_group
from sglang.srt.managers import scheduler
from sglang.srt.managers.io_struct import AbortReq, TokenizedGenerateReqInput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import SpawnRanks, get_context, get_parallel, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs

MOST_RUNNING = 16
LONGEST = 2000
CHUNK = 64  # tokens of a prompt that a step computes
MOST_STEPS = 20_000
PRIME = (1 << 61) - 1
VOCABULARY = 30_000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a process."""

    cache: str
    """A value of ``--radix-cache-backend``; empty: SGLang's own tree."""

    page_size: int = 1
    num_slots: int = 8192
    policy: str = "lpm"
    """A value of ``--schedule-policy``."""

    eviction: str = "lru"


class Anything:
    """An object whose missing attributes are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Slots(Anything):
    """A K/V pool without tensors."""

    def __init__(self, setting: Setting) -> None:
        self.size = setting.num_slots
        self.page_size = setting.page_size
        self.dtype = self.store_dtype = torch.float16
        self.device = "cpu"
        self.layer_num = self.end_layer = 2
        self.start_layer = 0
        self.post_capture_active = False

    def get_kv_size_bytes(self) -> tuple[int, int]:
        return 0, 0


class Runner(Anything):
    """A model runner without a model."""

    device = "cpu"
    prefill_aware_swa = False
    mtp_draft_device_pools = mtp_draft_mamba_pools = ()
    ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, **named: batch)

    def __init__(self, setting: Setting, model_config: Any) -> None:
        self.model_config = model_config
        self.token_to_kv_pool = slots = Slots(setting)
        self.req_to_token_pool = ReqToTokenPool(
            size=2 * MOST_RUNNING, max_context_len=2048, device="cpu", enable_memory_saver=False
        )
        size, page = setting.num_slots, setting.page_size
        if page == 1:
            allocator = TokenToKVPoolAllocator(size, torch.float16, "cpu", slots, False)
        else:
            allocator = PagedTokenToKVPoolAllocator(size, page, torch.float16, "cpu", slots, False)
            allocator.use_triton_kernels = False
        self.token_to_kv_pool_allocator = allocator


class Worker(Anything):
    """Keeps for each slot what its K/V was computed from, and checks it at every read."""

    is_hybrid_swa = False
    sliding_window_size = None

    def __init__(self, setting: Setting, model_config: Any) -> None:
        self.model_config = model_config
        self.model_runner = Runner(setting, model_config)
        self.contents = np.zeros(setting.num_slots + setting.page_size, dtype=np.int64)
        self.reads = self.wrong = 0

    def get_memory_pool(self) -> tuple[Any, Any]:
        runner = self.model_runner
        return runner.req_to_token_pool, runner.token_to_kv_pool_allocator

    def get_pad_input_ids_func(self) -> None:
        """SGLang then pads nothing."""

    def forward_batch_generation(self, batch: Any, **_: Any) -> GenerationBatchResult:
        drawn = [self._computed(batch, i) for i in range(len(batch.reqs))]
        tokens = torch.tensor(drawn, dtype=torch.int64)
        return GenerationBatchResult(next_token_ids=tokens, can_run_cuda_graph=False)

    def _computed(self, batch: Any, index: int) -> int:
        """Reads and writes the slots of one request; returns the next token."""
        request = batch.reqs[index]
        length = int(batch.seq_lens_cpu[index])
        tokens = (request.origin_input_ids + request.output_ids)[:length]
        extends = batch.forward_mode.is_extend()
        start = batch.prefix_lens[index] if extends else length - 1
        row = self.model_runner.req_to_token_pool.req_to_token[request.kv.req_pool_idx, :length]
        right = prefixes(tokens, request.extra_key, request.cache_salt)
        slots = row.numpy()
        read = self.contents[slots[:start]]
        self.reads += start
        self.wrong += int((read != right[:start]).sum())
        self.contents[slots[start:]] = right[start:]
        # The next token depends on what was read, not on what should have been read.
        last = int(self.contents[slots[length - 1]]) + int(read.sum()) - int(right[:start].sum())
        return 5 + last % VOCABULARY


def prefixes(tokens: Any, extra_key: str | None, cache_salt: str | None) -> Any:
    """``int64[n]``: for each token, a number that stands for it and all tokens before it."""
    state = zlib.crc32(repr((extra_key, cache_salt)).encode())
    found = []
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % PRIME
        found.append(state)
    return np.array(found, dtype=np.int64)


class Scheduler(scheduler.Scheduler):  # type: ignore[misc]
    """SGLang's scheduler with this worker."""

    setting: Setting

    def init_startup_timing_summary(self) -> None:
        self.startup_time = None
        self.is_initializing = False

    def init_model_worker(self) -> None:
        self.tp_worker = self.model_worker = Worker(self.setting, self.model_config)
        self.draft_worker = self.schedule_stream = self.forward_stream = None
        self.min_free_slots_delayer = self.max_queued_requests = self.pad_input_ids_func = None
        self.kv_cache_allocation_time = 0.0
        self.max_total_num_tokens = self.setting.num_slots
        self.max_prefill_tokens = 4096
        self.max_running_requests = MOST_RUNNING
        self.max_req_len, self.max_req_input_len = LONGEST, LONGEST - 10
        self.random_seed, self.device = 1, "cpu"
        get_context().override("tests", pp_max_micro_batch_size=MOST_RUNNING)
        parallel = get_parallel()
        for name in ("tp_group", "attn_tp_group", "attn_cp_group"):
            group = getattr(parallel, name)
            setattr(self, name, group)
            setattr(self, name.replace("_group", "_cpu_group"), group.cpu_group)
        self.pp_group, self.world_group = parallel.pp_group, parallel.world_group
        self.dp_tp_group = get_dp_tp_group()
        self.dp_tp_cpu_group = self.dp_tp_group.cpu_group


@dataclass(slots=True)
class Served:
    """The results of a workload."""

    said: dict[str, list[int]] = field(default_factory=dict)
    """Generated tokens by request, without aborted requests."""

    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Engine:
    """A scheduler and the requests that arrive."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        (folder / "config.json").write_text(json.dumps(MODEL))
        load_plugins()
        # Otherwise SGLang binds threads to processors, which other processes use too.
        bootstrap._bind_threads_if_cpu = bootstrap._init_cpu_threads_env = lambda **named: None
        arguments = ServerArgs(
            model_path=str(folder),
            device="cpu",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            grammar_backend="none",
            skip_tokenizer_init=True,
            load_format="dummy",
            disable_overlap_schedule=True,
            radix_cache_backend=setting.cache or None,
            radix_eviction_policy=setting.eviction,
            page_size=setting.page_size,
            chunked_prefill_size=CHUNK,
            schedule_policy=setting.policy,
        )
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        Scheduler.setting = setting
        self.scheduler = Scheduler(arguments, PortArgs.init_new(arguments))
        self.worker: Worker = self.scheduler.tp_worker
        self._finished: dict[str, Any] = {}
        # Attributes of its instances cannot be set.
        kind = type(self.scheduler.output_streamer)
        kind.stream_output = lambda _, requests, *args, **named: self._stream(requests)

    def _stream(self, requests: list[Any]) -> None:
        self._finished.update((one.rid, one) for one in requests if one.finished())

    def serve(self, seed: int, num_requests: int) -> Served:
        """Serves one random workload to its end, and empties the cache."""
        draw = random.Random(seed)
        waiting = drawn(draw, seed, num_requests)
        served = Served()
        aborted: set[str] = set()
        running: list[str] = []
        self._finished.clear()
        reads, wrong = self.worker.reads, self.worker.wrong
        idle = steps = 0
        while waiting or idle < 3:
            while waiting and draw.random() < 0.5:
                request = waiting.pop()
                running.append(request.rid)
                self.scheduler.handle_generate_request(request)
            if running and draw.random() < 0.02:
                name = draw.choice(running)
                if name not in self._finished:
                    aborted.add(name)
                    self.scheduler.abort_request(AbortReq(rid=name))
            idle = 0 if self._step() else idle + 1
            steps += 1
            if steps == MOST_STEPS:
                served.faults.append(f"still busy after {steps} steps")
                break
        self._check(served, num_requests, aborted)
        served.counts["slots read"] = self.worker.reads - reads
        served.counts["slots read with wrong K/V"] = self.worker.wrong - wrong
        return served

    def _step(self) -> bool:
        """One step of SGLang's loop."""
        it = self.scheduler
        plan = it.get_next_batch_to_run(running_batch=it.running_batch, last_batch=it.last_batch)
        it.running_batch, batch = plan.running_batch, plan.batch_to_run
        if batch:
            it.process_batch_result(batch, it.run_batch(batch))
        it.last_batch = batch
        it.invariant_checker.self_check_during_busy()
        return batch is not None

    def _check(self, served: Served, num_requests: int, aborted: set[str]) -> None:
        it = self.scheduler
        kept = {name: one for name, one in self._finished.items() if name not in aborted}
        served.said = {name: list(one.output_ids) for name, one in sorted(kept.items())}
        served.counts["requests served"] = len(kept)
        served.counts["tokens found in the cache"] = sum(one.cached_tokens for one in kept.values())
        missing = num_requests - len(kept) - len(aborted)
        if missing > 0:
            served.faults.append(f"{missing} requests are not finished")
        try:
            it.on_idle()
            it.tree_cache.sanity_check()
        except Exception as error:
            served.faults.append(f"the idle check: {error}")
        free = it.token_to_kv_pool_allocator.available_size()
        if free + it.tree_cache.evictable_size() != self.setting.num_slots:
            served.faults.append(f"{free} slots are free after the last request")
        if not it.flush_cache():
            served.faults.append("the cache cannot be emptied")


def drawn(draw: random.Random, seed: int, count: int) -> list[TokenizedGenerateReqInput]:
    """Requests with common prefixes, tenants and images."""

    def text(length: int) -> list[int]:
        return [draw.randrange(5, VOCABULARY) for _ in range(length)]

    images = [(1_000_000 + draw.getrandbits(62) - (1 << 20)) for _ in range(4)]
    beginnings = [text(200) for _ in range(4)]
    for beginning in beginnings[:2]:
        start, image = draw.randrange(150), draw.choice(images)
        beginning[start : start + 40] = [image] * 40
    made = []
    for number in range(count):
        tokens = draw.choice(beginnings)[: draw.randrange(1, 200)] + text(draw.randrange(1, 150))
        if draw.random() < 0.1:
            tokens[-20:] = [draw.choice(images)] * 20
        sampling = SamplingParams(max_new_tokens=draw.randrange(1, 40), ignore_eos=True)
        sampling.normalize(None)
        made.append(
            TokenizedGenerateReqInput(
                # All names have the same length, because an abort affects every name with that
                # prefix.
                rid=f"{seed}-{number:05}",
                input_text="",
                input_ids=array("q", tokens),
                input_embeds=None,
                mm_inputs=None,
                token_type_ids=None,
                sampling_params=sampling,
                return_logprob=False,
                logprob_start_len=-1,
                top_logprobs_num=0,
                token_ids_logprob=None,
                stream=False,
                extra_key=draw.choice([None, None, None, "adapter"]),
                cache_salt=draw.choice([None, None, "tenant"]),
            )
        )
    return made
