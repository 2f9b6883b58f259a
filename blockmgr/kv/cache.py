"""PagedKVCache: K/V tensors in the layout of your kernels, with writes, reads and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from blockmgr.arguments import whole
from blockmgr.blocks import PAD_SLOT
from blockmgr.errors import LayoutError
from blockmgr.kv.copy import KVBlocks
from blockmgr.kv.indices import (
    Pool,
    Slots,
    array_of,
    batch_ids,
    device_ids,
    host_ids,
    pairs_of,
    to_device,
)
from blockmgr.kv.layout import segments_from
from blockmgr.kv.pairs import on_device
from blockmgr.kv.tensors import LayerTensors, PagedTensors, as_words, layout_for
from blockmgr.shapes.hybrid import HybridShape
from blockmgr.shapes.model import ModelShape
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from blockmgr.blocks import CopyPlan
    from blockmgr.kv.indices import Indices
    from blockmgr.kv.segment import Segment

__all__ = ["PagedKVCache", "num_blocks_for"]


class PagedKVCache(NotCopied):
    """The K/V of a pool of blocks in all layers, in the layout that your kernels read.

    Calls launch on the current stream and do not wait for the device, unless a method says
    otherwise. The tensors are filled with zeros at first.

    Args:
        num_blocks: Physical blocks; ``num_blocks_for`` computes how many fit into a budget.
        block_size: Tokens per block, ``1 … 65535``.
        shape: The model.
        layout: A name in ``PRESETS``; None for NHD, or for MLA if the shape has a ``latent_dim``.
        device: Device of the tensors.
        pin_memory: Whether to allocate host tensors in page-locked memory, which a GPU reads and
            writes directly.
        backend: ``"torch"`` or ``"triton"``; None for triton on a GPU if it is installed, else
            torch.

    Raises:
        ValueError: A number is out of its bounds, the layout is unknown or does not fit the shape,
            or the memory cannot be pinned.
        TypeError: A value is of the wrong type.

    >>> shape = ModelShape(num_layers=2, num_kv_heads=1, head_dim=4, dtype=torch.float32)
    >>> cache = PagedKVCache(8, 16, shape)
    >>> k = v = torch.ones(3, 1, 4)
    >>> cache.write(0, k, v, [33, 34, PAD_SLOT])  # slot 33 is token 1 of block 2
    >>> cache.gather(0, [2], 3)[0][:, 0, 0].tolist()
    [0.0, 1.0, 1.0]
    """

    _instead = "make another cache, and copy blocks with copy()"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        shape: ModelShape,
        *,
        layout: str | None = None,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
        backend: Literal["torch", "triton"] | None = None,
    ) -> None:
        if not isinstance(shape, ModelShape):
            raise TypeError(f"shape must be a ModelShape, got {shape!r}")
        num_blocks = whole("num_blocks", num_blocks, 1, 2**31 - 1)
        block_size = whole("block_size", block_size, 1, 2**16 - 1)
        self._page_shape = shape  # of all tensors
        self._layout = layout_for(shape, layout)
        _check_pinning(torch.device(device), pin_memory)
        # Tensors and views made in inference mode cannot be written outside it.
        with torch.inference_mode(False):
            self._tensors = PagedTensors.zeros(
                num_blocks,
                block_size,
                shape,
                layout=self._layout,
                device=torch.device(device),
                pin_memory=pin_memory,
            )
            self._blocks = self._registered(
                segments_from(self._tensors.allocated, layout=self._layout), block_size, backend
            )
        self._prepare(num_blocks, block_size)

    def _registered(
        self,
        segments: Sequence[Segment],
        block_size: int,
        backend: Literal["torch", "triton"] | None,
    ) -> KVBlocks:
        return KVBlocks(segments, block_size=block_size, backend=backend)

    def _prepare(self, num_blocks: int, block_size: int) -> None:
        """Makes what writes and reads need of the tensors."""
        by_kernel = self._blocks.backend == "triton"
        with torch.inference_mode(False):
            self._words = self._tensors.words(for_kernel=by_kernel)
        k, v = self._words[0]
        self._pool = Pool(num_blocks, block_size, k.device, by_kernel)
        if by_kernel and k.is_cuda:
            # This write of padding compiles the kernel, so that no step has to wait for the
            # compiler.
            token = torch.zeros_like(k[0, :1])
            nowhere = torch.tensor([PAD_SLOT], device=k.device)
            self._launch(0, token, None if v is None else token, nowhere)

    def _seen_as(self, shape: ModelShape, block_size: int) -> PagedKVCache:
        """A cache of the same pages, perhaps with tokens of another shape, to read and to write."""
        found = PagedKVCache.__new__(PagedKVCache)
        found._page_shape, found._layout, found._blocks = shape, self._layout, self._blocks
        found._tensors = self._tensors
        if (shape, block_size) != (self._page_shape, self._pool.block_size):
            with torch.inference_mode(False):
                found._tensors = self._tensors.seen_as(shape, block_size, self._layout)
        found._prepare(self.num_blocks, block_size)
        return found

    @property
    def shape(self) -> ModelShape:
        """The model."""
        return self._page_shape

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
        return self.num_blocks * self._page_shape.bytes_per_block(self._pool.block_size)

    @property
    def blocks(self) -> KVBlocks:
        """The same memory as registered blocks, for copies in a graph or of other lists."""
        return self._blocks

    @property
    def tensors(self) -> tuple[LayerTensors, ...]:
        """The tensors that each layer's kernels take, with the axes of the layout.

        For each layer, one tensor if the layout has an axis ``kv`` or ``latent``, else the tuple
        (K, V). A layer of a fused tensor is a strided view without the axis ``layer``.
        """
        return tuple(self._tensors.layers)

    def keys(self, layer: int) -> torch.Tensor:
        """K of a layer, with the same axes for every layout.

        Args:
            layer: ``[0, num_layers)``.

        Returns:
            A strided view ``[num_blocks, block_size, num_kv_heads, head_dim]`` of the cache; for
            MLA, ``[num_blocks, block_size, 1, latent_dim]``.

        Raises:
            ValueError: There is no such layer.
        """
        return self._tensors.views[self._tensor(layer)][0]

    def values(self, layer: int) -> torch.Tensor | None:
        """V of a layer, as ``keys``; None for MLA, which keeps only ``keys``."""
        return self._tensors.views[self._tensor(layer)][1]

    def slots(self, slot_mapping: Indices) -> Slots:
        """Checks a slot mapping and sends it to the device once, to ``write`` several layers.

        Args:
            slot_mapping: As for ``write``.

        Raises:
            ValueError: A slot on the host is neither ``PAD_SLOT`` nor in
                ``[0, num_blocks * block_size)``, or there is not one axis.
            TypeError: The slots are not whole numbers.
        """
        return Slots.build(slot_mapping, self._pool)

    def write(
        self,
        layer: int,
        k: torch.Tensor,
        v: torch.Tensor | None,
        slot_mapping: Indices | Slots,
    ) -> None:
        """Writes K/V of some tokens into their slots.

        Slots on the host are checked. Slots in a device tensor are not, because a check would have
        to wait for the device: slots out of range are skipped like padding. (The torch backend on a
        GPU waits for the device if the slots are in a device tensor.)

        Args:
            layer: ``[0, num_layers)``; of a ``GroupedKVCache``, a layer of the model with
                attention, whose group has these slots.
            k: ``[num_tokens, num_kv_heads, head_dim]`` of the cache's dtype and device, with any
                strides; for MLA, ``[num_tokens, 1, latent_dim]``.
            v: Likewise; None for MLA.
            slot_mapping: Slot of each token, or ``PAD_SLOT``: on the host, in a device tensor, or
                the result of ``slots``. If a slot appears twice, either token may win.

        Raises:
            ValueError: A shape, device, layer or slot is wrong. Nothing is written.
            TypeError: A dtype or a type is wrong. Nothing is written.
        """
        layer = self._tensor(layer)
        slots = slot_mapping if isinstance(slot_mapping, Slots) else self.slots(slot_mapping)
        if slots.pool != self._pool:
            raise ValueError(f"slot_mapping was made for {slots.pool}, the cache is {self._pool}")
        k_cache, v_cache = self._words[layer]
        k = self._tokens("k", k, slots.num_tokens)
        if v is None or v_cache is None:
            if v is not v_cache:
                needed = "must be None, MLA keeps no V" if v_cache is None else "must not be None"
                raise ValueError(f"v {needed}")
        else:
            v = self._tokens("v", v, slots.num_tokens)
        if slots.mapping is not None:
            self._launch(layer, k, v, slots.mapping)
            return
        for tokens, cache in ((k, k_cache), (v, v_cache)):
            if tokens is not None and cache is not None:
                kept = tokens if slots.kept is None else tokens.index_select(0, slots.kept)
                cache.index_put_((slots.blocks, slots.offsets), kept)

    def gather(
        self, layer: int, block_table: Indices, length: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """K/V of one sequence, in token order.

        The result is undefined where the table of a window has the null block.

        Args:
            layer: ``[0, num_layers)``.
            block_table: Block ids in logical order, on the host or in a device tensor; entries
                past the last token are ignored. Ids in a device tensor are not checked.
            length: Tokens to read, from the first on.

        Returns:
            K and V, ``[length, num_kv_heads, head_dim]`` on the cache's device, copies. For MLA,
            ``[length, 1, latent_dim]`` and None.

        Raises:
            ValueError: A block id on the host is out of range, the table is too short, or there
                is no such layer.
            TypeError: An argument is of the wrong type.
        """
        length = whole("length", length, 0)
        used = -(-length // self._pool.block_size)
        ids = device_ids("block_table", block_table, self.device)
        if ids is not None:
            ids = ids[:used]
        else:
            table = array_of("block_table", block_table, 1)[:used]
            ids = to_device(host_ids("block_table", table, self.num_blocks), self.device)
        if ids.shape[0] < used:
            raise ValueError(f"block_table has {ids.shape[0]} blocks, {length} tokens need {used}")
        k, v = self._read(layer, ids)
        return k.narrow(0, 0, length), None if v is None else v.narrow(0, 0, length)

    def gather_batch(
        self, layer: int, block_tables: Indices, lengths: Indices
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """K/V of several sequences, padded to the longest of them.

        Args:
            layer: ``[0, num_layers)``.
            block_tables: ``[num_seqs, max_blocks]`` on the host: rows of ``manager.block_tables``;
                entries past the last token are ignored.
            lengths: ``[num_seqs]`` on the host: tokens to read of each sequence.

        Returns:
            K and V, ``[num_seqs, max(lengths), num_kv_heads, head_dim]`` on the cache's device,
            copies. Entries past a sequence's length hold the K/V of other tokens: mask them.

        Raises:
            ValueError: A block id is out of range, a table is too short, or a shape is wrong.
            TypeError: An argument is of the wrong type.
        """
        ids, longest = batch_ids(block_tables, lengths, self.num_blocks, self._pool.block_size)
        k, v = self._read(layer, to_device(ids.ravel(), self.device))
        shape = ids.shape[0], ids.shape[1] * self._pool.block_size, *k.shape[1:]
        k = k.view(shape)[:, :longest]
        return k, None if v is None else v.view(shape)[:, :longest]

    def copy(self, plan: CopyPlan) -> None:
        """Runs the copies of a step; see ``KVBlocks.copy``."""
        self._blocks.copy(plan)

    def copy_blocks(
        self,
        pairs: Indices,
        *,
        semantics: Literal["sequential", "simultaneous"] = "sequential",
    ) -> None:
        """Copies whole blocks by any list of pairs; see ``KVBlocks.copy_blocks``."""
        self._blocks.copy_blocks(pairs, semantics=semantics)

    def zero(self, blocks: Indices) -> None:
        """Fills blocks with zeros; see ``KVBlocks.zero``."""
        self._blocks.zero(blocks)

    def host_counterpart(self, num_blocks: int) -> Self:
        """A host cache for blocks of this cache, pinned if this cache is on a GPU.

        Args:
            num_blocks: Blocks on the host.

        Raises:
            ValueError: ``num_blocks`` is out of its bounds.
            TypeError: ``num_blocks`` is not an int.
        """
        return type(self)(
            num_blocks,
            self.block_size,
            self.shape,
            layout=self.layout,
            pin_memory=self.device.type == "cuda",
        )

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

        Args and errors are those of ``swap_out``.
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

    def _tensor(self, layer: int) -> int:
        """The index of the tensors of a layer."""
        return whole("layer", layer, 0, self._page_shape.num_layers - 1)

    def _tokens(self, name: str, tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """K or V of a step as words, after checks of type, device and shape."""
        if not isinstance(tokens, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tokens).__name__}")
        if tokens.dtype != self._page_shape.dtype:
            raise TypeError(f"{name} must be {self._page_shape.dtype}, got {tokens.dtype}")
        if tokens.device != self.device:
            raise ValueError(f"{name} is on {tokens.device}, the cache is on {self.device}")
        expected = (num_tokens, *self._tensors.views[0][0].shape[2:])
        if tokens.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {tuple(tokens.shape)}")
        return as_words(tokens, self._words[0][0].dtype)

    def _launch(
        self, layer: int, k: torch.Tensor, v: torch.Tensor | None, mapping: torch.Tensor
    ) -> None:
        from blockmgr.kv.write_triton import write  # noqa: PLC0415  # triton may be missing

        with on_device(k.device):
            write(k, v, *self._words[layer], mapping)

    def _read(self, layer: int, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """K and V of whole blocks, ``[len(ids) * block_size, heads, dim]``."""
        dtype = self._page_shape.dtype
        k, v = (
            None if words is None else words.index_select(0, ids).view(dtype).flatten(0, 1)
            for words in self._words[self._tensor(layer)]
        )
        assert k is not None
        return k, v


def _check_pinning(device: torch.device, pin_memory: bool) -> None:
    if not isinstance(pin_memory, bool):
        raise TypeError(f"pin_memory must be a bool, got {pin_memory!r}")
    if pin_memory and device.type != "cpu":
        raise ValueError(f"pin_memory is for memory of the host, the cache is on {device}")
    if pin_memory and not torch.cuda.is_available():
        raise ValueError("pin_memory must be False without a CUDA or ROCm device to use it")


def num_blocks_for(num_bytes: int, shape: ModelShape | HybridShape, block_size: int) -> int:
    """The number of blocks that fit into a memory budget.

    Args:
        num_bytes: Bytes to fill with K/V.
        shape: The model. A block of a hybrid model is a page in each of ``group_size`` tensors,
            whichever group has it.
        block_size: Tokens per block, at least 1.

    Raises:
        ValueError: Not even one block fits.
        PageSizeError: Pages of a hybrid model cannot be made equal at this ``block_size``.
        TypeError: An argument is of the wrong type.

    >>> import torch
    >>> shape = ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    >>> num_blocks_for(10 * 2**30, shape, 16)
    5120
    """
    budget = whole("num_bytes", num_bytes, 1)
    if not isinstance(shape, ModelShape | HybridShape):
        raise TypeError(f"shape must be a ModelShape or a HybridShape, got {shape!r}")
    block = shape.bytes_per_block(block_size)
    if budget < block:
        raise ValueError(f"num_bytes must be at least {block}, the size of one block, got {budget}")
    return budget // block
