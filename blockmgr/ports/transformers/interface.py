"""transformers' attention interface: the function registered there, and who may use it.

Under the name ``ATTENTION`` transformers finds a function that hands each layer's queries, keys and
values to whatever the forward was given as ``paged_batch``. ``check_config`` gives a forward
without weights something that looks at what it is handed.

Source: ``AttentionInterface`` of transformers 5.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

from blockmgr.errors import MissingExtraError, UnsupportedModelError

try:
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface, AutoModelForCausalLM
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

from blockmgr.kv import ModelShape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["ATTENTION", "Attends", "attention_exchanged", "check_config"]

ATTENTION: Final = "blockmgr"
"""Name of the attention function in transformers' registry."""

# What an attention layer may hand over beside the tensors. Anything else that is set would change
# the result, and is not known here.
KNOWN_ARGUMENTS: Final = frozenset(
    {
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_router_logits",
        "paged_batch",
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


class Attends(Protocol):
    """What a forward is given as ``paged_batch``."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        """The attention of one layer; the tensors are ``[1, heads, num_tokens, head_dim]``.

        Returns:
            ``[num_tokens, heads, head_dim]``.
        """
        ...


def _paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    paged_batch: Attends | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that is registered with transformers."""
    if paged_batch is None:
        raise UnsupportedModelError(
            type(module).__name__, "its attention does not hand on the arguments of a forward"
        )
    if attention_mask is not None:
        raise UnsupportedModelError(
            type(module).__name__, "it masks its attention in a way of its own"
        )
    return paged_batch.attend(module, query, key, value, **options).unsqueeze(0), None


AttentionInterface.register(ATTENTION, _paged_attention)


@contextmanager
def attention_exchanged(config: PretrainedConfig) -> Iterator[None]:
    """Lets a model's attention be ``ATTENTION`` while the block runs, and then what it was."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    before = {
        "": config._attn_implementation,
        **{name: part._attn_implementation for name, part in parts.items() if part is not None},
    }
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def check_config(config: PretrainedConfig, *, dtype: torch.dtype | None = None) -> ModelShape:
    """The shape of a model's K/V, after checking that a paged cache can serve its attention.

    Builds the model without weights and looks at what each layer hands to attention.

    Args:
        config: Of a causal language model.
        dtype: Of the K/V; the config's by default.

    Raises:
        UnsupportedModelError: Something is missing here that the model needs.
    """
    text = config.get_text_config()
    model_class = cast(
        "type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    )
    missing = _missing_by_config(text) or _missing_by_class(model_class)
    if missing is not None:
        raise UnsupportedModelError(config.model_type, missing)
    seen = _try_out(config, text)
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
        self.layers: list[int] = []
        self.heads: tuple[int, int] = (0, 0)  # how many, and their size

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
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
        slides = self._layer_types and self._layer_types[layer] == "sliding_attention"
        if slides and options.get("sliding_window") is None:
            self.refuse(f"layer {layer} slides, but does not hand its window to attention")
        return query[0].transpose(0, 1)

    def refuse(self, missing: str) -> NoReturn:
        raise UnsupportedModelError(self._model_type, missing)


def _try_out(config: PretrainedConfig, text: PretrainedConfig) -> _TryOut:
    """Runs a forward of two tokens without weights; every layer must attend once, plainly."""
    seen = _TryOut(config, text)
    try:
        trial = copy.deepcopy(config)
        # Without a padding token nobody looks for it in tokens that have no values.
        trial.get_text_config().pad_token_id = None
        # Half precision, because the grouped products of expert layers know nothing else there.
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(trial, dtype=torch.bfloat16)
            tokens = torch.zeros(1, 2, dtype=torch.int64)
            last = torch.ones(1, dtype=torch.int64)
        arguments = {"use_cache": False, "logits_to_keep": last, "paged_batch": seen}
        with torch.inference_mode(), attention_exchanged(model.config):
            model.eval()(input_ids=tokens, position_ids=tokens, **arguments)
    except UnsupportedModelError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        seen.refuse(f"a forward without weights fails ({error})")
    if sorted(seen.layers) != list(range(text.num_hidden_layers)):
        seen.refuse(
            f"{len(seen.layers)} of {text.num_hidden_layers} layers keep K/V through attention"
        )
    return seen
