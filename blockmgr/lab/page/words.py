"""Numbers, times and bins as text for a report."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BINS_MS", "age_names", "binned", "duration", "short_count"]

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000

BINS_MS: Final = (
    0,
    500,
    SECOND,
    2 * SECOND,
    3 * SECOND,
    5 * SECOND,
    7 * SECOND,
    10 * SECOND,
    15 * SECOND,
    20 * SECOND,
    30 * SECOND,
    45 * SECOND,
    MINUTE,
    90 * SECOND,
    2 * MINUTE,
    3 * MINUTE,
    5 * MINUTE,
    7 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    20 * MINUTE,
    30 * MINUTE,
    45 * MINUTE,
    HOUR,
    90 * MINUTE,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
)
"""Edges of the half-open bins of times; longer times count in the last bin."""


def binned(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The number of times in each bin: ``int64[len(BINS_MS) - 1]``."""
    bins = len(BINS_MS) - 1
    place = np.searchsorted(np.array(BINS_MS), times_ms, side="right") - 1
    counts: npt.NDArray[Any] = np.bincount(np.clip(place, 0, bins - 1), minlength=bins)
    return counts


def duration(milliseconds: int) -> str:
    """A time with a suitable unit.

    >>> [duration(ms) for ms in (0, 250, 30_000, 90_000, 7_200_000, 86_400_000)]
    ['0', '250 ms', '30 s', '1.5 min', '2 h', '1 d']
    """
    if not milliseconds:
        return "0"
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s")):
        if milliseconds >= unit:
            return f"{round(milliseconds / unit, 1):g} {name}"
    return f"{milliseconds} ms"


def short_count(number: int) -> str:
    """A count with three digits and a unit.

    >>> [short_count(number) for number in (7, 1500, 20_000, 144_793_823)]
    ['7', '1.5k', '20k', '145M']
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{float(f'{number / unit:.3g}'):g}{name}"
    return str(number)


def age_names(bounds_ms: Sequence[int]) -> list[str]:
    """The names of the age bands between ``bounds_ms``.

    >>> age_names([60_000, 300_000])
    ['under 1 min ago', '1 min to 5 min ago', 'over 5 min ago']
    """
    names = [duration(bound) for bound in bounds_ms]
    between = [f"{low} to {high} ago" for low, high in itertools.pairwise(names)]
    return [f"under {names[0]} ago", *between, f"over {names[-1]} ago"]
