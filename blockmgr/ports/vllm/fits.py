"""Whether requests fit: in the end, and beside the blocks that others still take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blockmgr import Admission, ChunkedAttention, SlidingWindow

if TYPE_CHECKING:
    from blockmgr import BlockManager, Prompt
    from blockmgr.ports.vllm.held import Held, Room
    from blockmgr.ports.vllm.layers import Layers
    from blockmgr.ports.vllm.lookup import Lookup

__all__ = ["Fits"]


class Fits:
    """Counts blocks as vLLM does: a window has at most a chunk and the tokens that it reads.

    Args:
        manager: The manager.
        layers: The groups of layers.
        lookup: Finds the idle blocks of a hit.
    """

    def __init__(self, manager: BlockManager, layers: tuple[Layers, ...], lookup: Lookup) -> None:
        self._manager = manager
        self._layers = layers
        self._lookup = lookup
        self._slots_at_once = math.gcd(*(each.block_size for each in layers))
        self._has_windows = any(
            isinstance(each.group, SlidingWindow | ChunkedAttention) for each in layers
        )

    def slots(self, num_tokens: int) -> int:
        """The slots in the blocks that a request has when it needs this many."""
        return -(-num_tokens // self._slots_at_once) * self._slots_at_once

    def whole(self, prompt: Prompt, room: Room, num_found: int | None) -> bool:
        """Whether there is room for the whole prompt, of which the first slots are taken.

        num_found: leading tokens that it found; None if it does not look.
        """
        slots = max(room.whole, room.slots)
        available = self._available(prompt) - room.headroom
        # An upper bound, without any hit and with the sources of a copy.
        if sum(each.num_blocks(slots) + 1 for each in self._layers) <= available:
            return True
        if not self._has_windows:
            verdict = self._manager.can_admit(
                prompt,
                num_slots=slots,
                read_cache=num_found is not None,
                match=None if num_found is None else self._lookup.told(num_found),
                watermark_blocks=room.headroom,
            )
            return verdict is Admission.NOW
        return self._needed(prompt, slots, num_found or 0) <= available

    def beside(self, prompt: Prompt, room: Room, num_found: int | None) -> bool:
        """Whether the slots of a step leave the blocks reserved for others.

        Not by the watermark of an admission, with which a prompt may never fit: vLLM may reserve
        blocks for requests that wait behind this one.
        """
        if not room.reserved:
            return True
        left = self._available(prompt) - room.headroom - room.reserved
        return self._needed(prompt, room.slots, num_found or 0) <= left

    def _needed(self, prompt: Prompt, num_slots: int, num_found: int) -> int:
        fresh = sum(each.num_fresh_blocks(num_slots, num_found) for each in self._layers)
        return fresh + self._lookup.num_idle_blocks(prompt, num_found)

    def growth(self, held: Held, room: Room) -> bool:
        """Whether the growth of a request leaves the blocks reserved for others."""
        if not (room.whole or room.headroom or room.reserved):
            return True
        needed = sum(
            each.num_more_entries(room.slots, held.num_slots)
            for each in self._layers
            if not each.has_states
        )
        to_end = sum(each.num_more_blocks(room.whole, held.num_slots) for each in self._layers)
        available = self._manager.num_available - room.headroom
        return needed <= available - room.reserved and to_end <= available

    def _available(self, prompt: Prompt) -> int:
        """Blocks available to a request with this prompt, in its share if there are quotas."""
        if not self._manager.config.quotas:
            return self._manager.num_available
        return self._manager.quota_usage(prompt.namespace).available
