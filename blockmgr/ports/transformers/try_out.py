"""The stand-in for a batch in a trial, which records the needs of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from blockmgr.errors import MissingExtraError, UnsupportedModelError

try:
    import torch
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

from blockmgr.groups import (
    ChunkedAttention,
    FullAttention,
    Group,
    RecurrentState,
    SlidingWindow,
)
from blockmgr.kv import LayerShape, ModelShape, StateTensor
from blockmgr.ports.transformers.interface import mask_rule
from blockmgr.ports.transformers.latents import is_latent, latents_of
from blockmgr.ports.transformers.needs import Needs
from blockmgr.shapes.fields import CHUNKED, NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig
    from transformers.cache_utils import Cache

    from blockmgr.ports.transformers.past import Past

__all__ = ["HALF", "SINKS", "TryOut"]

SINKS: Final = "s_aux"
"""Name of the argument with the attention sinks, one score per head."""

# Arguments that an attention layer may pass besides the tensors. Any other argument could change
# the result in an unknown way.
KNOWN_ARGUMENTS: Final = frozenset(
    {
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_router_logits",
        "position_ids",
        SINKS,
        "scaling",
        "sliding_window",
        "softcap",
        "use_cache",
    }
)

HALF: Final = torch.bfloat16
"""Element type of a trial: grouped products of expert layers support no other one there."""

FARTHEST: Final = 2**20
"""Masks are checked up to this distance, and around every number in the config."""


class TryOut:
    """Replaces a batch in a forward without weights, and checks the calls of attention."""

    def __init__(self, config: PretrainedConfig, text: PretrainedConfig) -> None:
        self._model_type = config.model_type
        self._layer_types: list[str] | None = getattr(text, "layer_types", None)
        self._places = _telling_places(text)
        self._chunk: int | None = getattr(text, "attention_chunk_size", None)
        self._num_layers: int = text.num_hidden_layers
        self.layers: list[int] = []
        self.kinds: dict[int, Group] = {}  # by layer with attention, its group
        self.heads: dict[int, tuple[int, int]] = {}  # by layer, number and size of K/V heads
        self.latents: dict[int, int] = {}  # by layer with latents, their size
        self.past: Past | None = None

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        mask: torch.Tensor | None,
        **options: Any,
    ) -> torch.Tensor:
        """Checks the arguments of one layer; see ``Attends``."""
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in self.layers:
            self.refuse("an attention layer is without an index, or runs twice")
        self.layers.append(layer)
        if not getattr(module, "is_causal", True):
            self.refuse("attention that is not causal is not supported")
        known = KNOWN_ARGUMENTS
        if unknown := sorted(n for n in set(options) - known if options[n] is not None):
            self.refuse(f"attention with {', '.join(unknown)} is not supported")
        if (sinks := options.get(SINKS)) is not None:
            self._check_sinks(layer, sinks, query, options)
        if self.past is not None and is_latent(module):
            self._check_latents(module, layer, key, value)
        else:
            self._check_heads(layer, key, value)
        kind = self.kinds[layer] = self._kind(layer, options.get("sliding_window"))
        if mask is not None:
            self._check_mask(layer, mask, kind)
        return query.new_empty(query.shape[2], query.shape[1], value.shape[3])

    def _check_heads(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        heads, size = self.heads[layer] = (key.shape[1], key.shape[3])
        if (value.shape[1], value.shape[3]) != (heads, size):
            self.refuse(
                f"values of layer {layer} have {value.shape[1]} heads of {value.shape[3]}, "
                f"its keys {heads} of {size}; they must be alike"
            )

    def _check_sinks(
        self, layer: int, sinks: torch.Tensor, query: torch.Tensor, options: dict[str, Any]
    ) -> None:
        if not isinstance(sinks, torch.Tensor) or sinks.shape != (query.shape[1],):
            self.refuse(f"the sinks of layer {layer} are not one score for each of its heads")
        if options.get("softcap") is not None:
            self.refuse("attention sinks beside scores that are capped are not supported")

    def _check_latents(
        self, module: torch.nn.Module, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Refuses a layer whose K and V do not have the shapes that its latents expand to."""
        assert self.past is not None
        latents, expand = latents_of(module, self.past)
        found = expand(latents.transpose(0, 1)[None])
        if [each.shape for each in found] != [key.shape, value.shape]:
            self.refuse(f"layer {layer} attends to other K/V than its latents expand to")
        self.latents[layer] = latents.shape[-1]

    def _kind(self, layer: int, window: int | None) -> Group:
        named = self._layer_types[layer] if self._layer_types else ""
        if named == "sliding_attention" and window is None:
            self.refuse(f"layer {layer} slides, but does not hand its window to attention")
        if window is not None:
            return SlidingWindow(window)
        if named == CHUNKED and self._chunk is not None:
            return ChunkedAttention(self._chunk)
        return FullAttention()

    def _check_mask(self, layer: int, mask: torch.Tensor, kind: Group) -> None:
        """Refuses a mask that differs from the one a paged forward applies in this layer."""
        rule = mask_rule(mask)
        if rule is None:
            self.refuse("it uses an attention mask of its own")
        queries, keys = self._places[:, None], self._places[None, :]
        zero = torch.zeros((), dtype=torch.int64)
        try:
            with _Unpadded():
                seen = torch.as_tensor(rule(zero, zero, queries, keys))
            seen = seen.expand(len(queries), len(self._places))
        except Exception as error:
            self.refuse(f"it uses an attention mask of its own ({error})")
        expected = keys <= queries
        if isinstance(kind, SlidingWindow):
            expected = expected & (queries - keys < kind.width)
        if isinstance(kind, ChunkedAttention):
            expected = expected & (queries // kind.width == keys // kind.width)
        if torch.equal(seen, expected):
            return
        if torch.equal(seen & expected, seen):
            self.refuse(
                f"the mask of layer {layer} hides tokens by a window or chunk that the layer does "
                "not hand to attention"
            )
        self.refuse(f"the mask of layer {layer} lets tokens see others than those before them")

    def check_cache(self, cache: Cache) -> None:
        """Refuses a model for which ``generate`` keeps fewer tokens than its layers may see."""
        for layer, kept in enumerate(cache.layers):
            keeps = getattr(kept, "sliding_window", None)
            sees = getattr(self.kinds.get(layer), "width", None)
            if keeps is not None and (sees is None or keeps < sees):
                self.refuse(
                    f"its config sets a window of {keeps}, which layer {layer} does not hand to "
                    "attention"
                )

    def check_layers(self) -> None:
        """Refuses a model with a layer that has neither attention nor a state."""
        if not self.layers:
            self.refuse("no layer has attention, and a pool needs one with full attention")
        keep = [i for i in range(self._num_layers) if self._states(i)]
        silent = [i for i in range(self._num_layers) if i not in (*self.layers, *keep)]
        empty = [i for i, name in enumerate(self._layer_types or ()) if name in NOTHING]
        if set(silent) - set(empty) or set(self.layers) - set(range(self._num_layers)):
            self.refuse(
                f"{len(self.layers)} of {self._num_layers - len(keep) - len(empty)} layers keep "
                "K/V through attention"
            )

    def _states(self, layer: int) -> list[torch.Tensor]:
        return [] if self.past is None else self.past.states(layer)

    def needs(self, dtype: torch.dtype) -> Needs:
        """The needs found.

        Args:
            dtype: Element type of the K/V.
        """
        states = [self._state(i, dtype) for i in range(self._num_layers)]
        both = tuple(i for i, state in enumerate(states) if state and i in self.kinds)
        layers = [
            self._attention(i, dtype) if i in self.kinds else state
            for i, state in enumerate(states)
        ]
        names: tuple[tuple[tuple[str, int], ...], ...] = ()
        if self.past is not None:
            names = tuple(tuple(self.past.names(i)) for i in range(self._num_layers))
        return Needs(
            model_type=self._model_type,
            layers=(*layers, *(states[i] for i in both)),
            asks_length=self.past is not None and self.past.asked,
            names=names,
            states_of=both,
        )

    def _attention(self, layer: int, dtype: torch.dtype) -> LayerShape:
        heads, size = self.heads.get(layer, (1, 1))
        latent = self.latents.get(layer)
        kv = ModelShape(
            num_layers=1,
            num_kv_heads=heads if latent is None else 1,
            head_dim=latent or size,
            dtype=dtype,
            latent_dim=latent,
        )
        return LayerShape(kind=self.kinds[layer], kv=kv)

    def _state(self, layer: int, dtype: torch.dtype) -> LayerShape | None:
        # States of the trial's type follow the requested type; others keep theirs.
        kept = tuple(
            StateTensor(tuple(state.shape[1:]), dtype if state.dtype == HALF else state.dtype)
            for state in self._states(layer)
        )
        return LayerShape(kind=RecurrentState(), states=kept) if kept else None

    def refuse(self, missing: str) -> NoReturn:
        """Raises an ``UnsupportedModelError``."""
        raise UnsupportedModelError(self._model_type, missing)


class _Unpadded(TorchFunctionMode):
    """Makes tensors without values act as zeros: padding at the start of chunks."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        args = tuple(_zeros_for(each) for each in args)
        return func(*args, **(kwargs or {}))


def _zeros_for(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_meta:
        return torch.zeros(value.shape, dtype=value.dtype)
    return value


def _telling_places(config: PretrainedConfig) -> torch.Tensor:
    """Sorted positions whose distances reveal a window or chunk of any plausible size.

    Returns:
        ``int64[n]``: zero, powers of two, multiples of each number in the config, and neighbours.
    """
    numbers = {2**i for i in range(FARTHEST.bit_length())}
    for value in config.to_dict().values():
        values = value if isinstance(value, list) else [value]
        numbers |= {n for n in values if type(n) is int and 0 < n <= 2**40}
    near = {n * factor + offset for n in numbers for factor in (1, 2) for offset in (-1, 0, 1)}
    return torch.tensor(sorted({0, *near}), dtype=torch.int64)
