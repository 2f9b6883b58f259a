"""Estimates the error of a curve from a sample of blocks, from the sample alone.

There are two sources of error. First, the selected blocks determine how many misses are counted:
blocks are selected independently, so the variance of the scaled count follows from the misses of
each (Horvitz and Thompson). Second, a distance is the scaled number of distinct sample blocks in
between, so the result is that of a slightly larger or smaller pool; the error is then the slope of
the curve times the error in size.

Source: Horvitz and Thompson, "A generalization of sampling without replacement from a finite
universe", Journal of the American Statistical Association 47, 1952.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Counts", "Floats", "LookUps", "half_width"]

Counts = npt.NDArray[np.int64]
"""One number per capacity: ``int64[n]`` on the host."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LookUps:
    """Look-ups of a sample: ranges of blocks, each further from the root than the last one.

    Attributes:
        first: Number of the first block of each range.
        length: Number of its blocks.
        distance: Stack distance of its last block, 2**62 if it was not cached before.
    """

    first: Counts
    length: Counts
    distance: Counts

    def miss_deviation(self, capacities: Counts, rate: float, unit_blocks: int) -> Floats:
        """Standard deviation of the estimated misses, at pool sizes in blocks of the sample.

        Args:
            capacities: Pool sizes in blocks of the sample, ascending: ``int64[n]`` on the host.
            rate: Share of the blocks in the sample.
            unit_blocks: Blocks that are in the sample together or not at all.

        Returns:
            ``float64[n]`` on the host, in blocks of the trace.
        """
        length = self.length
        if not length.sum():
            return np.full(len(capacities), np.inf)
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        units = np.repeat(self.first, length)
        units += within // unit_blocks * unit_blocks
        distances = np.repeat(self.distance - length + 1, length) + within
        # The k-th largest distance of a unit is its k-th miss: k squared less (k - 1) squared more.
        order = np.lexsort((-distances, units))
        begins = np.flatnonzero(np.diff(units[order], prepend=-1))
        counts = np.diff(np.append(begins, len(order)))
        rank = np.arange(len(order)) - np.repeat(begins, counts) + 1
        by_distance = np.argsort(distances[order], kind="stable")
        at = np.searchsorted(distances[order][by_distance], capacities, side="right")
        squares = (2 * rank - 1).astype(np.float64)[by_distance]
        beyond = np.concatenate((np.cumsum(squares[::-1])[::-1], [0.0]))[at]
        # Adds one more typical unit, because a few units may have no misses at all.
        usual = len(order) / len(begins)
        deviation: Floats = np.sqrt((1 - rate) * (beyond + usual**2)) / rate
        return deviation


def half_width(
    sizes: Counts, rates: Floats, deviation: Floats, *, rate: float, unit_blocks: int
) -> Floats:
    """Two standard deviations of the hit rates of a sampled curve.

    Args:
        sizes: Pool sizes, ascending: ``int64[n]`` on the host.
        rates: Hit rate at each size: ``float64[n]``.
        deviation: Deviation of the rates due to the selection of blocks: ``float64[n]``.
        rate: Share of the blocks in the sample.
        unit_blocks: Blocks that are in the sample together or not at all.

    Returns:
        ``float64[n]`` on the host, each at most 1.
    """
    # The number of sample units in a pool varies like a random draw, and is rounded to one.
    away = np.sqrt((1 - rate) * sizes * unit_blocks / rate) + (1 - rate) * unit_blocks / rate
    lower, upper = (np.interp(sizes + sign * away, sizes, rates) for sign in (-1, 1))
    steep = np.maximum(upper - rates, rates - lower)
    width: Floats = np.minimum(1.0, 2 * np.sqrt(deviation**2 + steep**2))
    return width
