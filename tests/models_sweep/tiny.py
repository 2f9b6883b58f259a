"""Tiny configs of any class, made from its default config by field name."""

from __future__ import annotations

from typing import Any, Final

from transformers import PretrainedConfig

__all__ = ["SETTINGS", "tiny_config"]

VOCAB: Final = 128
LAYERS: Final = 6  # enough for a model in which one layer in six is of another kind

# Values by field name, as the families of transformers name them. Values without a field in a class
# are not passed.
SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "emb_dim": 64,
    "embedding_size": 64,
    "word_embed_proj_dim": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "n_inner": 96,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_layers": LAYERS,
    "n_layer": LAYERS,
    "n_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_layers": LAYERS,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "kv_n_heads": 2,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "head_dim": 16,
    "swa_head_dim": 16,
    "kv_channels": 16,
    "v_head_dim": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "query_pre_attn_scalar": 16,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "max_seq_len": 256,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_top_k": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "dense_intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "moe_layer_start_index": 1,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
    "use_mamba_kernels": False,
    "mamba_chunk_size": 16,
    "mamba_d_state": 16,
    "attn_layer_indices": [2, 5],
    "tie_word_embeddings": False,  # otherwise an untrained model repeats the last token
}

SETTINGS: Final[dict[str, tuple[tuple[str, ...], Any]]] = {
    "plain": ((), None),
    "window 6": (("sliding_window", "attention_window", "local_window", "window_size"), 6),
    "soft cap": (("attn_logit_softcapping", "attention_logit_cap", "softcap"), 1.5),
}
"""By name: parts of the names of the fields to set (the first one always), and the value."""

SWITCHES: Final[dict[str, dict[str, Any]]] = {
    "window 6": {"use_sliding_window": True, "max_window_layers": 0, "use_swa": True},
}


def tiny_config(
    config_class: type[PretrainedConfig], setting: str = "plain", **changes: Any
) -> PretrainedConfig:
    """A config of a few thousand weights.

    Args:
        config_class: Any config class; its sub-configs become tiny as well.
        setting: A name in ``SETTINGS``.
        **changes: Further fields to set.
    """
    return config_class(**{**_fields(config_class, setting), **changes})


def _fields(config_class: type[PretrainedConfig], setting: str) -> dict[str, Any]:
    default = config_class()
    known = default.to_dict()
    aliases = getattr(config_class, "attribute_map", {})
    named = {aliases.get(name, name): value for name, value in SIZES.items()}
    fields = {name: value for name, value in named.items() if name in known}
    if known.get("head_dim") == known.get("qk_rope_head_dim") is not None:
        fields["head_dim"] = fields["qk_rope_head_dim"]  # the rotated part
    fields |= _per_layer(known, default)
    if isinstance(rope := known.get("rope_parameters"), dict):
        fields["rope_parameters"] = _rope(rope)
    fields |= _set(known, setting, always=not default.sub_configs)
    for name in default.sub_configs:
        if isinstance(part := getattr(default, name, None), PretrainedConfig):
            fields[name] = {**_fields(type(part), setting), "model_type": part.model_type}
    return fields


def _per_layer(known: dict[str, Any], default: PretrainedConfig) -> dict[str, Any]:
    """Truncates lists with an entry per layer to the number of layers."""
    count = getattr(default, "num_hidden_layers", None)
    return {
        name: value[:LAYERS]
        for name, value in known.items()
        if isinstance(value, list) and len(value) == count and count != LAYERS
    }


def _rope(rope: dict[str, Any]) -> dict[str, Any]:
    if "mrope_section" in rope:
        return {**rope, "mrope_section": [2, 3, 3]}
    return {n: _rope(value) if isinstance(value, dict) else value for n, value in rope.items()}


def _set(known: dict[str, Any], setting: str, *, always: bool) -> dict[str, Any]:
    parts, value = SETTINGS[setting]
    if not parts:
        return {}
    names = {name for name in known if any(part in name for part in parts)}
    names -= {name for name in names if name.startswith(("use_", "final_"))}
    names -= {name for name in names if isinstance(known[name], (dict, bool))}
    if always:
        names.add(parts[0])
    switches = {n: v for n, v in SWITCHES.get(setting, {}).items() if n in known}
    return {
        **{n: [value] * LAYERS if isinstance(known.get(n), list) else value for n in names},
        **switches,
    }
