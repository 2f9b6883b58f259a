"""Checks that several ports make of their arguments."""

from __future__ import annotations

import operator

__all__ = ["whole"]


def whole(name: str, value: int, low: int, high: int) -> int:
    """The value as an int inside these bounds.

    Raises:
        ValueError: Out of bounds.
        TypeError: Not an int.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {number}")
    return number
