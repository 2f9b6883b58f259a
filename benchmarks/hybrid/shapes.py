"""Shapes of hybrid models: groups of layers that share one pool of pages of equal size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr import FullAttention, RecurrentState, SlidingWindow

if TYPE_CHECKING:
    from blockmgr.groups import Group

__all__ = ["MAX_BATCHED_TOKENS", "SHAPES", "Shape"]

MAX_BATCHED_TOKENS = 8192  # vLLM's default for a server on a GPU of 70 GiB and more


@dataclass(frozen=True, slots=True)
class Shape:
    """One group of full attention, and groups that read fewer tokens.

    Attributes:
        name: Name of the shape.
        page: Tokens in a page of full attention; the pages of all groups are equal in bytes.
        num_windows: Groups with a sliding window.
        width: Tokens of that window.
        num_states: Groups with a recurrent state, one page each.
        unit: A finer ``prefix_match_unit`` for vLLM; 0 where it has no use for one. Also our
            minimum of tokens for reuse of part of a page.
        layers: The model, and its layers of each kind.
    """

    name: str
    page: int
    num_windows: int
    width: int
    num_states: int
    unit: int
    layers: str

    @property
    def groups(self) -> list[Group]:
        """The groups, as ``BlockManager`` takes them."""
        windows = [SlidingWindow(self.width) for _ in range(self.num_windows)]
        return [FullAttention(), *windows, *[RecurrentState()] * self.num_states]

    def pages_for(self, num_tokens: int) -> int:
        """Pages that one prompt needs while it runs in chunks, its next state included."""
        window = min(num_tokens, self.width + MAX_BATCHED_TOKENS)
        blocks = -(-num_tokens // self.page)
        return blocks + self.num_windows * (window // self.page + 2) + 2 * self.num_states


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("window 1,024", 64, 5, 1024, 0, 0, "Gemma-3-12B: 8 full, 40 with a window"),
        Shape("state page 544", 544, 0, 0, 3, 16, "Qwen3-Next-80B: 12 full, 36 with a state"),
        Shape("state page 2,096", 2096, 0, 0, 4, 16, "Nemotron-3-Nano: 6 full, 23 with a state"),
    )
}
