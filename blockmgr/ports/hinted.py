"""The KV hints of an engine's requests, carried out: a malformed one never stops the engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from blockmgr.errors import HintError

if TYPE_CHECKING:
    import logging

    from blockmgr.hints import Hints

__all__ = ["CarriedHints"]

SILENCE_S: Final = 60.0
"""Shortest time between two lines of the log about malformed hints."""


class CarriedHints:
    """Carries out the envelopes that requests carry.

    Args:
        hints: What carries them out, and counts malformed ones.
        logger: The engine's, for malformed ones, at most one line in ``SILENCE_S``.
    """

    def __init__(self, hints: Hints, logger: logging.Logger) -> None:
        self.hints = hints
        self._logger = logger
        self._due = 0.0

    def carry_out(self, envelope: object, namespace: bytes, handle: int) -> None:
        """Carries out the envelope of a request; None for a request without one."""
        if envelope is None:
            return
        try:
            self.hints.hint(envelope, namespace=namespace, handle=handle)
        except HintError as error:
            now = time.monotonic()
            if now < self._due:
                return
            self._due = now + SILENCE_S
            self._logger.warning("blockmgr ignores kv_hints of a request: %s", error)
