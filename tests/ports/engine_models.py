"""Tiny seeded models, and the tokens of ``model.generate``, which the engine must match.

Weights have a large variance, so that logits differ clearly and tokens do not depend on the last
bit of a sum. ``test_the_truth_does_not_hang_on_rounding`` checks that in double precision.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine runs transformers models")
pytest.importorskip("transformers", reason="the engine runs transformers models")

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from blockmgr.ports.engine import Engine, Generation

torch.set_num_threads(1)

VOCAB = 128
STOPS = (5, 9)
NEW_TOKENS = 12

Prompts = list[list[int]]
Tokens = list[list[list[int]]]  # by prompt, then by sample

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": 7},
    "Gemma": {"initializer_range": 0.1},
    "Gemma2": {"initializer_range": 0.2, "sliding_window": 7, "query_pre_attn_scalar": 16},
    "Gemma3Text": {"initializer_range": 0.2, "sliding_window": 7, "num_hidden_layers": 6},
    "Gemma4Text": {
        "initializer_range": 0.2,
        "sliding_window": 7,
        "num_hidden_layers": 6,
        "global_head_dim": 32,
        "num_global_key_value_heads": 2,
        "hidden_size_per_layer_input": 0,
    },
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    # A floor scale small enough that the scores of full attention change within a prompt.
    "Llama4Text": {
        "attention_chunk_size": 8,
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 96,
        "num_local_experts": 2,
        "floor_scale": 6,
        "attn_scale": 0.5,
    },
    "Bamba": {
        "num_hidden_layers": 4,
        "attn_layer_indices": [1],
        "mamba_n_heads": 4,
        "mamba_d_state": 4,
        "mamba_chunk_size": 8,
        "initializer_range": 0.2,
    },
    "Jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 4,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "initializer_range": 0.2,
    },
    "GptOss": {
        "sliding_window": 7,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "DeepseekV3": {
        "num_key_value_heads": 4,
        "head_dim": 8,
        "q_lora_rank": 32,
        "kv_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "FalconH1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 4,
        "mamba_chunk_size": 8,
        "initializer_range": 0.2,
    },
    "Qwen3Next": {
        "num_hidden_layers": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "initializer_range": 0.2,
    },
}


def config_of(name: str, **changes: Any) -> transformers.PretrainedConfig:
    """A tiny configuration of a family, named like its class in ``transformers``."""
    config_class = getattr(transformers, f"{name}Config")
    config: transformers.PretrainedConfig = config_class(**{**SIZES, **CONFIGS[name], **changes})
    return config


@cache
def model_of(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config_of(name))
    return model.to(dtype).eval()


def engine_of(name: str = "Llama", **options: Any) -> Engine:
    """An engine with a small pool; the test must check its invariants."""
    defaults: dict[str, Any] = {"num_blocks": 400, "block_size": 4, "max_seqs": 32}
    return Engine(model_of(name), **{**defaults, **options})


def prompts_of(*lengths: int, shared: int = 0, seed: int = 0) -> Prompts:
    """Seeded prompts with their first ``shared`` tokens in common."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randint(10, VOCAB, (max(lengths),), generator=generator).tolist()[:shared]
    rows = [torch.randint(10, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    return [[*common[:n], *row[shared:]] for n, row in zip(lengths, rows, strict=True)]


MIXED = prompts_of(5, 17, 33, 1, 40, 8, shared=16)


def tokens_of(generations: list[Generation]) -> Tokens:
    return [[sample.tokens for sample in each.samples] for each in generations]


def truth(name: str, prompt: list[int], **options: Any) -> list[list[int]]:
    """The continuations of one prompt by ``model.generate``, each cut after its stop token."""
    dtype = options.pop("dtype", torch.float32)
    return _truth(name, dtype, tuple(prompt), tuple(sorted(options.items())))


@cache
def _truth(
    name: str, dtype: torch.dtype, prompt: tuple[int, ...], options: tuple[tuple[str, Any], ...]
) -> list[list[int]]:
    model = model_of(name) if dtype == torch.float32 else model_of(name, dtype)
    arguments = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **dict(options)}
    if (seed := arguments.pop("seed", None)) is not None:
        torch.manual_seed(seed)
    row = torch.tensor([prompt])
    stops = arguments.get("eos_token_id") or ()
    with torch.no_grad():
        rows = model.generate(row, attention_mask=torch.ones_like(row), pad_token_id=0, **arguments)
    return [cut(each[len(prompt) :], stops) for each in rows.tolist()]


def cut(tokens: list[int], stops: tuple[int, ...] | list[int]) -> list[int]:
    for i, token in enumerate(tokens):
        if token in stops:
            return tokens[: i + 1]
    return tokens


def greedy_truth(name: str, prompts: Prompts, **options: Any) -> Tokens:
    return [truth(name, prompt, **options) for prompt in prompts]


def sampled_truth(name: str, prompts: Prompts, *, seed: int = 3, **options: Any) -> Tokens:
    chosen = {"temperature": 0.9, "top_k": 30, "top_p": 0.95, **options}
    return [truth(name, prompt, do_sample=True, seed=seed, **chosen) for prompt in prompts]


def beam_truth(name: str, prompts: Prompts, num_beams: int, **options: Any) -> Tokens:
    chosen = {"num_beams": num_beams, "num_return_sequences": num_beams, "eos_token_id": STOPS}
    return [truth(name, prompt, **{**chosen, **options}) for prompt in prompts]
