"""Hints for the manager: whether a conversation continues.

A trace contains the future, so a replay can pass the truth to ``free(expect_reuse=...)`` and
measure the value of such hints to an engine that gets them from its clients. Otherwise an engine
knows only traits of the ending request, such as its turn and the length of its output. Hints can be
a function of these, and a custom policy can get them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from blockmgr.lab.forest import NO_SEGMENT, Forest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.lab.trace import Request, Trace

__all__ = ["Hints", "Outlook", "Traits", "TraitsOf"]


class Outlook:
    """For each request of a trace, whether a later request continues it.

    A request continues an earlier one if the cache could serve every whole segment of the earlier
    prompt to it. Segments are the tokens of a hash id if all prompts are known by ids, else blocks.
    Outputs do not count: a conversation that drops its outputs, or repeats a prompt, continues as
    well. A prompt shorter than a segment is never continued.

    Args:
        trace: The requests.
        block_size: Tokens per block.

    Cost: O(segments of the trace) time and memory.
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        self._requests = trace.requests
        self._forest = Forest(trace, block_size)
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
            # The last token of a prompt is never found.
            for segment in chain[: (request.num_prompt_tokens - 1) // self._forest.segment_size]:
                last_served.setdefault(segment, index + 1)
                next_served[segment] = index + 1

    def goes_on(self, number: int, admitted: int) -> bool:
        """Whether a request after the first ``admitted`` ones continues request ``number``.

        Args:
            number: Number of the request in the trace, from 1.
            admitted: Number of requests admitted already, which do not count.
        """
        return self._last[number - 1] > admitted

    def next_request(self, number: int) -> int:
        """Number of the next request that continues request ``number``; 0 if there is none."""
        return self._next[number - 1]

    def num_returning_tokens(self, number: int) -> int:
        """Leading tokens of a request's prompt that another prompt can share.

        If the last id covers fewer tokens than a full id, it occurs only in prompts of that length.
        A prompt that continues such a prompt has another id there, so the blocks of the partial id
        are never found.

        Args:
            number: Number of the request in the trace, from 1.
        """
        num_tokens = self._requests[number - 1].num_prompt_tokens
        size = self._forest.segment_size
        return num_tokens // size * size if self._forest.hashed else num_tokens

    def _chain(self, request: Request) -> Iterator[int]:
        """The whole segments of a prompt."""
        forest = self._forest
        segment = forest.segment(NO_SEGMENT, request.namespace)
        whole = request.num_prompt_tokens // forest.segment_size
        for key in islice(forest.keys(request), whole):
            segment = forest.segment(segment, key)
            yield segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of a request that an engine knows at its end.

    Attributes:
        arrival_ms: When it came, in milliseconds from the start of the trace.
        turn: 1 if it continues no earlier request, else the turn of that request plus 1.
        num_prompt_tokens: Tokens of its prompt.
        num_output_tokens: Tokens generated for it.
    """

    arrival_ms: int
    turn: int
    num_prompt_tokens: int
    num_output_tokens: int


Hints = Callable[[Traits], bool | None]
"""Predicts whether the conversation of an ending request will continue; None for no hint."""


class TraitsOf:
    """Computes traits of requests, in any order after their admission.

    Args:
        trace: The requests.
        outlook: Which requests continue which.
    """

    def __init__(self, trace: Trace, outlook: Outlook) -> None:
        self._requests = trace.requests
        self._outlook = outlook
        self._turns: dict[int, int] = {}  # for requests that continue an admitted one

    def admit(self, number: int) -> None:
        """Records that request ``number`` and all before it were admitted."""
        follower = self._outlook.next_request(number)
        if follower:
            turn = self._turns.get(number, 1) + 1
            self._turns[follower] = max(turn, self._turns.get(follower, 1))

    def end(self, number: int) -> Traits:
        """The traits of the ending request ``number``; call it once."""
        request = self._requests[number - 1]
        return Traits(
            arrival_ms=request.arrival_ms,
            turn=self._turns.pop(number, 1),
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
        )
