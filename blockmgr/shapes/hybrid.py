"""How the layers of a hybrid model share one pool: groups of equal size, with equal pages.

::

    tensor 0   [ page | page | page | ...  block ids 0, 1, 2, ...
    tensor 1   [ page | page | page | ...
               a block is the same page of every tensor, and one group has it at a time:
               layer i of a group keeps its K/V, or its state, in tensor i
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from blockmgr.arguments import whole
from blockmgr.errors import PageSizeError
from blockmgr.groups import (
    MAX_GROUPS,
    FullAttention,
    Group,
    RecurrentState,
    Ring,
    check_block_sizes,
    checked_groups,
    is_single,
    prefix_granularity,
    table_group,
    tokens_per_block,
)
from blockmgr.shapes.config import layers_of
from blockmgr.shapes.layer import LayerShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from blockmgr.shapes.fields import Config
    from blockmgr.shapes.model import ModelShape

__all__ = ["HybridShape"]

# As in vLLM: a quarter more layers of one kind than of another do not justify more groups.
NEARLY_AS_MANY = 1.25

# Larger block sizes to try, until the page is a multiple of the state's elements.
MOST_TRIES = 16


@dataclass(frozen=True, slots=True)
class HybridShape:
    """The layers of a hybrid model, in groups of equal size that share one pool of blocks.

    Layers that read the same tokens form groups of ``group_size`` layers; the last group of a kind
    may have fewer. Layer i of each group uses tensor i, so a pool is ``group_size`` tensors.

    Layers whose K/V take different bytes a token have pages of equal size with different numbers of
    tokens: the ``block_size`` of their kinds. ``sized`` chooses them.

    Attributes:
        layers: Each layer of the model in order; None for one that keeps nothing, or reads the K/V
            of another layer. For a layer with attention and a state, its attention; the states of
            such layers follow after the last layer.
        group_size: Layers per group. None for the number of layers of the rarest kind, or of the
            most frequent kind if that has less than a quarter more.
        groups: The value for ``BlockManager(groups=...)``.
        members: The layers of each group.

    Raises:
        ValueError: No layer has full attention, ``group_size`` is out of range, or there would be
            more than 64 groups.
        PageSizeError: Layers with attention keep K/V of different shapes, and their kinds have no
            ``block_size`` that makes pages equal, or one keeps latents or another type.
        TypeError: A value is of the wrong type.

    >>> import torch
    >>> from blockmgr import FullAttention, RecurrentState
    >>> from blockmgr.kv import LayerShape, ModelShape, StateTensor
    >>> kv = ModelShape(num_layers=1, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    >>> conv = StateTensor((512, 4), torch.bfloat16)
    >>> state = StateTensor((8, 64, 16), torch.float32)
    >>> recurrent = LayerShape(kind=RecurrentState(), states=(conv, state))
    >>> shape = HybridShape([LayerShape(kind=FullAttention(), kv=kv), *[recurrent] * 3])
    >>> shape.groups[:2], shape.members
    ((FullAttention(), RecurrentState()), ((0,), (1,), (2,), (3,)))
    >>> shape.block_size_for(), shape.bytes_per_block(80)
    (80, 40960)
    """

    layers: Sequence[LayerShape | None]
    group_size: int = 0
    groups: tuple[Group, ...] = field(init=False)
    members: tuple[tuple[int, ...], ...] = field(init=False)

    def __init__(self, layers: Sequence[LayerShape | None], group_size: int | None = None) -> None:
        own = tuple(layers)
        for i, layer in enumerate(own):
            if layer is not None and not isinstance(layer, LayerShape):
                raise TypeError(f"layers[{i}] must be a LayerShape or None, got {layer!r}")
        alike: dict[LayerShape, list[int]] = {}
        for i, layer in enumerate(own):
            if layer is not None:
                alike.setdefault(layer, []).append(i)
        # The block tables are those of the first group with full attention, if there is one.
        kinds = sorted(alike, key=lambda layer: not isinstance(layer.kind, FullAttention))
        size = _group_size([len(alike[layer]) for layer in kinds], group_size)
        members = [
            tuple(alike[layer][start : start + size])
            for layer in kinds
            for start in range(0, len(alike[layer]), size)
        ]
        self._set(
            layers=own,
            group_size=size,
            members=tuple(members),
            groups=checked_groups(_kept(own, each).kind for each in members),
        )
        if all(is_single(kind) for kind in self.groups):
            raise ValueError("layers must have one with attention, whose K/V pages are made for")
        if not self.has_sizes:
            self._check_alike()
        elif all(tokens_per_block(kind, 0) for kind in self.groups if not is_single(kind)):
            self._check_pages(prefix_granularity(self.groups))

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_alike(self) -> None:
        for number, members in enumerate(self.members):
            kv = _kept(self.layers, members).kv
            if kv is not None and kv != self.kv:
                raise PageSizeError(
                    number,
                    str(self.groups[number]),
                    f"layer {members[0]} keeps {_described(kv)}, the pages of the pool are of"
                    f" {_described(self.kv)}; HybridShape.sized gives each group a block_size",
                )

    def _check_pages(self, block_size: int) -> None:
        """Checks that pages of groups with attention are equal, and of one type."""
        first = self.kv
        page = tokens_per_block(self.groups[table_group(self.groups)], block_size)
        page *= first.bytes_per_token
        for number, kind in enumerate(self.groups):
            kv = self.group_layer(number).kv
            if kv is None:
                continue
            size = tokens_per_block(kind, block_size) * kv.bytes_per_token
            if size != page:
                problem = f"its pages have {size} bytes, those of the pool {page}"
            elif kv.dtype != first.dtype or (kv.latent_dim is None) != (first.latent_dim is None):
                problem = f"its pages are of {_described(kv)}, those of the pool of"
                problem += f" {_described(first)}"
            else:
                continue
            raise PageSizeError(number, str(kind), problem)

    @classmethod
    def sized(
        cls,
        layers: Sequence[LayerShape | None],
        group_size: int | None = None,
        *,
        block_size: int | None = None,
    ) -> HybridShape:
        """The groups of layers whose K/V take different bytes a token, with pages of equal size.

        Args:
            layers: As for ``HybridShape``; the ``block_size`` of each kind is replaced.
            group_size: As for ``HybridShape``.
            block_size: Tokens per block of the manager; None for the smallest at which groups have
                blocks of multiples of 16 tokens.

        Raises:
            PageSizeError: There are no equal pages: layers keep latents and others do not, or
                another type.
            ValueError: A value is out of its bounds, or whole blocks of all groups do not fit
                ``block_size``.
            TypeError: A value is of the wrong type.

        >>> import torch
        >>> from blockmgr import FullAttention, SlidingWindow
        >>> from blockmgr.kv import LayerShape, ModelShape
        >>> def kv(heads, dim):
        ...     return ModelShape(
        ...         num_layers=1, num_kv_heads=heads, head_dim=dim, dtype=torch.bfloat16
        ...     )
        >>> full = LayerShape(kind=FullAttention(), kv=kv(4, 512))
        >>> window = LayerShape(kind=SlidingWindow(1024), kv=kv(4, 256))
        >>> HybridShape.sized([*[window] * 5, full]).groups[:2]
        (FullAttention(block_size=16), SlidingWindow(width=1024, block_size=32))
        """
        layers = list(layers)
        kept = [layer for layer in layers if isinstance(layer, LayerShape)]
        tokens = {layer.kv.bytes_per_token for layer in kept if layer.kv is not None}
        elements = {state.dtype.itemsize for layer in kept for state in layer.states}
        page = math.lcm((1 if block_size else 16) * math.lcm(*tokens), *elements)
        page *= max([1, *(-(-layer.state_bytes // page) for layer in kept)])
        if block_size is not None and tokens:
            size = math.lcm(*(page // token for token in tokens))  # of the smallest manager
            if whole("block_size", block_size, 1) % size:
                raise ValueError(
                    f"block_size must be a multiple of {size}, which holds whole blocks of all"
                    f" groups, got {block_size}"
                )
            page *= block_size // size

        def sized(layer: LayerShape | None) -> LayerShape | None:
            if not isinstance(layer, LayerShape) or layer.kv is None:
                return layer
            assert not isinstance(layer.kind, RecurrentState | Ring)  # they have no K/V
            size = page // layer.kv.bytes_per_token
            return replace(layer, kind=replace(layer.kind, block_size=size))

        return cls([sized(layer) for layer in layers], group_size)

    @classmethod
    def fitting(
        cls,
        layers: Sequence[LayerShape | None],
        group_size: int | None = None,
        *,
        block_size: int | None = None,
    ) -> HybridShape:
        """``sized`` if K/V of layers differ, else the groups as they are."""
        kinds = {layer.kv for layer in layers if isinstance(layer, LayerShape) and layer.kv}
        if len(kinds) > 1:
            return cls.sized(layers, group_size, block_size=block_size)
        return cls(layers, group_size)

    @classmethod
    def from_config(
        cls,
        config: Config,
        dtype: torch.dtype | None = None,
        *,
        state_dtype: torch.dtype | None = None,
        group_size: int | None = None,
    ) -> HybridShape:
        """The groups of the model that a Hugging Face style config describes.

        Understands ``layer_types``, and the corresponding fields of Gemma 2 and 3, Llama 4,
        Qwen3-Next, Jamba, Bamba, Nemotron-H and Falcon-H1. A model without them has one group.
        Layers of different K/V (Gemma 4) have the block sizes that ``sized`` chooses. The
        state of a recurrent layer has the tensors that transformers keeps: that of the convolution
        and, except for LFM2, that of the recurrence.

        Args:
            config: A config object, its fields as a mapping, or the path of a ``config.json`` or
                of its folder.
            dtype: Element type of K/V and of convolutions; None for the model's type.
            state_dtype: Element type of recurrences; None for float32, which is the only one of
                transformers.
            group_size: Layers of a group; None to let the shape choose.

        Raises:
            ValueError: Names a field that is missing or has no usable value, layers of
                cross-attention or of an encoder, or a model without attention.
            PageSizeError: Layers with attention keep K/V that no equal pages hold.
            OSError: The file cannot be read.
            TypeError: A field or an argument is of the wrong type.
        """
        return cls.fitting(layers_of(config, dtype, state_dtype), group_size)

    @property
    def kv(self) -> ModelShape:
        """K/V of one layer with attention."""
        found = _kept(self.layers, self.members[table_group(self.groups)]).kv
        assert found is not None
        return found

    @property
    def has_sizes(self) -> bool:
        """Whether a group has a block size of its own."""
        return any(getattr(kind, "block_size", None) is not None for kind in self.groups)

    @property
    def has_states(self) -> bool:
        """Whether a group has states or rings."""
        return any(is_single(kind) for kind in self.groups)

    def place(self, layer: int) -> tuple[int, int]:
        """The group of a layer, and the number of its tensor.

        Args:
            layer: ``[0, len(layers))``.

        Raises:
            ValueError: There is no such layer, or it keeps nothing.
            TypeError: ``layer`` is not an int.
        """
        number = whole("layer", layer, 0, len(self.layers) - 1)
        for group, members in enumerate(self.members):
            if number in members:
                return group, members.index(number)
        raise ValueError(f"layer {number} keeps nothing, so it is in no group")

    def group_layer(self, group: int) -> LayerShape:
        """The layer shape that all layers of a group have.

        Args:
            group: Position in ``groups``.

        Raises:
            ValueError: There is no such group.
            TypeError: ``group`` is not an int.
        """
        number = whole("group", group, 0, len(self.groups) - 1)
        return _kept(self.layers, self.members[number])

    def page_bytes(self, block_size: int) -> int:
        """Bytes of a block in one tensor.

        Args:
            block_size: Tokens per block of the manager, at least 1.

        Raises:
            PageSizeError: The state of a group does not fit, or pages are not equal.
            ValueError: A group's block size does not divide it.
        """
        size = whole("block_size", block_size, 1)
        check_block_sizes(self.groups, size)
        self._check_pages(size)
        lead = self.groups[table_group(self.groups)]
        page = self.kv.bytes_per_block(tokens_per_block(lead, size))
        for number in range(len(self.groups)):
            if problem := self._problem(number, page):
                raise PageSizeError(
                    number,
                    str(self.groups[number]),
                    f"{problem}, at block_size {block_size}; block_size_for() has one that fits",
                )
        return page

    def _problem(self, group: int, page: int) -> str | None:
        """Why the state of a group cannot be stored in pages of so many bytes."""
        layer = self.group_layer(group)
        if layer.state_bytes > page:
            return f"a state of {layer.state_bytes} bytes exceeds a page of {page}"
        for state in layer.states:
            if page % state.dtype.itemsize:
                return f"a page of {page} bytes is no multiple of an element of {state.dtype}"
        return None

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block in all tensors, whichever group has it.

        Args:
            block_size: Tokens per block of the manager, at least 1.

        Raises:
            PageSizeError: The state of a group does not fit, or pages are not equal.
            ValueError: A group's block size does not divide it.
        """
        return self.group_size * self.page_bytes(block_size)

    def block_size_for(self, multiple: int = 16) -> int:
        """The smallest block size of a manager at which the pages of all groups are equal.

        Args:
            multiple: The block size is a multiple of this.

        Raises:
            PageSizeError: There is none: pages are not a multiple of an element of a state.
            ValueError: ``multiple`` is below 1.
            TypeError: ``multiple`` is not an int.
        """
        step = whole("multiple", multiple, 1)
        if self.has_sizes:
            size = math.lcm(step, prefix_granularity(self.groups))
            self.page_bytes(size)
            return size
        token = self.kv.bytes_per_token
        largest = max(self.group_layer(g).state_bytes for g in range(len(self.groups)))
        least = max(step, -(-largest // (token * step)) * step)
        for size in range(least, least + MOST_TRIES * step, step):
            if not any(self._problem(g, size * token) for g in range(len(self.groups))):
                return size
        self.page_bytes(least)
        raise AssertionError  # page_bytes has raised


def _kept(layers: Sequence[LayerShape | None], members: Sequence[int]) -> LayerShape:
    layer = layers[members[0]]
    assert layer is not None  # layers that keep nothing are in no group
    return layer


def _described(kv: ModelShape) -> str:
    if kv.latent_dim is not None:
        return f"{kv.latent_dim} elements a token in {kv.dtype}"
    return f"{kv.num_kv_heads} heads of {kv.head_dim} in {kv.dtype}"


def _group_size(counts: list[int], given: int | None) -> int:
    """The default group size, from the number of layers of each kind."""
    if given is not None:
        return whole("group_size", given, 1, max(counts, default=1))
    if not counts:
        return 1
    few, many = min(counts), max(counts)
    size = many if many < NEARLY_AS_MANY * few else few
    while sum(-(-count // size) for count in counts) > MAX_GROUPS:
        size += 1
    return size
