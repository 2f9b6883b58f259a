"""Groups of layers and pages of equal size, from the configs of hybrid models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    FullAttention,
    PageSizeError,
    RecurrentState,
    SlidingWindow,
)
from blockmgr.kv import HybridShape, LayerShape, ModelShape, StateTensor, num_blocks_for

FULL, STATE = FullAttention(), RecurrentState()
BF16, F32 = torch.bfloat16, torch.float32

GEMMA_3_12B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "hidden_size": 3840,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "torch_dtype": "bfloat16",
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "torch_dtype": "bfloat16",
}
LLAMA_4_SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 5120,
        "attention_chunk_size": 8192,
        "no_rope_layers": [],
    },
    "torch_dtype": "bfloat16",
}
QWEN_3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "torch_dtype": "bfloat16",
}
JAMBA_MINI = {
    "model_type": "jamba",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "torch_dtype": "bfloat16",
}
BAMBA_9B = {
    "model_type": "bamba",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "attn_layer_indices": [9, 18, 27],
    "mamba_d_conv": 4,
    "mamba_d_head": "auto",
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "torch_dtype": "bfloat16",
}
NEMOTRON_H_8B = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "conv_kernel": 4,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "n_groups": 8,
    "ssm_state_size": 128,
    "torch_dtype": "bfloat16",
}
MISTRAL = {
    "model_type": "mistral",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
}
FALCON_MAMBA = {
    "model_type": "falcon_mamba",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "layer_types": ["linear_attention"] * 4,
    "torch_dtype": "bfloat16",
}

MODELS: list[tuple[dict[str, Any], int, list[Any], int]] = [
    (GEMMA_3_12B, 8, [FULL, *[SlidingWindow(1024)] * 5], 16),
    (GPT_OSS_20B, 12, [FULL, SlidingWindow(128)], 16),
    (LLAMA_4_SCOUT, 12, [FULL, *[ChunkedAttention(8192)] * 3], 16),
    (QWEN_3_NEXT, 12, [FULL, *[STATE] * 3], 1056),
    (JAMBA_MINI, 4, [FULL, *[STATE] * 7], 144),
    (BAMBA_9B, 3, [FULL, *[STATE] * 10], 1056),
    (NEMOTRON_H_8B, 4, [FULL, *[STATE] * 6], 1056),
    (MISTRAL | {"use_sliding_window": False}, 4, [FULL], 16),
    (MISTRAL, 4, [SlidingWindow(4096)], 16),
]
KV = ModelShape(num_layers=1, num_kv_heads=2, head_dim=8, dtype=BF16)
STATEFUL = LayerShape(kind=STATE, states=(StateTensor((3,), BF16),))


def attention(kind: Any, kv: ModelShape = KV) -> LayerShape:
    return LayerShape(kind=kind, kv=kv)


@pytest.mark.parametrize(
    ("config", "size", "groups", "block_size"),
    MODELS,
    ids=[f"{config['model_type']} {groups[0]}" for config, _, groups, _ in MODELS],
)
def test_groups_and_the_block_size_that_makes_pages_equal(
    config: dict[str, Any], size: int, groups: list[Any], block_size: int
) -> None:
    shape = HybridShape.from_config(config)
    assert shape.group_size == size
    assert list(shape.groups) == groups
    assert shape.block_size_for() == block_size
    page = shape.page_bytes(block_size)
    states = [shape.group_layer(g).state_bytes for g in range(len(groups))]
    assert max(states) <= page
    if block_size > 16:
        with pytest.raises(PageSizeError, match=r"group 1, RecurrentState\(\): a state of"):
            shape.page_bytes(block_size - 16)
    assert num_blocks_for(10 * page * size + 1, shape, block_size) == 10
    BlockManager(64, block_size, groups=shape.groups, null_block=True)


def test_every_layer_that_keeps_something_is_in_one_group() -> None:
    shape = HybridShape.from_config(NEMOTRON_H_8B)
    letters = NEMOTRON_H_8B["hybrid_override_pattern"]
    kept = [i for i, letter in enumerate(letters) if letter != "-"]
    assert sorted(layer for members in shape.members for layer in members) == kept
    for layer in kept:
        group, tensor = shape.place(layer)
        assert shape.members[group][tensor] == layer
        assert isinstance(shape.groups[group], RecurrentState) == (letters[layer] == "M")
    with pytest.raises(ValueError, match="layer 1 keeps nothing"):
        shape.place(1)


def test_states_in_the_type_of_vllm_take_its_block_size() -> None:
    """vLLM 0.33 keeps Qwen3-Next's states in the model's type, and lays out blocks of 544."""
    assert HybridShape.from_config(QWEN_3_NEXT, state_dtype=BF16).block_size_for() == 544


def test_a_config_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_3_NEXT))
    assert HybridShape.from_config(tmp_path) == HybridShape.from_config(QWEN_3_NEXT)
    in_half = HybridShape.from_config(tmp_path, torch.float16)
    assert in_half.group_layer(1).states[0].dtype == in_half.kv.dtype == torch.float16


def test_layers_that_share_the_k_v_of_others_keep_nothing() -> None:
    shape = HybridShape.from_config(GPT_OSS_20B | {"num_kv_shared_layers": 4})
    assert shape.layers[20:] == (None,) * 4
    assert shape.group_size == 10


def test_states_beside_attention_follow_after_the_layers() -> None:
    shape = HybridShape.from_config(
        {
            "model_type": "falcon_h1",
            "num_hidden_layers": 3,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "torch_dtype": "bfloat16",
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
        }
    )
    assert shape.groups == (FULL, RecurrentState())
    assert shape.members == ((0, 1, 2), (3, 4, 5))
    assert [state.shape for state in shape.group_layer(1).states] == [(80, 4), (4, 16, 8)]


def test_kinds_that_are_nearly_as_many_make_one_group_each() -> None:
    layers = [attention(FULL)] * 9 + [attention(SlidingWindow(8))] * 11
    assert HybridShape(layers).group_size == 11
    assert len(HybridShape(layers).groups) == 2
    assert HybridShape(layers, group_size=3).members[2] == (6, 7, 8)
    layers = [attention(FULL)] + [attention(SlidingWindow(8))] * 100
    assert HybridShape(layers).group_size == 2  # the maximum is 64 groups
    assert len(HybridShape(layers).groups) == 51


LLAMA_4_TEXT: dict[str, Any] = LLAMA_4_SCOUT["text_config"] | {"torch_dtype": "bfloat16"}  # type: ignore[operator]
REFUSED: list[tuple[dict[str, Any], str]] = [
    (FALCON_MAMBA, r"falcon_mamba has no layer with attention.*RecurrentState\(\)"),
    (GPT_OSS_20B | {"is_encoder_decoder": True}, "gpt_oss has is_encoder_decoder.*cross-attention"),
    (GPT_OSS_20B | {"add_cross_attention": True}, "no group of cross-attention"),
    (GPT_OSS_20B | {"cross_attention_layers": [3]}, r"cross_attention_layers \[3\]"),
    (GPT_OSS_20B | {"layer_types": ["hybrid"] * 24}, "a layer 'hybrid'"),
    (GPT_OSS_20B | {"layer_types": ["full_attention"]}, "names 1 layers, there are 24"),
    (GPT_OSS_20B | {"sliding_window": None}, "no sliding_window"),
    (GPT_OSS_20B | {"layer_types": ["full_attention", "mamba"] * 12}, "gpt_oss has recurrent"),
    (GPT_OSS_20B | {"layer_types": None, "block_configs": [1]}, "block_configs of the config"),
    (GPT_OSS_20B | {"sliding_window": 0}, "sliding_window must be at least 1"),
    (JAMBA_MINI | {"attn_layer_period": 0}, "attn_layer_period must be at least 1, got 0"),
    (LLAMA_4_TEXT | {"no_rope_layers": [1, 0]}, "no_rope_layers of the config has 2 layers"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_configs_that_have_no_groups_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HybridShape.from_config(config)


OF_OTHER_TYPES: list[tuple[dict[str, Any], str]] = [
    (NEMOTRON_H_8B | {"hybrid_override_pattern": 4}, "hybrid_override_pattern must be a str"),
    (JAMBA_MINI | {"attn_layer_period": "8"}, "attn_layer_period must be an int, got '8'"),
    (JAMBA_MINI | {"attn_layer_offset": "4"}, "attn_layer_offset must be an int, got '4'"),
    (JAMBA_MINI | {"attn_layer_indices": 4}, "attn_layer_indices of the config must be a list"),
    (QWEN_3_NEXT | {"full_attention_interval": 1.5}, "full_attention_interval must be an int"),
    (LLAMA_4_TEXT | {"no_rope_layers": {"0": 1}}, "no_rope_layers of the config must be a list"),
    (LLAMA_4_TEXT | {"no_rope_layer_interval": "4"}, "no_rope_layer_interval must be an int"),
    (MISTRAL | {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern must be an int"),
    (MISTRAL | {"model_type": ["mistral"]}, "model_type must be a str, got list"),
]


@pytest.mark.parametrize(("config", "message"), OF_OTHER_TYPES, ids=[m for _, m in OF_OTHER_TYPES])
def test_a_field_of_another_type_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        HybridShape.from_config(config)


def test_attention_of_unlike_shapes_has_no_equal_pages() -> None:
    wide = ModelShape(num_layers=1, num_kv_heads=1, head_dim=32, dtype=BF16)
    layers = [attention(SlidingWindow(4)), attention(FULL, wide)]
    message = r"group 1, SlidingWindow\(width=4\): layer 0 keeps 2 heads of 8 .* of 1 heads of 32"
    with pytest.raises(PageSizeError, match=message) as caught:
        HybridShape(layers)
    assert caught.value.group == 1
    latent = ModelShape(num_layers=1, num_kv_heads=1, head_dim=32, dtype=BF16, latent_dim=32)
    other = ModelShape(num_layers=1, num_kv_heads=1, head_dim=32, dtype=torch.float32)
    for kv in (latent, other):
        with pytest.raises(PageSizeError, match="its pages are of"):
            HybridShape.sized([attention(SlidingWindow(4), kv), attention(FULL, wide)])
    uneven = [attention(SlidingWindow(4, 16)), attention(FullAttention(16), wide)]
    with pytest.raises(PageSizeError, match=r"its pages have 1024 bytes, those of the pool 2048"):
        HybridShape(uneven)
    half = HybridShape([attention(SlidingWindow(4)), attention(FullAttention(16), wide)])
    assert half.page_bytes(32) == 2048
    with pytest.raises(PageSizeError, match=r"its pages have 3072 bytes, those of the pool 2048"):
        half.page_bytes(48)
    with pytest.raises(ValueError, match="block_size that divides the manager's, 24"):
        half.page_bytes(24)


def test_layers_of_unlike_shapes_have_equal_pages_of_different_lengths() -> None:
    gemma_4 = GEMMA_3_12B["text_config"] | {"global_head_dim": 512, "torch_dtype": "bfloat16"}  # type: ignore[operator]
    shape = HybridShape.from_config(gemma_4)
    assert shape.groups == (FullAttention(16), *[SlidingWindow(1024, 32)] * 5)
    assert (shape.block_size_for(), shape.block_size_for(64)) == (32, 64)
    assert shape.bytes_per_block(32) == 8 * 16 * 2 * 8 * 512 * 2  # tokens, K and V, heads, bytes
    with pytest.raises(ValueError, match=r"K/V of different shapes.*HybridShape.from_config reads"):
        ModelShape.from_config(gemma_4)
    wide_heads = {"per_layer_config": {"5": {"head_dim": 512}, "11": {"head_dim": 512}}}
    apart = GEMMA_3_12B["text_config"] | {"torch_dtype": "bfloat16"} | wide_heads  # type: ignore[operator]
    shape = HybridShape.from_config(apart, group_size=2)
    assert [shape.group_layer(g).kv.head_dim for g in (0, 8, 9)] == [512, 256, 256]  # type: ignore[union-attr]
    assert shape.members[0] == (5, 11)
    with pytest.raises(ValueError, match="K/V of different shapes"):
        ModelShape.from_config(apart)
    state = LayerShape(kind=RecurrentState(), states=(StateTensor((1000, 11), torch.float32),))
    wide = ModelShape(num_layers=1, num_kv_heads=3, head_dim=8, dtype=BF16)
    layers = [attention(SlidingWindow(4)), attention(FULL, wide), state]
    shape = HybridShape.sized(layers, block_size=2 * 1380)
    sizes = {kind.block_size for kind in shape.groups[:2]}  # type: ignore[union-attr]
    assert shape.page_bytes(shape.block_size_for()) == 2 * 44_160  # whole tokens of both
    assert all(size * kv == 2 * 44_160 for size, kv in zip(sorted(sizes), (96, 64), strict=True))
    with pytest.raises(ValueError, match="layers must have one with attention"):
        HybridShape.sized([None])
    with pytest.raises(ValueError, match=r"block_size must be a multiple of 1380, .* got 1400"):
        HybridShape.sized(layers, block_size=1400)


def test_a_page_that_cannot_hold_whole_elements_is_refused() -> None:
    odd = ModelShape(num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.uint8)  # 2 bytes a token
    state = LayerShape(kind=STATE, states=(StateTensor((3,), torch.complex128),))
    shape = HybridShape([attention(FULL, odd), state])
    assert shape.block_size_for(1) == 24  # 48 bytes, three elements of 16
    with pytest.raises(PageSizeError, match=r"50 bytes is no multiple of an element of torch.comp"):
        shape.page_bytes(25)


def test_the_tensors_of_a_state_begin_at_whole_elements() -> None:
    states = (StateTensor((3,), torch.int8), StateTensor((2, 2), F32), StateTensor((1,), BF16))
    layer = LayerShape(kind=STATE, states=states)
    assert layer.state_offsets() == (0, 4, 20, 22)
    assert layer.state_bytes == 22
    assert attention(FULL).state_bytes == 0


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LayerShape(kind=STATE), ValueError, "must have states"),
    (lambda: LayerShape(kind=STATE, kv=KV), ValueError, "no kv"),
    (lambda: LayerShape(kind=FULL), ValueError, "must have a ModelShape"),
    (lambda: LayerShape(kind="full", kv=KV), TypeError, "kind"),
    (lambda: LayerShape(kind=STATE, states=(3,)), TypeError, "StateTensor"),
    (lambda: StateTensor((0,), F32), ValueError, r"shape\[0\]"),
    (lambda: StateTensor((), F32), ValueError, "axis"),
    (lambda: StateTensor((1,), "float32"), TypeError, "dtype"),
    (lambda: HybridShape([3]), TypeError, r"layers\[0\]"),
    (lambda: HybridShape([]), ValueError, "one with attention"),
    (lambda: HybridShape([STATEFUL]), ValueError, "with attention, whose K"),
    (lambda: HybridShape([attention(FULL)], group_size=2), ValueError, "group_size"),
    (lambda: HybridShape([attention(FULL)]).place(1), ValueError, "layer"),
    (lambda: HybridShape([attention(FULL)]).group_layer(1), ValueError, "group must be"),
    (lambda: num_blocks_for(2**20, 3, 16), TypeError, "HybridShape"),
    (lambda: num_blocks_for(1, HybridShape([attention(FULL)]), 16), ValueError, "num_bytes"),
]


@pytest.mark.parametrize(
    ("call", "kind", "message"), BAD, ids=[f"{k.__name__} {m}" for _, k, m in BAD]
)
def test_wrong_shapes_are_named(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
