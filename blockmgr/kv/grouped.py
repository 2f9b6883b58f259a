"""GroupedKVCache: K/V and recurrent states of a hybrid model in one pool of equal pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from blockmgr.arguments import whole
from blockmgr.blocks import CopyPlan
from blockmgr.errors import CopyError
from blockmgr.groups import is_single
from blockmgr.kv.cache import PagedKVCache
from blockmgr.shapes.hybrid import HybridShape
from blockmgr.shapes.model import ModelShape

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.kv.tensors import LayerTensors

__all__ = ["GroupedKVCache"]

# Layouts in which a page is one run of bytes, so that a state can be anywhere inside it.
WHOLE_PAGES = ("BLOCK_KV_NHD", "BLOCK_KV_HND", "MLA")


class GroupedKVCache(PagedKVCache):
    """The memory of a hybrid model: ``group_size`` tensors of pages that all groups share.

    A block is one page of each tensor, and belongs to one group at a time. Layer i of a group uses
    tensor i: as K/V in the layout of the kernels, or as the tensors of its state, of any shape and
    type. A copy moves whole pages or their first tokens in all tensors with one launch, so a plan
    with blocks of several groups is one list.

    Args:
        num_blocks: Physical blocks; ``num_blocks_for`` computes how many fit into a budget.
        block_size: Tokens per block; ``shape.block_size_for()`` returns one that fits the states.
        shape: The model.
        layout: A name in ``PRESETS``. None for ``"MLA"`` if the K/V are latents, else for
            ``"NHD"``, or with states ``"BLOCK_KV_NHD"``. States need contiguous pages:
            ``"BLOCK_KV_NHD"``, ``"BLOCK_KV_HND"`` or ``"MLA"``.
        device: Device of the tensors.
        pin_memory: Whether to allocate host tensors in page-locked memory.
        backend: ``"torch"`` or ``"triton"``, as in ``PagedKVCache``.

    Raises:
        PageSizeError: The state of a group does not fit a page at this ``block_size``.
        ValueError: A number is out of its bounds, or the layout does not fit the shape.
        TypeError: A value is of the wrong type.

    >>> from blockmgr import BlockManager, FullAttention, RecurrentState
    >>> from blockmgr.kv import LayerShape, StateTensor
    >>> kv = ModelShape(num_layers=1, num_kv_heads=1, head_dim=4, dtype=torch.float32)
    >>> recurrent = LayerShape(kind=RecurrentState(), states=(StateTensor((3, 5), torch.float32),))
    >>> shape = HybridShape([LayerShape(kind=FullAttention(), kv=kv), recurrent])
    >>> cache = GroupedKVCache(8, 4, shape)
    >>> [state.shape for state in cache.states(1)]
    [torch.Size([8, 3, 5])]
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        shape: HybridShape,
        *,
        layout: str | None = None,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
        backend: Literal["torch", "triton"] | None = None,
    ) -> None:
        if not isinstance(shape, HybridShape):
            raise TypeError(f"shape must be a HybridShape, got {shape!r}")
        block_size = whole("block_size", block_size, 1, 2**16 - 1)
        page_bytes = shape.page_bytes(block_size)
        super().__init__(
            num_blocks,
            block_size,
            _pages_of(shape),
            layout=_layout_for(shape, layout),
            device=device,
            pin_memory=pin_memory,
            backend=backend,
        )
        self._shape = shape
        self._recurrent = np.array([is_single(kind) for kind in shape.groups])
        self._places = {
            layer: (group, tensor)
            for group, members in enumerate(shape.members)
            for tensor, layer in enumerate(members)
        }
        with torch.inference_mode(False):
            self._states = {
                layer: _views(self.tensors[tensor], shape, group, page_bytes)
                for layer, (group, tensor) in self._places.items()
                if self._recurrent[group]
            }

    @property
    def shape(self) -> HybridShape:  # type: ignore[override]
        """The model."""
        return self._shape

    def group_tensors(
        self, group: int
    ) -> tuple[LayerTensors, ...] | tuple[tuple[torch.Tensor, ...], ...]:
        """The tensors of a group, in the order of ``shape.members[group]``.

        Args:
            group: Position in ``shape.groups``.

        Returns:
            For each layer of a group with attention, the same as in ``PagedKVCache.tensors``; for
            each layer of a recurrent group, its ``states``.

        Raises:
            ValueError: There is no such group.
            TypeError: ``group`` is not an int.
        """
        number = whole("group", group, 0, len(self._recurrent) - 1)
        members = self._shape.members[number]
        if self._recurrent[number]:
            return tuple(self._states[layer] for layer in members)
        return self.tensors[: len(members)]

    def states(self, layer: int) -> tuple[torch.Tensor, ...]:
        """The states of a recurrent layer, by block.

        Args:
            layer: Index of the layer in the model.

        Returns:
            Views ``[num_blocks, *shape]`` of the pages, in the order of ``LayerShape.states``. The
            content of a block is undefined until a forward writes to it.

        Raises:
            ValueError: There is no such layer, or it has attention.
            TypeError: ``layer`` is not an int.
        """
        group, _ = self._place(layer)
        if not self._recurrent[group]:
            raise ValueError(f"layer {layer} has attention: group {group}, {self._kind(group)}")
        return self._states[layer]

    def copy(self, plan: CopyPlan) -> None:
        """Runs the copies of a step, of all groups, in one launch; see ``KVBlocks.copy``.

        Then it fills the rings that begin empty with zeros.

        Args:
            plan: A plan from ``take_copies()`` of a manager with the ``groups`` of the shape.

        Raises:
            CopyError: Names the pair: its group does not exist, it copies part of a state, or
                ``KVBlocks.copy`` refuses it. Or the plan comes from a manager without groups.
                Nothing is copied.
            TicketError: This plan has been copied already.
            TypeError: Not a plan.
        """
        if not isinstance(plan, CopyPlan):
            raise TypeError(f"plan must be a CopyPlan, got {type(plan).__name__}")
        if plan.groups is not None:
            self._check_groups(plan.groups, plan.num_tokens)
        elif len(self._recurrent) > 1 and len(plan):
            raise CopyError(
                None, f"the plan has no groups, the cache {len(self._recurrent)}; pass shape.groups"
            )
        super().copy(plan)
        if plan.zeros is not None and len(plan.zeros):
            self.zero(plan.zeros)

    def _check_groups(
        self, groups: npt.NDArray[np.int32], num_tokens: npt.NDArray[np.int32]
    ) -> None:
        last = len(self._recurrent) - 1
        outside = (groups < 0) | (groups > last)
        parts = self._recurrent[np.clip(groups, 0, last)] & (num_tokens != self.block_size)
        wrong = np.flatnonzero(outside | parts)
        if not len(wrong):
            return
        pair = int(wrong[0])
        group = int(groups[pair])
        if outside[pair]:
            raise CopyError(pair, f"group must be in [0, {last}], got {group}")
        raise CopyError(
            pair,
            f"a state is copied whole: num_tokens of group {group}, {self._kind(group)}, must be"
            f" {self.block_size}, got {num_tokens[pair]}",
        )

    def _kind(self, group: int) -> str:
        return str(self._shape.groups[group])

    def _place(self, layer: int) -> tuple[int, int]:
        place = self._places.get(layer) if type(layer) is int else None
        return self._shape.place(layer) if place is None else place

    def _tensor(self, layer: int) -> int:
        """The index of the tensor of a layer with attention."""
        group, tensor = self._place(layer)
        if self._recurrent[group]:
            raise ValueError(f"layer {layer} keeps no K/V: group {group}, {self._kind(group)}")
        return tensor


def _pages_of(shape: HybridShape) -> ModelShape:
    """The pool as the tensors of a model with ``group_size`` layers."""
    kv = shape.kv
    return ModelShape(
        num_layers=shape.group_size,
        num_kv_heads=kv.num_kv_heads,
        head_dim=kv.head_dim,
        dtype=kv.dtype,
        latent_dim=kv.latent_dim,
    )


def _layout_for(shape: HybridShape, layout: str | None) -> str | None:
    """The layout to use, None for the usual one of K/V.

    Raises:
        ValueError: Its pages are in several pieces, and the shape has states.
        TypeError: ``layout`` is not a str.
    """
    if not shape.has_states:
        return layout
    if layout is None:
        return "BLOCK_KV_NHD" if shape.kv.latent_dim is None else None
    if isinstance(layout, str) and layout.strip().upper() not in WHOLE_PAGES:
        number = next(i for i, g in enumerate(shape.groups) if is_single(g))
        raise ValueError(
            f"layout must be one of {', '.join(WHOLE_PAGES)}, whose pages hold the states of group"
            f" {number}, {shape.groups[number]}; got {layout!r}"
        )
    return layout


def _views(
    tensor: LayerTensors, shape: HybridShape, group: int, page_bytes: int
) -> tuple[torch.Tensor, ...]:
    """The states of a layer in the pages of a tensor, ``[num_blocks, *shape]`` each."""
    assert isinstance(tensor, torch.Tensor)  # WHOLE_PAGES have one for each layer
    pages = tensor.view(tensor.shape[0], -1).view(torch.uint8)
    assert pages.shape[1] == page_bytes
    layer = shape.group_layer(group)
    views = []
    for state, start in zip(layer.states, layer.state_offsets(), strict=False):
        room = pages[:, start : start + state.num_bytes].view(state.dtype)
        views.append(room.unflatten(1, state.shape))
    return tuple(views)
