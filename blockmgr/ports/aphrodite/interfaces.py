"""The enumerations and the error for a shortage, which schedulers share with the port."""

from __future__ import annotations

import enum
from typing import TypeVar

from blockmgr.errors import OutOfBlocksError

__all__ = ["AllocStatus", "Device", "NoFreeBlocksError", "the_same"]


class NoFreeBlocksError(OutOfBlocksError, ValueError):
    """Not enough blocks at the moment; also ``BlockAllocator.NoFreeBlocksError``."""


class _Shared(enum.Enum):
    """An enumeration that each engine of this lineage defines itself, with the same names.

    Members are equal to the engine's members of the same name, because its scheduler compares the
    results with its own members.
    """

    def __eq__(self, other: object) -> bool:
        if isinstance(other, enum.Enum) and type(other).__name__ == type(self).__name__:
            return self.name == other.name
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)


_Member = TypeVar("_Member", bound=_Shared)


def the_same(kind: type[_Member], name: str, member: object) -> _Member:
    """The member of this enumeration for itself or for an engine's member of that name."""
    for own in kind:
        if own == member:
            return own
    raise TypeError(f"{name} must be a {kind.__name__}, got {member!r}")


class Device(_Shared):
    """The device of a pool."""

    GPU = "gpu"
    """The device that computes."""

    CPU = "cpu"
    """The host, to which blocks are swapped."""


class AllocStatus(_Shared):
    """Whether a group of sequences can get its blocks."""

    OK = "ok"
    """They can be allocated immediately."""

    LATER = "later"
    """They can be allocated after others are freed."""

    NEVER = "never"
    """They are more than the pool can ever hold."""
