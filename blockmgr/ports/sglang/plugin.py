"""The plug-in for SGLang, which registers this prefix cache as a backend."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from blockmgr.ports.unsupported import UnsupportedConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["register"]

NAME = "blockmgr"
INSTEAD = "Without --radix-cache-backend, SGLang uses its own cache"
POLICIES = ("lru",)
MOST_TOKENS = 65_535
"""Most tokens per page, which is the limit of a block."""
logger = logging.getLogger("sglang.blockmgr")


def register() -> None:
    """The plug-in of SGLang (``sglang.srt.plugins``): idle until the backend is chosen."""
    from sglang.srt.mem_cache import registry  # noqa: PLC0415  needs SGLang

    if registry.get_radix_cache_factory(NAME) is None:
        registry.register_radix_cache_backend(NAME, make_cache)


def make_cache(context: Any) -> Any:
    """The prefix cache of one scheduler.

    Args:
        context: SGLang's ``TreeCacheBuildContext``.

    Raises:
        UnsupportedConfigError: The configuration is not supported, or this SGLang has another
            interface.
    """
    from blockmgr.ports.sglang.cache import PrefixCache  # noqa: PLC0415
    from blockmgr.ports.sglang.interface import INTERFACE  # noqa: PLC0415

    differences = INTERFACE.differences()
    lacking = [f"this version of SGLang is unknown: {d}" for d in differences if d.is_fatal]
    reasons = (*lacking, *reasons_against(context))
    if reasons:
        raise UnsupportedConfigError(reasons, INSTEAD)
    if not INTERFACE.is_tried():
        logger.warning(INTERFACE.warning(differences))
    made = PrefixCache(context.params)
    logger.info(
        "blockmgr keeps the prefix cache: %d pages of %d tokens",
        made.pool.num_blocks - 1,
        made.page_size,
    )
    return made


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
