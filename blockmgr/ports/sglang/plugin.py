"""How SGLang comes to use this prefix cache: its plug-in, which registers a backend by name."""

from __future__ import annotations

import logging
from typing import Any

from blockmgr.errors import BlockMgrError

__all__ = ["UnsupportedConfigError", "register"]

NAME = "blockmgr"
logger = logging.getLogger("sglang.blockmgr")


class UnsupportedConfigError(BlockMgrError, ValueError):
    """SGLang's configuration needs what blockmgr does not have.

    Attributes:
        reasons: A sentence for each thing that is missing.
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__(
            "blockmgr cannot keep the prefix cache of this configuration: "
            + "; ".join(reasons)
            + ". Without --radix-cache-backend, SGLang uses its own"
        )

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...]]]:
        return type(self), (self.reasons,)


def register() -> None:
    """The plug-in of SGLang (``sglang.srt.plugins``): idle until the backend is chosen."""
    from sglang.srt.mem_cache import registry  # noqa: PLC0415  only where SGLang is

    if registry.get_radix_cache_factory(NAME) is None:
        registry.register_radix_cache_backend(NAME, make_cache)


def make_cache(context: Any) -> Any:
    """The prefix cache of one scheduler.

    Args:
        context: SGLang's ``TreeCacheBuildContext``.

    Raises:
        UnsupportedConfigError: The configuration needs what is missing, or this SGLang has another
            interface.
    """
    from blockmgr.ports.sglang import cache, interface, support  # noqa: PLC0415

    differences = interface.differences()
    lacking = [f"this SGLang is not one it knows: {d}" for d in differences if d.is_fatal]
    reasons = (*lacking, *support.reasons_against(context))
    if reasons:
        raise UnsupportedConfigError(reasons)
    if not interface.is_tried():
        named = "; ".join(map(str, differences)) or "nothing that is looked at"
        logger.warning(
            "blockmgr was tried with SGLang %s, this is %s; what differs: %s",
            ", ".join(interface.TRIED),
            interface.version(),
            named,
        )
    made = cache.PrefixCache(context.params)
    logger.info(
        "blockmgr keeps the prefix cache: %d pages of %d tokens",
        made.pool.num_blocks - 1,
        made.page_size,
    )
    return made
