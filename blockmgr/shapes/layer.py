"""One layer of a model: what it reads, and what it keeps in a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.arguments import whole
from blockmgr.groups import Group, is_single
from blockmgr.shapes.elements import check_dtype
from blockmgr.shapes.model import ModelShape

if TYPE_CHECKING:
    import torch

__all__ = ["LayerShape", "StateTensor"]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of the state of a recurrent layer.

    Attributes:
        shape: Shape for one sequence.
        dtype: Element type.

    Raises:
        ValueError: A length is below 1, or the shape is empty.
        TypeError: A value is of the wrong type.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        lengths = tuple(whole(f"shape[{i}]", n, 1) for i, n in enumerate(self.shape))
        if not lengths:
            raise ValueError("shape must have at least one axis")
        object.__setattr__(self, "shape", lengths)
        check_dtype(self.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes for one sequence."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer: what it reads, and what it keeps in a block.

    Attributes:
        kind: ``FullAttention()``, ``SlidingWindow(w)``, ``ChunkedAttention(w)``,
            ``RecurrentState()`` or ``Ring(w)``.
        kv: K/V of a layer with attention, with ``num_layers=1``; None for a recurrent one.
        states: Tensors of the state of a recurrent layer, or of a ring; empty for attention.

    Raises:
        ValueError: ``kv`` and ``states`` do not fit the kind.
        TypeError: A value is of the wrong type.
    """

    kind: Group
    kv: ModelShape | None = None
    states: tuple[StateTensor, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.kind, Group):
            raise TypeError(f"kind must be a group of layers, got {self.kind!r}")
        object.__setattr__(self, "states", tuple(self.states))
        for state in self.states:
            if not isinstance(state, StateTensor):
                raise TypeError(f"states must be StateTensor objects, got {state!r}")
        recurrent = is_single(self.kind)
        if recurrent and (self.kv is not None or not self.states):
            raise ValueError(f"a layer of {self.kind} must have states and no kv")
        if not recurrent and (not isinstance(self.kv, ModelShape) or self.states):
            raise ValueError(f"a layer of {self.kind} must have a ModelShape as kv, and no states")
        if self.kv is not None and self.kv.num_layers != 1:
            raise ValueError(f"kv must be of one layer, got num_layers {self.kv.num_layers}")

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, including padding for alignment; 0 for attention."""
        return self.state_offsets()[-1]

    def state_offsets(self) -> tuple[int, ...]:
        """Byte offsets in the page of each tensor of a state, and the end of the last one.

        Each begins at a multiple of its element size.
        """
        ends = [0]
        offsets = []
        for state in self.states:
            size = state.dtype.itemsize
            offsets.append(-(-ends[-1] // size) * size)
            ends.append(offsets[-1] + state.num_bytes)
        return (*offsets, ends[-1])
