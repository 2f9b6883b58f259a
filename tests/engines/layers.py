"""Groups of layers of a model that is never loaded: what they read, and their vLLM specs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1 import kv_cache_interface
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

__all__ = ["FULL", "HAS_RINGS", "Layers", "draw_layers", "with_sizes"]

KINDS = ("full", "window", "again", "chunk", "state", "ring")
HAS_RINGS = hasattr(kv_cache_interface, "CircularBufferSpec")  # since vLLM 0.33


@dataclass(frozen=True)
class Layers:
    """One group.

    Attributes:
        kind: ``full``, ``window``, ``again`` (a window that is not cached), ``chunk``, ``state`` or
            ``ring``.
        width: Tokens of the window or of the chunk; of a ring, those that become one entry.
        scale: Its block size, in multiples of the smallest one.
        rows: Of a ring, the entries whose tokens it holds: those of the one before, too, if these
            are compressed as well (DeepSeek-V4.1).
        is_latent: Whether it has vLLM's specs of latent attention, with 4 tokens an entry in full
            attention, as DeepSeek-V4.
    """

    kind: str
    width: int = 0
    scale: int = 1
    rows: int = 1
    is_latent: bool = False

    def __post_init__(self) -> None:
        # Another name would read all tokens, as full attention does, and pass for what was meant.
        if self.kind not in KINDS:
            raise ValueError(f"no kind of layers: {self.kind!r}")

    @property
    def is_found(self) -> bool:
        """Whether prompts find its blocks."""
        return self.kind not in {"ring", "again"}

    @property
    def is_attention(self) -> bool:
        """Whether it has a block for some tokens."""
        return self.kind not in {"ring", "state"}

    def first_read(self, position: int) -> int:
        """The first position that the query at this position reads."""
        if self.kind in {"window", "again"}:
            return max(0, position - self.width + 1)
        if self.kind == "ring":
            return max(0, position - position % self.width - (self.rows - 1) * self.width)
        return position - position % self.width if self.kind == "chunk" else 0

    def size(self, block_size: int, drafts: int = 0) -> int:
        """Tokens of its blocks: a ring holds those that wait, and the drafts of a step.

        Args:
            block_size: The smallest one of the groups.
            drafts: Most draft tokens of a step.
        """
        if self.kind == "ring":
            # Models round up, so that a ring divides their blocks.
            most = self.rows * self.width + drafts
            return self.width << ((most - 1) // self.width).bit_length()
        return block_size * self.scale

    def as_vllm_has_it(self, block_size: int, drafts: int = 0, checkpoints: bool = False) -> Any:
        """The group's spec in vLLM.

        Args:
            block_size: The smallest one of the groups.
            drafts: Most draft tokens of a step.
            checkpoints: Whether the forward of a prompt writes a state on its way (Mamba2).
        """
        common: dict[str, Any] = {
            "block_size": self.size(block_size, drafts),
            "num_kv_heads": 1,
            "head_size": 1,
            "dtype": torch.float32,
        }
        if self.kind == "state":
            return MambaSpec(
                block_size=block_size * self.scale,
                shapes=((1,),),
                dtypes=(torch.float32,),
                page_size_padded=FULL[0].as_vllm_has_it(block_size).page_size_bytes,
                mamba_cache_mode="align",
                num_speculative_blocks=drafts,
                num_prefill_checkpoint_blocks=int(checkpoints),
                prefill_checkpoint_alignment=1 if checkpoints else None,
            )
        if self.kind == "ring":
            return kv_cache_interface.CircularBufferSpec(head_size_v=0, **common)
        if self.is_latent or self.kind == "again":
            return self._as_latent(common)
        if self.kind == "window":  # with decode context parallelism, each rank has all of it
            return SlidingWindowSpec(sliding_window=self.width, dcp_sharded=False, **common)
        if self.kind == "chunk":
            return ChunkedLocalAttentionSpec(attention_chunk_size=self.width, **common)
        return FullAttentionSpec(**common)

    def _as_latent(self, common: dict[str, Any]) -> Any:
        if self.kind == "full":
            return MLAAttentionSpec(tokens_per_state=4, **common)
        again = {"bounded_replay": True} if self.kind == "again" else {}  # since vLLM 0.33
        return SlidingWindowMLASpec(sliding_window=self.width, **again, **common)


FULL = (Layers("full"),)


SCALES = ((1, 2), (2, 1), (4, 1), (1, 3), (2, 3), (8, 2, 1), (1, 2, 4))


def draw_layers(rng: random.Random, kind: str, block_size: int) -> tuple[Layers, ...]:
    """Groups like those of models: one of full attention, and one or more that read a part.

    Those of a kind that begins with ``bare`` have no full attention. Leaves out windows of one
    token, with which vLLM's own manager finds nothing.
    """
    if kind == "full":
        return FULL
    if kind.startswith("bare"):
        groups = [Layers("state")] * (rng.choice([1, 1, 1, 2]) if kind.endswith("state") else 0)
        if not groups or rng.random() < 0.4:
            widths = [rng.choice([rng.randint(2, 4 * block_size), 33])]
            if rng.random() < 0.4:
                widths.append(rng.randint(2, 6 * block_size))
            groups += [Layers("window", width) for width in widths]
        rng.shuffle(groups)
        return tuple(groups)
    if kind.startswith("ring"):
        beside = "state" if kind.endswith("state") else rng.choice(["full", "window", "latent"])
        width = rng.choice([each for each in (2, 4, 8) if block_size % each == 0])
        groups = [
            *draw_layers(rng, beside, block_size),
            *[Layers("ring", width)] * rng.choice([1, 2]),
        ]
        rng.shuffle(groups)
        return tuple(groups)
    if kind.startswith("again"):
        return _draw_again(rng, kind, block_size)
    if kind == "state":
        groups = [*FULL, *[Layers("state")] * rng.choice([1, 1, 2, 3])]
        if rng.random() < 0.2:
            groups.append(Layers("window", rng.randint(2, 4 * block_size)))
        rng.shuffle(groups)
        return tuple(groups)
    width = rng.choice([rng.randint(2, 3 * block_size), block_size * rng.randint(1, 6), 33])
    if is_latent := kind == "latent":
        kind = "window"
    few = [Layers(kind, width) for _ in range(rng.choice([1, 1, 2, 5]))]
    groups = [*FULL, *few]
    if rng.random() < 0.2:
        groups.append(Layers("full"))
    if rng.random() < 0.3:  # the first is not full attention
        groups.reverse()
    return tuple(replace(each, is_latent=is_latent) for each in groups)


def _draw_again(rng: random.Random, kind: str, block_size: int) -> tuple[Layers, ...]:
    """Windows that are computed again, and rings if the kind says so, as in DeepSeek-V4.1."""
    width = rng.choice([rng.randint(2, 3 * block_size), block_size * rng.randint(1, 6), 33])
    groups = [*FULL, *[Layers("again", width)] * rng.choice([1, 1, 2, 5])]
    if kind.endswith("ring"):
        row = rng.choice([each for each in (1, 2, 4) if 2 * each <= width])
        groups = [replace(each, is_latent=each.is_found) for each in groups]
        groups.append(Layers("ring", row, rows=2))
    rng.shuffle(groups)
    return tuple(groups)


def with_sizes(rng: random.Random, layers: tuple[Layers, ...]) -> tuple[Layers, ...]:
    """The same groups, with blocks of different sizes."""
    scales = rng.choice(SCALES)
    return tuple(
        replace(each, scale=scales[number % len(scales)]) for number, each in enumerate(layers)
    )


def group_specs(
    layers: tuple[Layers, ...], block_size: int, drafts: int = 0, checkpoints: bool = False
) -> list[KVCacheGroupSpec]:
    """The groups of vLLM's ``KVCacheConfig``."""
    return [
        KVCacheGroupSpec([f"layer {number}"], each.as_vllm_has_it(block_size, drafts, checkpoints))
        for number, each in enumerate(layers)
    ]
