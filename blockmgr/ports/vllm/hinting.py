"""The KV hints that requests carry (``kv_hints``, since vLLM 0.33), carried out."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from blockmgr.errors import HintError
from blockmgr.hints import Hints
from blockmgr.ports.vllm.naming import namespace

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager

__all__ = ["RequestHints"]

SILENCE_S: Final = 60.0
"""Shortest time between two lines of the log about malformed hints."""

logger = logging.getLogger("vllm.blockmgr")  # below the logger that vLLM sets up


class RequestHints:
    """Carries out the hints of requests, each on blocks of the request's own namespace.

    A malformed envelope is counted and named in the log. It must not stop the engine.

    Args:
        manager: With ``retention=True``.
    """

    def __init__(self, manager: BlockManager) -> None:
        self.hints = Hints(manager)
        self._due = 0.0

    def begin(self, request: Request, handle: int) -> None:
        """Carries out the envelope of a request that was admitted."""
        envelope = getattr(request, "kv_hints", None)
        if envelope is None:
            return
        try:
            self.hints.hint(envelope, namespace=namespace(request), handle=handle)
        except HintError as error:
            now = time.monotonic()
            if now < self._due:
                return
            self._due = now + SILENCE_S
            logger.warning("blockmgr ignores kv_hints of a request: %s", error)

    def finish(self, handle: int) -> None:
        """Before the sequence ends: pins what the request asked to pin."""
        self.hints.finish(handle)

    def expire(self) -> None:
        """After the manager's time was set."""
        self.hints.expire()
