"""Segment: the location of the bytes of every block in one tensor, for any layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor

from blockmgr.arguments import integer
from blockmgr.errors import LayoutError

__all__ = ["Segment"]

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
