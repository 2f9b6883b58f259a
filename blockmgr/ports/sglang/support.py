"""Checks which configurations of SGLang are supported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["reasons_against"]

POLICIES = ("lru",)
MOST_TOKENS = 65_535
"""Most tokens per page, which is the limit of a block."""


def reasons_against(context: Any) -> tuple[str, ...]:
    """The reasons why a configuration cannot run on blockmgr; empty if it can.

    Args:
        context: SGLang's ``TreeCacheBuildContext``.
    """
    return (*_of_model(context), *_of_tiers(context), *_of_features(context.params))


def _of_model(context: Any) -> Iterator[str]:
    params = context.params
    if context.is_hybrid_swa or params.sliding_window_size is not None:
        yield "layers with a sliding window are not supported, only full attention"
    if context.is_hybrid_ssm:
        yield "layers with a recurrent state are not supported, only full attention"
    if params.is_eagle:
        yield "EAGLE (--speculative-algorithm) finds prefixes by pairs of tokens"
    if params.component_registry_override:
        names = ", ".join(sorted(str(name) for name in params.component_registry_override))
        yield f"components of SGLang's own tree ({names}) are not supported"


def _of_tiers(context: Any) -> Iterator[str]:
    if context.enable_hierarchical_cache:
        yield "a hierarchical cache (--enable-hierarchical-cache) is not supported"
    from sglang.srt.runtime_context import get_disagg, get_memory  # noqa: PLC0415

    memory = get_memory()
    for option in ("enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker"):
        if getattr(memory, option, False):
            yield f"--{option.replace('_', '-')} uses its own cache"
    if get_disagg().disaggregation_mode != "null":
        yield "prefill and decode on different servers (--disaggregation-mode) is not supported"


def _of_features(params: Any) -> Iterator[str]:
    if params.enable_kv_cache_events:
        yield "KV cache events (--kv-events-config) are not made"
    if params.enable_session_radix_cache:
        yield "sessions in the tree (--enable-session-radix-cache) are not supported"
    if params.eviction_policy.lower() not in POLICIES:
        yield (
            f"--radix-eviction-policy {params.eviction_policy} is not supported, only "
            + ", ".join(POLICIES)
        )
    if not 1 <= params.page_size <= MOST_TOKENS:
        yield f"--page-size must be in [1, {MOST_TOKENS}], got {params.page_size}"
