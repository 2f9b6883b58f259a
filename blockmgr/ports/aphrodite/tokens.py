"""Arguments of the port, checked before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["block_names", "checked_extra", "extra_bytes", "whole_tokens"]

_LIMIT = 2**32


def whole_tokens(token_ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens as ints, each in ``[0, 2**32)``."""
    tokens = tuple(token_ids)
    for token in tokens:
        if type(token) is not int or not 0 <= token < _LIMIT:
            return tuple(_whole_token(token) for token in tokens)
    return tokens


def _whole_token(token: object) -> int:
    number = integer("token_ids", token)
    if not 0 <= number < _LIMIT:
        raise ValueError(f"token_ids must be in [0, 2**32), got {number}")
    return number


def checked_extra(extra_hash: int | None) -> None:
    """Refuses an extra hash that is no int."""
    is_int = isinstance(extra_hash, int) and not isinstance(extra_hash, bool)
    if extra_hash is not None and not is_int:
        raise TypeError(f"extra_hash must be an int or None, got {type(extra_hash).__name__}")


def extra_bytes(extra_hash: int | None) -> bytes:
    """An extra hash as the core takes it: any int, of any size and sign."""
    return b"" if extra_hash is None else b"%d" % extra_hash


def block_names(block_ids: Iterable[int] | None, num_blocks: int) -> Sequence[int]:
    """The ids of the blocks of an allocator: a range, if they are in a row."""
    if block_ids is None:
        return range(num_blocks)
    names = tuple(integer("block_ids", name) for name in block_ids)
    if len(names) != num_blocks or len(set(names)) != num_blocks or min(names) < 0:
        raise ValueError(
            f"block_ids must be {num_blocks} distinct ids of 0 or more, got {len(names)} of which "
            f"{len(set(names))} are distinct, the smallest {min(names, default=None)}"
        )
    in_a_row = range(names[0], names[0] + num_blocks)
    return in_a_row if names == tuple(in_a_row) else names
