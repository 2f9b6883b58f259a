"""Finds out what a model needs of attention before its weights load.

``check_config`` builds the model without weights and runs one forward, in which every layer passes
its queries, keys, values and mask to a stand-in. It refuses anything that a paged cache does not
support, and gives the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

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

from blockmgr.ports.transformers.interface import TRIAL, AttentionConfigs, attending
from blockmgr.ports.transformers.past import Past, past_argument
from blockmgr.ports.transformers.try_out import HALF, TryOut
from blockmgr.ports.transformers.weightless import build
from blockmgr.shapes.fields import BOTH, CHUNKED, NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.kv import HybridShape, ModelShape
    from blockmgr.ports.transformers.needs import Needs, Windows

__all__ = ["check_config", "needs_of_config", "needs_of_model"]

# The rotation of a token would depend on the current length of its sequence or of the batch, while
# its key in the cache does not change.
MOVING_ROTATIONS: Final = frozenset({"dynamic", "longrope"})

# The kinds of layers that have been tried, of those that `blockmgr.shapes` knows.
STATE_LAYERS: Final = frozenset({"linear_attention", "conv"})
ATTENTION_LAYERS: Final = frozenset({"full_attention", "sliding_attention", CHUNKED, BOTH})
KNOWN_LAYERS: Final = ATTENTION_LAYERS | STATE_LAYERS | NOTHING
# Layers that read a state from the cache, or may ask it for the number of earlier tokens.
PAST_LAYERS: Final = STATE_LAYERS | {CHUNKED, BOTH}


def check_config(
    config: PretrainedConfig,
    *,
    dtype: torch.dtype | None = None,
    windows: Windows | None = "masks",
) -> ModelShape | HybridShape:
    """The shape of a cache for a model; checks that a paged cache can serve its layers.

    Builds the model without weights, and examines the inputs of attention and the states of each
    layer.

    Args:
        config: Config of a causal language model.
        dtype: Element type of the K/V; by default that of the config.
        windows: ``"groups"``: layers with a window or a chunk keep only the K/V that they read.
            ``"masks"``: they keep the K/V of all tokens. None for groups if a layer has full
            attention, else for masks.

    Returns:
        A ``HybridShape`` if layers keep different things, else a ``ModelShape``.

    Raises:
        UnsupportedModelError: Something is missing here that the model needs.
    """
    return needs_of_config(config, dtype=dtype).shape(windows)


def needs_of_config(config: PretrainedConfig, *, dtype: torch.dtype | None = None) -> Needs:
    """The needs of a model's layers, as found by ``check_config``."""
    model_class = cast(
        "type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    )
    return _checked(config, model_class, AutoModelForCausalLM.from_config, dtype)


def needs_of_model(model: torch.nn.Module) -> Needs:
    """The needs of a loaded model's layers, with the same checks as ``check_config``.

    The trial uses the model's own class, which may differ from the class for its config: a part of
    a larger model, or a class of the caller.

    Args:
        model: A causal language model.

    Raises:
        UnsupportedModelError: Something is missing here that the model needs.
    """
    whole = getattr(model, "_orig_mod", model)  # a compiled model
    config: PretrainedConfig = model.config  # type: ignore[assignment]
    dtype: torch.dtype = model.dtype  # type: ignore[assignment]
    if not isinstance(whole, PreTrainedModel):
        return needs_of_config(config, dtype=dtype)
    if not whole.can_generate():
        raise UnsupportedModelError(config.model_type, f"{type(whole).__name__} does not generate")
    return _checked(config, type(whole), type(whole)._from_config, dtype)


def _checked(
    config: PretrainedConfig,
    model_class: type[PreTrainedModel] | None,
    make: Callable[..., PreTrainedModel],
    dtype: torch.dtype | None,
) -> Needs:
    try:
        text = config.get_text_config()
        missing = _missing_by_config(text) or _missing_by_class(model_class)
    except Exception as error:  # configs may raise when read
        missing = f"its config cannot be read ({type(error).__name__}: {error})"
    if missing is not None:
        raise UnsupportedModelError(config.model_type, missing)
    seen = _try_out(config, text, make)
    stored = config.dtype or torch.float32
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    return seen.needs(dtype or stored)


def _missing_by_config(config: PretrainedConfig) -> str | None:
    """The reasons to refuse a model that its config alone shows."""
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = ", ".join(sorted(kinds - KNOWN_LAYERS))
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
            is_two_way or not getattr(config, "is_causal", True),
            "attention that is not causal is not supported",
        ),
        (
            getattr(config, "num_kv_shared_layers", 0),
            "layers that share another layer's K/V (num_kv_shared_layers) are not supported",
        ),
        (unknown, f"layers of type {unknown} are not supported"),
        (
            kinds and not kinds & ATTENTION_LAYERS,
            "no layer has attention, and a pool needs one with full attention",
        ),
        (moving, f"rotary embedding of type {moving}, which changes with length, is not supported"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def _missing_by_class(model_class: type[PreTrainedModel] | None) -> str | None:
    if model_class is None:
        return "transformers has no causal language model for it"
    # Recurrent models always answer no, whatever their attention does; the trial decides.
    if not model_class._supports_attention_backend and not model_class._is_stateful:
        return "its attention function cannot be chosen (no support for attention backends)"
    return None


def _try_out(
    config: PretrainedConfig, text: PretrainedConfig, make: Callable[..., PreTrainedModel]
) -> TryOut:
    """Runs a forward of two tokens without weights; every layer must attend exactly once."""
    seen = TryOut(config, text)
    try:
        model = build(make, config, HALF)
        tokens = torch.zeros(1, 2, dtype=torch.int64, device="meta")
        last = torch.ones(1, dtype=torch.int64, device="meta")
        arguments = {
            "input_ids": tokens,
            "position_ids": tokens,
            "use_cache": False,
            "logits_to_keep": last,
            "paged_batch": seen,
        }
        if _needs_past(text):
            seen.past = Past(model.config, torch.zeros_like(tokens[0]))
            arguments[past_argument(model)] = seen.past
        else:
            # With an attention mask, no layer looks for padding in tokens without values.
            arguments["attention_mask"] = torch.ones_like(tokens)
        with torch.inference_mode(), attending(AttentionConfigs(model), TRIAL):
            model.eval()(**arguments)
        seen.check_cache(DynamicCache(config=model.config))
        seen.check_layers()
    except UnsupportedModelError:
        raise
    except Exception as error:
        seen.refuse(f"a forward without weights fails ({type(error).__name__}: {error})")
    return seen


def _needs_past(config: PretrainedConfig) -> bool:
    """Whether a forward needs a stand-in for transformers' cache."""
    kinds = set(getattr(config, "layer_types", None) or ())
    # Such layers pass their latents to the cache.
    return bool(PAST_LAYERS & kinds or getattr(config, "kv_lora_rank", None))
