"""Idle blocks in order of release, and how large a pool must have been to keep them."""

from __future__ import annotations

from math import isqrt
from typing import Final

import numpy as np

__all__ = ["ReleaseStack"]

NEVER: Final = -(2**62)


class ReleaseStack:
    """Releases, latest on top, each with the idle blocks it still owns.

    ``above(r)`` is the number of blocks of release ``r`` and all later ones. Whenever blocks are
    taken while ``used`` others are in use, a pool keeps the last block of ``r`` only if it has
    ``used + above(r)`` blocks. ``distance(r)`` is the largest of these numbers since ``r``.

    Releases come in chunks of about the square root of their number. A change to all releases
    below one is an array operation within its chunk and one number for each other chunk, added
    to what a chunk holds when it is next looked into.
    """

    def __init__(self, most_releases: int) -> None:
        size = isqrt(max(1, most_releases)) + 1
        self._size = size
        self._count = 0
        chunks = -(-most_releases // size) + 1
        self._above = np.zeros((chunks, size), dtype=np.int64)
        self._largest = np.full((chunks, size), NEVER, dtype=np.int64)
        # Not yet in the chunk: what was added, and the largest of used + added in between.
        self._added = np.zeros(chunks, dtype=np.int64)
        self._recorded = np.full(chunks, NEVER, dtype=np.int64)

    def push(self, blocks: int) -> int:
        """A release of ``blocks`` blocks: the number it has from then on, counted from 0."""
        release = self._count
        self._count += 1
        chunk, place = divmod(release, self._size)
        self._settle(chunk)
        self._above[chunk, place] = 0
        self._largest[chunk, place] = NEVER
        self._add(release, blocks)
        return release

    def remove(self, release: int, blocks: int) -> None:
        """Take ``blocks`` blocks out of a release, because they are in use again."""
        self._add(release, -blocks)

    def record(self, used: int) -> None:
        """Blocks were taken, ``used`` are in use."""
        chunks = -(-self._count // self._size)
        recorded = self._recorded[:chunks]
        np.maximum(recorded, self._added[:chunks] + used, out=recorded)

    def distance(self, release: int) -> int:
        """Blocks that a pool must have had to keep the last block of ``release``.

        Far below 0 if no block was taken since.
        """
        chunk, place = divmod(release, self._size)
        pending = self._above[chunk, place] + self._recorded[chunk]
        return int(max(self._largest[chunk, place], pending))

    def _add(self, release: int, blocks: int) -> None:
        chunk, place = divmod(release, self._size)
        self._settle(chunk)
        self._above[chunk, : place + 1] += blocks
        self._added[:chunk] += blocks

    def _settle(self, chunk: int) -> None:
        """Bring a chunk up to date."""
        above = self._above[chunk]
        largest = self._largest[chunk]
        np.maximum(largest, above + self._recorded[chunk], out=largest)
        above += self._added[chunk]
        self._added[chunk] = 0
        self._recorded[chunk] = NEVER
