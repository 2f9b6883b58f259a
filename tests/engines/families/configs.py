"""The models of the table: the config of each family, with the sizes of a released model.

Where no change is named, the defaults of the class are those of a released model. Weights are on
the meta device, so real sizes cost nothing; block sizes and pages follow from them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import transformers
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

__all__ = ["Family", "families"]

VLLM_CONFIGS: Final = "vllm.transformers_utils.configs"


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: How its users call it.
        config: Its class of transformers, or after a dot the module of vLLM's own class.
        architecture: Its name in vLLM's registry.
        changes: Fields that differ from the class's defaults.
        nested: The field for ``changes`` if the class nests them.
        engine: Arguments of vLLM's engine that are not its defaults.
        is_named: Whether this module names it, instead of finding it in the registry.
    """

    name: str
    config: str
    architecture: str
    changes: dict[str, Any] = field(default_factory=dict)
    nested: str = ""
    engine: dict[str, Any] = field(default_factory=dict)
    is_named: bool = True

    def make(self) -> PretrainedConfig:
        """A config as its ``config.json`` gives it."""
        module, _, name = self.config.rpartition(".")
        holder = importlib.import_module(f"{VLLM_CONFIGS}.{module}") if module else transformers
        kind: Callable[..., PretrainedConfig] = getattr(holder, name)
        changes = {self.nested: self.changes} if self.nested else self.changes
        made = kind(architectures=[self.architecture], dtype="bfloat16", **changes)
        if not self.is_named:
            made = made.get_text_config()
            made.architectures = [self.architecture]
        return made


def among(chosen: set[int], count: int, others: str) -> list[str]:
    """The kinds of so many layers, of which the chosen ones have full attention."""
    return ["full_attention" if layer in chosen else others for layer in range(count)]


def _with(name: str, config: str, **changes: Any) -> Family:
    return Family(name, config, f"{name}ForCausalLM", changes, is_named=False)


NEMOTRON: Final = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
KIMI_FULL: Final = (4, 8, 12, 16, 20, 24, 27)  # counted from 1, as in its config

KIMI_LINEAR: Final = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": list(KIMI_FULL),
        "kda_layers": [layer for layer in range(1, 28) if layer not in KIMI_FULL],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}

DEEPSEEK_V41: Final = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "max_position_embeddings": 1048576,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "sliding_window": 128,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "num_hash_layers": 3,
    "compress_ratios": [0, 0, *[2, 1] * 20, 2],
    "kv_source_layer_ids": [2, 3, *range(12, 43, 10)],
    "index_source_layer_ids": [2, 3, *range(12, 43, 10)],
}

FAMILIES: Final = (
    Family(
        "Llama 3",
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "max_position_embeddings": 8192,
        },
    ),
    Family("Qwen3", "Qwen3Config", "Qwen3ForCausalLM", {"num_key_value_heads": 8}),
    Family("Mistral 7B 0.1, a window in each layer", "MistralConfig", "MistralForCausalLM"),
    Family(
        "Gemma 3",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    ),
    Family("Gemma 4", "Gemma4TextConfig", "Gemma4ForCausalLM"),
    Family("gpt-oss", "GptOssConfig", "GptOssForCausalLM"),
    Family("Llama 4", "Llama4TextConfig", "Llama4ForCausalLM"),
    Family("Qwen3-Next", "Qwen3NextConfig", "Qwen3NextForCausalLM"),
    Family("Qwen3.5", "Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    Family("Qwen3.5, experts", "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
    Family(
        "Qwen4, experimental",
        "Qwen4ExpTextConfig",
        "Qwen4ExpForCausalLM",
        {
            "output_gate_type": "silu",
        },
    ),
    Family(
        "Nemotron-H",
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {
            "hidden_size": 2688,
            "num_key_value_heads": 2,
            "mamba_num_heads": 64,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1856,
            "layers_block_type": [
                NEMOTRON[layer] for layer in "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
            ],
        },
    ),
    Family("Jamba", "JambaConfig", "JambaForCausalLM"),
    Family(
        "Granite 4, hybrid",
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "mamba_d_state": 128,
            "layer_types": among({5, 15, 25, 35}, 40, "linear_attention"),
        },
    ),
    Family("Falcon-H1", "FalconH1Config", "FalconH1ForCausalLM"),
    Family(
        "LFM2",
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "layer_types": among({2, 5, 8, 10, 12, 14}, 16, "conv"),
            "conv_dim": 2048,
            "conv_dim_out": 2048,
            "block_dim": 2048,
            "block_ff_dim": 12288,
            "block_norm_eps": 1e-5,
        },
    ),
    Family(
        "LFM2, experts",
        "Lfm2MoeConfig",
        "Lfm2MoeForCausalLM",
        {
            "layer_types": ["conv", "conv", "conv", "full_attention"] * 6,
            "num_hidden_layers": 24,
        },
    ),
    Family(
        "MiMo-V2-Flash",
        "MiMoV2FlashConfig",
        "MiMoV2FlashForCausalLM",
        {
            "hybrid_layer_pattern": [0, *[1, 1, 1, 1, 0] * 9, 1, 0],
            "layernorm_epsilon": 1e-5,
            "moe_layer_freq": [0, *[1] * 47],
            "sliding_window_size": 128,
            "rope_theta": 5e6,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
            "swa_num_attention_heads": 64,
            "swa_num_key_value_heads": 8,
            "swa_rope_theta": 1e4,
            "partial_rotary_factor": 0.334,
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
    ),
    Family(
        "Kimi K2",
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            "num_attention_heads": 64,
            "n_routed_experts": 384,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    Family(
        "Kimi K3 (sizes of Kimi Linear)",
        "kimi_k3.KimiK3Config",
        "KimiK3ForConditionalGeneration",
        KIMI_LINEAR,
        nested="text_config",
    ),
    Family("Kimi Linear", "kimi_linear.KimiLinearConfig", "KimiLinearForCausalLM", KIMI_LINEAR),
    Family(
        "MiniMax-M2",
        "MiniMaxM2Config",
        "MiniMaxM2ForCausalLM",
        {
            "rotary_dim": 64,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
        },
    ),
    Family(
        "MiniMax-M3",
        "minimax_m3.MiniMaxM3Config",
        "MiniMaxM3SparseForConditionalGeneration",
        {
            "vision_config": {
                **transformers.MiniMaxM3VLConfig().vision_config.to_dict(),
                "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
            },
        },
    ),
    Family("DeepSeek-V3", "DeepseekV3Config", "DeepseekV3ForCausalLM"),
    Family("DeepSeek-V3.2", "DeepseekV32Config", "DeepseekV32ForCausalLM"),
    Family("DeepSeek-V4", "DeepseekV4Config", "DeepseekV4ForCausalLM"),
    Family(
        "DeepSeek-V4.1 (sizes of V4, order of layers assumed)",
        "deepseek_v41.DeepseekV41Config",
        "DeepseekV41ForCausalLM",
        DEEPSEEK_V41,
        nested="text_config",
    ),
    Family("GLM-4.5", "Glm4MoeConfig", "Glm4MoeForCausalLM", {"head_dim": 128}),
    Family("GLM-5", "GlmMoeDsaConfig", "GlmMoeDsaForCausalLM"),
    Family(
        "GLM-5.3",
        "Glm5NextTextConfig",
        "Glm5NextForCausalLM",
        {
            "mhc": True,
            "mla_use_nope": True,
            "num_nextn_predict_layers": 1,
            "indexer_rope_interleave": True,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
    ),
    *(
        Family(
            f"{name}, with prefix caching",
            f"{name}Config",
            f"{name}ForCausalLM",
            engine={"enable_prefix_caching": True},
        )
        for name in ("Mamba", "Mamba2", "FalconMamba")
    ),
    # Their classes lack what vLLM reads.
    _with("Afmoe", "AfmoeConfig", score_func="sigmoid", route_norm=True, n_group=1, topk_group=1),
    _with("DeepseekV2", "DeepseekV2Config", n_group=8, topk_group=3),
    _with("Glm4MoeLite", "Glm4MoeLiteConfig", first_k_dense_replace=1),
    _with("HYV3", "HYV3Config", first_k_dense_replace=1, expert_hidden_dim=1536, route_norm=True),
    _with(
        "LongcatFlash",
        "LongcatFlashConfig",
        mla_scale_q_lora=True,
        mla_scale_kv_lora=True,
        zero_expert_type="identity",
    ),
    _with("Nemotron", "NemotronConfig", num_key_value_heads=8),
)


def families() -> list[Family]:
    """The named ones, and what else transformers and vLLM's registry both have."""
    from vllm.model_executor.models.registry import _TEXT_GENERATION_MODELS

    found = {family.architecture for family in FAMILIES if not family.engine}
    rest: dict[str, Family] = {}
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        architecture = names if isinstance(names, str) else names[0]
        if architecture in _TEXT_GENERATION_MODELS and architecture not in found:
            config = CONFIG_MAPPING[model_type].__name__
            name = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
            rest.setdefault(architecture, Family(name, config, architecture, is_named=False))
    return [*FAMILIES, *rest.values()]
