"""The attributes of a scheduler's sequences and groups that this port reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from blockmgr.errors import BlockMgrError
from blockmgr.ports.aphrodite.tokens import checked_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "EncoderDecoderError",
    "GroupLike",
    "SequenceLike",
    "distinct_sequences",
    "extra_hash_of",
    "id_of",
    "refuse_encoder",
    "tokens_of",
]


class EncoderDecoderError(BlockMgrError, NotImplementedError):
    """The group has an encoder, and this port has no block tables for cross-attention."""


class SequenceLike(Protocol):
    """A sequence.

    ``extra_hash()`` (an int or None: an extra key besides tokens), ``is_prefill()`` and
    ``is_finished()`` are optional.
    """

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
    """Refuses a group with an encoder before anything changes."""
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
    extra: int | None = seq.extra_hash() if hasattr(seq, "extra_hash") else None
    checked_extra(extra)
    return extra
