"""Allocation of K/V tensors in a named layout, and views that hide the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from blockmgr.kv.layout import PRESETS, axes_of

if TYPE_CHECKING:
    from blockmgr.shapes.model import ModelShape

__all__ = ["KVPair", "LayerTensors", "PagedTensors", "as_words", "layout_for"]

LayerTensors: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"
"""The input of a layer's kernels: one tensor, or K and V."""

KVPair: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None]"
"""K and V; no V for MLA."""

# Elements of any dtype move as the widest words that divide a head, because fewer words are faster.
# Nothing is computed, so all bits are preserved. A kernel takes integers; torch on the CPU moves 16
# bytes as one complex number in a fifth of the time of 8 bfloat16.
KERNEL_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
TORCH_WORDS = (torch.complex128, torch.float64, torch.float32, torch.int16, torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class PagedTensors:
    """The tensors of all layers.

    Attributes:
        layers: The tensors for each layer's kernels.
        allocated: The same memory in the allocated form, for ``segments_from``.
        views: K and V of each layer, ``[num_blocks, block_size, heads, dim]``, strided.
    """

    layers: list[LayerTensors]
    allocated: list[LayerTensors] | torch.Tensor
    views: list[KVPair]

    @classmethod
    def zeros(
        cls,
        num_blocks: int,
        block_size: int,
        shape: ModelShape,
        *,
        layout: str,
        device: torch.device,
        pin_memory: bool,
    ) -> PagedTensors:
        """Tensors filled with zeros. ``layout`` is a name in ``PRESETS`` that fits the shape."""
        axes = axes_of(layout)
        sizes = {
            "block": num_blocks,
            "token": block_size,
            "layer": shape.num_layers,
            "kv": 2,
            "head": shape.num_kv_heads,
            "dim": shape.head_dim,
            "latent": shape.latent_dim or 0,
        }
        lengths = [sizes[axis] for axis in axes]
        at = axes.index("block")
        if at:
            # K and V of a single block would be adjacent and form one row, so it could not be
            # swapped with a larger pool. The space of a second block separates them.
            lengths[at] = max(num_blocks, 2)

        def zeros() -> torch.Tensor:
            room = torch.zeros(lengths, dtype=shape.dtype, device=device, pin_memory=pin_memory)
            return room.narrow(at, 0, num_blocks) if num_blocks < lengths[at] else room

        layers: list[LayerTensors]
        allocated: list[LayerTensors] | torch.Tensor
        if "layer" in axes:
            allocated = zeros()
            layers = list(allocated.unbind(axes.index("layer")))
        else:
            # Separate allocations, so that each begins at a multiple of 16, whatever its length.
            one = "kv" in axes or "latent" in axes
            layers = [zeros() if one else (zeros(), zeros()) for _ in range(shape.num_layers)]
            allocated = layers
        return cls(layers, allocated, [_keys_and_values(layer, axes) for layer in layers])

    def seen_as(self, shape: ModelShape, block_size: int, layout: str) -> PagedTensors:
        """The same pages, with tokens of another shape: as many bytes in all.

        Args:
            shape: Of the tokens, with the type of these tensors.
            block_size: Tokens that a page holds then.
            layout: Of these tensors, ``"BLOCK_KV_NHD"`` or ``"MLA"``.
        """
        if layout == "MLA":
            assert shape.latent_dim is not None
            token: tuple[int, ...] = (block_size, shape.latent_dim)
        else:
            token = 2, block_size, shape.num_kv_heads, shape.head_dim
        layers: list[LayerTensors] = []
        for pages in self.layers:
            assert isinstance(pages, torch.Tensor)  # these layouts have one for each layer
            layers.append(pages.view(pages.shape[0], *token))
        axes = axes_of(layout)
        return PagedTensors(layers, layers, [_keys_and_values(layer, axes) for layer in layers])

    def words(self, *, for_kernel: bool) -> list[KVPair]:
        """The views with the innermost axis as the widest words that divide it."""
        key = self.views[0][0]
        head_bytes = key.shape[-1] * key.element_size()
        choices = KERNEL_WORDS if for_kernel else TORCH_WORDS
        word = next(word for word in choices if head_bytes % word.itemsize == 0)
        return [(k.view(word), None if v is None else v.view(word)) for k, v in self.views]


def layout_for(shape: ModelShape, layout: str | None) -> str:
    """The checked name in ``PRESETS`` of a layout for this shape.

    Raises:
        ValueError: There is no such layout, or it does not fit the shape.
        TypeError: ``layout`` is not a str.
    """
    if layout is None:
        return "NHD" if shape.latent_dim is None else "MLA"
    if not isinstance(layout, str):
        raise TypeError(f"layout must be a str, got {layout!r}")
    name = layout.strip().upper()
    if name not in PRESETS:
        raise ValueError(f"layout must be one of {', '.join(PRESETS)}, got {layout!r}")
    if (name == "MLA") != (shape.latent_dim is not None):
        needed = "layout MLA" if shape.latent_dim is not None else "another layout"
        raise ValueError(f"a shape with latent_dim {shape.latent_dim} needs {needed}, got {name}")
    return name


def as_words(tensor: torch.Tensor, word: torch.dtype) -> torch.Tensor:
    """The innermost axis as words of another width: a view if strides allow it, else a copy."""
    try:
        # A view as words of the elements' own width would accept a strided axis.
        if tensor.shape[-1] == 1 or tensor.stride(-1) == 1:
            return tensor.view(word)
    except RuntimeError:  # its rows are not aligned to a word
        pass
    return tensor.clone(memory_format=torch.contiguous_format).view(word)


def _keys_and_values(layer: LayerTensors, axes: tuple[str, ...]) -> KVPair:
    """K and V as ``[block, token, head, dim]``."""
    axes = tuple(axis for axis in axes if axis != "layer")
    if isinstance(layer, tuple):
        k, v = layer
    elif "kv" in axes:
        k, v = layer.unbind(axes.index("kv"))
    else:
        return layer.unsqueeze(2), None  # MLA: one vector per token, like a single head
    left = [axis for axis in axes if axis != "kv"]
    order = [left.index(axis) for axis in ("block", "token", "head", "dim")]
    return k.permute(order), v.permute(order)
