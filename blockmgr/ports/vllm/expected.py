"""The parts of vLLM's interface that blockmgr replaces or relies on.

Parameters of methods, in order; fields of structures; attributes of blocks, requests and settings.
They are those of vLLM 0.32; ``CHANGED`` has the differences in later versions.
"""

from __future__ import annotations

__all__ = ["ATTRIBUTES", "CHANGED", "MANAGER", "METHODS", "PLACES", "STRUCTURES", "TRIED"]

TRIED = ("0.32", "0.33")
"""Versions the port was tried with, the newest last."""

MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"


def _names(by_place: dict[str, str]) -> dict[str, tuple[str, ...]]:
    return {place: tuple(names.split()) for place, names in by_place.items()}


METHODS = _names(
    {
        f"{MANAGER}.__init__": (
            "kv_cache_config max_model_len scheduler_block_size hash_block_size "
            "max_in_flight_tokens enable_caching use_eagle num_prefill_lookahead log_stats "
            "enable_kv_cache_events dcp_world_size pcp_world_size metrics_collector watermark "
            "enable_mamba_shared_prefix_checkpoint"
        ),
        f"{MANAGER}.new_step_starts": "",
        f"{MANAGER}.get_computed_blocks": "request",
        f"{MANAGER}.get_computed_blocks_for_connector": "request",
        f"{MANAGER}.prefix_cache_lookup_enabled": "request",
        f"{MANAGER}.allocate_slots": (
            "request num_new_tokens num_new_computed_tokens new_computed_blocks "
            "num_lookahead_tokens num_external_computed_tokens delay_cache_blocks "
            "num_encoder_tokens full_sequence_must_fit reserved_blocks has_scheduled_reqs "
            "skip_zeroing_group_ids"
        ),
        f"{MANAGER}.get_blocks": "request_id",
        f"{MANAGER}.get_block_ids": "request_id",
        f"{MANAGER}.get_block_ids_for_computed_tokens": "request_id num_computed_tokens",
        f"{MANAGER}.free": "request",
        f"{MANAGER}.pop_blocks_for_free": "request",
        f"{MANAGER}.cache_blocks": "request num_computed_tokens",
        f"{MANAGER}.remove_skipped_blocks": (
            "request_id processed_computed_tokens num_prompt_tokens"
        ),
        f"{MANAGER}.reset_prefix_cache": "",
        f"{MANAGER}.evict_blocks": "block_ids",
        f"{MANAGER}.take_events": "",
        f"{MANAGER}.take_new_block_ids": "",
        f"{MANAGER}.record_blocks_for_zeroing": "request_id start_token",
        f"{MANAGER}.take_kv_cache_block_copies": "",
        f"{MANAGER}.take_boundary_state_offloads": "",
        f"{MANAGER}.finalize_partial_tail_offloads": "request",
        f"{MANAGER}.truncate_computed_blocks": "blocks num_computed_tokens",
        f"{MANAGER}.estimate_cached_tokens": "request",
        f"{MANAGER}.record_prefix_cache_stats": "request num_hits",
        f"{MANAGER}.make_prefix_cache_stats": "",
        f"{MANAGER}.get_num_common_prefix_blocks": "running_request_id",
        "vllm.v1.core.kv_cache_manager:KVCacheBlocks.get_block_ids": "allow_none group_ids",
        "vllm.v1.core.kv_cache_manager:KVCacheBlocks.get_unhashed_block_ids": "",
        "vllm.v1.core.kv_cache_manager:KVCacheBlocks.get_unhashed_block_ids_all_groups": "",
        "vllm.v1.core.kv_cache_manager:KVCacheBlocks.__add__": "other",
        "vllm.v1.core.block_pool:BlockPool.free_blocks": "ordered_blocks",
        "vllm.v1.core.block_pool:BlockPool.touch": "blocks",
        "vllm.v1.core.block_pool:BlockPool.get_num_free_blocks": "",
        "vllm.v1.core.block_pool:BlockPool.get_usage": "",
        "vllm.v1.core.block_pool:BlockPool.evict_blocks": "block_ids",
        "vllm.v1.core.block_pool:BlockPool.take_events": "",
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.get_num_blocks_to_allocate": (
            "request_id num_tokens new_computed_blocks num_encoder_tokens total_computed_tokens "
            "num_local_computed_tokens num_tokens_main_model apply_admission_cap prefill_end"
        ),
        "vllm.v1.core.sched.scheduler:Scheduler.__init__": (
            "vllm_config kv_cache_config structured_output_manager block_size hash_block_size "
            "mm_registry include_finished_set log_stats"
        ),
        "vllm.v1.core.sched.scheduler:Scheduler._mamba_block_aligned_split": (
            "request num_new_tokens num_new_local_computed_tokens num_external_computed_tokens"
        ),
        "vllm.v1.core.sched.scheduler:Scheduler._handle_invalid_blocks": (
            "invalid_block_ids num_scheduled_tokens"
        ),
        "vllm.v1.core.sched.scheduler:Scheduler._free_cow_retained_blocks": "blocks fence_seq",
        "vllm.v1.kv_cache_interface:SlidingWindowSpec.max_admission_blocks_per_request": (
            "max_in_flight_tokens max_model_len"
        ),
        "vllm.v1.kv_cache_interface:ChunkedLocalAttentionSpec.max_admission_blocks_per_request": (
            "max_in_flight_tokens max_model_len"
        ),
        "vllm.v1.kv_cache_interface:iter_layer_specs": "kv_cache_spec",
        "vllm.v1.core.kv_cache_utils:generate_block_hash_extra_keys": (
            "request start_token_idx end_token_idx start_mm_idx"
        ),
        "vllm.v1.core.kv_cache_utils:maybe_convert_block_hash": "hash_bytes",
        "vllm.v1.core.kv_cache_utils:to_event_extra_keys": "extra_keys",
        "vllm.v1.metrics.stats:PrefixCacheStats.record": (
            "num_tokens num_hits preempted hits_by_source"
        ),
    }
)
"""Methods and functions, and their parameters."""

STRUCTURES = _names(
    {
        "vllm.v1.core.kv_cache_utils:KVCacheBlockCopy": "src_block_id dst_block_id",
        "vllm.v1.core.sched.output:CachedRequestData": (
            "req_ids resumed_req_ids new_token_ids all_token_ids new_block_ids num_computed_tokens "
            "num_output_tokens"
        ),
        "vllm.distributed.kv_events:BlockStored": (
            "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name "
            "extra_keys group_idx kv_cache_spec_kind kv_cache_spec_sliding_window locality "
            "ownership session_id"
        ),
        "vllm.distributed.kv_events:BlockRemoved": (
            "block_hashes medium group_idx locality ownership"
        ),
        "vllm.distributed.kv_events:AllBlocksCleared": "",
        "vllm.distributed.kv_events:KVEventBatch": "ts events data_parallel_rank",
    }
)
"""Structures that the port fills, and their fields in order."""


def _with(names: tuple[str, ...], name: str, *, after: str) -> tuple[str, ...]:
    at = names.index(after) + 1
    return (*names[:at], name, *names[at:])


STORED = "vllm.distributed.kv_events:BlockStored"
CHANGED: dict[str, dict[str, tuple[str, ...]]] = {
    "0.33": {
        f"{MANAGER}.__init__": _with(
            METHODS[f"{MANAGER}.__init__"], "num_hash_lookahead_tokens", after="use_eagle"
        ),
        f"{MANAGER}.get_computed_blocks": ("request", "max_cache_hit_length"),
        f"{MANAGER}.get_computed_blocks_for_connector": ("request", "max_cache_hit_length"),
        STORED: _with(STRUCTURES[STORED], "lookahead_token_ids", after="session_id"),
    }
}
"""Differences in later versions."""

ATTRIBUTES = _names(
    {
        "vllm.v1.core.kv_cache_utils:KVCacheBlock": "block_id block_hash is_null ref_cnt",
        "vllm.v1.request:Request": (
            "request_id _all_token_ids num_tokens num_prompt_tokens num_computed_tokens "
            "num_output_placeholders num_in_flight_tokens num_preemptions "
            "skip_reading_prefix_cache cache_salt lora_request mm_features prompt_embeds resumable "
            "block_hashes session_id sampling_params status"
        ),
        "vllm.lora.request:LoRARequest": "adapter_id name lora_name lora_path",
        "vllm.v1.kv_cache_interface:KVCacheConfig": (
            "num_blocks kv_cache_groups needs_kv_cache_zeroing"
        ),
        MANAGER: (
            "usage empty_kv_cache_blocks block_pool coordinator mamba_shared_prefix_checkpoint"
        ),
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator": (
            "single_type_managers enable_partial_hash_hits"
        ),
        "vllm.v1.core.block_pool:BlockPool": "blocks null_block num_gpu_blocks",
        "vllm.v1.core.sched.scheduler:Scheduler": (
            "kv_cache_manager connector kv_event_publisher defer_block_free sched_step_seq"
        ),
        "vllm.config:VllmConfig": (
            "additional_config scheduler_config cache_config kv_transfer_config"
        ),
        "vllm.v1.kv_cache_interface:KVCacheSpec": "tokens_per_state",
        "vllm.v1.kv_cache_interface:SlidingWindowSpec": "sliding_window extra_retained_tokens",
        "vllm.v1.kv_cache_interface:ChunkedLocalAttentionSpec": "attention_chunk_size",
        "vllm.v1.kv_cache_interface:MambaSpec": "mamba_cache_mode num_speculative_blocks",
    }
)
"""Attributes that the port reads, by class."""

PLACES = (
    ("vllm.v1.core.sched.scheduler", "KVCacheManager"),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
    ("vllm.v1.kv_cache_interface", "get_kv_cache_spec_kind"),
    ("vllm.v1.kv_cache_interface", "KVCacheSpecKind"),
    ("vllm.distributed.kv_events", "AllBlocksCleared"),
    ("vllm.distributed.kv_events", "KVEventBatch"),
    ("vllm.distributed.kv_events", "MEDIUM_GPU"),
)
"""Names in modules that the port replaces or uses."""
