"""GroupedKVCache: K/V and recurrent states of a hybrid model in one pool of equal pages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from blockmgr.arguments import whole
from blockmgr.errors import CopyError
from blockmgr.groups import is_single, tokens_per_block
from blockmgr.kv.cache import PagedKVCache
from blockmgr.kv.copy import KVBlocks
from blockmgr.shapes.hybrid import HybridShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.blocks import CopyPlan
    from blockmgr.groups import Group
    from blockmgr.kv.indices import Indices, Slots
    from blockmgr.kv.segment import Segment
    from blockmgr.kv.tensors import LayerTensors
    from blockmgr.shapes.model import ModelShape

__all__ = ["GroupedKVCache"]

# Layouts in which a page is one run of bytes, so that a state can be anywhere inside it.
WHOLE_PAGES = ("BLOCK_KV_NHD", "BLOCK_KV_HND", "MLA")


class GroupedKVCache(PagedKVCache):
    """The memory of a hybrid model: ``group_size`` tensors of pages that all groups share.

    A block is one page of each tensor, and belongs to one group at a time. Layer i of a group uses
    tensor i: as K/V in the layout of the kernels, or as the tensors of its state, of any shape and
    type. Groups with block sizes of their own see the pages with as many tokens of their K/V. A
    copy moves whole pages or their first tokens in all tensors with one launch, so a plan with
    blocks of several groups is one list.

    Args:
        num_blocks: Physical blocks; ``num_blocks_for`` computes how many fit into a budget.
        block_size: The manager's; ``shape.block_size_for()`` returns one that fits all groups.
        shape: The model.
        layout: A name in ``PRESETS``. None for ``"MLA"`` if the K/V are latents, else for
            ``"NHD"``, or with states or K/V of several shapes ``"BLOCK_KV_NHD"``. States need
            contiguous pages: ``"BLOCK_KV_NHD"``, ``"BLOCK_KV_HND"`` or ``"MLA"``. K/V of several
            shapes need pages in which the first tokens are the first bytes of K and of V:
            ``"BLOCK_KV_NHD"`` or ``"MLA"``.
        device: Device of the tensors.
        pin_memory: Whether to allocate host tensors in page-locked memory.
        backend: ``"torch"`` or ``"triton"``, as in ``PagedKVCache``.

    Raises:
        PageSizeError: The state of a group does not fit a page at this ``block_size``, or pages are
            not equal.
        ValueError: A number is out of its bounds, or the layout does not fit the shape.
        TypeError: A value is of the wrong type.

    >>> from blockmgr import BlockManager, FullAttention, RecurrentState
    >>> from blockmgr.kv import LayerShape, ModelShape, StateTensor
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
        pages = _pages_of(shape)
        self._shape = shape
        self._block_size = block_size
        self._recurrent = np.array([is_single(kind) for kind in shape.groups])
        super().__init__(
            num_blocks,
            page_bytes * pages.num_layers // pages.bytes_per_token,
            pages,
            layout=_layout_for(shape, layout),
            device=device,
            pin_memory=pin_memory,
            backend=backend,
        )
        seen: dict[Any, PagedKVCache] = {}
        self._seen = [self._seen_by(number, seen) for number in range(len(shape.groups))]
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

    def _registered(
        self,
        segments: Sequence[Segment],
        block_size: int,
        backend: Literal["torch", "triton"] | None,
    ) -> KVBlocks:
        kinds = self._shape.groups
        sizes = [_tokens_of(kind, self._block_size) for kind in kinds]
        return _GroupBlocks(segments, kinds, sizes, block_size=block_size, backend=backend)

    def _seen_by(self, group: int, seen: dict[Any, PagedKVCache]) -> PagedKVCache | None:
        """The pages as a group with attention sees them, made once for all that are alike."""
        kv = self._shape.group_layer(group).kv
        if kv is None:
            return None
        size = tokens_per_block(self._shape.groups[group], self._block_size)
        if (kv, size) not in seen:
            shape = replace(kv, num_layers=self._page_shape.num_layers)
            seen[kv, size] = self._seen_as(shape, size)
        return seen[kv, size]

    @property
    def block_size(self) -> int:
        """Tokens per block of the manager; a group may have fewer."""
        return self._block_size

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
        seen = self._seen[number]
        if seen is None:
            return tuple(self._states[layer] for layer in members)
        return seen.tensors[: len(members)]

    def slots(self, slot_mapping: Indices, *, group: int = 0) -> Slots:
        """As ``PagedKVCache.slots``, for the layers of groups that are like this one.

        Args:
            slot_mapping: As for ``write``.
            group: Position in ``shape.groups``, of a group with attention.

        Raises:
            ValueError: As ``PagedKVCache.slots``; or there is no such group, or it keeps no K/V.
            TypeError: As ``PagedKVCache.slots``; or ``group`` is not an int.
        """
        number = whole("group", group, 0, len(self._seen) - 1)
        seen = self._seen[number]
        if seen is None:
            raise ValueError(f"group must have attention, got {number}, {self._kind(number)}")
        return seen.slots(slot_mapping)

    def keys(self, layer: int) -> torch.Tensor:
        """As ``PagedKVCache.keys``, of a layer with attention: ``[num_blocks, tokens, ...]``.

        ``tokens`` is the block size of its group.
        """
        seen, tensor = self._attention(layer)
        return seen.keys(tensor)

    def values(self, layer: int) -> torch.Tensor | None:
        """As ``PagedKVCache.values``, of a layer with attention."""
        seen, tensor = self._attention(layer)
        return seen.values(tensor)

    def write(
        self,
        layer: int,
        k: torch.Tensor,
        v: torch.Tensor | None,
        slot_mapping: Indices | Slots,
    ) -> None:
        """As ``PagedKVCache.write``, of a layer with attention, whose group has these slots."""
        seen, tensor = self._attention(layer)
        seen.write(tensor, k, v, slot_mapping)

    def gather(
        self, layer: int, block_table: Indices, length: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As ``PagedKVCache.gather``, of a layer with attention, by the table of its group."""
        seen, tensor = self._attention(layer)
        return seen.gather(tensor, block_table, length)

    def gather_batch(
        self, layer: int, block_tables: Indices, lengths: Indices
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As ``PagedKVCache.gather_batch``, of a layer with attention, by tables of its group."""
        seen, tensor = self._attention(layer)
        return seen.gather_batch(tensor, block_tables, lengths)

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
        super().copy(plan)
        if plan.zeros is not None and len(plan.zeros):
            self.zero(plan.zeros)

    def _kind(self, group: int) -> str:
        return str(self._shape.groups[group])

    def _place(self, layer: int) -> tuple[int, int]:
        place = self._places.get(layer) if type(layer) is int else None
        return self._shape.place(layer) if place is None else place

    def _attention(self, layer: int) -> tuple[PagedKVCache, int]:
        """The pages as the group of a layer sees them, and the number of its tensor."""
        group, tensor = self._place(layer)
        seen = self._seen[group]
        if seen is None:
            raise ValueError(f"layer {layer} keeps no K/V: group {group}, {self._kind(group)}")
        return seen, tensor


class _GroupBlocks(KVBlocks):
    """The pages of all groups, in the tokens of the pool.

    Args:
        segments: As in ``KVBlocks``, like the named ones.
        kinds: The groups.
        sizes: By group, the tokens of a whole copy.
    """

    def __init__(
        self, segments: Sequence[Segment], kinds: Sequence[Group], sizes: list[int], **named: Any
    ) -> None:
        super().__init__(segments, **named)
        self._kinds = kinds
        self._is_single = np.array([is_single(kind) for kind in kinds])
        self._sizes = np.array(sizes, np.int32)

    def _tokens(self, plan: CopyPlan) -> npt.NDArray[np.int32]:
        counts = plan.num_tokens
        if plan.groups is None:
            if len(self._kinds) > 1 and len(plan):
                raise CopyError(
                    None,
                    f"the plan has no groups, the cache {len(self._kinds)}; pass shape.groups",
                )
            sizes = self._sizes[0]
        else:
            self._check(plan.groups, counts)
            sizes = self._sizes[plan.groups]
        is_whole = counts == sizes
        scaled: npt.NDArray[np.int32] = counts * (self.block_size // sizes)
        return np.where(is_whole, np.int32(self.block_size), scaled)

    def _check(self, groups: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]) -> None:
        last = len(self._kinds) - 1
        outside = (groups < 0) | (groups > last)
        known = np.clip(groups, 0, last)
        parts = self._is_single[known] & (counts != self._sizes[known])
        wrong = np.flatnonzero(outside | parts | (counts < 1) | (counts > self._sizes[known]))
        if not len(wrong):
            return
        pair = int(wrong[0])
        group, count, size = int(groups[pair]), int(counts[pair]), int(self._sizes[known[pair]])
        if outside[pair]:
            raise CopyError(pair, f"group must be in [0, {last}], got {group}")
        if parts[pair]:
            raise CopyError(
                pair,
                f"a state is copied whole: num_tokens of group {group}, {self._kinds[group]}, must"
                f" be {size}, got {count}",
            )
        raise CopyError(pair, f"num_tokens must be in [1, {size}], got {count}")


def _tokens_of(kind: Group, block_size: int) -> int:
    """Tokens in a whole copy of a block; of a state or a ring, those of the manager's."""
    return block_size if is_single(kind) else tokens_per_block(kind, block_size)


def _pages_of(shape: HybridShape) -> ModelShape:
    """The pool as the tensors of a model with ``group_size`` layers.

    Its token is that of the groups, or where they differ what divides those of all of them.
    """
    kinds = {layer.kv for layer in map(shape.group_layer, range(len(shape.groups))) if layer.kv}
    if len(kinds) == 1:
        return replace(shape.kv, num_layers=shape.group_size)
    if shape.kv.latent_dim is not None:
        token = math.gcd(*(kv.latent_dim or 0 for kv in kinds))
        return replace(shape.kv, num_layers=shape.group_size, head_dim=token, latent_dim=token)
    token = math.gcd(*(kv.num_kv_heads * kv.head_dim for kv in kinds))
    return replace(shape.kv, num_layers=shape.group_size, num_kv_heads=1, head_dim=token)


def _layout_for(shape: HybridShape, layout: str | None) -> str | None:
    """The layout to use, None for the usual one of K/V.

    Raises:
        ValueError: Its pages are in several pieces, and the shape has states or several sizes.
        TypeError: ``layout`` is not a str.
    """
    is_latent = shape.kv.latent_dim is not None
    if shape.has_sizes and len({shape.group_layer(g).kv for g in range(len(shape.groups))}) > 1:
        allowed: tuple[str, ...] = ("MLA" if is_latent else "BLOCK_KV_NHD",)
        why = "whose pages groups with block sizes of their own see in their own tokens"
    elif shape.has_states:
        number = next(i for i, g in enumerate(shape.groups) if is_single(g))
        allowed = WHOLE_PAGES
        why = f"whose pages hold the states of group {number}, {shape.groups[number]}"
    else:
        return layout
    if layout is None:
        return None if is_latent else "BLOCK_KV_NHD"
    if isinstance(layout, str) and layout.strip().upper() not in allowed:
        raise ValueError(f"layout must be one of {', '.join(allowed)}, {why}; got {layout!r}")
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
