"""Block tables as the lists of ints that vLLM hands to its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["IdLists"]

PIECE = 256  # blocks


class IdLists:
    """Makes lists, and takes over what the list before begins with.

    Prompts that come one after the other often share a long head, whose ids need not become ints
    again.
    """

    def __init__(self) -> None:
        self._bytes = b""
        self._ids: list[int] = []

    def of(self, table: npt.NDArray[np.int32]) -> list[int]:
        """The ids of a table.

        Args:
            table: ``int32[n]``, contiguous.
        """
        raw = table.tobytes()
        same = self._same_as_before(raw)
        ids = self._ids[:same]
        ids += table[same:].tolist()
        self._bytes, self._ids = raw, ids
        return ids.copy()

    def _same_as_before(self, raw: bytes) -> int:
        """Leading ids that the list before has as well, in whole pieces."""
        before, size = self._bytes, 4 * PIECE
        most = min(len(raw), len(before)) // size
        same = 0
        while (
            same < most
            and raw[same * size : (same + 1) * size] == before[same * size : (same + 1) * size]
        ):
            same += 1
        return same * PIECE
