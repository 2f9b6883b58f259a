"""What a perfect forecaster would tell the manager: will this conversation go on?

A trace knows the future, so a replay can pass the truth to ``free(expect_reuse=...)`` and measure
what such hints would be worth to an engine that has them from its clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.lab.trace import HashedPrompt

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from blockmgr.lab.trace import Request, Trace

__all__ = ["Outlook"]


class Outlook:
    """For each request of a trace, whether another one is still to come that goes on from it.

    A request goes on from an earlier one if the cache could serve it every whole segment of the
    earlier one's prompt. Segments are the tokens of a hash id if all prompts are known by ids,
    else blocks. Whatever was generated does not count: a conversation that drops its outputs, or
    asks again, goes on as well. A prompt shorter than a segment never does.

    Args:
        trace: The requests.
        block_size: Tokens per block.

    Cost: O(segments of the trace) time and memory.
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        self._requests = trace.requests
        self._segment_size = trace.segment_size(block_size)
        self._hashed = trace.is_hashed and self._segment_size == trace.tokens_per_id
        self._segments: dict[tuple[Hashable, Hashable], int] = {}
        chains = [list(self._chain(request)) for request in trace.requests]
        last_served: dict[int, int] = {}
        self._last = [0] * len(chains)
        for index in range(len(chains) - 1, -1, -1):
            chain, request = chains[index], trace.requests[index]
            if chain:
                self._last[index] = last_served.get(chain[-1], 0)
            # The last token of a prompt is never served.
            for segment in chain[: (request.num_prompt_tokens - 1) // self._segment_size]:
                last_served.setdefault(segment, index + 1)

    def goes_on(self, number: int, admitted: int) -> bool:
        """Whether a request after the first ``admitted`` goes on from request ``number``.

        Args:
            number: Number of the request in the trace, from 1.
            admitted: Requests that have been admitted already: what they found, they found.
        """
        return self._last[number - 1] > admitted

    def num_returning_tokens(self, number: int) -> int:
        """Leading tokens of a request's prompt that another prompt can hold as well.

        A last id that covers fewer than all its tokens belongs to prompts of just that length:
        whatever goes on from such a prompt has another id there, so its blocks, where they are
        smaller than that, are found by nobody.

        Args:
            number: Number of the request in the trace, from 1.
        """
        num_tokens = self._requests[number - 1].num_prompt_tokens
        size = self._segment_size
        return num_tokens // size * size if self._hashed else num_tokens

    def _chain(self, request: Request) -> Iterator[int]:
        """The whole segments of a prompt, each named by all that comes before it."""
        node: Hashable = request.namespace
        for key in self._keys(request):
            node = self._segments.setdefault((node, key), len(self._segments))
            yield node

    def _keys(self, request: Request) -> Iterator[Hashable]:
        size = self._segment_size
        whole = request.num_prompt_tokens // size
        if self._hashed and isinstance(request.prompt, HashedPrompt):
            yield from request.prompt.ids[:whole].tolist()
            return
        tokens = request.tokens()
        for start in range(0, whole * size, size):
            yield tokens[start : start + size].tobytes()
