"""Reads names, numbers and sizes that users type, and suggests the nearest valid name."""

from __future__ import annotations

from difflib import get_close_matches
from fractions import Fraction
from operator import eq
from typing import TYPE_CHECKING, Final, TypeVar

from blockmgr.config import EVICTION_POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "different",
    "hint",
    "parse_bytes",
    "parse_gib",
    "parse_policies",
    "parse_rate",
    "pick",
    "pick_policy",
    "whole_numbers",
]

EVERY: Final = "all"
UNITS: Final = {"": 2**30, "gib": 2**30, "mib": 2**20, "tib": 2**40}
"""Bytes of each unit of sizes."""
RATES: Final = {"gb/s": 10**9, "mb/s": 10**6, "gib/s": 2**30, "mib/s": 2**20}
"""Bytes a second of each unit of rates."""

T = TypeVar("T")


def different(
    name: str,
    values: Iterable[T],
    shown: Callable[[T], str] = repr,
    same: Callable[[T, T], bool] = eq,
) -> tuple[T, ...]:
    """``values``, which users separate by commas, if no two of them are equal.

    Args:
        name: Name of the values, for the message.
        values: The values.
        shown: A value as text.
        same: Whether two values are equal.

    Raises:
        ValueError: One is repeated.
    """
    found: list[T] = []
    for value in values:
        if any(same(value, other) for other in found):
            raise ValueError(f"{name} must differ, got {shown(value)} twice")
        found.append(value)
    return tuple(found)


def whole_numbers(name: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers from a list such as ``"1,2,4"``.

    Raises:
        ValueError: One is no whole number, or is below ``least``, which is 0 or 1.
    """
    try:
        numbers = tuple(int(item) for item in text.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < least:
        bound = " above 0" if least else ", at least 0"
        raise ValueError(f"{name} must be whole numbers{bound}, got {text!r}")
    return numbers


def parse_gib(text: str) -> float:
    """A size of memory in GiB, from a number of GiB or a size such as ``"20GiB"``.

    Raises:
        ValueError: It is neither, or not above 0.

    >>> [parse_gib(text) for text in ("20", "20GiB", "512 MiB")]
    [20.0, 20.0, 0.5]
    """
    message = f"size must be a number of GiB, or one with MiB, GiB or TiB, got {text!r}"
    return _amount(text, UNITS, message) / 2**30


def parse_bytes(text: str) -> int:
    """A size in bytes, from one such as ``"20GiB"``.

    Raises:
        ValueError: It is none, or not above 0.
    """
    return int(_amount(text, UNITS, f"size must be one with MiB, GiB or TiB, got {text!r}"))


def parse_rate(text: str) -> float:
    """Bytes a second, from a rate such as ``"25GB/s"``.

    Raises:
        ValueError: It is none, or not above 0.
    """
    return _amount(text, RATES, f"rate must be one with {', '.join(RATES)}, got {text!r}")


def _amount(text: str, units: Mapping[str, int], message: str) -> float:
    """A number with a unit, in what the units count; ``ValueError`` with the message if none."""
    number = text.strip().rstrip("GMTiBgmtbs/ ")
    unit = text.strip()[len(number) :].strip().lower()
    try:
        amount = float(Fraction(number) * units[unit])
    except (KeyError, ValueError, ZeroDivisionError, OverflowError):
        amount = 0.0
    if amount <= 0:
        raise ValueError(message)
    return amount


def hint(text: str, choices: Iterable[str]) -> str:
    """``"; did you mean 'chat'?"`` with the name nearest to ``text``, or nothing.

    >>> hint("lfud", ["lru", "lfuda"])
    "; did you mean 'lfuda'?"
    """
    near = get_close_matches(text.lower(), list(choices), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def pick(name: str, text: str, choices: Iterable[str]) -> str:
    """``text`` if it is one of ``choices``.

    Args:
        name: Name of the choice, for the message.
        text: The user's input.
        choices: The valid names.

    Raises:
        ValueError: It is none of them; the message names the nearest one.
    """
    known = list(choices)
    if text not in known:
        one_of = f"{name} must be one of {', '.join(known)}"
        raise ValueError(f"{one_of}, got {text!r}{hint(text, known)}")
    return text


def pick_policy(text: str) -> str:
    """``text`` if it is the name of an eviction policy.

    Raises:
        ValueError: There is no such policy; the message names the nearest one.
    """
    return pick("policy", text, EVICTION_POLICIES)


def parse_policies(text: str) -> tuple[str, ...]:
    """Eviction policies from a list such as ``"lru,arc"``; ``"all"`` means all of them.

    Raises:
        ValueError: There is no such policy, or one is repeated.
    """
    if text.strip() == EVERY:
        return tuple(EVICTION_POLICIES)
    return different("policies", (pick_policy(item.strip()) for item in text.split(",")))
