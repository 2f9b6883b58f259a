"""The bytes of a block, from the configs of released models."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockmgr.kv import ModelShape, num_blocks_for

MIB = 2**20

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
LLAMA_3_70B = {
    **LLAMA_3_8B,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
}
QWEN_3_8B = {  # head_dim is given, not hidden_size // heads of other sizes of the family
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
}
GEMMA_7B = {  # 16 heads of 256 are wider than the hidden size of 3072
    "hidden_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "torch_dtype": "bfloat16",
}
MISTRAL_7B = {**LLAMA_3_8B, "head_dim": None, "sliding_window": 4096}
GPT_2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float32"}
FALCON_7B = {
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "multi_query": True,
    "new_decoder_architecture": False,
    "torch_dtype": "bfloat16",
}
FALCON_40B = {
    "hidden_size": 8192,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "num_hidden_layers": 60,
    "multi_query": True,
    "new_decoder_architecture": True,
    "torch_dtype": "bfloat16",
}
GEMMA_3 = {
    "text_config": {
        "hidden_size": 2560,
        "num_attention_heads": 8,
        "num_hidden_layers": 34,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 6,
    },
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
    "torch_dtype": "bfloat16",
}
QWEN_3_NEXT = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
    "dtype": "bfloat16",
}
GEMMA_3N = {**QWEN_3_8B, "num_hidden_layers": 35, "num_kv_shared_layers": 15}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # layers, heads, head dim, latent dim, bytes a token
        (LLAMA_3_8B, (32, 8, 128, None, 131_072)),
        (LLAMA_3_70B, (80, 8, 128, None, 327_680)),
        (QWEN_3_8B, (36, 8, 128, None, 147_456)),
        (GEMMA_7B, (28, 16, 256, None, 458_752)),
        (DEEPSEEK_V3, (61, 1, 576, 576, 70_272)),
        (MISTRAL_7B, (32, 8, 128, None, 131_072)),
        (GPT_2, (12, 12, 64, None, 73_728)),
        (FALCON_7B, (32, 1, 64, None, 8_192)),
        (FALCON_40B, (60, 8, 64, None, 122_880)),
        (GEMMA_3, (34, 4, 256, None, 139_264)),
        (QWEN_3_NEXT, (12, 2, 256, None, 24_576)),
        (GEMMA_3N, (20, 8, 128, None, 81_920)),
    ],
)
def test_a_config_says_what_a_token_takes(
    config: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    shape = ModelShape.from_config(config)
    figures = shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.latent_dim
    assert (*figures, shape.bytes_per_token) == expected


@pytest.mark.parametrize(
    ("shape", "block_size", "mib"),
    [
        (ModelShape.from_config(LLAMA_3_8B), 16, 2.00),
        (ModelShape.from_config(LLAMA_3_8B, torch.float8_e4m3fn), 16, 1.00),
        (ModelShape.from_config(LLAMA_3_70B), 16, 5.00),
        (ModelShape(num_layers=80, num_kv_heads=1, head_dim=128, dtype=torch.bfloat16), 16, 0.62),
        (ModelShape.from_config(DEEPSEEK_V3), 64, 4.29),
        (
            ModelShape(
                num_layers=61, num_kv_heads=1, head_dim=656, dtype=torch.uint8, latent_dim=656
            ),
            64,
            2.44,
        ),
    ],
)
def test_bytes_of_a_block_are_those_of_the_known_models(
    shape: ModelShape, block_size: int, mib: float
) -> None:
    """Numbers computed by hand: 2 x layers x heads x dim x bytes x tokens, or layers x latent."""
    assert shape.bytes_per_block(block_size) / MIB == pytest.approx(mib, abs=0.006)


def test_objects_mappings_files_and_folders_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GEMMA_3))
    as_object = SimpleNamespace(
        **{**GEMMA_3, "text_config": SimpleNamespace(**GEMMA_3["text_config"])}
    )
    expected = ModelShape.from_config(GEMMA_3)
    for config in (as_object, file, str(file), tmp_path):
        assert ModelShape.from_config(config) == expected


def test_configs_of_transformers_are_read() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    llama = transformers.LlamaConfig(num_key_value_heads=8, dtype="bfloat16")
    assert ModelShape.from_config(llama) == ModelShape(
        num_layers=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16
    )
    gpt2 = transformers.GPT2Config()
    assert ModelShape.from_config(gpt2, torch.float16).bytes_per_token == 12 * 2 * 768 * 2
    gemma = ModelShape.from_config(transformers.Gemma3Config(), torch.bfloat16)
    assert (gemma.num_layers, gemma.num_kv_heads, gemma.head_dim) == (26, 4, 256)


def test_a_dtype_of_the_cache_goes_before_that_of_the_model() -> None:
    assert ModelShape.from_config(LLAMA_3_8B, torch.uint8).dtype is torch.uint8
    assert (
        ModelShape.from_config({**LLAMA_3_8B, "torch_dtype": None}, torch.half).dtype is torch.half
    )
    said_twice = {**LLAMA_3_8B, "torch_dtype": "torch.float32"}
    assert ModelShape.from_config(said_twice).dtype is torch.float32
    assert ModelShape.from_config({**LLAMA_3_8B, "torch_dtype": torch.half}).dtype is torch.half


def test_fields_of_the_text_model_go_before_those_outside() -> None:
    config = {**LLAMA_3_8B, "text_config": {"num_hidden_layers": 7}}
    assert ModelShape.from_config(config).num_layers == 7


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "dtype"),
        ({"torch_dtype": "bfloat16"}, "num_hidden_layers"),
        ({k: v for k, v in LLAMA_3_8B.items() if k != "hidden_size"}, "hidden_size"),
        ({**LLAMA_3_8B, "num_key_value_heads": None, "num_attention_heads": None}, "num_attention"),
        ({**LLAMA_3_8B, "hidden_size": 4097}, "4097 is no multiple of num_attention_heads 32"),
        ({**LLAMA_3_8B, "num_hidden_layers": 0}, r"num_hidden_layers must be in \[1, 65536\]"),
        ({**LLAMA_3_8B, "torch_dtype": "auto"}, "'auto'"),
        ({**LLAMA_3_8B, "torch_dtype": "load"}, "'load'"),
        ({**LLAMA_3_8B, "layer_types": ["full_attention", "odd"]}, "layer_types .* odd"),
        ({**LLAMA_3_8B, "layer_types": ["full_attention"]}, "layer_types .* 1 layers"),
        ({**LLAMA_3_8B, "attn_layer_period": 8}, "attn_layer_period"),
        ({**LLAMA_3_8B, "block_configs": [{}]}, "block_configs"),
        ({**LLAMA_3_8B, "multi_query_attention": True}, "multi_query_group_num"),
        ({**LLAMA_3_8B, "layer_types": ["mamba"] * 32}, "attention layers must be at least 1"),
        ({**LLAMA_3_8B, "num_kv_shared_layers": 32}, "attention layers must be at least 1"),
        ({**DEEPSEEK_V3, "qk_rope_head_dim": None}, "qk_rope_head_dim"),
    ],
)
def test_a_missing_or_useless_field_is_named(config: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ModelShape.from_config(config)


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [1.5, "8", True])
def test_a_field_of_the_wrong_type_is_named(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=field):
        ModelShape.from_config({**LLAMA_3_8B, field: value})


def test_a_file_that_is_no_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ModelShape.from_config(tmp_path)
    for text, match in (
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "no JSON object"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=match):
            ModelShape.from_config(tmp_path)


def shape(**changes: Any) -> ModelShape:
    usual = {"num_layers": 2, "num_kv_heads": 3, "head_dim": 5, "dtype": torch.float16}
    return ModelShape(**{**usual, **changes})


@pytest.mark.parametrize("field", ["num_layers", "num_kv_heads", "head_dim", "latent_dim"])
def test_shapes_are_positive_ints(field: str) -> None:
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"{field} must be at least 1, got {value}"):
            shape(**{field: value})
    for wrong in (True, 1.0, "1"):
        with pytest.raises(TypeError, match=field):
            shape(**{field: wrong})


def test_a_dtype_is_one_of_torch() -> None:
    with pytest.raises(TypeError, match="dtype"):
        shape(dtype="float16")


def test_blocks_fill_the_budget_and_no_more() -> None:
    block = shape().bytes_per_block(4)
    assert block == 2 * 2 * 3 * 5 * 2 * 4
    assert [num_blocks_for(n, shape(), 4) for n in (block, 3 * block - 1, 3 * block)] == [1, 2, 3]
    with pytest.raises(ValueError, match=f"num_bytes must be at least {block}.*got {block - 1}"):
        num_blocks_for(block - 1, shape(), 4)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((0, shape(), 4), ValueError, "num_bytes"),
        ((-5, shape(), 4), ValueError, "num_bytes"),
        ((1e9, shape(), 4), TypeError, "num_bytes"),
        ((10**9, shape(), 0), ValueError, "block_size"),
        ((10**9, shape(), 4.0), TypeError, "block_size"),
        ((10**9, LLAMA_3_8B, 4), TypeError, "shape"),
    ],
)
def test_a_budget_of_nothing_is_refused(
    arguments: tuple[Any, ...], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        num_blocks_for(*arguments)


def test_groups_of_chatglm_are_its_kv_heads() -> None:
    config = {**LLAMA_3_8B, "multi_query_attention": True, "multi_query_group_num": 2}
    del config["num_key_value_heads"]
    assert ModelShape.from_config(config).num_kv_heads == 2


@pytest.mark.parametrize("kinds", [[None] * 32, "full", 5], ids=str)
def test_layer_types_that_are_no_list_of_names_are_a_type_error(kinds: Any) -> None:
    with pytest.raises(TypeError, match="layer_types"):
        ModelShape.from_config({**LLAMA_3_8B, "layer_types": kinds})
