"""The error for configurations that a port does not support."""

from __future__ import annotations

from blockmgr.errors import BlockMgrError

__all__ = ["UnsupportedConfigError"]


class UnsupportedConfigError(BlockMgrError, ValueError):
    """blockmgr does not support the engine's configuration.

    Attributes:
        reasons: One sentence for each unsupported feature.
        instead: A sentence on how to run the engine without blockmgr.
    """

    def __init__(self, reasons: tuple[str, ...], instead: str) -> None:
        self.reasons, self.instead = reasons, instead
        super().__init__(
            f"blockmgr does not support this configuration: {'; '.join(reasons)}. {instead}"
        )
