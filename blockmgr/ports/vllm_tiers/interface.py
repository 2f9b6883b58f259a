"""The parts of vLLM's offloading that the tiers extend or call.

``python -m blockmgr.ports.vllm_tiers.interface`` compares them with the vLLM that is installed.
"""

from __future__ import annotations

import logging
import sys
from functools import cache

from blockmgr.ports.drift import Interface
from blockmgr.ports.unsupported import UnsupportedConfigError

__all__ = ["INTERFACE", "check_installed"]

logger = logging.getLogger("vllm.blockmgr")
TIER = "vllm.v1.kv_offload.tiering.base:SecondaryTierManager"
POLICY = "vllm.v1.kv_offload.cpu.policies.base:CachePolicy"
REQUEST = "vllm.v1.kv_offload.base:ReqContext"
LOOKUPS = "vllm.v1.kv_offload.tiering.async_lookup:AsyncLookupManager"
STATS = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics:OffloadingConnectorStats"
CONFIG = "vllm.v1.kv_offload.config"

INTERFACE = Interface(
    engine="vLLM",
    module="vllm",
    tried=("0.32", "0.33"),
    methods={
        f"{TIER}.__init__": (
            "offloading_spec", "primary_kv_view", "tier_type", "backpressure_detector",
        ),
        f"{TIER}.lookup": ("key", "req_context"),
        f"{TIER}.submit_store": ("job_metadata",),
        f"{TIER}.submit_load": ("job_metadata",),
        f"{TIER}.get_finished_jobs": (),
        f"{TIER}.has_pending_work": (),
        f"{TIER}.touch": ("keys", "req_context"),
        f"{TIER}.on_new_request": ("req_context",),
        f"{TIER}.drain_jobs": (),
        f"{TIER}.on_request_finished": ("req_context",),
        f"{TIER}.on_schedule_end": ("context",),
        f"{TIER}.shutdown": (),
        f"{TIER}.build_metric_definitions": ("extra_config",),
        f"{TIER}.get_stats": (),
        f"{LOOKUPS}.__init__": ("tier_type",),
        f"{LOOKUPS}.batch_lookup": ("keys", "req_context"),
        f"{LOOKUPS}.lookup": ("key", "req_context"),
        f"{LOOKUPS}.flush": (),
        f"{LOOKUPS}.mark_miss": ("keys",),
        f"{LOOKUPS}.cleanup": ("req_id",),
        f"{LOOKUPS}.shutdown": (),
        f"{POLICY}.__init__": ("cache_capacity",),
        f"{POLICY}.get": ("key",),
        f"{POLICY}.insert": ("key", "chunk"),
        f"{POLICY}.remove": ("key",),
        f"{POLICY}.touch": ("keys", "req_context"),
        f"{POLICY}.on_store_miss": ("keys", "req_context"),
        f"{POLICY}.on_request_finished": (
            "key_groups", "insertion_only_keys", "reused_keys", "req_context",
        ),
        f"{POLICY}.evict": ("n", "protected"),
        f"{POLICY}.clear": (),
        f"{POLICY}.mark_evictable": ("key",),
        f"{POLICY}.mark_non_evictable": ("key",),
        f"{REQUEST}.get_offload_key_position": ("key",),
        f"{STATS}.increase_counter": ("counter_name", "counter_increase_value", "labelvalues"),
    },
    changed={"0.33": {f"{POLICY}.insert": ("key", "chunk", "req_context")}},
    structures={
        "vllm.v1.kv_offload.tiering.base:JobResult": (
            "job_id", "success", "successful_keys", "transfer_time", "transfer_bytes",
        ),
    },
    attributes={
        "vllm.v1.kv_offload.tiering.base:TransferJob": (
            "job_id", "keys", "chunk_ids", "req_context",
        ),
        f"{CONFIG}:OffloadingConfig": (
            "groups", "model", "cache", "parallel", "replicated_layout", "canonical_layout",
            "kv_cache_layout",
        ),
        f"{CONFIG}:OffloadingGroupConfig": ("tokens_per_block", "layer_names", "group_id"),
        f"{CONFIG}:OffloadingModelConfig": ("name", "dtype"),
        f"{CONFIG}:OffloadingCacheConfig": ("tokens_per_hash", "blocks_per_chunk"),
        f"{CONFIG}:OffloadingParallelConfig": (
            "rank", "tp_size", "pp_size", "pcp_size", "dcp_size", "data_parallel_index",
            "data_parallel_size",
        ),
        TIER: ("block_size_bytes", "medium"),
        "vllm.v1.kv_offload.base:LookupResult": ("MISS", "HIT", "RETRY"),
        "vllm.v1.kv_offload.base:Medium": ("STORAGE",),
    },
    places=(
        ("vllm.v1.kv_offload.base", "OffloadingCounterMetadata"),
        ("vllm.v1.kv_offload.base", "RequestOffloadingContext"),
    ),
    callers=(),
    names=(),
    known=(),
)  # fmt: skip


@cache
def check_installed() -> None:
    """Compares the interface with the installed vLLM, once.

    Raises:
        UnsupportedConfigError: It has another interface, which the tiers do not have.
    """
    differences = INTERFACE.differences()
    lacking = tuple(str(difference) for difference in differences if difference.is_fatal)
    if lacking:
        raise UnsupportedConfigError(
            (f"the tiers of vLLM {INTERFACE.version()} are unknown: {'; '.join(lacking)}",),
            "Leave out what names blockmgr.ports.vllm_tiers in kv_connector_extra_config",
        )
    if not INTERFACE.is_tried():
        logger.warning(INTERFACE.warning(differences))


if __name__ == "__main__":
    sys.exit(INTERFACE.main())
