"""Converts block tables to the lists of ints that vLLM sends to its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["IdLists"]

PIECE = 256  # blocks


class IdLists:
    """Converts tables, and reuses the leading part of the previous list.

    Consecutive prompts often share a long prefix, whose ids need not be converted again.
    """

    def __init__(self) -> None:
        self._bytes = b""
        self._ids: list[int] = []  # whole pieces

    def of(self, table: npt.NDArray[np.int32]) -> list[int]:
        """The ids of a table.

        Args:
            table: ``int32[n]``, contiguous.
        """
        raw, known = table.tobytes(), self._bytes
        if raw.startswith(known) and len(raw) < len(known) + 4 * PIECE:
            rest: list[int] = table[len(self._ids) :].tolist()
            return [*self._ids, *rest]
        same = self._same_pieces(raw) * PIECE
        ids = self._ids[:same]
        ids += table[same:].tolist()
        whole = len(ids) - len(ids) % PIECE
        self._bytes, self._ids = raw[: 4 * whole], ids[:whole]
        return ids

    def _same_pieces(self, raw: bytes) -> int:
        """Number of leading pieces that the previous list has as well."""
        known, size = self._bytes, 4 * PIECE
        most = min(len(raw), len(known)) // size
        for number in range(most):
            piece = slice(number * size, (number + 1) * size)
            if raw[piece] != known[piece]:
                return number
        return most
