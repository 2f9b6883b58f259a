"""Checks which configurations of vLLM are supported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

from blockmgr import FullAttention, Ring
from blockmgr.groups import extra_blocks_of, is_bare, is_cached, replay_of
from blockmgr.ports.vllm.layers import group_of, has_states, tokens_of_block, tokens_per_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from blockmgr.groups import Group
    from blockmgr.ports.vllm.options import Options

__all__ = ["options_for", "reasons_against"]

LAYERS = {
    "mamba": (
        "recurrent states (Mamba) need mamba_cache_mode align (vLLM's default with "
        "--enable-prefix-caching), and blocks longer than the drafts of a step"
    ),
    "sliding_window": "sliding windows that keep more than the window are not supported",
    "sliding_window_mla": "sliding windows that keep more than the window are not supported",
}
# They find GPU blocks by vLLM's hashes, or take blocks themselves.
CONNECTORS = {
    "SimpleCPUOffloadConnector": "finds blocks by vLLM's hashes",
    "MooncakeStoreConnector": "finds blocks by vLLM's hashes",
    "UMBPStoreConnector": "finds blocks by vLLM's hashes",
    "HiSparseConnector": "takes blocks of its own",
}
# With recurrent states, these take a request's state from its last block, when it ends.
BY_TABLE = (
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
    "MooncakeConnector",
    "MoRIIOConnector",
)


def options_for(options: Options, vllm_config: Any, arguments: Mapping[str, Any]) -> Options:
    """The options, with defaults for the model's layers; a default is never the reason to refuse.

    Args:
        options: The values given under ``blockmgr``.
        vllm_config: vLLM's configuration.
        arguments: The arguments of vLLM's own KV cache manager.
    """
    specs = [group.kv_cache_spec for group in arguments["kv_cache_config"].kv_cache_groups]
    if not specs or options.min_partial_tokens is not None:
        return options
    works = arguments.get("enable_caching", True) and not any(
        _of_partial_tokens(vllm_config, arguments)
    )
    sizes = [spec.block_size for spec in specs]
    has_head = arguments.get("use_eagle") or arguments.get("num_hash_lookahead_tokens")
    return options.for_model(
        sizes, has_states=works and any(map(has_states, specs)), has_head=works and bool(has_head)
    )


def reasons_against(options: Options, vllm_config: Any, arguments: Mapping[str, Any]) -> list[str]:
    """The reasons why a configuration cannot run on blockmgr; empty if it can.

    Args:
        options: The values given under ``blockmgr``.
        vllm_config: vLLM's configuration.
        arguments: The arguments of vLLM's own KV cache manager.
    """
    found = [
        *_of_groups(options, vllm_config, arguments),
        *_of_features(vllm_config, arguments),
        *_of_connectors(vllm_config.kv_transfer_config, arguments),
        *_of_options(options, vllm_config, arguments),
    ]
    return list(dict.fromkeys(found))  # several groups may have the same reason


def _of_groups(options: Options, vllm_config: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    groups = arguments["kv_cache_config"].kv_cache_groups
    found = [group_of(group.kv_cache_spec) for group in groups]
    for group, layers in zip(groups, found, strict=True):
        kind = get_kv_cache_spec_kind(group.kv_cache_spec)
        if layers is None:
            name = f"layers of vLLM's {type(group.kv_cache_spec).__name__} are not supported"
            yield LAYERS.get(kind.value, name)  # vLLM has no name for some kinds
        elif is_cached(layers) and not getattr(group.kv_cache_spec, "prefix_cacheable", True):
            yield "the model's KV cache cannot be shared by prefix"
    if not groups:
        yield "the model has no KV cache"
    elif all(isinstance(layers, Ring) for layers in found):
        yield "the model's KV cache cannot be shared by prefix"
    yield from _of_layouts(found, options, vllm_config, arguments)


def _of_layouts(
    found: Sequence[Group | None],
    options: Options,
    vllm_config: Any,
    arguments: Mapping[str, Any],
) -> Iterator[str]:
    without_full = is_bare([layers for layers in found if layers is not None])
    where = "without full attention" if without_full else "with several groups of KV cache layers"
    refused = [*_not_without_full_attention(options, arguments)] if without_full else []
    if without_full or len(found) > 1:
        refused += _not_with_groups(options, vllm_config, arguments)
    yield from (f"{name} {where}" for name, is_on in refused if is_on)


def _not_with_groups(
    options: Options, vllm_config: Any, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    groups = arguments["kv_cache_config"].kv_cache_groups
    found = [layers for each in groups if (layers := group_of(each.kv_cache_spec))]
    has_connector = vllm_config.kv_transfer_config is not None
    rings = has_connector and any(isinstance(layers, Ring) for layers in found)
    yield "KV connectors do not work with rings", rings
    again = max(map(replay_of, found), default=0)
    yield "KV connectors do not work with windows that are computed again", has_connector and again
    # What is computed again reads of cached windows what no query behind the hit reads.
    others = again and not all(
        isinstance(each, FullAttention) or not is_cached(each) for each in found
    )
    yield "windows that are computed again do not work beside cached windows or states", others
    long = again and any(isinstance(each, Ring) and each.width > again + 1 for each in found)
    yield "windows that are computed again do not work beside larger rings", long
    yield "windows that are computed again do not work", again and is_bare(found)
    splits = arguments.get("dcp_world_size", 1) > 1 and any(
        group.kv_cache_spec.dcp_sharded
        and not isinstance(group_of(group.kv_cache_spec), FullAttention)
        for group in groups
    )
    yield "decode context parallelism that splits windows does not work", splits
    specs = [group.kv_cache_spec for group in groups]
    sizes = {spec.block_size for spec in specs if extra_blocks_of(group_of(spec))}
    yield "states of several block sizes, with drafts or checkpoints, do not work", len(sizes) > 1
    yield "ghost_blocks do not work", options.ghost_blocks > 0
    yield "--use-replayssm does not work", vllm_config.cache_config.use_replayssm
    recovers = getattr(vllm_config.cache_config, "use_kda_recoverssm", False)
    yield "states that are recovered after drafts (RecoverSSM) do not work", recovers


def _not_without_full_attention(
    options: Options, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    yield "KV cache events do not work", bool(arguments.get("enable_kv_cache_events"))
    yield "quotas do not work", bool(options.quotas)
    yield "retention and kv_hints do not work", options.retention


def _of_features(vllm_config: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if arguments.get("metrics_collector") is not None:
        yield "KV cache residency metrics (--kv-cache-metrics) are not collected"
    if arguments.get("pcp_world_size", 1) > 1:
        yield "prefill context parallelism is not supported"
    has_lookahead = arguments.get("num_hash_lookahead_tokens", 0) > 0
    if has_lookahead and arguments.get("enable_kv_cache_events"):
        yield (
            "KV cache events do not go together with hashes that cover the tokens after a block "
            "(EAGLE since vLLM 0.33); --speculative-config "
            "'{..., \"disable_lookahead_block_hashes\": true}' turns them off"
        )
    if arguments.get("num_prefill_lookahead", 0) > 1:
        yield "multi-token prediction that computes the end of a prompt twice is not supported"
    if arguments.get("enable_mamba_shared_prefix_checkpoint"):
        yield "checkpoints of Mamba states are not supported"


def _of_connectors(config: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    groups = arguments["kv_cache_config"].kv_cache_groups
    states = any(has_states(group.kv_cache_spec) for group in groups)
    for name in _connectors(config):
        if name in CONNECTORS:
            yield f"the KV connector {name} {CONNECTORS[name]}, which are not known here"
        if name in BY_TABLE and states:
            yield (
                f"the KV connector {name} does not work with recurrent states: it sends the tables "
                "of requests, in which many columns name the block of a state"
            )


def _connectors(config: Any) -> Iterator[str]:
    """The name of the connector, and those of connectors nested in it."""
    if config is None or config.kv_connector is None:
        return
    yield config.kv_connector
    inner = (config.kv_connector_extra_config or {}).get("connectors", ())
    yield from (part["kv_connector"] for part in inner if "kv_connector" in part)


def _of_quotas(options: Options, arguments: Mapping[str, Any]) -> Iterator[str]:
    """A request larger than its share, and all requests behind it, would wait forever."""
    config = arguments["kv_cache_config"]
    ranks = arguments.get("dcp_world_size", 1)
    needed = 0
    for group in config.kv_cache_groups:
        layers, size = group_of(group.kv_cache_spec), tokens_of_block(group.kv_cache_spec, ranks)
        # A window may hold as much as full attention while a prompt is computed.
        most = 1 if isinstance(layers, Ring) else -(-arguments["max_model_len"] // size)
        needed += max(most, 1 + extra_blocks_of(layers))
    left = config.num_blocks - 1 - sum(options.quotas.values())
    for salt, blocks in options.quotas.items():
        if blocks < needed:
            yield (
                f"the quota of a salt of {len(salt)} characters is {blocks} blocks, and a request "
                f"of --max-model-len takes {needed}"
            )
    if options.quotas and left < needed:
        yield f"quotas leave {left} blocks to all others, and a request takes up to {needed}"


def _of_options(options: Options, vllm_config: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    caching = arguments.get("enable_caching", True)
    if not caching and (options.min_partial_tokens or options.retention or options.ghost_blocks):
        yield (
            "min_partial_tokens, retention and ghost_blocks need prefix caching, which is off "
            "(--no-enable-prefix-caching)"
        )
    yield from _of_quotas(options, arguments)
    if options.min_partial_tokens:
        yield from _of_partial_tokens(vllm_config, arguments)


def _of_partial_tokens(vllm_config: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if vllm_config.kv_transfer_config is not None:
        yield "min_partial_tokens does not go together with a KV connector"
    if arguments.get("dcp_world_size", 1) > 1:
        yield "min_partial_tokens does not go together with decode context parallelism"
    layout = arguments["kv_cache_config"]
    specs = [group.kv_cache_spec for group in layout.kv_cache_groups]
    if layout.needs_kv_cache_zeroing and len(specs) == 1 and not has_states(specs[0]):
        yield "min_partial_tokens does not go together with blocks that workers zero"
    if any(tokens_per_entry(spec) > 1 or isinstance(group_of(spec), Ring) for spec in specs):
        yield "min_partial_tokens does not go together with layers that compress tokens"
