"""Block copies by tensor indexing: for any device, and as the reference for the kernels."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from blockmgr.kv.registration import Column, Registration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["TensorBlocks", "TorchCopier", "copy_pairs", "views_of"]

Rows = npt.NDArray[np.int32]

# Integers are copied bit by bit, whatever the bits mean. Not wider than this: indexing splits its
# work between threads by the number of elements, and 8-byte elements halve that number.
DTYPES = {4: torch.int32, 2: torch.int16, 1: torch.uint8}

# Blocks gathered at a time: few enough that the bytes are still in the CPU cache when they are
# written. On a GPU a gather is a kernel launch, which pays off only for more.
GATHER_BYTES = {"cpu": 1 << 20}
GATHER_BYTES_ELSEWHERE = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class TensorBlocks:
    """One segment as a tensor of integers.

    Attributes:
        rows: ``int[num_blocks, num_rows, row_length]``, in place.
        token_length: Elements from a token to the next within a row; 0 if rows are never split.
        gather_bytes: Bytes to gather at a time.
        row_length: Elements of a row; stored, because asking a tensor takes longer than a short
            copy.
        column_bytes: Bytes of one element of every row.
    """

    rows: torch.Tensor
    token_length: int
    gather_bytes: int
    row_length: int
    column_bytes: int

    def size(self, num_tokens: int) -> int:
        """Bytes of the first tokens of a block."""
        part = num_tokens * self.token_length or self.row_length  # 0: rows are never split
        return min(part, self.row_length) * self.column_bytes

    def first(self, num_tokens: int) -> torch.Tensor:
        """The first tokens of every row; the whole rows if they are never split."""
        length = num_tokens * self.token_length
        return self.rows.narrow(2, 0, length) if 0 < length < self.row_length else self.rows

    @property
    def places(self) -> tuple[int, int, int] | None:
        """Number of rows, and tokens from one block and row to the next; None if not whole."""
        block, row, _ = self.rows.stride()
        if not self.token_length or block % self.token_length or row % self.token_length:
            return None
        return self.rows.shape[1], block // self.token_length, row // self.token_length

    def tokens(self) -> torch.Tensor:
        """``int[num_places, 1, token_length]``: every token of every row as a separate block."""
        num_blocks, num_rows, length = self.rows.shape
        block, row, _ = self.rows.stride()
        size = (num_blocks - 1) * block + (num_rows - 1) * row + length
        shape = (size // self.token_length, 1, self.token_length)
        return self.rows.as_strided(shape, (self.token_length, 0, 1))


def views_of(
    tensors: Sequence[torch.Tensor], table: torch.Tensor, num_blocks: int, access_bytes: int
) -> list[TensorBlocks]:
    """The segments of a table, located in ``tensors``, which may have moved since."""
    return [
        _view(tensors[row[Column.TENSOR]], row, num_blocks, access_bytes) for row in table.tolist()
    ]


def _view(tensor: torch.Tensor, row: list[int], num_blocks: int, access_bytes: int) -> TensorBlocks:
    storage = tensor.untyped_storage()
    start = tensor.data_ptr() - storage.data_ptr() + row[Column.OFFSET]
    num_rows = row[Column.NUM_ROWS]
    lengths = [access_bytes * row[c] for c in (Column.BLOCK_STRIDE, Column.ROW_STRIDE)]
    block_stride, row_stride = (
        length if count > 1 else 0
        for length, count in zip(lengths, (num_blocks, num_rows), strict=True)
    )
    width = math.gcd(max(DTYPES), access_bytes, start)
    shape = (num_blocks, num_rows, row[Column.ROW_LENGTH] * access_bytes // width)
    strides = (block_stride // width, row_stride // width, 1)
    rows = torch.empty(0, dtype=DTYPES[width], device=tensor.device)
    rows.set_(storage, start // width, shape, strides)
    gather_bytes = GATHER_BYTES.get(tensor.device.type, GATHER_BYTES_ELSEWHERE)
    token_length = row[Column.TOKEN_LENGTH] * access_bytes // width
    return TensorBlocks(rows, token_length, gather_bytes, shape[2], num_rows * width)


class Index:
    """Pairs of blocks, in the forms that indexing takes."""

    def __init__(self, sources: npt.NDArray[Any], destinations: npt.NDArray[Any]) -> None:
        self._columns = tuple(c.astype(np.int64) for c in (sources, destinations))
        self._tensors: tuple[torch.Tensor, ...] = ()
        self.between_devices = False

    def __len__(self) -> int:
        return len(self._columns[0])

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(*(column.tolist() for column in self._columns), strict=True))

    @cached_property
    def _on_host(self) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.from_numpy, self._columns))

    def on(self, source: torch.Tensor, destination: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Both columns, each on the device that uses it. All calls are for the same two devices."""
        if not self._tensors:
            places = zip(self._on_host, (source.device, destination.device), strict=True)
            self._tensors = tuple(column.to(device) for column, device in places)
            self.between_devices = source.device != destination.device
        return self._tensors


def copy_pairs(
    sources: Sequence[TensorBlocks], destinations: Sequence[TensorBlocks], rows: Rows
) -> None:
    """Copies blocks between pools of equal segments; the order of the pairs does not matter.

    Args:
        sources: Segments to read.
        destinations: Segments to write, in the order of ``sources``.
        rows: ``int32[num_pairs, 3]`` of source, destination, and tokens; source -1 fills the
            tokens with zeros. All in range.
    """
    zeros = rows[:, 0] < 0
    if zeros.any():
        for num_tokens, part in _by_tokens(rows[zeros]):
            for view in destinations:
                _, index = part.on(view.rows, view.rows)
                view.first(num_tokens).index_fill_(0, index, 0)
        rows = rows[~zeros]
    if not len(rows):
        return
    pairs = Index(rows[:, 0], rows[:, 1])
    num_tokens = int(rows[0, 2])
    if (rows[:, 2] == num_tokens).all():
        for source, destination in zip(sources, destinations, strict=True):
            first = source.first(num_tokens)
            into = first if destination is source else destination.first(num_tokens)
            _copy(first, into, pairs, source.size(num_tokens), source.gather_bytes)
    else:
        _copy_unequal(sources, destinations, rows, pairs)


def _copy_unequal(
    sources: Sequence[TensorBlocks], destinations: Sequence[TensorBlocks], rows: Rows, pairs: Index
) -> None:
    """Copies pairs with different numbers of tokens: token by token, all pairs at once."""
    indices: dict[object, Index] = {}
    for source, destination in zip(sources, destinations, strict=True):
        places = source.places, destination.places
        if source.token_length == 0:  # never split
            _copy(source.rows, destination.rows, pairs, source.size(0), source.gather_bytes)
        elif None in places:
            for num_tokens, part in _by_tokens(rows):
                ends = source.first(num_tokens), destination.first(num_tokens)
                _copy(*ends, part, source.size(num_tokens), source.gather_bytes)
        else:
            if places not in indices:
                columns = (
                    _places(rows[:, side], rows[:, 2], place)
                    for side, place in enumerate(places)
                    if place is not None
                )
                indices[places] = Index(*columns)
            size = source.token_length * source.rows.itemsize
            ends = source.tokens(), destination.tokens()
            _copy(*ends, indices[places], size, source.gather_bytes)


def _places(
    blocks: npt.NDArray[np.int32], num_tokens: npt.NDArray[np.int32], places: tuple[int, int, int]
) -> npt.NDArray[np.int64]:
    """Indices of the first tokens of the blocks, row by row, in ``TensorBlocks.tokens``."""
    num_rows, block, row = places
    ends = np.cumsum(num_tokens, dtype=np.int64)
    starts = blocks.astype(np.int64) * block - (ends - num_tokens)
    first = np.repeat(starts, num_tokens) + np.arange(ends[-1])
    return (first + row * np.arange(num_rows)[:, None]).ravel()


def _by_tokens(rows: Rows) -> Iterator[tuple[int, Index]]:
    for num_tokens in np.unique(rows[:, 2]).tolist():
        part = rows[rows[:, 2] == num_tokens]
        yield num_tokens, Index(part[:, 0], part[:, 1])


def _copy(
    source: torch.Tensor, destination: torch.Tensor, index: Index, size: int, limit: int
) -> None:
    """Copies pairs of blocks of ``size`` bytes, gathering at most ``limit`` bytes at a time."""
    count = len(index)
    if count == 1 or 4 * size > limit:
        # So few or so long that one operation for each is cheaper than a gather.
        for from_, to in index.pairs:
            destination.select(0, to).copy_(source.select(0, from_))
        return
    sources, destinations = index.on(source, destination)
    if count * size <= limit and not index.between_devices:
        destination.index_copy_(0, destinations, source.index_select(0, sources))
        return
    step = limit // size
    for start in range(0, count, step):
        part = slice(start, start + step)
        # A temporary, not a reused buffer: index_select into a buffer takes a third longer.
        gathered = source.index_select(0, sources[part]).to(destination.device)
        destination.index_copy_(0, destinations[part], gathered)


def _move(view: TensorBlocks, starts: list[int], moves: Rows) -> None:
    """Runs groups of moves in order, many at a time if the result is the same."""
    size = view.size(0)
    limit = view.gather_bytes // size if 4 * size <= view.gather_bytes else 0
    for start, end in _batches(starts, limit):
        batch = moves[start:end]
        if end - start <= limit:
            # All reads come before all writes, so no register is needed.
            into = batch[:, 1] < 0
            sources = batch[:, 0].copy()
            sources[sources < 0] = batch[into, 0]
            index = Index(sources[~into], batch[~into, 1])
            _copy(view.rows, view.rows, index, size, view.gather_bytes)
        else:
            _move_one_by_one(view.rows, batch)


def _batches(starts: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Runs of whole groups of at most ``limit`` moves; a longer group is a run of its own."""
    begin = starts[0]
    for start, end in itertools.pairwise(starts):
        if end - begin > limit:
            if start > begin:
                yield begin, start
            begin = start
    yield begin, starts[-1]


def _move_one_by_one(view: torch.Tensor, moves: Rows) -> None:
    register = view[0]
    for source, destination in moves.tolist():
        value = register if source < 0 else view[source]
        if destination < 0:
            register = value.clone()
        else:
            view[destination].copy_(value)


def _views(registered: Registration) -> list[TensorBlocks]:
    return views_of(
        registered.tensors, registered.table, registered.num_blocks, registered.access_bytes
    )


class TorchCopier:
    """The torch backend of a pool.

    Temporaries are bounded: at most a megabyte on a CPU. On a GPU this backend synchronises
    whenever it reads a list or transfers indices; it is meant as a reference, not for speed.
    """

    def __init__(self, registered: Registration, max_pairs: int) -> None:
        self._registered, self._views = registered, _views(registered)
        self._other_views: WeakKeyDictionary[Registration, list[TensorBlocks]] = WeakKeyDictionary()
        self._rows = np.zeros((1 + max_pairs, 3), np.int32)
        self.table = registered.table
        self.chunks: torch.Tensor | None = None

    def stage(self) -> Rows:
        """Rows to pack the next list into."""
        return self._rows

    def launch(self, source: Registration, destination: Registration, count: int) -> None:
        """Copies the staged pairs from one pool to another, or within one."""
        rows = self._rows[1 : 1 + count]
        copy_pairs(self._views_of(source), self._views_of(destination), rows)

    def _views_of(self, pool: Registration) -> list[TensorBlocks]:
        if pool is self._registered:
            return self._views
        if pool not in self._other_views:
            self._other_views[pool] = _views(pool)
        return self._other_views[pool]

    def move(self, starts: npt.NDArray[np.int32], moves: Rows) -> None:
        """Runs groups of moves, as ``order_copies`` returns them."""
        for view in self._views:
            _move(view, starts.tolist(), moves)

    def send(self, rows: torch.Tensor, count: int) -> None:
        """Puts the staged count and pairs into ``int32[n, 3]`` on the device."""
        rows[: 1 + count].copy_(torch.from_numpy(self._rows[: 1 + count]))
