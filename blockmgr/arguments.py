"""Checks of single arguments that several modules make.

They take the name of the argument, for the error, and the given value. A value of the wrong type
raises ``TypeError``, and one out of its bounds ``ValueError``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import numpy as np

__all__ = [
    "MOST",
    "amount",
    "extras_pairs",
    "integer",
    "is_number",
    "milliseconds",
    "positive",
    "real",
    "text",
    "truth",
    "whole",
]

MOST = 2**31 - 1
"""Bound of numbers without another bound."""


def integer(name: str, value: object) -> int:
    """The value as an int; NumPy integers are accepted, bools are not."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what it refuses is the point
    except TypeError:
        raise TypeError(f"{name} must be an int, got {value!r}") from None


def is_number(value: object) -> bool:
    """Whether the value is one number: ``__index__`` without the ``__len__`` of an array.

    Calls no method of the value, which may be a list subclass that overrides anything.
    """
    # No generator: CPython 3.12 and 3.13 can crash if there is no memory for its frame.
    found = False
    for kind in type(value).__mro__:
        names = vars(kind)
        if "__len__" in names:
            return False
        found = found or "__index__" in names
    return found


def truth(name: str, value: object) -> bool:
    """The value, which must be a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r}")
    return value


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an int within these bounds, inclusive."""
    number = integer(name, value)
    if low <= number and (high is None or number <= high):
        return number
    bounds = f"at least {low}" if high is None else f"in [{low}, {high}]"
    raise ValueError(f"{name} must be {bounds}, got {number}")


def extras_pairs(extras: Mapping[int, bytes] | None) -> tuple[tuple[int, bytes], ...] | None:
    """Extra keys by block in the core's form: a tuple, so no other thread can change it.

    Raises:
        ValueError: The mapping yields more or fewer keys than its length.
        TypeError: Not a mapping, or a key is not an int. The message does not show the key: if keys
            and values are swapped, it is a secret.
    """
    if extras is None:
        return None
    if not isinstance(extras, Mapping):
        raise TypeError(f"extras must map block indices to bytes, got {type(extras).__name__}")
    size = len(extras)
    pairs: list[tuple[int, bytes]] = []
    for key in extras:
        if len(pairs) == size:
            raise ValueError(f"extras must yield as many keys as its length, {size}, got more")
        pairs.append((_block_index(key), extras[key]))
    if len(pairs) < size:
        raise ValueError(f"extras must yield as many keys as its length, {size}, got {len(pairs)}")
    return tuple(pairs)


def _block_index(key: object) -> int:
    if type(key) is int:
        return key
    try:
        if not isinstance(key, bool):
            return operator.index(key)  # type: ignore[arg-type]  # what it refuses is the point
    except TypeError:
        pass
    raise TypeError(f"extras index must be an int, got {type(key).__name__}")


def real(name: str, value: float) -> float:
    """The value, a number of Python or NumPy, as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be finite, got an int too large to be a float") from None


def amount(name: str, value: float) -> float:
    """The value, which must be a number from 0 to ``MOST``."""
    if not 0 <= real(name, value) <= MOST:
        raise ValueError(f"{name} must be in [0, {MOST}], got {value}")
    return value


def positive(name: str, value: float) -> float:
    """The value, which must be a finite number above 0."""
    if not 0 < real(name, value) < float("inf"):
        raise ValueError(f"{name} must be above 0 and finite, got {value}")
    return value


def milliseconds(name: str, seconds: float) -> int:
    """A wait in whole milliseconds: at least 1, at most a few weeks."""
    return max(1, min(MOST, round(positive(name, seconds) * 1000)))


def text(name: str, value: object) -> str:
    """The value, which must be a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value
