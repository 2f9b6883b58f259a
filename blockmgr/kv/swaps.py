"""Swaps blocks of a cache to the host and back; shared by every kind of cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from blockmgr.errors import LayoutError
from blockmgr.kv.indices import pairs_of
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from typing import Self

    import torch

    from blockmgr.kv.copy import KVBlocks
    from blockmgr.kv.indices import Indices, Pool
    from blockmgr.shapes.model import ModelShape

__all__ = ["Swaps"]


class Swaps(NotCopied, ABC):
    """A cache whose blocks can move to a similar cache on the host."""

    _pool: Pool
    _layout: str
    _blocks: KVBlocks

    @property
    def num_blocks(self) -> int:
        """Physical blocks, ids ``[0, num_blocks)``."""
        return self._pool.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._pool.block_size

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self._pool.device

    @property
    def layout(self) -> str:
        """A name out of ``PRESETS``."""
        return self._layout

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks in all tensors."""
        return self.num_blocks * self._page_shape.bytes_per_block(self.block_size)

    @property
    def blocks(self) -> KVBlocks:
        """The same memory as registered blocks, for copies in a graph or of other lists."""
        return self._blocks

    @property
    @abstractmethod
    def shape(self) -> Any:
        """The model."""

    @property
    @abstractmethod
    def _page_shape(self) -> ModelShape:
        """All tensors of the blocks."""

    def host_counterpart(self, num_blocks: int) -> Self:
        """A host cache for blocks of this cache, pinned if this cache is on a GPU.

        Args:
            num_blocks: Blocks on the host.

        Raises:
            ValueError: ``num_blocks`` is out of its bounds.
            TypeError: ``num_blocks`` is not an int.
        """
        make: Any = type(self)
        like_this: Self = make(
            num_blocks,
            self.block_size,
            self.shape,
            layout=self.layout,
            pin_memory=self.device.type == "cuda",
        )
        return like_this

    def swap_out(self, host: Self, device_blocks: Indices, host_blocks: Indices) -> None:
        """Copies blocks of this cache to the host, without waiting for the device.

        Args:
            host: From ``host_counterpart``.
            device_blocks: Ids of the blocks to read in this cache, of any group.
            host_blocks: The same number of distinct ids of the blocks to write in ``host``.

        Raises:
            CopyError: An id is out of range, or one of ``host_blocks`` is named twice. Nothing is
                copied.
            LayoutError: The blocks of ``host`` are not like those of this cache.
            ValueError: The lists differ in length, or have more than one axis.
            TypeError: An argument is of the wrong type.
        """
        pairs = pairs_of(device_blocks=device_blocks, host_blocks=host_blocks)
        self.blocks.copy_to(self._alike(host).blocks, pairs)

    def swap_in(self, host: Self, host_blocks: Indices, device_blocks: Indices) -> None:
        """Copies blocks from the host to this cache; the reverse of ``swap_out``.

        Args:
            host: From ``host_counterpart``.
            host_blocks: Ids of the blocks to read, in ``host``.
            device_blocks: The same number of distinct ids of the blocks to write in this cache.

        Raises:
            CopyError: An id is out of range, or one of ``device_blocks`` is named twice. Nothing
                is copied.
            LayoutError: The blocks of ``host`` are not like those of this cache.
            ValueError: The lists differ in length, or have more than one axis.
            TypeError: An argument is of the wrong type.
        """
        pairs = pairs_of(host_blocks=host_blocks, device_blocks=device_blocks)
        self._alike(host).blocks.copy_to(self.blocks, pairs)

    def _alike(self, host: Self) -> Self:
        if not isinstance(host, type(self)):
            raise TypeError(f"host must be a {type(self).__name__}, got {type(host).__name__}")
        # Blocks of the same size in another order or type would be misread.
        for what, name in (("shape", "_page_shape"), *((n, n) for n in ("block_size", "layout"))):
            here, there = getattr(self, name), getattr(host, name)
            if here != there:
                raise LayoutError(
                    host.blocks.segments[0].name, f"has {what} {there}, the other cache {here}"
                )
        return host
