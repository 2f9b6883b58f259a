"""The port's records of requests that have blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from blockmgr.ports.vllm.wishes import NO_WISH, Wish

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["ROW", "Held", "Room"]

ROW = 0xFFFFFFFF  # of a handle: the row of its block table


@dataclass(slots=True)
class Held:
    """A request's sequence.

    Attributes:
        handle: Handle of its sequence.
        num_known: Tokens the sequence has.
        num_slots: Number of slots in its blocks.
        next_full: Number of computed tokens at which another block can be published; with recurrent
            states, also one more than the last commit, to report that the state moves.
        wish: What the request asks for, read when it was admitted: its end must not fail.
        is_loading: Whether a connector has yet to write some of its K/V.
        num_committed: With several groups, number of committed tokens.
        stops: With recurrent states, where its forwards should end.
        request: With recurrent states, vLLM's request.
    """

    handle: int
    num_known: int
    num_slots: int
    next_full: int
    wish: Wish = NO_WISH
    is_loading: bool = False
    num_committed: int = 0
    stops: tuple[int, ...] = ()
    request: Request | None = None


class Room(NamedTuple):
    """The slots that a step needs for a request.

    Attributes:
        slots: Tokens that need a slot in this step.
        whole: Tokens that must fit in the end, although they get no slots yet; 0 for no check.
        headroom: Blocks to leave for running requests.
        reserved: Blocks that requests in progress have yet to take.
    """

    slots: int
    whole: int
    headroom: int
    reserved: int
