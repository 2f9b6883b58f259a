"""Models for replays: the groups of their layers, and the bytes of a block.

A block holds the same number of bytes in every group. ``named`` has the shapes of published hybrid
models, in vLLM's layout: each group has as many layers as the rarest kind, and a block has enough
tokens to hold a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from blockmgr.groups import FullAttention, Group, RecurrentState, SlidingWindow
from blockmgr.lab.choices import pick

__all__ = ["NAMED", "Model", "named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The memory of a model, as far as a manager needs it.

    Attributes:
        name: Name of the model.
        groups: The groups of its layers; empty for a single group with full attention.
        bytes_per_token: Bytes per token in all layers of one group.
        block_size: Fewest tokens per block that hold a state; None without states.
        summary: A description of its layers.
    """

    name: str
    groups: tuple[Group, ...]
    bytes_per_token: int
    block_size: int | None = None
    summary: str = ""

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of a block of any group."""
        return self.bytes_per_token * block_size

    def as_plain(self, block_size: int) -> dict[str, Any]:
        """The model for a JSON document."""
        return {
            "bytes_per_block": self.bytes_per_block(block_size),
            "groups": [repr(group) for group in self.groups],
            "name": self.name,
        }

    def check_block_size(self, block_size: int) -> None:
        """Refuse blocks that are too small for a state.

        Raises:
            ValueError: ``block_size`` is too small.
        """
        if self.block_size is not None and block_size < self.block_size:
            raise ValueError(
                f"block_size must be at least {self.block_size} for a block of {self.name} to hold "
                f"a state, got {block_size}"
            )


NAMED: Final = {
    model.name: model
    for model in (
        Model(
            name="gemma-3",
            groups=(FullAttention(), *[SlidingWindow(1024)] * 5),
            bytes_per_token=8 * 2 * 8 * 256 * 2,
            summary="8 layers of full attention and 40 with a window of 1,024 tokens",
        ),
        Model(
            name="qwen3-next",
            groups=(FullAttention(), *[RecurrentState()] * 3),
            bytes_per_token=12 * 2 * 2 * 256 * 2,
            block_size=544,
            summary="12 layers of full attention and 36 with a state, blocks of 544 tokens",
        ),
        Model(
            name="nemotron-h",
            groups=(FullAttention(), *[RecurrentState()] * 4),
            bytes_per_token=6 * 2 * 2 * 128 * 2,
            block_size=2096,
            summary="6 layers of full attention and 23 with a state, blocks of 2,096 tokens",
        ),
    )
}
"""Gemma-3-12B, Qwen3-Next-80B-A3B and Nemotron-3-Nano-30B-A3B in bfloat16, with the states of the
last in float32: layers of a group x K and V x heads x elements of a head x bytes."""


def named(name: str) -> Model:
    """The model with this name.

    Raises:
        ValueError: There is none; the message names the nearest one.

    >>> named("qwen3-next").bytes_per_block(544)
    13369344
    """
    return NAMED[pick("model", name, NAMED)]
