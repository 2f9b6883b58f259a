"""Hints for the manager: whether a conversation continues.

A trace contains the future, so a replay can pass the truth to ``free(expect_reuse=...)`` and
measure the value of such hints to an engine that gets them from its clients. Otherwise an engine
knows only traits of the ending request, such as its turn and the length of its output. Hints can be
a function of these, and a custom policy can get them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.lab.references import columns_of
from blockmgr.lab.replay_config import ReplayConfig
from blockmgr.lab.request import Hints, Traits
from blockmgr.lab.runs import NO_RUN

if TYPE_CHECKING:
    from blockmgr.lab.trace import Trace

__all__ = ["Hints", "Outlook", "Traits", "TraitsOf", "sessions_of"]


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
        self._size = size = trace.segment_size(block_size)
        self._hashed = trace.is_hashed and size == trace.tokens_per_id
        columns = columns_of(trace, ReplayConfig(block_size=size, outputs="none"))
        parent = columns.parent.tolist()
        limits, prompts = (columns.column(name).tolist() for name in ("limit", "prompt"))
        last_served: dict[int, int] = {}
        next_served: dict[int, int] = {}
        self._last = [0] * len(prompts)
        self._next = [0] * len(prompts)
        for index in range(len(prompts) - 1, -1, -1):
            self._last[index] = last_served.get(prompts[index], 0)
            self._next[index] = next_served.get(prompts[index], 0)
            run = limits[index]
            while run != NO_RUN:
                last_served.setdefault(run, index + 1)
                next_served[run] = index + 1
                run = parent[run]

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
        return num_tokens // self._size * self._size if self._hashed else num_tokens


def sessions_of(trace: Trace, block_size: int) -> list[int]:
    """The number of each request's session, as its client would know it; 0 for none.

    If the trace names sessions, those. Otherwise a client knows which conversation it continues: a
    request is of the session of the last one whose whole prompt it repeats (``Outlook``), or of a
    new session. The client knows neither what follows nor when.

    Args:
        trace: The requests.
        block_size: Tokens per block.

    Cost: That of ``Outlook``, if the trace names no sessions.
    """
    numbers = [request.session for request in trace.requests]
    if any(numbers):
        return numbers
    outlook = Outlook(trace, block_size)
    for number in range(1, len(numbers) + 1):
        numbers[number - 1] = numbers[number - 1] or number
        follower = outlook.next_request(number)
        if follower:
            numbers[follower - 1] = numbers[number - 1]
    return numbers


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
