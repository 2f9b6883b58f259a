"""Checks that several ports make of their arguments."""

from __future__ import annotations

import operator

__all__ = ["MOST", "real", "whole"]

MOST = 2**31 - 1
"""Bound of numbers that nothing else bounds."""


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


def real(name: str, value: float) -> float:
    """The value, which must be a number.

    Raises:
        TypeError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return value
