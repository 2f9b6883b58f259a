"""The tokens of waiting requests, converted for the block manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr import Prompt
from blockmgr.ports.vllm.naming import extras_of, namespace, session_of

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["Prompts"]


class Prompts:
    """Converts a request's list of tokens once, for all look-ups until it is admitted.

    A token takes 4 bytes here, in addition to at least 16 bytes in vLLM's lists.

    Args:
        block_size: Tokens per block.
        has_sessions: Whether the manager knows sessions.
    """

    def __init__(self, block_size: int, has_sessions: bool) -> None:
        self._block_size = block_size
        self._has_sessions = has_sessions
        self._kept: dict[str, tuple[Request, Prompt]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def prepare(self, request: Request) -> None:
        """Converts the tokens of a request on arrival, so that no step converts many at once."""
        if not request.resumable:
            self._kept[request.request_id] = request, self._convert(request)

    def of(self, request: Request) -> Prompt:
        """The request's tokens, including generated ones."""
        kept = self._kept.get(request.request_id)
        if kept is not None and kept[0] is request and not request.resumable:
            prompt = kept[1]
            if len(prompt) == len(request._all_token_ids):
                return prompt
        prompt = self._convert(request)
        self._kept[request.request_id] = request, prompt
        return prompt

    def forget(self, request_id: str) -> None:
        """Drops the tokens of a request that is admitted or has ended."""
        self._kept.pop(request_id, None)

    def _convert(self, request: Request) -> Prompt:
        return Prompt(
            request._all_token_ids,
            namespace=namespace(request),
            extras=extras_of(request, self._block_size),
            session=session_of(request) if self._has_sessions else b"",
        )
