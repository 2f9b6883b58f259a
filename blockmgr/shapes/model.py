"""The size of a model's K/V, from a shape or a Hugging Face style config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blockmgr.arguments import whole
from blockmgr.shapes.elements import check_dtype, torch_dtype
from blockmgr.shapes.fields import (
    DTYPE,
    NOTHING,
    OTHER_LAYERS,
    PER_TOKEN,
    STATES,
    ConfigFields,
    head_dim,
    kv_heads,
    listed_kinds,
)

if TYPE_CHECKING:
    import torch

    from blockmgr.shapes.fields import Config

__all__ = ["ModelShape", "kv_of", "whole_context_kv"]


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
        check_dtype(self.dtype)

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
            ValueError: Names a field that is missing or has no usable value; or layers keep K/V of
                different shapes, which ``HybridShape`` describes.
            OSError: The file cannot be read.
            TypeError: A field or an argument is of the wrong type.

        >>> llama = dict(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        ...              hidden_size=4096, torch_dtype="bfloat16")
        >>> ModelShape.from_config(llama).bytes_per_block(16)
        2097152
        """
        fields = ConfigFields(config)
        kept = dtype if dtype is not None else torch_dtype(fields.get(*DTYPE))
        found = kv_of(fields, kept, _kv_layers(fields))
        others = [kv_of(fields.layer(i), kept, found.num_layers) for i in fields.layers_apart]
        if unlike := {whole_context_kv(fields, found), *others} - {found}:
            raise ValueError(
                f"config describes layers with K/V of different shapes, {found} and {unlike.pop()};"
                " HybridShape.from_config reads them"
            )
        return found


def whole_context_kv(fields: ConfigFields, usual: ModelShape) -> ModelShape:
    """The K/V of layers that read the whole context: Gemma 4 has fewer and wider heads there."""
    if usual.latent_dim is not None:
        return usual
    return replace(
        usual,
        num_kv_heads=fields.get("num_global_key_value_heads") or usual.num_kv_heads,
        head_dim=fields.get("global_head_dim") or usual.head_dim,
    )


def kv_of(fields: ConfigFields, dtype: torch.dtype, num_layers: int) -> ModelShape:
    """The K/V, or the latents, of so many layers."""
    latent: int | None = None
    if (rank := fields.get("kv_lora_rank")) is not None:
        latent = whole("kv_lora_rank", rank, 1) + fields.size("qk_rope_head_dim")
    return ModelShape(
        num_layers=num_layers,
        num_kv_heads=kv_heads(fields) if latent is None else 1,
        head_dim=head_dim(fields) if latent is None else latent,
        dtype=dtype,
        latent_dim=latent,
    )


def _kv_layers(fields: ConfigFields) -> int:
    num_layers = fields.num_layers()
    shared = fields.get("num_kv_shared_layers")
    if shared:  # the last layers read the K/V of earlier ones (Gemma 3n)
        num_layers -= whole("num_kv_shared_layers", shared, 1)
    listed = listed_kinds(fields, "layer_types")
    hybrid = [name for name in OTHER_LAYERS if fields.get(name) is not None]
    if hybrid and listed is None:
        raise ValueError(
            f"{hybrid[0]} of the config says which layers keep K/V in a way that is not known;"
            " give a ModelShape"
        )
    kinds = (listed or ["attention"] * num_layers)[: max(num_layers, 0)]
    if strange := sorted(set(kinds) - PER_TOKEN - STATES - NOTHING):
        raise ValueError(
            f"layer_types of the config names {', '.join(strange)}, whose K/V is not known;"
            " give a ModelShape"
        )
    if len(kinds) < num_layers:
        raise ValueError(
            f"layer_types of the config names {len(kinds)} layers, there are {num_layers}"
        )
    return whole("attention layers", sum(kind in PER_TOKEN for kind in kinds), 1)
