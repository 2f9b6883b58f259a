"""The block tables of requests, as the lists of ids that vLLM sends to its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blockmgr.ports.vllm.blocks import Blocks
from blockmgr.ports.vllm.held import ROW

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blockmgr import BlockManager
    from blockmgr.ports.vllm.held import Held
    from blockmgr.ports.vllm.layers import Layers

__all__ = ["IdLists", "Tables"]

PIECE: Final = 256  # blocks


class Tables:
    """Reads the tables of requests.

    Each group of layers has its own. Workers append to the tables they keep, and the manager's
    tables never change. A worker expects a recurrent state in the column of the last token: it
    reads the state at the last token before a step, and writes it at the last token of the step. So
    every column of its table names the one block of the state. With drafts, it writes the states
    after each of them in the columns behind, so that columns name the request's slots in turn.
    Only the columns before the state that was found or loaded name block 0, as in vLLM: a connector
    loads a state into the first column that names another.
    """

    def __init__(self, manager: BlockManager, layers: tuple[Layers, ...]) -> None:
        self._manager = manager
        self._layers = layers
        self._tables = [manager.group_table(group) for group in range(len(layers))]
        self._lists = [IdLists() for _ in layers]
        self.empty = Blocks(manager, layers, ([],) * len(layers))

    def blocks(self, held: Held, start: int = 0) -> Blocks:
        """The blocks of a request behind those of its first slots."""
        row, stop = held.handle & ROW, held.num_slots
        by_group = []
        for table, layers, lists in zip(self._tables, self._layers, self._lists, strict=True):
            first, end = layers.num_entries(start), layers.num_entries(stop)
            if layers.has_states:
                first, end = (first + layers.num_drafts if start else 0), end + layers.num_drafts
                slots = table[row].tolist()
                begin = min(max(first, (held.num_before - 1) // layers.block_size), end)
                ids = [slots[held.slot_of(column)] for column in range(begin, end)]
                by_group.append([0] * (begin - first) + ids)
            elif start:
                by_group.append(table[row, first:end].tolist())
            else:
                by_group.append(lists.of(table[row, :end]))
        return Blocks(self._manager, self._layers, tuple(by_group))

    def ids_to_zero(self, held: Held, start: int, *, is_new: bool = False) -> list[int]:
        """The ids of its blocks behind those of its first slots, of attention.

        As in vLLM, workers zero no states and no rings: kernels read what a request has written.
        A new request has found none of the blocks of windows that are computed again.
        """
        by_group = self.blocks(held, start).by_group
        if is_new and not all(each.is_found for each in self._layers):
            own = zip(by_group, self.blocks(held).by_group, self._layers, strict=True)
            by_group = tuple(ids if each.is_found else every for ids, every, each in own)
        pairs = zip(by_group, self._layers, strict=True)
        zeroed = [ids for ids, each in pairs if not (each.has_states or each.is_ring)]
        return [block for ids in zeroed for block in ids if block]


class IdLists:
    """Converts tables of one group, and reuses the leading part of the previous list.

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
