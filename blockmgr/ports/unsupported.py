"""What is raised where an engine asks for what a port of it does not have."""

from __future__ import annotations

from blockmgr.errors import BlockMgrError

__all__ = ["UnsupportedConfigError"]


class UnsupportedConfigError(BlockMgrError, ValueError):
    """An engine's configuration needs what blockmgr does not have.

    Attributes:
        reasons: A sentence for each thing that is missing.
        instead: A sentence on how to run the engine without blockmgr.
    """

    def __init__(self, reasons: tuple[str, ...], instead: str) -> None:
        self.reasons, self.instead = reasons, instead
        super().__init__(
            f"blockmgr does not support this configuration: {'; '.join(reasons)}. {instead}"
        )

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...], str]]:
        return type(self), (self.reasons, self.instead)
