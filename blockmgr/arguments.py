"""Checks of single arguments that several modules make."""

from __future__ import annotations

import operator

__all__ = ["MOST", "integer", "real", "whole"]

MOST = 2**31 - 1
"""Bound of numbers that nothing else bounds."""


def integer(name: str, value: object) -> int:
    """The value as an int; NumPy's integers are some, too, and a bool is none.

    Args:
        name: Of the argument, for the error.
        value: What was given.

    Raises:
        TypeError: Not an int.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what it refuses is the point
    except TypeError:
        raise TypeError(f"{name} must be an int, got {value!r}") from None


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an int inside these bounds.

    Args:
        name: Of the argument, for the error.
        value: What was given.
        low: The least it may be.
        high: The most; None for no bound.

    Raises:
        ValueError: Out of bounds.
        TypeError: Not an int.
    """
    number = integer(name, value)
    if low <= number and (high is None or number <= high):
        return number
    bounds = f"at least {low}" if high is None else f"in [{low}, {high}]"
    raise ValueError(f"{name} must be {bounds}, got {number}")


def real(name: str, value: float) -> float:
    """The value, which must be a number.

    Args:
        name: Of the argument, for the error.
        value: What was given.

    Raises:
        TypeError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return value
