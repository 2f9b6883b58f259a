"""What the layers of a model read and keep, as a trial has shown, and the shape for them."""

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
"""Layers with a window or chunk keep what they read, in groups; or all, and a mask hides the rest.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model needs of a paged cache.

    Attributes:
        model_type: As its config names it.
        layers: What each layer reads and keeps; None for one without attention or state. Of a
            layer with both, what its attention keeps; its state comes after all layers.
        asks_length: Whether a layer asks its cache how many tokens came before.
        names: By layer, what the tensors of its state are to transformers: ``"conv"`` or
            ``"recurrent"``, and a number.
        states_of: Of each state after all layers, whose it is.
        sinks: Whether a layer has a score beside those of its tokens, whose weight goes to none.
    """

    model_type: str
    layers: tuple[LayerShape | None, ...]
    asks_length: bool = False
    names: tuple[tuple[tuple[str, int], ...], ...] = ()
    states_of: tuple[int, ...] = ()
    sinks: bool = False

    @property
    def state_layers(self) -> tuple[tuple[int, int], ...]:
        """Layers with a state, and which of ``layers`` it is."""
        first = len(self.layers) - len(self.states_of)
        recurrent = [(i, i) for i, each in enumerate(self.layers[:first]) if each and each.states]
        return (*recurrent, *((layer, first + i) for i, layer in enumerate(self.states_of)))

    @property
    def special(self) -> str | None:
        """What only torch's own attention serves here; None for plain attention."""
        reasons = (
            (self.chunks, "attention in chunks"),
            (self.sinks, "attention sinks"),
            (self.has_latents, "latent attention"),
        )
        return next((reason for applies, reason in reasons if applies), None)

    @property
    def has_latents(self) -> bool:
        """Whether a layer keeps one vector a token, of which it makes its K and V."""
        return any(each.kv.latent_dim is not None for each in self.layers if each and each.kv)

    @property
    def has_states(self) -> bool:
        """Whether a layer is recurrent."""
        return any(isinstance(each.kind, RecurrentState) for each in self.layers if each)

    @property
    def chunks(self) -> Mapping[int, int]:
        """By layer, the size of the chunks that it attends within."""
        return {
            i: each.kind.width
            for i, each in enumerate(self.layers)
            if each and isinstance(each.kind, ChunkedAttention)
        }

    def shape(self, windows: Windows | None) -> ModelShape | HybridShape:
        """The shape of a cache for the model.

        Args:
            windows: None for groups if a layer has full attention, else for masks.

        Raises:
            UnsupportedModelError: Groups are asked for, or needed for states, and no layer has
                full attention; or groups cannot have equal pages.
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
        if set(kinds) == {FullAttention()} and None not in layers and first and first.kv:
            return dataclasses.replace(first.kv, num_layers=len(layers))
        try:
            return HybridShape(layers)
        except ValueError as error:
            raise UnsupportedModelError(self.model_type, str(error)) from error


def _keeping_all(layer: LayerShape | None) -> LayerShape | None:
    if layer and isinstance(layer.kind, SlidingWindow | ChunkedAttention):
        return dataclasses.replace(layer, kind=FullAttention())
    return layer
