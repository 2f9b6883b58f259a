"""The port's records of requests that have blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from blockmgr.ports.vllm.wishes import NO_WISH, Wish

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr.ports.vllm.slots import Slots

__all__ = ["ROW", "Held", "Hit", "Room"]

ROW: Final = 0xFFFFFFFF  # of a handle: the row of its block table


@dataclass(slots=True)
class Held:
    """A request's sequence.

    Attributes:
        request: vLLM's request.
        handle: Handle of its sequence.
        num_known: Tokens the sequence has.
        num_slots: Number of slots in its blocks.
        num_committed: Number of committed tokens.
        next_commit: Number of computed tokens at which the next commit is due.
        num_before: Leading tokens that it found, or that a connector loads.
        num_covered: Number of tokens up to which it neither needs nor fills a block, so that most
            calls of a decode step need this field alone.
        wish: What the request asks for, read when it was admitted: its end must not fail.
        is_loading: Whether a connector has yet to write some of its K/V.
        is_sent: Whether it has ended and a connector may still read its blocks.
        stops: With recurrent states, where its forwards should end.
        slots: With several slots for a recurrent state, as for draft tokens: where it is.
    """

    request: Request
    handle: int
    num_known: int
    num_slots: int
    num_committed: int
    next_commit: int
    num_before: int = 0
    num_covered: int = 0
    wish: Wish = NO_WISH
    is_loading: bool = False
    is_sent: bool = False
    stops: tuple[int, ...] = ()
    slots: Slots | None = None

    def slot_of(self, column: int) -> int:
        """The slot of a column of the worker's table, in groups of recurrent states."""
        return 0 if self.slots is None else self.slots.slot_of(column)


class Hit(NamedTuple):
    """What of a request is not computed.

    Attributes:
        num_found: Leading tokens in the cache.
        num_loaded: Leading tokens with those that a connector loads.
        end: Leading tokens with those that the step computes.
        waits: Whether the request waits for the load; else it ends before this step's forward.
    """

    num_found: int
    num_loaded: int
    end: int
    waits: bool


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
