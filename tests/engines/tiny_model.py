"""``python -m tests.engines.tiny_model FOLDER [SHAPE]``: random weights and a tokenizer.

The shape is a Llama, or a model in which some layers use a window, a chunk or a recurrent state.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
)

SIZES = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
    "initializer_range": 0.2,
}
LETTERS = "abcdefghijklmnop"


def llama() -> PretrainedConfig:
    return LlamaConfig(intermediate_size=128, num_hidden_layers=2, **SIZES)


def mistral() -> PretrainedConfig:
    """A window of 80 tokens in each layer, as Mistral 7B 0.1."""
    return MistralConfig(intermediate_size=128, num_hidden_layers=2, sliding_window=80, **SIZES)


def gemma3() -> PretrainedConfig:
    """Five layers with a window of 80 tokens for each layer of full attention."""
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    return Gemma3TextConfig(
        intermediate_size=128,
        num_hidden_layers=12,
        layer_types=kinds * 2,
        sliding_window=80,
        query_pre_attn_scalar=64,
        **SIZES,
    )


def gemma4() -> PretrainedConfig:
    """As Gemma 3, with heads of twice the size in full attention: its blocks hold half as much."""
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    return Gemma4TextConfig(
        intermediate_size=128,
        num_hidden_layers=12,
        layer_types=kinds * 2,
        sliding_window=80,
        global_head_dim=128,
        hidden_size_per_layer_input=0,
        **SIZES,
    )


def gpt_oss() -> PretrainedConfig:
    """Windows of 128 tokens in every second layer, attention sinks, and four experts."""
    return GptOssConfig(
        intermediate_size=64,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=128,
        num_local_experts=4,
        num_experts_per_tok=2,
        **SIZES,
    )


def llama4() -> PretrainedConfig:
    """Chunks of 128 tokens in three of four layers."""
    return Llama4TextConfig(
        intermediate_size=64,
        intermediate_size_mlp=64,
        num_hidden_layers=4,
        num_local_experts=2,
        attention_chunk_size=128,
        **SIZES,
    )


def lfm2() -> PretrainedConfig:
    """Short convolutions, which have a state, in three of four layers."""
    named_by_vllm = {"conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_norm_eps": 1e-5}
    return Lfm2Config(
        intermediate_size=128,
        block_ff_dim=128,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=4,
        layer_types=["conv", "conv", "full_attention", "conv"],
        **named_by_vllm,
        **SIZES,
    )


def qwen3_next() -> PretrainedConfig:
    """Gated delta nets in three of four layers; vLLM's kernels for CPUs need these two settings."""
    return Qwen3NextConfig(
        intermediate_size=128,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        **{**SIZES, "dtype": "bfloat16"},
    )


def deepseek_v3() -> PretrainedConfig:
    """Latent attention, of which a block stores one vector a token, and four experts."""
    return DeepseekV3Config(
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=3,
        first_k_dense_replace=1,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        topk_method="noaux_tc",  # vLLM reads it
        **{**SIZES, "num_attention_heads": 2, "num_key_value_heads": 2},
    )


CONFIGS = {
    "llama": llama,
    "mistral": mistral,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "gpt_oss": gpt_oss,
    "llama4": llama4,
    "lfm2": lfm2,
    "qwen3_next": qwen3_next,
    "deepseek_v3": deepseek_v3,
}


def text(rng: random.Random) -> str:
    words = ("".join(rng.choices(LETTERS, k=rng.randint(2, 7))) for _ in range(30))
    return " ".join(words)


def make(folder: Path, shape: str = "llama") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained.train_from_iterator([text(rng) for _ in range(500)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[shape]()).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:])
