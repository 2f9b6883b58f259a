"""Registration: the segments of one pool, checked once, and the table that kernels read."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from blockmgr.arguments import whole
from blockmgr.errors import LayoutError
from blockmgr.kv.layout import Segment, check_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COLUMNS", "WIDTHS", "Column", "Registration", "form_of", "place_of", "register"]

WIDTHS = (16, 8, 4, 2, 1)
"""Bytes that one access of a kernel may move, widest first."""


class Column(enum.IntEnum):
    """The columns of the segment table, ``int64[num_segments, COLUMNS]``.

    Strides and lengths are in units of the access width, so that a compiler knows that every
    address is aligned to it; ``ADDRESS`` and ``OFFSET`` are in bytes.
    """

    ADDRESS = 0
    """Address of row 0 of block 0."""
    BLOCK_STRIDE = 1
    NUM_ROWS = 2
    ROW_STRIDE = 3
    ROW_LENGTH = 4
    TOKEN_LENGTH = 5
    """0 if a row is never split."""
    TENSOR = 6
    """Index of the segment's tensor among the registered ones."""
    OFFSET = 7
    """Bytes from that tensor's ``data_ptr()`` to ``ADDRESS``."""


COLUMNS = len(Column)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Registration:
    """One pool of blocks, prepared for copies.

    Attributes:
        segments: The segments, with each byte of a block once.
        num_blocks: Number of blocks.
        block_size: Tokens per block.
        access_bytes: Access width; every address, stride and length of a copy is a multiple of it.
        tensors: The memory of the segments, one tensor for each storage.
        table: ``int64[num_segments, COLUMNS]`` on the host.
        names: Names of the caller's tensors, each once.
        begins: Bound method ``data_ptr`` of each, which halves the time of a call.
        addresses: Address of each at registration.
    """

    segments: tuple[Segment, ...]
    num_blocks: int
    block_size: int
    access_bytes: int
    tensors: list[torch.Tensor]
    table: torch.Tensor
    names: list[str]
    begins: list[Callable[[], int]]
    addresses: list[int]

    def check_memory(self) -> None:
        """Raises a ``LayoutError`` if a tensor's storage was freed or exchanged since.

        A copy would access whatever is at the address since then, or memory that no other tensor
        shares.
        """
        if [data_ptr() for data_ptr in self.begins] == self.addresses:
            return
        at = next(i for i, was in enumerate(self.addresses) if self.begins[i]() != was)
        raise LayoutError(self.names[at], "its memory was freed or exchanged after registration")

    @property
    def device(self) -> torch.device:
        """Device of the blocks."""
        return self.segments[0].device

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one whole block over all segments."""
        return sum(segment.bytes_per_block for segment in self.segments)

    @property
    def longest(self) -> int:
        """Access units of a block in the longest segment."""
        return max(s.bytes_per_block for s in self.segments) // self.access_bytes

    def check_alike(self, other: Registration) -> None:
        """Raises a ``LayoutError`` unless blocks of both hold the same bytes in the same rows."""
        if len(self.segments) != len(other.segments):
            raise LayoutError(
                other.segments[0].name,
                f"is one of {len(other.segments)} segments, the other pool has"
                f" {len(self.segments)}",
            )
        if self.block_size != other.block_size:
            raise LayoutError(
                other.segments[0].name,
                f"has blocks of {other.block_size} tokens, the other pool of {self.block_size}",
            )
        for ours, theirs in zip(self.segments, other.segments, strict=True):
            for field in ("num_rows", "row_bytes"):
                here, there = getattr(ours, field), getattr(theirs, field)
                if here != there:
                    raise LayoutError(
                        theirs.name, f"has {field} {there}, {ours.name!r} of the other pool {here}"
                    )
        if self.access_bytes != other.access_bytes:
            raise LayoutError(
                other.segments[0].name,
                f"is registered for accesses of {other.access_bytes} bytes, the other pool for"
                f" {self.access_bytes}; register both with access_bytes="
                f"{min(self.access_bytes, other.access_bytes)}",
            )


def register(
    segments: Sequence[Segment], block_size: int, access_bytes: int | None
) -> Registration:
    """Checks segments against each other and builds their table.

    Args:
        segments: The segments of one pool.
        block_size: Tokens per block.
        access_bytes: Width to use; None for the widest possible.

    Raises:
        LayoutError: ``check_segments`` refuses them, or one does not allow the width.
        ValueError: ``segments`` is empty, ``block_size`` is below 1, or the width is none of
            ``WIDTHS``.
        TypeError: An argument is of the wrong type.
    """
    unique = tuple(check_segments(segments, block_size))
    if access_bytes is not None and whole("access_bytes", access_bytes, 1) not in WIDTHS:
        raise ValueError(f"access_bytes must be one of {WIDTHS}, got {access_bytes}")
    width = access_bytes or min(map(_widest, unique))
    for segment in unique:
        if _widest(segment) % width:
            raise LayoutError(
                segment.name,
                f"allows accesses of {_widest(segment)} bytes, access_bytes is {width}",
            )
    theirs = list({id(segment.tensor): segment for segment in reversed(unique)}.values())
    tensors = _tensors_over(unique)
    places = {_storage(tensor): i for i, tensor in enumerate(tensors)}
    rows = [
        (
            s.address,
            s.block_stride // width,
            s.num_rows,
            s.row_stride // width,
            s.row_bytes // width,
            s.token_bytes // width,
            places[_storage(s.tensor)],
            s.address - tensors[places[_storage(s.tensor)]].data_ptr(),
        )
        for s in unique
    ]
    return Registration(
        segments=unique,
        num_blocks=unique[0].num_blocks,
        block_size=whole("block_size", block_size, 1),
        access_bytes=width,
        tensors=tensors,
        table=torch.tensor(rows, dtype=torch.int64),
        names=[segment.name for segment in theirs],
        begins=[segment.tensor.data_ptr for segment in theirs],
        addresses=[segment.tensor.data_ptr() for segment in theirs],
    )


def place_of(tensors: Sequence[torch.Tensor]) -> int:
    """A number that changes when one of the tensors moves."""
    return hash(tuple(tensor.data_ptr() for tensor in tensors))


def form_of(tensors: Sequence[torch.Tensor]) -> int:
    """A number that changes when the strides or the shape of a tensor change."""
    return hash(tuple((tuple(tensor.shape), tensor.stride()) for tensor in tensors))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors_over(segments: Sequence[Segment]) -> list[torch.Tensor]:
    """Tensors that an operator writes instead of addresses, so that a compiler sees it.

    A compiler may run the operator on clones. A clone keeps the strides only of a dense tensor, so
    a tensor that is not dense, or is one of several views of its storage, is replaced by a flat
    view. Otherwise the tensor itself is better, because it is then not an alias of the engine's
    tensor.
    """
    by_storage: dict[int, list[Segment]] = {}
    for segment in segments:
        by_storage.setdefault(_storage(segment.tensor), []).append(segment)
    return [
        group[0].tensor
        if len({id(s.tensor) for s in group}) == 1 and _covers(group[0].tensor, group)
        else _flat(group)
        for group in by_storage.values()
    ]


def _covers(tensor: torch.Tensor, segments: Sequence[Segment]) -> bool:
    """Whether the tensor is dense and contains the segments."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    size = tensor.numel() * tensor.element_size()
    return all(s.offset >= 0 and s.offset + s.span_bytes <= size for s in segments)


def _flat(segments: Sequence[Segment]) -> torch.Tensor:
    """A flat view from the first to the last byte of the segments."""
    # Storages of the same buffer of the caller have the same start but may have different ends.
    tensor = max((s.tensor for s in segments), key=lambda t: t.untyped_storage().nbytes())
    element = tensor.element_size()
    base = _storage(tensor)
    start = min(s.address for s in segments) - base
    end = max(s.address + s.span_bytes for s in segments) - base
    first, last = start // element, -(-end // element)
    if last * element > tensor.untyped_storage().nbytes():  # the last element is partial
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage()
        )
    return tensor.as_strided((last - first,), (1,), first)


def _widest(segment: Segment) -> int:
    """The widest access to which every address of a copy in the segment is aligned."""
    figures = [segment.address, segment.row_bytes, segment.token_bytes]
    if segment.num_blocks > 1:
        figures.append(segment.block_stride)
    if segment.num_rows > 1:
        figures.append(segment.row_stride)
    return math.gcd(WIDTHS[0], *figures)
