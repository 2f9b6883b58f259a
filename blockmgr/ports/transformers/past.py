"""A stand-in for transformers' own cache in a forward.

K/V does not pass through it. A layer with attention passes its K/V to the attention function, which
writes it to the blocks; a recurrent layer reads its state here and stores the next one.

Source: ``Cache`` and ``LinearAttentionLayer`` of transformers 5.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from blockmgr.errors import MissingExtraError

try:
    from transformers import DynamicCache
    from transformers.cache_utils import (
        Cache,
        CacheLayerMixin,
        LinearAttentionCacheLayerMixin,
        LinearAttentionLayer,
    )
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from transformers import PretrainedConfig

__all__ = ["Past", "past_argument"]


def past_argument(model: torch.nn.Module) -> str:
    """The name of the cache argument of a model's forward.

    It is ``cache`` since transformers 5.24, and ``past_key_values`` in earlier versions.
    """
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


class _Attention(CacheLayerMixin):
    """The cache of a layer with attention, whose K/V is elsewhere.

    Attributes:
        handed: The last tensors that the layer passed: K and V, or two parts of latents.
    """

    is_compileable = False
    is_sliding = False

    def __init__(self, past: torch.Tensor | int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._past = past
        self.asked = False
        self.handed: tuple[torch.Tensor, torch.Tensor] | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del args, kwargs
        self.handed = key_states, value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        self.asked = True
        return self._past  # type: ignore[return-value]  # a tensor too: see Past

    def get_max_length(self) -> int:
        return -1


class _Mixed(LinearAttentionLayer, _Attention):  # type: ignore[override]
    """The cache of a layer with attention and a state; only its K/V is elsewhere."""

    is_compileable = False

    def __init__(self, past: torch.Tensor | int, number_of_states: int) -> None:
        _Attention.__init__(self, past)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Creates a state, passed by name; does nothing for K/V."""
        if kwargs:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)


class Past(Cache):
    """The cache of one forward.

    Args:
        config: Config of the model.
        past: Number of tokens before the first one of the forward. For concatenated sequences, a
            tensor with one number per token: the difference between its position and its index.
    """

    def __init__(self, config: PretrainedConfig, past: torch.Tensor | int = 0) -> None:
        layers = DynamicCache(config=config).layers
        super().__init__(layers=[_stand_in(layer, past) for layer in layers])

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Used only for masks in a trial."""
        del layer_idx
        return 0

    @property
    def asked(self) -> bool:
        """Whether a layer has asked for the number of earlier tokens."""
        return any(getattr(layer, "asked", False) for layer in self.layers)

    def handed(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The tensors that a layer with attention passed in this forward.

        Returns:
            ``[rows, heads, tokens, size]`` twice: K and V, or latents with one head; None if it has
            not passed any.
        """
        found: tuple[torch.Tensor, torch.Tensor] | None
        found = getattr(self.layers[layer], "handed", None)
        return found

    def states(self, layer: int) -> list[torch.Tensor]:
        """The tensors of the state of a layer; empty for one that has none."""
        return [tensors[i] for tensors, i in self._places(layer)]

    def load(
        self, layer: int, states: Sequence[torch.Tensor], names: Sequence[tuple[str, int]]
    ) -> None:
        """Sets the state from which a recurrent layer continues.

        Args:
            layer: Index of the layer.
            states: ``[num_seqs, ...]``, which the forward may write to.
            names: Names of the tensors, as in ``names`` of a cache after a forward.
        """
        into: Any = self.layers[layer]
        for (name, i), state in zip(names, states, strict=True):
            getattr(into, f"{name}_states")[i] = state
            getattr(into, f"is_{name}_states_initialized")[i] = True
            into.has_previous_state[i] = True
            into.dtype, into.device = state.dtype, state.device
            if name == "conv":
                into.conv_kernel_size[i] = state.shape[-1]

    def names(self, layer: int) -> list[tuple[str, int]]:
        """The names of the tensors of ``states``: convolutions and recurrences, by number."""
        return [
            (name, i)
            for name in ("conv", "recurrent")
            for i, tensor in getattr(self.layers[layer], f"{name}_states", {}).items()
            if tensor is not None
        ]

    def _places(self, layer: int) -> list[tuple[dict[int, torch.Tensor], int]]:
        at = self.layers[layer]
        return [(getattr(at, f"{name}_states"), i) for name, i in self.names(layer)]


def _stand_in(layer: Any, past: torch.Tensor | int) -> Any:
    """The stand-in for a layer of transformers' cache."""
    if not _is_recurrent(layer):
        return _Attention(past)
    return _Mixed(past, layer.number_of_states) if _attends(layer) else layer


def _is_recurrent(layer: object) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def _attends(layer: object) -> bool:
    return isinstance(layer, CacheLayerMixin)
