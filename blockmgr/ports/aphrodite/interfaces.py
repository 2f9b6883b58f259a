"""What a scheduler shares with the port: enumerations, the shortage, sequences and groups."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, TypeVar

from blockmgr.arguments import integer
from blockmgr.errors import BlockMgrError, OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AllocStatus", "Device", "EncoderDecoderError", "NoFreeBlocksError"]


class NoFreeBlocksError(OutOfBlocksError, ValueError):
    """Not enough blocks at the moment; also ``BlockAllocator.NoFreeBlocksError``."""


class EncoderDecoderError(BlockMgrError, NotImplementedError):
    """The group has an encoder, and this port has no block tables for cross-attention."""


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


class SequenceLike(Protocol):
    """A sequence. ``extra_hash()``, ``is_prefill()`` and ``is_finished()`` are optional."""

    @property
    def seq_id(self) -> int:
        """Its id, distinct among live sequences."""

    def get_token_ids(self) -> Sequence[int]:
        """All its tokens, including those not scheduled yet."""


class GroupLike(Protocol):
    """Sequences that are scheduled together. ``is_encoder_decoder()`` is optional."""

    def get_seqs(self) -> Sequence[SequenceLike]:
        """Its sequences; initially all have the same tokens."""


def distinct_sequences(seq_group: GroupLike) -> list[SequenceLike]:
    """The sequences of a group, at least one, with distinct ids."""
    if not hasattr(seq_group, "get_seqs"):
        raise TypeError(f"seq_group must have get_seqs, got {type(seq_group).__name__}")
    sequences = list(seq_group.get_seqs())
    if not sequences:
        raise ValueError("seq_group must have at least one sequence")
    if len(set(map(id_of, sequences))) < len(sequences):
        raise ValueError("seq_group must not name a sequence twice")
    return sequences


def refuse_encoder(seq_group: GroupLike) -> None:
    """Refuses a group with an encoder."""
    if getattr(seq_group, "is_encoder_decoder", bool)():
        raise EncoderDecoderError(
            "seq_group must have no encoder: cross-attention needs block tables of its own"
        )


def id_of(seq: SequenceLike) -> int:
    """The id of a sequence."""
    try:
        name = seq.seq_id
    except AttributeError:
        raise TypeError(f"seq must have a seq_id, got {type(seq).__name__}") from None
    try:
        hash(name)
    except TypeError:
        raise TypeError(f"seq_id must be hashable, got {type(name).__name__}") from None
    return name


def tokens_of(seq: SequenceLike) -> Sequence[int]:
    """All tokens of a sequence."""
    if not hasattr(seq, "get_token_ids"):
        raise TypeError(f"seq must have get_token_ids, got {type(seq).__name__}")
    tokens = seq.get_token_ids()
    if isinstance(tokens, list | tuple):
        return tokens
    try:
        len(tokens)  # an iterator can be read only once
        return list(tokens)
    except TypeError:
        kind = type(tokens).__name__
        raise TypeError(f"token_ids must be a sequence of ints, got {kind}") from None


def extra_hash_of(seq: SequenceLike) -> int | None:
    """The extra key of a sequence; None if it has none."""
    return checked_extra(seq.extra_hash() if hasattr(seq, "extra_hash") else None)


def checked_extra(extra_hash: int | None) -> int | None:
    """An extra hash, which is an int or None."""
    if extra_hash is None:
        return None
    if not isinstance(extra_hash, int) or isinstance(extra_hash, bool):
        raise TypeError(f"extra_hash must be an int or None, got {type(extra_hash).__name__}")
    return extra_hash


def extra_bytes(extra_hash: int | None) -> bytes:
    """An extra hash, which may be any int, as bytes for the core."""
    return b"" if extra_hash is None else b"%d" % extra_hash


def whole_tokens(token_ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens as ints, each in ``[0, 2**32)``."""
    return tuple(map(_whole_token, token_ids))


def _whole_token(token: object) -> int:
    number = integer("token_ids", token)
    if not 0 <= number < 2**32:
        raise ValueError(f"token_ids must be in [0, 2**32), got {number}")
    return number
