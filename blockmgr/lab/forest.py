"""The prefixes of a trace: a forest of segments, with one tree per namespace.

A segment is the tokens of a hash id if all prompts are known by ids of whole blocks, or else one
block of tokens. Each stands for the whole prefix that ends with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.lab.request import HashedPrompt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.lab.request import Request, Tokens
    from blockmgr.lab.trace import Trace

__all__ = ["NO_SEGMENT", "Forest"]

NO_SEGMENT = -1
"""What is before a root."""


class Forest:
    """Numbers the segments of a trace in the order in which they are first seen.

    Args:
        trace: The requests.
        block_size: Tokens per block.

    Attributes:
        segment_size: Tokens of a segment.
        hashed: Whether ids name the segments of prompts.
        parents: By segment, the one before it. A root is a namespace, and has no tokens.
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        self.segment_size = trace.segment_size(block_size)
        self.hashed = trace.is_hashed and self.segment_size == trace.tokens_per_id
        self.parents: list[int] = []
        self._segments: dict[tuple[int, bytes], int] = {}

    def segment(self, parent: int, key: bytes) -> int:
        """The segment with this key below another one, or below ``NO_SEGMENT``."""
        segment = self._segments.setdefault((parent, key), len(self.parents))
        if segment == len(self.parents):
            self.parents.append(parent)
        return segment

    def keys(self, request: Request) -> Iterable[bytes]:
        """Keys of the segments of a prompt; the last one may be in part of the prompt, as an id."""
        if self.hashed and isinstance(request.prompt, HashedPrompt):
            return (i.to_bytes(8) for i in request.prompt.ids.tolist())
        return self.token_keys(request.tokens())

    def token_keys(self, tokens: Tokens, start: int = 0) -> Iterable[bytes]:
        """Keys of the whole segments of these tokens, from segment ``start`` on."""
        size = self.segment_size
        stop = len(tokens) // size * size
        return (tokens[at : at + size].tobytes() for at in range(start * size, stop, size))
