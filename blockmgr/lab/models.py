"""Models for replays: the groups of their layers, and the bytes of a block.

A block holds the same number of bytes in every group. ``named`` has the shapes of published models.
Those of hybrid ones are in vLLM's layout: each group has as many layers as the rarest kind, and a
block has enough tokens to hold a state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blockmgr.groups import RecurrentState, refuse_bare
from blockmgr.lab.choices import pick
from blockmgr.shapes import ELEMENTS, ConfigFields, HybridShape, ModelShape, element_of
from blockmgr.shapes.compressed import BLOCK_SIZE, compress_ratios, compressed_groups
from blockmgr.shapes.fields import DTYPE

if TYPE_CHECKING:
    from blockmgr.groups import Group
    from blockmgr.shapes.fields import Config

__all__ = ["NAMED", "Model", "named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The memory of a model, as far as a manager needs it.

    Attributes:
        name: Name of the model.
        groups: The groups of its layers; empty for a single group with full attention.
        bytes_per_token: Bytes per token in all layers of one group; where groups have block sizes
            of their own, bytes of a block per token of ``block_size``.
        block_size: Fewest tokens per block that hold a state, or the tokens that hold whole blocks
            of each group; None if neither matters.
        num_kv_heads: K/V heads of a layer, which tensor parallelism divides; 1 with MLA.
        entry_tokens: Most tokens that one entry of a cache stands for; with more than 1, prompts
            find whole blocks only.
    """

    name: str
    groups: tuple[Group, ...]
    bytes_per_token: int
    block_size: int | None = None
    num_kv_heads: int = 1
    entry_tokens: int = 1

    @classmethod
    def from_config(
        cls, name: str, config: Config, dtype: str | None = None, *, state_dtype: str = "float32"
    ) -> Model:
        """The model that a Hugging Face style config describes.

        Args:
            name: Its name.
            config: As in ``HybridShape.from_config``.
            dtype: Element type of the cache; None for the config's.
            state_dtype: Element type of recurrences.

        Raises:
            ValueError: As ``HybridShape.from_config``, and without full attention.
            OSError: The file cannot be read.
            TypeError: A field is of the wrong type.
        """
        fields = ConfigFields(config)
        if ratios := compress_ratios(fields):
            if dtype is not None:
                raise ValueError(f"dtype must not be given for {name}, which compresses tokens")
            groups, block = compressed_groups(fields)
            return cls(
                name=name,
                groups=groups,
                bytes_per_token=-(-block // BLOCK_SIZE),
                block_size=BLOCK_SIZE,
                entry_tokens=max(ratios),
            )
        state: Any = ELEMENTS[state_dtype]
        shape = HybridShape.from_config(config, _element(config, dtype), state_dtype=state)
        refuse_bare(shape.groups, "replays")
        if len(shape.groups) == 1:
            return cls.as_one_group(name, config, dtype)
        size = shape.block_size_for()
        kvs = [shape.group_layer(group).kv for group in range(len(shape.groups))]
        return cls(
            name=name,
            groups=shape.groups,
            bytes_per_token=shape.bytes_per_block(size) // size,
            block_size=size if shape.has_states or shape.has_sizes else None,
            num_kv_heads=math.gcd(*(kv.num_kv_heads for kv in kvs if kv)),
        )

    @classmethod
    def as_one_group(cls, name: str, config: Config, dtype: str | None = None) -> Model:
        """The same model with the K/V of all its layers in one group, by ``ModelShape``."""
        whole = ModelShape.from_config(config, _element(config, dtype))
        return cls(
            name=name,
            groups=(),
            bytes_per_token=whole.bytes_per_token,
            num_kv_heads=whole.num_kv_heads,
        )

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of a block of any group."""
        return self.bytes_per_token * block_size

    def bytes_per_token_on(self, gpus: int) -> int:
        """Bytes per token on each of the GPUs that divide the K/V heads among them.

        More GPUs than heads keep each head more than once, as the single vector of MLA.

        Args:
            gpus: Size of tensor parallelism, at least 1.

        Raises:
            ValueError: The GPUs do not divide the heads evenly, or a state, which they divide
                otherwise, decides the size of a block.

        >>> named("llama-3-8b").bytes_per_token_on(4)
        32768
        """
        heads = self.num_kv_heads
        if max(heads, gpus) % min(heads, gpus):
            raise ValueError(
                f"tensor parallel must divide the {heads} K/V heads of {self.name} or be a "
                f"multiple of them, got {gpus}"
            )
        states = any(isinstance(group, RecurrentState) for group in self.groups)
        if self.block_size is not None and gpus > heads and (states or heads > 1):
            raise ValueError(
                f"tensor parallel must be at most {heads}, the K/V heads of {self.name}, whose "
                f"blocks hold states as well, got {gpus}"
            )
        return self.bytes_per_token // min(gpus, heads)

    def as_plain(self, block_size: int) -> dict[str, Any]:
        """The model for a JSON document."""
        return {
            "bytes_per_block": self.bytes_per_block(block_size),
            "groups": [repr(group) for group in self.groups],
            "name": self.name,
        }

    def check_block_size(self, block_size: int) -> None:
        """Refuse blocks that are too small for a state, or others than those of the groups.

        Raises:
            ValueError: ``block_size`` is too small, or another one.
        """
        has_sizes = any(getattr(group, "block_size", None) for group in self.groups)
        if has_sizes and block_size != self.block_size:
            raise ValueError(
                f"block_size must be {self.block_size} for {self.name}, whose groups have blocks of"
                f" their own sizes, got {block_size}"
            )
        if self.block_size is not None and block_size < self.block_size:
            raise ValueError(
                f"block_size must be at least {self.block_size} for a block of {self.name} to hold "
                f"a state, got {block_size}"
            )

    def check_partial(self, min_partial_tokens: int) -> None:
        """Refuse to reuse parts of blocks whose entries stand for several tokens.

        Raises:
            ValueError: ``min_partial_tokens`` is not 0.
        """
        if min_partial_tokens and self.entry_tokens > 1:
            raise ValueError(
                f"min_partial_tokens must be 0 for {self.name}, where one entry stands for up to "
                f"{self.entry_tokens} tokens, got {min_partial_tokens}"
            )


def _element(config: Config, dtype: str | None) -> Any:
    return ELEMENTS[dtype] if dtype else element_of(ConfigFields(config).get(*DTYPE))


def _dense(name: str, num_layers: int) -> Model:
    """A model with full attention alone, and eight K/V heads of 128 elements."""
    return _named(name, num_hidden_layers=num_layers, num_key_value_heads=8, head_dim=128)


def _latent(name: str) -> Model:
    """DeepSeek-V3 and those of its layout: one latent of 512 elements a token, and 64 with RoPE."""
    return _named(name, num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64)


def _gated_delta(name: str, *, num_layers: int, num_kv_heads: int) -> Model:
    """Three layers with a state of a gated delta rule, then one with full attention."""
    return _named(
        name,
        "bfloat16",
        num_hidden_layers=num_layers,
        full_attention_interval=4,
        num_key_value_heads=num_kv_heads,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    )


def _named(name: str, state_dtype: str = "float32", **config: Any) -> Model:
    return Model.from_config(name, {"dtype": "bfloat16", **config}, state_dtype=state_dtype)


NAMED: Final = {
    model.name: model
    for model in (
        _dense("llama-3-8b", 32),
        _dense("llama-3-70b", 80),
        _dense("qwen3-8b", 36),
        _dense("qwen3-32b", 64),
        _latent("deepseek-v3"),
        _latent("kimi-k2"),
        _named(
            "deepseek-v4",
            num_hidden_layers=43,
            compress_ratios=[0, 0, *[4, 128] * 20, 4],
            sliding_window=128,
            head_dim=512,
            qk_rope_head_dim=64,
            index_head_dim=128,
        ),
        _named(
            "gemma-3",
            model_type="gemma3_text",
            num_hidden_layers=48,
            sliding_window=1024,
            num_key_value_heads=8,
            head_dim=256,
        ),
        _named(
            "gemma-4",
            model_type="gemma4_text",
            num_hidden_layers=30,
            layer_types=[*["sliding_attention"] * 5, "full_attention"] * 5,
            sliding_window=512,
            num_key_value_heads=4,
            head_dim=256,
            global_head_dim=512,
        ),
        _gated_delta("qwen3-next", num_layers=48, num_kv_heads=2),
        _gated_delta("qwen3.5", num_layers=32, num_kv_heads=4),
        _named(
            "nemotron-h",
            num_hidden_layers=52,
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            num_key_value_heads=2,
            head_dim=128,
            mamba_num_heads=64,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
            conv_kernel=4,
        ),
    )
}
"""Llama 3.1 and Qwen3 in two sizes each, DeepSeek-V3, Kimi K2, DeepSeek-V4-Flash, Gemma-3-12B,
Qwen3-Next-80B-A3B and Nemotron-3-Nano-30B-A3B, by their published configs; Gemma 4 and Qwen3.5 with
the defaults of transformers. States are in vLLM's types."""


def named(name: str) -> Model:
    """The model with this name.

    Raises:
        ValueError: There is none; the message names the nearest one.

    >>> named("qwen3-next").bytes_per_block(544)
    13369344
    """
    return NAMED[pick("model", name, NAMED)]
