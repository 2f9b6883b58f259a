"""What became of an action, for the router that asked for it."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Outcome", "Result"]


class Result(enum.StrEnum):
    """What became of an action."""

    ACCEPTED = "accepted"
    """Carried out as asked."""

    CLIPPED = "clipped"
    """Carried out within bounds: fewer blocks, or a shorter time to live, than asked."""

    DEFERRED = "deferred"
    """Waits until the request that carries it ends."""

    REJECTED = "rejected"
    """Not carried out, for the reason given."""

    MISSING = "missing"
    """None of the blocks is cached in the namespace."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one action. msgspec can encode it."""

    message_id: str
    """The envelope's."""
    action_id: str
    """The action's."""
    result: Result
    """What became of it."""
    num_blocks: int = 0
    """Blocks that the action applies to."""
    num_missing: int = 0
    """Blocks of the target that are not cached in the namespace."""
    reason: str | None = None
    """Why the action was rejected or clipped."""
