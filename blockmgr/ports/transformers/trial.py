"""What a model asks of attention, found out before its weights load.

``check_config`` builds the model without weights and runs one forward of it, in which every layer
hands its queries, keys, values and mask to a stand-in. Whatever a paged cache does not serve is
refused with a reason.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from blockmgr.errors import MissingExtraError, UnsupportedModelError

try:
    import torch
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        AutoModelForCausalLM,
        DynamicCache,
        PretrainedConfig,
        PreTrainedModel,
    )
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

from blockmgr.kv import ModelShape
from blockmgr.ports.transformers.interface import TRIAL, AttentionConfigs, attending, mask_rule

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_config", "check_model"]

# What an attention layer may hand over beside the tensors. Anything else that is set would change
# the result, and is not known here.
KNOWN_ARGUMENTS: Final = frozenset(
    {
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_router_logits",
        "position_ids",
        "scaling",
        "sliding_window",
        "softcap",
        "use_cache",
    }
)
# The rotation of a token would depend on how long its sequence, or the whole batch, has become,
# while its key stays in the cache.
MOVING_ROTATIONS: Final = frozenset({"dynamic", "longrope"})

FARTHEST: Final = 2**20
"""A mask is looked at up to this distance, and around every number in the config."""


def check_config(config: PretrainedConfig, *, dtype: torch.dtype | None = None) -> ModelShape:
    """The shape of a model's K/V, after checking that a paged cache can serve its attention.

    Builds the model without weights and looks at what each layer hands to attention.

    Args:
        config: Of a causal language model.
        dtype: Of the K/V; the config's by default.

    Raises:
        UnsupportedModelError: Something is missing here that the model needs.
    """
    model_class = cast(
        "type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    )
    return _checked(config, model_class, AutoModelForCausalLM.from_config, dtype)


def check_model(model: torch.nn.Module) -> ModelShape:
    """The shape of a loaded model's K/V, after checking it as ``check_config`` does.

    The trial is made with the model's own class, which may be one that its config does not lead
    to: a part of a larger model, or a class of the caller's.

    Args:
        model: A causal language model.

    Raises:
        UnsupportedModelError: Something is missing here that the model needs.
    """
    whole = getattr(model, "_orig_mod", model)  # of a model in torch.compile
    config: PretrainedConfig = model.config  # type: ignore[assignment]
    dtype: torch.dtype = model.dtype  # type: ignore[assignment]
    if not isinstance(whole, PreTrainedModel):
        return check_config(config, dtype=dtype)
    if not whole.can_generate():
        raise UnsupportedModelError(config.model_type, f"{type(whole).__name__} does not generate")
    return _checked(config, type(whole), type(whole)._from_config, dtype)


def _checked(
    config: PretrainedConfig,
    model_class: type[PreTrainedModel] | None,
    make: Callable[..., PreTrainedModel],
    dtype: torch.dtype | None,
) -> ModelShape:
    try:
        text = config.get_text_config()
        missing = _missing_by_config(text) or _missing_by_class(model_class)
    except Exception as error:  # a config may refuse to be read, as those of unlike layers do
        missing = f"its config cannot be read ({type(error).__name__}: {error})"
    if missing is not None:
        raise UnsupportedModelError(config.model_type, missing)
    seen = _try_out(config, text, make)
    stored = config.dtype or torch.float32
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    return ModelShape(
        num_layers=text.num_hidden_layers,
        num_kv_heads=seen.heads[0],
        head_dim=seen.heads[1],
        dtype=dtype or stored,
    )


def _missing_by_config(config: PretrainedConfig) -> str | None:
    """What the sizes and kinds of layers in a config tell without building anything."""
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = ", ".join(sorted(kinds - {"full_attention", "sliding_attention"}))
    rotations = getattr(config, "rope_parameters", None) or {}
    entries = [rotations, *(each for each in rotations.values() if isinstance(each, dict))]
    moving = ", ".join({str(entry.get("rope_type")) for entry in entries} & MOVING_ROTATIONS)
    is_two_way = getattr(config, "use_bidirectional_attention", False)
    reasons = (
        (
            config.is_encoder_decoder or getattr(config, "add_cross_attention", False),
            "cross attention to an encoder is not supported",
        ),
        (
            getattr(config, "kv_lora_rank", None),
            "multi-head latent attention (kv_lora_rank) is not supported",
        ),
        (
            is_two_way or not getattr(config, "is_causal", True),
            "attention that is not causal is not supported",
        ),
        (
            getattr(config, "num_kv_shared_layers", 0),
            "layers that share another layer's K/V (num_kv_shared_layers) are not supported",
        ),
        (unknown, f"layers of type {unknown} are not supported"),
        (moving, f"rotary embedding of type {moving}, which changes with length, is not supported"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def _missing_by_class(model_class: type[PreTrainedModel] | None) -> str | None:
    if model_class is None:
        return "transformers has no causal language model for it"
    if model_class._is_stateful:
        return "recurrent state beside the K/V (a state space or linear attention) is not supported"
    if not model_class._supports_attention_backend:
        return "its attention function cannot be chosen (no support for attention backends)"
    return None


class _TryOut:
    """Stands in for a batch in a forward without weights, and checks what attention is asked."""

    def __init__(self, config: PretrainedConfig, text: PretrainedConfig) -> None:
        self._model_type = config.model_type
        self._layer_types: list[str] | None = getattr(text, "layer_types", None)
        self._places = _telling_places(text)
        self.layers: list[int] = []
        self.windows: dict[int, int | None] = {}  # by layer, what it hands on
        self.heads: tuple[int, int] = (0, 0)  # how many, and their size

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
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in self.layers:
            self.refuse("an attention layer is without an index, or runs twice")
        self.layers.append(layer)
        if not getattr(module, "is_causal", True):
            self.refuse("attention that is not causal is not supported")
        known = KNOWN_ARGUMENTS
        if unknown := sorted(n for n in set(options) - known if options[n] is not None):
            self.refuse(f"attention with {', '.join(unknown)} is not supported")
        if len(self.layers) == 1:
            self.heads = (key.shape[1], key.shape[3])
        for name, tensor in (("keys", key), ("values", value)):
            if (tensor.shape[1], tensor.shape[3]) != self.heads:
                self.refuse(
                    f"{name} of layer {layer} have {tensor.shape[1]} heads of {tensor.shape[3]}, "
                    f"the first keys {self.heads[0]} of {self.heads[1]}; they must be alike"
                )
        window = self.windows[layer] = options.get("sliding_window")
        slides = self._layer_types and self._layer_types[layer] == "sliding_attention"
        if slides and window is None:
            self.refuse(f"layer {layer} slides, but does not hand its window to attention")
        if mask is not None:
            self._check_mask(layer, mask, window)
        return query[0].transpose(0, 1)

    def _check_mask(self, layer: int, mask: torch.Tensor, window: int | None) -> None:
        """Refuses a mask that is not the one a paged forward applies for this layer."""
        rule = mask_rule(mask)
        if rule is None:
            self.refuse("it masks its attention in a way of its own")
        queries, keys = self._places[:, None], self._places[None, :]
        zero = torch.zeros((), dtype=torch.int64)
        try:
            seen = torch.as_tensor(rule(zero, zero, queries, keys))
            seen = seen.expand(len(queries), len(self._places))
        except Exception as error:
            self.refuse(f"it masks its attention in a way of its own ({error})")
        expected = keys <= queries
        if window is not None:
            expected = expected & (queries - keys < window)
        if torch.equal(seen, expected):
            return
        if torch.equal(seen & expected, seen):
            self.refuse(
                f"the mask of layer {layer} hides tokens by a window or chunk that the layer does "
                "not hand to attention"
            )
        self.refuse(f"the mask of layer {layer} lets tokens see others than those before them")

    def check_cache(self, cache: DynamicCache) -> None:
        """Refuses a model of whose past ``generate`` keeps less than its layers may see."""
        for layer, kept in enumerate(cache.layers):
            keeps, sees = getattr(kept, "sliding_window", None), self.windows.get(layer)
            if keeps is not None and (sees is None or keeps < sees):
                self.refuse(
                    f"its config sets a window of {keeps}, which layer {layer} does not hand to "
                    "attention"
                )

    def refuse(self, missing: str) -> NoReturn:
        raise UnsupportedModelError(self._model_type, missing)


def _telling_places(config: PretrainedConfig) -> torch.Tensor:
    """Positions, sorted, whose distances show a window or chunk of any size that may be meant.

    Returns:
        ``int64[n]``: zero, powers of two, multiples of each number in the config, and neighbours.
    """
    numbers = {2**i for i in range(FARTHEST.bit_length())}
    for value in config.to_dict().values():
        values = value if isinstance(value, list) else [value]
        numbers |= {n for n in values if type(n) is int and 0 < n <= 2**40}
    near = {n * factor + offset for n in numbers for factor in (1, 2) for offset in (-1, 0, 1)}
    return torch.tensor(sorted({0, *near}), dtype=torch.int64)


def _try_out(
    config: PretrainedConfig, text: PretrainedConfig, make: Callable[..., PreTrainedModel]
) -> _TryOut:
    """Runs a forward of two tokens without weights; every layer must attend once, plainly."""
    seen = _TryOut(config, text)
    try:
        # Half precision, because the grouped products of expert layers know nothing else there.
        with torch.device("meta"):
            model = make(copy.deepcopy(config), dtype=torch.bfloat16)
            tokens = torch.zeros(1, 2, dtype=torch.int64)
            last = torch.ones(1, dtype=torch.int64)
        # With a mask of the tokens, no layer looks for padding in tokens without values.
        arguments = {
            "input_ids": tokens,
            "position_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "use_cache": False,
            "logits_to_keep": last,
            "paged_batch": seen,
        }
        with torch.inference_mode(), attending(AttentionConfigs(model), TRIAL):
            model.eval()(**arguments)
        seen.check_cache(DynamicCache(config=model.config))
    except UnsupportedModelError:
        raise
    except Exception as error:
        seen.refuse(f"a forward without weights fails ({type(error).__name__}: {error})")
    if sorted(seen.layers) != list(range(text.num_hidden_layers)):
        seen.refuse(
            f"{len(seen.layers)} of {text.num_hidden_layers} layers keep K/V through attention"
        )
    return seen
