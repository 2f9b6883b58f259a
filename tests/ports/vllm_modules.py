"""Stand-ins for vLLM's modules that contain what the port imports."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from blockmgr.ports.vllm import Options

__all__ = [
    "KINDS", "SIZE", "CircularBufferSpec", "layout", "make", "needed", "options_and_reasons",
    "request", "ring", "serve", "spec", "stand_ins", "step",
]  # fmt: skip

SIZE = 4
NAMES = (
    "FULL_ATTENTION", "MLA_ATTENTION", "SLIDING_WINDOW", "SLIDING_WINDOW_MLA",
    "CHUNKED_LOCAL_ATTENTION", "MAMBA", "UNKNOWN",
)  # fmt: skip
KINDS = SimpleNamespace(**{name: SimpleNamespace(value=name.lower()) for name in NAMES})


class Copy(NamedTuple):
    """A ``KVCacheBlockCopy``."""

    source: int
    destination: int


def spec(kind: Any = KINDS.FULL_ATTENTION, block_size: int = SIZE, **more: Any) -> Any:
    """vLLM's description of a group of layers."""

    def most(*, max_in_flight_tokens: int, max_model_len: int) -> int:
        width = more.get("sliding_window") or more.get("attention_chunk_size") or 0
        return -(-min(width + max_in_flight_tokens, max_model_len) // block_size) + 1

    named = {
        "tokens_per_state": 1,
        "extra_retained_tokens": 0,
        "dcp_sharded": kind is not KINDS.MAMBA,
        "max_admission_blocks_per_request": most,
        **more,
    }
    return SimpleNamespace(kind=kind, block_size=block_size, **named)


class CircularBufferSpec(SimpleNamespace):
    """vLLM's description of rings."""


def ring(width: int) -> Any:
    """That of rings of this many tokens."""
    return CircularBufferSpec(**vars(spec(KINDS.UNKNOWN, width, prefix_cacheable=False)))


class Stats:
    reset = False

    def record(self, **named: int) -> None:
        pass


MODULES: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.distributed": {},
    "vllm.distributed.kv_events": dict.fromkeys(
        ("MEDIUM_GPU", "AllBlocksCleared", "BlockRemoved", "BlockStored")
    ),
    "vllm.v1": {},
    "vllm.v1.core": {},
    "vllm.v1.core.kv_cache_utils": {
        "KVCacheBlockCopy": Copy,
        "generate_block_hash_extra_keys": None,
        "maybe_convert_block_hash": None,
        "to_event_extra_keys": None,
    },
    "vllm.v1.kv_cache_interface": {
        "CircularBufferSpec": CircularBufferSpec,
        "KVCacheSpecKind": KINDS,
        "get_kv_cache_spec_kind": lambda spec: spec.kind,
        "iter_layer_specs": lambda spec: (spec,),
    },
    "vllm.v1.metrics": {},
    "vllm.v1.metrics.stats": {"PrefixCacheStats": Stats},
    "vllm.v1.request": {"RequestStatus": SimpleNamespace(WAITING=1, PREEMPTED=2)},
}
OURS = (
    "commits", "events", "fits", "hinting", "layers", "lookup", "manager", "misses", "naming",
    "prompts", "report", "states", "support", "tables",
)  # fmt: skip


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules with the names of vLLM's that contain what the port imports."""
    ours = [f"blockmgr.ports.vllm.{name}" for name in OURS] + ["tests.engines.conformance"]
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
        parent, _, child = name.rpartition(".")
        monkeypatch.delattr(importlib.import_module(parent), child, raising=False)
    for name, names in MODULES.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    yield
    for name in ours:
        sys.modules.pop(name, None)


def layout(*specs: Any, num_blocks: int = 33) -> Any:
    """A ``KVCacheConfig``; by default of one group of full attention."""
    groups = [SimpleNamespace(kv_cache_spec=each) for each in specs or (spec(),)]
    return SimpleNamespace(
        num_blocks=num_blocks, kv_cache_groups=groups, needs_kv_cache_zeroing=False
    )


def make(
    *specs: Any,
    num_blocks: int = 33,
    use_eagle: bool = False,
    num_hash_lookahead_tokens: int = 0,
    enable_caching: bool = True,
    max_in_flight_tokens: int | None = None,
    zeroes: bool = False,
    ranks: int = 1,
    **options: Any,
) -> Any:
    """The port's manager for these groups."""
    has_states = any(each.kind is KINDS.MAMBA for each in specs)
    module = importlib.import_module("blockmgr.ports.vllm.manager")
    config = layout(*specs, num_blocks=num_blocks)
    config.needs_kv_cache_zeroing = zeroes
    return module.KVCacheManager(
        Options.read(options).for_model([SIZE], has_states=has_states),
        16,
        kv_cache_config=config,
        max_model_len=64,
        max_in_flight_tokens=max_in_flight_tokens,
        scheduler_block_size=SIZE,
        hash_block_size=SIZE,
        use_eagle=use_eagle,
        num_hash_lookahead_tokens=num_hash_lookahead_tokens,
        enable_caching=enable_caching,
        dcp_world_size=ranks,
    )


def options_and_reasons(
    *specs: Any, options: Options | None = None, **change: Any
) -> tuple[Options, list[str]]:
    """The options with defaults for these groups, and the reasons against them."""
    support = importlib.import_module("blockmgr.ports.vllm.support")
    config = SimpleNamespace(
        kv_transfer_config=None, cache_config=SimpleNamespace(use_replayssm=False)
    )
    arguments = {"kv_cache_config": layout(*specs), "max_model_len": 64, **change}
    chosen: Options = support.options_for(options or Options(), config, arguments)
    return chosen, support.reasons_against(chosen, config, arguments)


def request(name: str, tokens: list[int]) -> Any:
    """A ``Request``."""
    return SimpleNamespace(
        request_id=name, _all_token_ids=tokens, num_tokens=len(tokens), num_computed_tokens=0,
        num_prompt_tokens=len(tokens), num_output_placeholders=0, skip_reading_prefix_cache=False,
        cache_salt=None, lora_request=None, mm_features=[], prompt_embeds=None, resumable=False,
        status=1, sampling_params=None, num_preemptions=0, num_in_flight_tokens=0,
    )  # fmt: skip


def step(manager: Any, served: Any, count: int | None = None) -> Any:
    """Computes more tokens of a request, behind what it finds at first, in a step of its own.

    Without a count, computes all that is left. Returns the request's new blocks.
    """
    manager.new_step_starts()
    found, blocks = 0, None
    if served.request_id not in manager._held:
        blocks, found, _ = manager.get_computed_blocks(served)
    if count is None:
        count = served.num_tokens - served.num_computed_tokens - found
    added = manager.allocate_slots(served, count, found, blocks)
    assert added is not None
    manager.take_kv_cache_block_copies()
    served.num_computed_tokens += found + count
    return added


def needed(manager: Any, name: str, num_tokens: int, *, capped: bool) -> int:
    """Blocks that the manager says a request still takes for so many tokens."""
    none = manager.empty_kv_cache_blocks.blocks
    count: int = manager.coordinator.get_num_blocks_to_allocate(
        name, num_tokens, none, 0, 0, 0, num_tokens, apply_admission_cap=capped
    )
    return count


def serve(manager: Any, tokens: list[int], name: str = "first", **said: Any) -> None:
    """Runs a request, with what it says, that computes all its tokens and ends."""
    served = request(name, tokens)
    vars(served).update(said)
    step(manager, served)
    manager.free(served)
    manager.manager.check_invariants()
