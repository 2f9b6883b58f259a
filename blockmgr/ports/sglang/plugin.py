"""The plug-in for SGLang, which registers this prefix cache as a backend."""

from __future__ import annotations

import logging
from typing import Any

from blockmgr.ports.unsupported import UnsupportedConfigError

__all__ = ["register"]

NAME = "blockmgr"
INSTEAD = "Without --radix-cache-backend, SGLang uses its own cache"
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
    from blockmgr.ports.sglang import cache, support  # noqa: PLC0415
    from blockmgr.ports.sglang.interface import INTERFACE  # noqa: PLC0415

    differences = INTERFACE.differences()
    lacking = [f"this version of SGLang is unknown: {d}" for d in differences if d.is_fatal]
    reasons = (*lacking, *support.reasons_against(context))
    if reasons:
        raise UnsupportedConfigError(reasons, INSTEAD)
    if not INTERFACE.is_tried():
        logger.warning(INTERFACE.warning(differences))
    made = cache.PrefixCache(context.params)
    logger.info(
        "blockmgr keeps the prefix cache: %d pages of %d tokens",
        made.pool.num_blocks - 1,
        made.page_size,
    )
    return made
