"""Segment: the location of the bytes of every block in one tensor, for any layout.

``check_segments`` checks several for registration: equal pools, and no byte in two of them. Rows
repeat with the block stride ``B``. Written as ``address = q * B + r``, a row of ``w`` bytes
in ``N`` blocks covers the rectangle ``[r, r + w) x [q, q + N)``, and two rows share a byte in some
block exactly if their rectangles intersect. So one sweep over ``r`` checks any number of rows,
whatever the number of blocks.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from blockmgr.arguments import integer, whole
from blockmgr.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Segment", "check_disjoint", "check_segments", "spread_out"]

SIZES = ("block_stride", "num_rows", "row_stride", "row_bytes", "num_blocks")
TOKENS = ("token_bytes", "block_tokens")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Segment:
    """The bytes that one tensor, or a part of it, keeps for each block.

    A block is ``num_rows`` runs of ``row_bytes``; row ``r`` of block ``b`` starts at
    ``address + b * block_stride + r * row_stride``. All figures are in bytes::

        address                        block_stride
        |<------------------------------------------------------->|
        [ row 0 of block 0 )....[ row 1 of block 0 )..............[ row 0 of block 1 )....
        |<-- row_bytes --->|    |
        |<----- row_stride ---->|

    The tokens of a block are consecutive in each row, ``token_bytes`` apart, so the first ``n``
    tokens are the first ``min(row_bytes, n * token_bytes)`` bytes of every row.
    ``token_bytes == 0`` means that a row cannot be split and is copied whole.

    Attributes:
        name: Name in errors, as in ``layers.3.k``.
        tensor: Keeps the storage alive and determines the device.
        block_stride: Bytes from one block to the next. May be below ``row_stride``: then the rows
            of different blocks are interleaved.
        num_rows: Rows per block.
        row_stride: Bytes from one row to the next, at least ``row_bytes``; ignored for one row.
        row_bytes: Length of a row.
        num_blocks: Number of blocks, with ids in ``[0, num_blocks)``.
        offset: Bytes from ``tensor.data_ptr()`` to block 0. May point anywhere in the storage.
        token_bytes: Bytes from one token to the next within a row; 0 if rows are never split.
        block_tokens: Tokens per block; 0 if the layout does not determine it.

    Raises:
        LayoutError: A size is below 1, rows overlap, a row is not a whole number of tokens or not
            of ``block_tokens``, the base is not aligned to the element size, or bytes are outside
            the storage.
        TypeError: A value is of the wrong type.
    """

    name: str
    tensor: torch.Tensor
    block_stride: int
    num_rows: int
    row_stride: int
    row_bytes: int
    num_blocks: int
    offset: int = 0
    token_bytes: int = 0
    block_tokens: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a str, got {self.name!r}")
        check_tensor(self.name, self.tensor)
        for field in (*SIZES, "offset", *TOKENS):
            object.__setattr__(self, field, integer(field, getattr(self, field)))
        for field in SIZES:
            if (size := getattr(self, field)) < 1:
                raise LayoutError(self.name, f"{field} must be at least 1, got {size}")
        self._check_row()
        self._check_range()

    def _check_row(self) -> None:
        if self.num_rows > 1 and self.row_stride < self.row_bytes:
            raise LayoutError(
                self.name,
                f"rows overlap: row_stride {self.row_stride} is below row_bytes {self.row_bytes}",
            )
        for field in TOKENS:
            if (size := getattr(self, field)) < 0:
                raise LayoutError(self.name, f"{field} must be at least 0, got {size}")
        if self.token_bytes and self.row_bytes % self.token_bytes:
            raise LayoutError(
                self.name,
                f"row_bytes {self.row_bytes} is no multiple of token_bytes {self.token_bytes}",
            )
        tokens = self.row_bytes // self.token_bytes if self.token_bytes else self.block_tokens
        if self.block_tokens not in (0, tokens):
            raise LayoutError(
                self.name,
                f"a row holds {tokens} tokens of {self.token_bytes} bytes, block_tokens is "
                f"{self.block_tokens}",
            )

    def _check_range(self) -> None:
        element = self.tensor.element_size()
        if self.address % element:
            raise LayoutError(
                self.name,
                f"base {self.address:#x} is not aligned to the {element}-byte elements of the"
                f" tensor (offset {self.offset})",
            )
        storage = self.tensor.untyped_storage()
        first = self.address - storage.data_ptr()
        if first < 0 or first + self.span_bytes > storage.nbytes():
            raise LayoutError(
                self.name,
                f"bytes [{first}, {first + self.span_bytes}) are not all inside the storage"
                f" of {storage.nbytes()} bytes",
            )

    @property
    def address(self) -> int:
        """Address of row 0 of block 0."""
        return self.tensor.data_ptr() + self.offset

    @property
    def span_bytes(self) -> int:
        """Bytes from the first byte of any block to one past the last."""
        return (
            (self.num_blocks - 1) * self.block_stride
            + (self.num_rows - 1) * self.row_stride
            + self.row_bytes
        )

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one whole block."""
        return self.num_rows * self.row_bytes

    @property
    def device(self) -> torch.device:
        """Device of the tensor."""
        return self.tensor.device


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Checks that addresses in ``tensor`` can be computed from its strides."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"segment {name!r}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise LayoutError(name, f"needs a plain strided tensor, got layout {tensor.layout}")
    if tensor.is_meta:
        raise LayoutError(name, "a meta tensor has no memory")
    if tensor.numel() == 0:
        raise LayoutError(name, f"the tensor is empty: shape {tuple(tensor.shape)}")
    if isinstance(tensor, FakeTensor):
        raise LayoutError(name, "a fake tensor has no memory")
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # inside torch.func.vmap or grad; or a wrapper of other tensors
        message = "has no memory of its own: it is made by a transform or wraps other tensors"
        raise LayoutError(name, message) from error
    if not address:
        raise LayoutError(name, "its memory has been freed, or wraps other tensors")
    if tensor.requires_grad:
        raise LayoutError(
            name,
            "requires gradients, which a copy would make wrong unnoticed; register tensor.detach()",
        )


# Most rows times blocks to compare one by one if block strides differ: this many take about a
# second and 200 MB.
MOST_RUNS = 2**22

Geometry = tuple[int, int, int, int, int, int]


def check_segments(segments: Sequence[Segment], block_size: int) -> list[Segment]:
    """The segments to copy for a block: checked against each other, with each byte once.

    Args:
        segments: The segments of one pool. Segments of the same bytes, as of layers that share
            their K/V, are kept once; if only one of them can be split after any token, rows are
            whole.
        block_size: Tokens per block.

    Returns:
        Segments in canonical form, in their order: adjacent rows are joined unless a token ends
        between them, so equal bytes give equal segments.

    Raises:
        LayoutError: Names the segment: it is on another device, has another number of blocks or of
            tokens per block, overlaps itself, or shares some but not all bytes with another
            segment.
        ValueError: ``segments`` is empty, or ``block_size`` is below 1.
        TypeError: An argument is of the wrong type.
    """
    block_size = whole("block_size", block_size, 1)
    if not isinstance(segments, Sequence):
        raise TypeError(f"segments must be a sequence, got {type(segments).__name__}")
    for segment in segments:
        if not isinstance(segment, Segment):
            raise TypeError(f"segments must be Segment objects, got {segment!r}")
        _check_alike(segment, segments[0], block_size)
    if not segments:
        raise ValueError("segments must not be empty")
    kept: dict[Geometry, Segment] = {}
    for segment in map(_canonical, segments):
        unsplit = _unsplit(segment)
        twin = kept.setdefault(_geometry(unsplit), segment)
        if _geometry(twin) != _geometry(segment) or twin.token_bytes != segment.token_bytes:
            kept[_geometry(unsplit)] = _unsplit(twin)
    unique = list(kept.values())
    check_disjoint(unique)
    return unique


def check_disjoint(segments: Sequence[Segment]) -> None:
    """Raises a ``LayoutError`` if a byte is named twice, by two segments or by one.

    The check is exact. If block strides differ, it refuses segments of more than four million rows
    times blocks.
    """
    for cluster in _clusters(segments):
        first = cluster[0]
        dims = (first.num_blocks, first.block_stride), (first.num_rows, first.row_stride)
        if len(cluster) == 1 and spread_out(first.row_bytes, dims):
            continue
        if first.num_blocks > 1 and all(s.block_stride == first.block_stride for s in cluster):
            _sweep(cluster)
        else:
            _enumerate(cluster)


def spread_out(row_bytes: int, dims: Iterable[tuple[int, int]]) -> bool:
    """Whether every stride steps over the whole inner extent; if not, axes may overlap.

    Args:
        row_bytes: Length of the innermost run.
        dims: Size and stride of every axis outside it, in bytes, in any order.
    """
    extent = row_bytes
    for size, stride in sorted((d for d in dims if d[0] > 1), key=operator.itemgetter(1)):
        if stride < extent:
            return False
        extent += (size - 1) * stride
    return True


def _check_alike(segment: Segment, first: Segment, block_size: int) -> None:
    if segment.device != first.device:
        raise LayoutError(
            segment.name, f"is on {segment.device}, {first.name!r} is on {first.device}"
        )
    if segment.num_blocks != first.num_blocks:
        raise LayoutError(
            segment.name,
            f"has {segment.num_blocks} blocks, {first.name!r} has {first.num_blocks}",
        )
    if segment.token_bytes and segment.row_bytes != block_size * segment.token_bytes:
        raise LayoutError(
            segment.name,
            f"a row of {segment.row_bytes} bytes holds {segment.row_bytes // segment.token_bytes}"
            f" tokens of {segment.token_bytes} bytes, block_size is {block_size}",
        )
    if segment.block_tokens not in (0, block_size):
        raise LayoutError(
            segment.name,
            f"a block holds {segment.block_tokens} tokens, block_size is {block_size}",
        )


def _canonical(segment: Segment) -> Segment:
    """The same bytes and the same partial copies, in a canonical form."""
    if segment.token_bytes in (0, segment.row_bytes):  # one token a block is the whole block
        return _unsplit(segment)
    return dataclasses.replace(
        segment,
        row_stride=segment.row_stride if segment.num_rows > 1 else segment.row_bytes,
        block_stride=segment.block_stride if segment.num_blocks > 1 else segment.span_bytes,
    )


def _unsplit(segment: Segment) -> Segment:
    """The same bytes in the longest rows, which are never split."""
    row_bytes, num_rows, row_stride = segment.row_bytes, segment.num_rows, segment.row_stride
    if num_rows == 1 or row_stride == row_bytes:
        row_bytes, num_rows = num_rows * row_bytes, 1
        row_stride = row_bytes
    return dataclasses.replace(
        segment,
        num_rows=num_rows,
        row_stride=row_stride,
        row_bytes=row_bytes,
        token_bytes=0,
        block_stride=segment.block_stride if segment.num_blocks > 1 else segment.span_bytes,
    )


def _geometry(s: Segment) -> Geometry:
    return s.address, s.block_stride, s.num_rows, s.row_stride, s.row_bytes, s.num_blocks


def _clusters(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Clusters of segments whose spans overlap; different clusters cannot overlap."""
    cluster: list[Segment] = []
    end = 0
    for segment in sorted(segments, key=lambda s: s.address):
        if cluster and segment.address >= end:
            yield cluster
            cluster = []
        cluster.append(segment)
        end = max(end, segment.address + segment.span_bytes)
    if cluster:
        yield cluster


def _sweep(cluster: list[Segment]) -> None:
    """Finds two intersecting rectangles, if there are any, in one sweep by left edge.

    All have the same height, so of the open rectangles only the nearest above and the nearest below
    can intersect the next one.
    """
    stride, num_blocks = cluster[0].block_stride, cluster[0].num_blocks
    events: list[tuple[int, bool, int, int]] = []
    for owner, segment in enumerate(cluster):
        if segment.row_bytes > stride:
            _refuse(segment, segment)
        starts = segment.address + np.arange(segment.num_rows) * segment.row_stride
        for start in starts.tolist():
            q, left = divmod(start, stride)
            right = left + segment.row_bytes
            # A row that crosses a multiple of the stride continues at the left of the next line.
            pieces = [(left, right, q)]
            if right > stride:
                pieces = [(left, stride, q), (0, right - stride, q + 1)]
            for low, high, line in pieces:
                events += (low, True, line, owner), (high, False, line, owner)
    events.sort()  # at equal positions, ends come before starts
    active: list[tuple[int, int]] = []
    for _, begins, line, owner in events:
        at = bisect.bisect_left(active, (line, owner))
        if not begins:
            del active[at]
            continue
        for other, other_owner in active[max(at - 1, 0) : at + 1]:
            if abs(other - line) < num_blocks:
                _refuse(cluster[other_owner], cluster[owner])
        active.insert(at, (line, owner))


def _enumerate(cluster: list[Segment]) -> None:
    """Compares every row of every block with its neighbour in memory."""
    runs = sum(s.num_blocks * s.num_rows for s in cluster)
    if runs > MOST_RUNS:
        other = next((s for s in cluster if s.block_stride != cluster[0].block_stride), cluster[0])
        raise LayoutError(
            other.name,
            f"block_stride {other.block_stride} differs from {cluster[0].block_stride} of"
            f" {cluster[0].name!r} in the same memory, and {runs} rows are too many to"
            f" compare one by one (at most {MOST_RUNS})",
        )
    parts = []
    for owner, s in enumerate(cluster):
        blocks = np.arange(s.num_blocks) * s.block_stride
        rows = np.arange(s.num_rows) * s.row_stride
        starts = (s.address + blocks[:, None] + rows).ravel()
        parts.append((starts, starts + s.row_bytes, np.full(len(starts), owner)))
    starts, ends, owners = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(starts, kind="stable")
    starts, ends, owners = starts[order], ends[order], owners[order]
    late = np.flatnonzero(ends[:-1] > starts[1:])
    if len(late):
        _refuse(cluster[owners[late[0]]], cluster[owners[late[0] + 1]])


def _refuse(one: Segment, other: Segment) -> None:
    if one is other:
        raise LayoutError(one.name, "overlaps itself: two of its rows share bytes")
    raise LayoutError(other.name, f"shares some but not all of its bytes with {one.name!r}")
