"""The layers of a hybrid model, from a Hugging Face style config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import text, whole
from blockmgr.groups import (
    ChunkedAttention,
    FullAttention,
    Group,
    RecurrentState,
    SlidingWindow,
    is_single,
)
from blockmgr.shapes.elements import torch_dtype
from blockmgr.shapes.fields import (
    BOTH,
    CHUNKED,
    DTYPE,
    FULL,
    NOTHING,
    OTHER_LAYERS,
    SLIDING,
    STATES,
    Config,
    ConfigFields,
    listed_kinds,
)
from blockmgr.shapes.layer import LayerShape, StateTensor
from blockmgr.shapes.model import ModelShape, kv_of, whole_context_kv

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["layers_of"]

# Families in which every layer has both; other families use the name for something else.
BOTH_IN_EACH = ("falcon_h1",)

# Period of the layers with full attention, for families whose configs do not have it.
PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}

# Letters of Nemotron-H's hybrid_override_pattern.
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

CROSS_ATTENTION = ("is_encoder_decoder", "add_cross_attention", "cross_attention_layers")


def layers_of(
    config: Config, dtype: torch.dtype | None, state_dtype: torch.dtype | None
) -> list[LayerShape | None]:
    """The layers of a model, for ``HybridShape.from_config``."""
    fields = ConfigFields(config)
    model = text("model_type", fields.get("model_type") or "config")
    for name in CROSS_ATTENTION:
        if value := fields.get(name):
            raise ValueError(
                f"{model} has {name} {value!r}: there is no group of cross-attention or of an"
                " encoder, since its blocks are no prefix of anything"
            )
    kept = dtype if dtype is not None else torch_dtype(fields.get(*DTYPE))
    kept_state = state_dtype if state_dtype is not None else torch_dtype("float32")
    kinds = _kinds(fields)
    if all(kind is None or is_single(kind) for kind in kinds):
        named = ", ".join(dict.fromkeys(str(kind) for kind in kinds if kind is not None))
        raise ValueError(
            f"{model} has no layer with attention, whose K/V pages are made for: {named}"
        )
    return [
        None if kind is None else _layer(fields.layer(i), kind, kept, kept_state)
        for i, kind in enumerate(kinds)
    ]


def _layer(
    fields: ConfigFields, kind: Group, dtype: torch.dtype, state_dtype: torch.dtype
) -> LayerShape:
    if isinstance(kind, RecurrentState):
        return LayerShape(kind=kind, states=_states(fields, dtype, state_dtype))
    return LayerShape(kind=kind, kv=_kv(fields, kind, dtype))


def _kinds(fields: ConfigFields) -> list[Group | None]:
    """Each layer, or None if it keeps nothing; then the states of layers with attention."""
    num_layers = fields.num_layers()
    names = _names(fields, num_layers)
    shared = fields.get("num_kv_shared_layers") or 0  # the last layers read the K/V of earlier ones
    last = num_layers - whole("num_kv_shared_layers", shared, 0, num_layers - 1)
    if len(names) < num_layers:
        raise ValueError(f"config names {len(names)} layers, there are {num_layers}")
    names = names[:num_layers]
    kinds = [_kind(fields.layer(i), name) if i < last else None for i, name in enumerate(names)]
    if fields.get("model_type") in BOTH_IN_EACH:
        kinds += [RecurrentState()] * names.count(BOTH)
    return kinds


def _kind(fields: ConfigFields, name: str) -> Group | None:
    if name in FULL or (name == BOTH and fields.get("model_type") in BOTH_IN_EACH):
        return FullAttention()
    if name in SLIDING:
        return SlidingWindow(fields.size("sliding_window", "sliding_window_size"))
    if name == CHUNKED:
        return ChunkedAttention(fields.size("attention_chunk_size"))
    if name in STATES:
        return RecurrentState()
    if name in NOTHING:
        return None
    raise ValueError(
        f"config names a layer {name!r}, for which there is no group; give a HybridShape"
    )


def _names(fields: ConfigFields, num_layers: int) -> list[str]:
    """The kind of each layer in the words of ``layer_types``."""
    if fields.get("model_type") in BOTH_IN_EACH:
        return [BOTH] * num_layers
    if (listed := listed_kinds(fields, "layer_types", "layers_block_type")) is not None:
        return listed
    if (letters := fields.get("hybrid_override_pattern")) is not None:
        pattern = text("hybrid_override_pattern", letters)
        return [LETTERS.get(letter, letter) for letter in pattern]
    is_full, other = _rule(fields, num_layers)
    return ["full_attention" if is_full(i) else other for i in range(num_layers)]


def _rule(fields: ConfigFields, num_layers: int) -> tuple[Callable[[int], bool], str]:
    """Which layers have full attention, and the kind of the others."""
    if (indices := fields.get("attn_layer_indices")) is not None:
        full = set(_numbers("attn_layer_indices", indices))
        return (lambda i: i in full), "mamba"
    if (period := fields.get("attn_layer_period")) is not None:
        period = whole("attn_layer_period", period, 1)
        offset = whole("attn_layer_offset", fields.need("attn_layer_offset"), 0)
        return (lambda i: i % period == offset), "mamba"
    if (interval := fields.get("full_attention_interval")) is not None:
        return _every("full_attention_interval", interval), "linear_attention"
    if unknown := [name for name in OTHER_LAYERS if fields.get(name) is not None]:
        raise ValueError(
            f"{unknown[0]} of the config says which layers keep K/V in a way that is not known;"
            " give a HybridShape"
        )
    if fields.get("attention_chunk_size") is not None:
        return _unchunked(fields, num_layers), CHUNKED
    if fields.get("sliding_window") is None or fields.get("use_sliding_window") is False:
        return (lambda i: True), "full_attention"
    given = fields.get("sliding_window_pattern")
    pattern = PATTERNS.get(fields.get("model_type") or "", 0) if given is None else given
    return _every("sliding_window_pattern", pattern), "sliding_attention"


def _unchunked(fields: ConfigFields, num_layers: int) -> Callable[[int], bool]:
    """The layers without rotary positions, which read the whole context."""
    if not (given := fields.get("no_rope_layers")):
        return _every("no_rope_layer_interval", fields.get("no_rope_layer_interval") or 4)
    chunked = _numbers("no_rope_layers", given)
    if len(chunked) < num_layers:
        raise ValueError(
            f"no_rope_layers of the config has {len(chunked)} layers, there are {num_layers}"
        )
    return lambda i: not chunked[i]


def _every(name: str, interval: object) -> Callable[[int], bool]:
    """The period of such layers; 0 for none."""
    period = whole(name, interval, 0)
    return lambda i: period > 0 and (i + 1) % period == 0


def _numbers(name: str, listed: object) -> list[int]:
    """The whole numbers of a field that lists them."""
    if not isinstance(listed, list | tuple):
        raise TypeError(f"{name} of the config must be a list of numbers, got {listed!r}")
    return [whole(name, number, 0) for number in listed]


def _kv(fields: ConfigFields, kind: Group, dtype: torch.dtype) -> ModelShape:
    usual = kv_of(fields, dtype, 1)
    return whole_context_kv(fields, usual) if isinstance(kind, FullAttention) else usual


def _states(
    fields: ConfigFields, dtype: torch.dtype, state_dtype: torch.dtype
) -> tuple[StateTensor, ...]:
    """The state of one layer, from the fields of its family."""
    for names, read in FAMILIES:
        if all(fields.get(*alike) is not None for alike in names):
            conv, *states = read(fields)
            return (
                StateTensor(conv, dtype),
                *(StateTensor(state, state_dtype) for state in states),
            )
    raise ValueError(
        f"{fields.get('model_type') or 'config'} has recurrent layers whose state is not known;"
        " give a HybridShape"
    )


Sizes = tuple[tuple[int, ...], ...]

MAMBA_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
MAMBA_HEAD_DIM = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
MAMBA_STATE = ("mamba_d_state", "ssm_state_size")
MAMBA_GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")
MAMBA_CONV = ("mamba_d_conv", "conv_kernel")


def _gated_delta(fields: ConfigFields) -> Sizes:
    """Qwen3-Next and Olmo Hybrid."""
    heads, values = (fields.size(f"linear_num_{kind}_heads") for kind in ("key", "value"))
    key_dim, value_dim = (fields.size(f"linear_{kind}_head_dim") for kind in ("key", "value"))
    channels = 2 * heads * key_dim + values * value_dim
    return (channels, fields.size("linear_conv_kernel_dim")), (values, key_dim, value_dim)


def _mamba_2(fields: ConfigFields) -> Sizes:
    """Bamba, Granite 4, Nemotron-H and Falcon-H1."""
    heads, states = fields.size(*MAMBA_HEADS), fields.size(*MAMBA_STATE)
    wide = fields.get(*MAMBA_HEAD_DIM)
    if wide in (None, "auto"):
        wide = fields.size("mamba_expand") * fields.size("hidden_size") // heads
    size = whole(MAMBA_HEAD_DIM[0], wide, 1)
    channels = heads * size + 2 * fields.size(*MAMBA_GROUPS) * states
    return (channels, fields.size(*MAMBA_CONV)), (heads, size, states)


def _mamba_1(fields: ConfigFields) -> Sizes:
    """Jamba."""
    channels = fields.size("mamba_expand") * fields.size("hidden_size")
    return (channels, fields.size("mamba_d_conv")), (channels, fields.size("mamba_d_state"))


def _convolution(fields: ConfigFields) -> Sizes:
    """LFM2."""
    return ((fields.size("hidden_size"), fields.size("conv_L_cache")),)


Names = tuple[tuple[str, ...], ...]
FAMILIES: tuple[tuple[Names, Callable[[ConfigFields], Sizes]], ...] = (
    ((("linear_num_value_heads",), ("linear_key_head_dim",)), _gated_delta),
    ((MAMBA_HEADS, MAMBA_STATE), _mamba_2),
    ((("mamba_d_state",), ("mamba_expand",)), _mamba_1),
    ((("conv_L_cache",),), _convolution),
)
"""Fields that identify a family of recurrent layers, under any of their names, with its reader."""
