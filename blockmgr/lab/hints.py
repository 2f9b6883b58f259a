"""Hints for the manager: which conversation a request continues, and whether it goes on.

A trace contains the future, so a replay can say what clients would say, and measure the value of
such hints to an engine (``Clients``). Otherwise an engine knows only traits of the ending request,
such as its turn and the length of its output. Hints can be a function of these, and a custom policy
can get them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from blockmgr.lab.references import columns_of
from blockmgr.lab.replay_config import HintModel, ReplayConfig
from blockmgr.lab.request import Hints, Request, Traits
from blockmgr.lab.runs import NO_RUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.trace import Trace
    from blockmgr.manager import BlockManager

__all__ = ["Clients", "Hints", "Outlook", "Traits", "TraitsOf", "sessions_of", "tool_waits"]

TOOL_MS: Final = 30_000
"""Longest time of a tool for which clients ask to keep a session."""

MS_IN_SECOND: Final = 1000


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


def tool_waits(
    requests: Sequence[Request], sessions: Sequence[int], config: ReplayConfig
) -> dict[int, int]:
    """About how many seconds each answer's tools take, as its client would say; by request.

    If the trace has the times of tools, those. Otherwise the pause from an answer to the next
    prompt of its session counts as that of a tool: of 200 sessions of coding agents
    (kv-cache-tester), 81 % of 10,556 pauses after tool calls are at most ``TOOL_MS``, and 19 % of
    1,585 others. A client says nothing of a longer time, because blocks that are kept for long cost
    others more than they save. It does not know a time exactly: it says the next power of two, in
    seconds.

    Args:
        requests: The requests.
        sessions: The number of each request's session; 0 for none.
        config: Config of the replay, for the time that answers take.
    """
    known: dict[int, int] = {}
    derived: dict[int, int] = {}
    ends: dict[int, tuple[int, int]] = {}  # by session: its last request, and when that ends
    for number, (request, session) in enumerate(zip(requests, sessions, strict=True), start=1):
        if request.tool_ms is not None:
            known[number] = request.tool_ms
        if session:
            before, end_ms = ends.get(session, (0, 0))
            if before:
                derived[before] = max(0, request.arrival_ms - end_ms)
            ends[session] = number, request.arrival_ms + config.service_ms(request)
    found = (known or derived).items()
    return {number: _about(time_ms) for number, time_ms in found if time_ms <= TOOL_MS}


def _about(time_ms: int) -> int:
    """The next power of two of seconds, at least 1."""
    return 1 << (max(0, time_ms - 1) // MS_IN_SECOND).bit_length()


class Clients:
    """Says to the manager of a replay what the clients of its requests would say.

    Args:
        trace: The requests.
        config: Config of the replay. With a function as its ``hints``, clients say
            nothing.
    """

    def __init__(self, trace: Trace, config: ReplayConfig) -> None:
        self._config = config
        self._model = config.hint_model or HintModel(text="")
        self._sessions: list[int] | None = None
        self._last_of: dict[int, int] = {}
        self._waits: dict[int, int] = {}
        if self._model.names:
            self._sessions = sessions_of(trace, config.block_size)
            if self._model.ends:
                numbers = enumerate(self._sessions, start=1)
                self._last_of = {session: number for number, session in numbers}
            if self._model.waits:
                self._waits = tool_waits(trace.requests, self._sessions, config)

    def at(self, manager: BlockManager, now: int) -> None:
        """The time of the manager, for the clients that state how long something takes."""
        if self._model.waits:
            manager.set_time(now / MS_IN_SECOND)

    def named(self, request: Request, number: int) -> Request:
        """The request with the session that its client names."""
        if self._sessions is None:
            return request
        return replace(request, session=self._sessions[number - 1])

    def after(self, manager: BlockManager, request: Request, number: int) -> None:
        """Says what follows the end of a request."""
        session, space = self._config.session_name(request), request.namespace
        if not session:
            return
        if self._last_of.get(request.session) == number:
            manager.end_session(session, namespace=space)
        if number in self._waits:
            wait = self._waits[number]
            manager.signal(session, "tool_wait", expected_in=wait, namespace=space)


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
