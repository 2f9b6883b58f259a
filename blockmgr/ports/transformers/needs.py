"""The needs of a model's layers, found by a trial, and the cache shape for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from blockmgr.errors import UnsupportedModelError
from blockmgr.groups import ChunkedAttention, FullAttention, RecurrentState, SlidingWindow
from blockmgr.kv import HybridShape, LayerShape, ModelShape

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Needs", "Windows"]

Windows: TypeAlias = Literal["groups", "masks"]
"""Whether layers with a window or chunk keep only what they read, or all with a mask.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a model from a paged cache.

    Attributes:
        model_type: The model type in its config.
        layers: Each layer; None for one without attention or state. For a layer with both, its
            attention; its state follows after all layers.
        asks_length: Whether a layer asks its cache for the number of earlier tokens.
        names: By layer, transformers' names for the tensors of its state: ``"conv"`` or
            ``"recurrent"``, and a number.
        states_of: The layer of each state after all layers.
    """

    model_type: str
    layers: tuple[LayerShape | None, ...]
    asks_length: bool = False
    names: tuple[tuple[tuple[str, int], ...], ...] = ()
    states_of: tuple[int, ...] = ()

    @property
    def state_layers(self) -> tuple[tuple[int, int], ...]:
        """Layers with a state, and its index in ``layers``."""
        first = len(self.layers) - len(self.states_of)
        recurrent = [(i, i) for i, each in enumerate(self.layers[:first]) if each and each.states]
        return (*recurrent, *((layer, first + i) for i, layer in enumerate(self.states_of)))

    @property
    def has_latents(self) -> bool:
        """Whether a layer keeps latents: one vector per token, expanded to K and V."""
        return any(each.kv.latent_dim is not None for each in self.layers if each and each.kv)

    @property
    def has_states(self) -> bool:
        """Whether a layer is recurrent."""
        return any(isinstance(each.kind, RecurrentState) for each in self.layers if each)

    @property
    def chunks(self) -> Mapping[int, int]:
        """By layer, the size of its attention chunks."""
        return {
            i: each.kind.width
            for i, each in enumerate(self.layers)
            if each and isinstance(each.kind, ChunkedAttention)
        }

    def shape(
        self, windows: Windows | None, block_size: int | None = None
    ) -> ModelShape | HybridShape:
        """The shape of a cache for the model.

        Args:
            windows: None for groups if a layer has full attention, else for masks.
            block_size: Tokens per block of the manager, if it is known: where K/V of layers differ,
                their groups have smaller blocks.

        Raises:
            UnsupportedModelError: Groups are requested, or needed for states, and no layer has full
                attention; or groups cannot have equal pages.
        """
        kinds = [each.kind for each in self.layers if each]
        if windows is None:
            windows = "groups" if FullAttention() in kinds else "masks"
        layers = self.layers
        if windows == "masks":
            layers = tuple(map(_keeping_all, layers))
            kinds = [each.kind for each in layers if each]
        if FullAttention() not in kinds:
            raise UnsupportedModelError(
                self.model_type,
                "no layer has full attention, which groups of layers need"
                + ("" if self.has_states else "; windows='masks' keeps all tokens"),
            )
        first = layers[0]
        is_one = len({each.kv for each in layers if each}) == 1
        if is_one and set(kinds) == {FullAttention()} and None not in layers and first and first.kv:
            return dataclasses.replace(first.kv, num_layers=len(layers))
        try:
            return HybridShape.fitting(layers, block_size=block_size)
        except ValueError as error:
            raise UnsupportedModelError(self.model_type, str(error)) from error


def _keeping_all(layer: LayerShape | None) -> LayerShape | None:
    if layer and isinstance(layer.kind, SlidingWindow | ChunkedAttention):
        return dataclasses.replace(layer, kind=FullAttention())
    return layer
