"""What the port remembers of a request that has blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ROW", "Held", "Room"]

ROW = 0xFFFFFFFF  # of a handle: the row of its block table


@dataclass(slots=True)
class Held:
    """A request's sequence.

    Attributes:
        handle: Of its sequence.
        num_known: Tokens the sequence has.
        num_blocks: Blocks in its table.
        num_slots: Tokens they hold.
        next_full: Computed tokens at which another block can be published.
        is_loading: Whether a connector has yet to write some of it.
        num_committed: With several groups, computed tokens that were committed.
        num_told: With several groups, blocks of its table that workers have.
    """

    handle: int
    num_known: int
    num_blocks: int
    num_slots: int
    next_full: int
    is_loading: bool = False
    num_committed: int = 0
    num_told: int = 0


class Room(NamedTuple):
    """What a step asks for a request.

    Attributes:
        slots: Tokens that need a slot now.
        whole: Tokens that have to fit by the end, though they get none now; 0: no matter.
        headroom: Blocks to leave for running requests.
        reserved: Blocks that requests under way have yet to take.
    """

    slots: int
    whole: int
    headroom: int
    reserved: int
