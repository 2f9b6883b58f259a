"""The KV hints that requests carry (``kv_hints``, since vLLM 0.33), carried out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from blockmgr.hints import Hints
from blockmgr.ports.hinted import CarriedHints
from blockmgr.ports.vllm.naming import namespace

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager

__all__ = ["RequestHints"]

logger = logging.getLogger("vllm.blockmgr")  # below the logger that vLLM sets up


class RequestHints:
    """Carries out the hints of requests, each on blocks of the request's own namespace.

    A malformed envelope is counted and named in the log. It must not stop the engine.

    Args:
        manager: With ``retention=True``.
    """

    def __init__(self, manager: BlockManager) -> None:
        self._carried = CarriedHints(Hints(manager), logger)

    @property
    def hints(self) -> Hints:
        """What carries them out."""
        return self._carried.hints

    def begin(self, request: Request, handle: int) -> None:
        """Carries out the envelope of a request that was admitted."""
        envelope = getattr(request, "kv_hints", None)
        if envelope is not None:
            self._carried.carry_out(envelope, namespace(request), handle)

    def finish(self, handle: int) -> None:
        """Before the sequence ends: pins what the request asked to pin."""
        self.hints.finish(handle)

    def expire(self) -> None:
        """After the manager's time was set."""
        self.hints.expire()
