"""Hints for the manager: whether a conversation goes on.

A trace knows the future, so a replay can pass the truth to ``free(expect_reuse=...)`` and measure
what such hints would be worth to an engine that has them from its clients. Without the future, an
engine knows traits of the request that ends, such as its turn and the length of its output: hints
can be a function of these, and a policy of one's own is offered them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.lab.trace import HashedPrompt

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from blockmgr.lab.trace import Request, Trace

__all__ = ["Hints", "Outlook", "Traits", "TraitsOf"]


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
        next_served: dict[int, int] = {}
        self._last = [0] * len(chains)
        self._next = [0] * len(chains)
        for index in range(len(chains) - 1, -1, -1):
            chain, request = chains[index], trace.requests[index]
            if chain:
                self._last[index] = last_served.get(chain[-1], 0)
                self._next[index] = next_served.get(chain[-1], 0)
            # The last token of a prompt is never served.
            for segment in chain[: (request.num_prompt_tokens - 1) // self._segment_size]:
                last_served.setdefault(segment, index + 1)
                next_served[segment] = index + 1

    def goes_on(self, number: int, admitted: int) -> bool:
        """Whether a request after the first ``admitted`` goes on from request ``number``.

        Args:
            number: Number of the request in the trace, from 1.
            admitted: Requests that have been admitted already: what they found, they found.
        """
        return self._last[number - 1] > admitted

    def next_request(self, number: int) -> int:
        """Number of the next request that goes on from request ``number``; 0 if there is none."""
        return self._next[number - 1]

    def num_returning_tokens(self, number: int) -> int:
        """Leading tokens of a request's prompt that another prompt can hold as well.

        A last id that covers fewer than all its tokens belongs to prompts of just that length:
        whatever goes on from such a prompt has another id there, so its blocks, where they are
        smaller than that, are never found.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an engine knows of a request that ends.

    Attributes:
        arrival_ms: When it came, in milliseconds from the start of the trace.
        turn: 1 if it goes on from no earlier request, else one more than that one's.
        num_prompt_tokens: Tokens of its prompt.
        num_output_tokens: Tokens generated for it.
    """

    arrival_ms: int
    turn: int
    num_prompt_tokens: int
    num_output_tokens: int


Hints = Callable[[Traits], bool | None]
"""Says of a request that ends whether its conversation will go on; None says nothing."""


class TraitsOf:
    """The traits of requests, which are asked for in any order after they were admitted.

    Args:
        trace: The requests.
        outlook: Which goes on from which.
    """

    def __init__(self, trace: Trace, outlook: Outlook) -> None:
        self._requests = trace.requests
        self._outlook = outlook
        self._turns: dict[int, int] = {}  # of requests that go on from one that was admitted

    def admit(self, number: int) -> None:
        """Request ``number`` was admitted; those before it were, too."""
        follower = self._outlook.next_request(number)
        if follower:
            turn = self._turns.get(number, 1) + 1
            self._turns[follower] = max(turn, self._turns.get(follower, 1))

    def end(self, number: int) -> Traits:
        """The traits of request ``number``, which ends, once."""
        request = self._requests[number - 1]
        return Traits(
            arrival_ms=request.arrival_ms,
            turn=self._turns.pop(number, 1),
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
        )
