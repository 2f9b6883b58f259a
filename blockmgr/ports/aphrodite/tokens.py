"""Checks of arguments, made before any change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import integer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_sizes", "checked_extra", "extra_bytes", "whole_tokens"]

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


def check_sizes(
    block_token_ids: Sequence[Sequence[int]], block_size: int, *, all_full: bool
) -> None:
    """Refuses blocks that are not full, except for the last one without ``all_full``."""
    if len(block_token_ids) == 1 and len(block_token_ids[0]) == block_size:
        return  # the most frequent request
    sizes = [len(chunk) for chunk in block_token_ids]
    for i, size in enumerate(sizes):
        least = block_size if all_full or i + 1 < len(sizes) else 1
        if not least <= size <= block_size:
            raise ValueError(
                f"block_token_ids must have {least} to {block_size} tokens a block, got "
                f"{size} in block {i}"
            )


def checked_extra(extra_hash: int | None) -> None:
    """Refuses an extra hash that is not an int."""
    if extra_hash is None:
        return
    if not isinstance(extra_hash, int) or isinstance(extra_hash, bool):
        raise TypeError(f"extra_hash must be an int or None, got {type(extra_hash).__name__}")


def extra_bytes(extra_hash: int | None) -> bytes:
    """An extra hash, which may be any int, as bytes for the core."""
    return b"" if extra_hash is None else b"%d" % extra_hash
