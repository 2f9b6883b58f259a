"""What is read of a scheduler's sequences and groups, and groups that no block table serves."""

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
    """A group with an encoder: there are no block tables for cross-attention here."""


class SequenceLike(Protocol):
    """What is read of a sequence.

    ``extra_hash()`` (an int or None: what changes the K/V besides tokens), ``is_prefill()`` and
    ``is_finished()`` are read where a sequence has them.
    """

    @property
    def seq_id(self) -> int:
        """Its name, distinct among those alive."""

    def get_token_ids(self) -> Sequence[int]:
        """All its tokens, those not scheduled yet included."""


class GroupLike(Protocol):
    """What is read of a group: sequences that are scheduled and swapped together.

    A group whose ``is_encoder_decoder()`` is true is refused.
    """

    def get_seqs(self) -> Sequence[SequenceLike]:
        """Its sequences; at first all with the same tokens."""


def distinct_sequences(seq_group: GroupLike) -> list[SequenceLike]:
    """The sequences of a group, at least one, each with a name of its own."""
    if not hasattr(seq_group, "get_seqs"):
        raise TypeError(f"seq_group must have get_seqs, got {type(seq_group).__name__}")
    sequences = list(seq_group.get_seqs())
    if not sequences:
        raise ValueError("seq_group must have at least one sequence")
    if len(set(map(id_of, sequences))) < len(sequences):
        raise ValueError("seq_group must not name a sequence twice")
    return sequences


def refuse_encoder(seq_group: GroupLike) -> None:
    """Raises for a group with an encoder, before anything is counted or given."""
    if getattr(seq_group, "is_encoder_decoder", bool)():
        raise EncoderDecoderError(
            "seq_group must have no encoder: cross-attention needs block tables of its own"
        )


def id_of(seq: SequenceLike) -> int:
    """The name of a sequence."""
    try:
        return seq.seq_id
    except AttributeError:
        raise TypeError(f"seq must have a seq_id, got {type(seq).__name__}") from None


def tokens_of(seq: SequenceLike) -> Sequence[int]:
    """All tokens of a sequence."""
    if not hasattr(seq, "get_token_ids"):
        raise TypeError(f"seq must have get_token_ids, got {type(seq).__name__}")
    return seq.get_token_ids()


def extra_hash_of(seq: SequenceLike) -> int | None:
    """What changes the K/V of a sequence besides its tokens; None if it does not say."""
    extra: int | None = seq.extra_hash() if hasattr(seq, "extra_hash") else None
    checked_extra(extra)
    return extra
