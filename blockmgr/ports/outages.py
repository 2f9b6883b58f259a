"""Calls of a disk or a store that may be gone: each outage gets one line in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

__all__ = ["Outages"]

T = TypeVar("T")


class Outages:
    """The outages of one place; ``where`` is what the lines call it."""

    def __init__(self, logger: logging.Logger, where: str) -> None:
        self._logger, self._where, self._is_out = logger, where, False

    def tried(self, call: Callable[..., T], *args: Any) -> T | None:
        """What a call returns; None if it raises ``OSError``."""
        try:
            result = call(*args)
        except OSError as error:
            if not self._is_out:
                self._logger.warning("blockmgr could not use %s: %s", self._where, error)
            self._is_out = True
            return None
        self._is_out = False
        return result
