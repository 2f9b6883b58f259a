"""The size of a model's K/V, from a shape or a Hugging Face style config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from blockmgr.arguments import whole
from blockmgr.kv.fields import DTYPE, LAYERS, ConfigFields, head_dim, kv_dtype, kv_heads

if TYPE_CHECKING:
    from blockmgr.kv.fields import Config

__all__ = ["OTHER_LAYERS", "ModelShape"]

# Kinds of layers in `layer_types`: those with K/V of every token, and those that keep a state of
# constant size or nothing instead. The size of any other kind is unknown, so it is refused.
PER_TOKEN = {
    "attention",
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "window_attention",
    "reference_sliding_attention",
}
# Fields that determine the kinds of layers in families without `layer_types`; such models are
# refused.
OTHER_LAYERS = (
    "full_attention_interval",
    "attn_layer_period",
    "attn_layer_indices",
    "attn_type_list",
    "block_configs",
    "block_types",
    "full_attn_idxs",
    "hybrid_override_pattern",
    "linear_attn_config",
)
STATE_ONLY = {"linear_attention", "mamba", "conv", "recurrent", "moe"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The numbers that determine the size of a model's K/V.

    Attributes:
        num_layers: Layers that keep K/V.
        num_kv_heads: K/V heads per layer on this device: divide by the tensor-parallel size.
        head_dim: Elements of one head of K, and of V.
        dtype: Element type of the cache, which may be narrower than the model's.
        latent_dim: Elements of the single vector that MLA keeps per token and layer instead of K
            and V (``kv_lora_rank + qk_rope_head_dim``); the heads are ignored then. None for
            ordinary attention.

    Raises:
        ValueError: A number is below 1.
        TypeError: A value is of the wrong type.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    latent_dim: int | None = None

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_kv_heads", "head_dim", "latent_dim"):
            value = getattr(self, field)
            if field != "latent_dim" or value is not None:
                object.__setattr__(self, field, whole(field, value, 1))
        if not isinstance(self.dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype, got {self.dtype!r}")

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token in all layers."""
        heads = 2 * self.num_kv_heads * self.head_dim
        return self.num_layers * (self.latent_dim or heads) * self.dtype.itemsize

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes per block in all layers.

        Args:
            block_size: Tokens per block, at least 1.
        """
        return whole("block_size", block_size, 1) * self.bytes_per_token

    @classmethod
    def from_config(
        cls,
        config: Config,
        dtype: torch.dtype | None = None,
    ) -> ModelShape:
        """The shape of the model that a Hugging Face style config describes.

        Fields of a nested ``text_config`` take precedence. Layers that do not keep K/V of each
        token (``layer_types`` such as ``linear_attention``), or share that of another layer
        (``num_kv_shared_layers``), are left out. Layers with a sliding window count, because a
        block is kept for all layers or for none.

        Args:
            config: A config object, its fields as a mapping, or the path of a ``config.json`` or
                of its folder.
            dtype: Element type of the cache; None for the model's type.

        Returns:
            The shape on a single device.

        Raises:
            ValueError: Names a field that is missing or has no usable value.
            OSError: The file cannot be read.
            TypeError: A field or an argument is of the wrong type.

        >>> llama = dict(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        ...              hidden_size=4096, torch_dtype="bfloat16")
        >>> ModelShape.from_config(llama).bytes_per_block(16)
        2097152
        """
        fields = ConfigFields(config)
        kept = dtype if dtype is not None else kv_dtype(fields.get(*DTYPE))
        num_layers = _kv_layers(fields)
        rank = fields.get("kv_lora_rank")
        if rank is not None:
            rope = fields.need("qk_rope_head_dim")
            latent = whole("kv_lora_rank", rank, 1) + whole("qk_rope_head_dim", rope, 1)
            return cls(
                num_layers=num_layers,
                num_kv_heads=1,
                head_dim=latent,
                dtype=kept,
                latent_dim=latent,
            )
        return cls(
            num_layers=num_layers,
            num_kv_heads=kv_heads(fields),
            head_dim=head_dim(fields),
            dtype=kept,
        )


def _kv_layers(fields: ConfigFields) -> int:
    num_layers = whole("num_hidden_layers", fields.need(*LAYERS), 1)
    shared = fields.get("num_kv_shared_layers")
    if shared:  # the last layers read the K/V of earlier ones (Gemma 3n)
        num_layers -= whole("num_kv_shared_layers", shared, 1)
    hybrid = [name for name in OTHER_LAYERS if fields.get(name) is not None]
    if hybrid and fields.get("layer_types") is None:
        raise ValueError(
            f"{hybrid[0]} of the config says which layers keep K/V in a way that is not known;"
            " give a ModelShape"
        )
    # Some families list more kinds than the model has layers.
    listed = fields.get("layer_types") or ["attention"] * num_layers
    if not isinstance(listed, list | tuple) or not all(isinstance(kind, str) for kind in listed):
        raise TypeError(f"layer_types of the config must be a list of names, got {listed!r}")
    kinds = listed[: max(num_layers, 0)]
    strange = sorted(set(kinds) - PER_TOKEN - STATE_ONLY)
    if strange:
        raise ValueError(
            f"layer_types of the config names {', '.join(strange)}, whose K/V is not known;"
            " give a ModelShape"
        )
    if len(kinds) < num_layers:
        raise ValueError(
            f"layer_types of the config names {len(kinds)} layers, there are {num_layers}"
        )
    return whole("attention layers", sum(kind in PER_TOKEN for kind in kinds), 1)
