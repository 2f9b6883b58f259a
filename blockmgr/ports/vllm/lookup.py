"""Finds the cached prefixes of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager, Match, Prompt
    from blockmgr.ports.vllm.prompts import Prompts

__all__ = ["Lookup"]


class Lookup:
    """Looks requests up, and changes nothing.

    Args:
        manager: The manager.
        prompts: The converted tokens of waiting requests.
        use_eagle: Whether a draft head computes each token's K/V from the token after it. It finds
            one token less, or one block less if whole blocks are all that is found.

    Attributes:
        whole_only: Requests that found no room for the copy of a part of a block.
        stops: The last request looked up, and where its forwards should end.
    """

    def __init__(self, manager: BlockManager, prompts: Prompts, *, use_eagle: bool) -> None:
        config = manager.config
        self._manager = manager
        self._prompts = prompts
        self._use_eagle = use_eagle
        self._block_size = config.block_size
        self._least = config.min_partial_tokens
        # Slots for all of a long prompt would be that many blocks of a window.
        self._num_slots = 1 if len(config.groups) > 1 else None
        self.whole_only: set[str] = set()
        self.stops: tuple[str, tuple[int, ...]] = ("", ())

    def of(self, request: Request, limit: int | None) -> Match:
        """What the request finds.

        Args:
            request: The request, which finds at most all tokens except its last one.
            limit: Most tokens to find; if this limits the hit, only whole blocks are found.
        """
        prompt, partly = self._prompts.of(request), request.request_id not in self.whole_only
        found = self._find(prompt, len(prompt) - 1, partly)
        if limit is not None and limit < found.num_cached_tokens:
            found = self._find(prompt, limit - limit % self._block_size, partly)
            partly = False
        if self._use_eagle and found.num_cached_tokens:
            less = 1 if self._least else self._block_size
            found = self._find(prompt, found.num_cached_tokens - less, partly)
        self.stops = request.request_id, found.stops
        return found

    def _find(self, prompt: Prompt, most: int, partly: bool) -> Match:
        """The best match of at most this many tokens, with a part of a block or without."""
        slots = self._num_slots
        found = self._match(prompt, slots, most)
        partial = found.num_partial_tokens
        whole = found.num_cached_tokens - partial
        if partial and not partly:
            return self._match(prompt, slots, whole)
        if slots and self._least and partly and not partial and whole + self._least <= most:
            return self._match(prompt, min(len(prompt), whole + self._block_size), most)
        return found

    def num_idle_blocks(self, prompt: Prompt, num_found: int) -> int:
        """Idle blocks that are taken into use for this many tokens that were found."""
        return self._match(prompt, 1, num_found).num_idle_blocks if num_found else 0

    def _match(self, prompt: Prompt, num_slots: int | None, most: int) -> Match:
        found = self._best(prompt, num_slots, most)
        if num_slots == 1 and self._least:
            # A tail may be further than the last whole block with a state.
            for stop in found.stops:
                slots = min(len(prompt), stop + 1)
                if slots <= self._block_size:
                    continue
                other = self._best(prompt, slots, most)
                if other.num_cached_tokens > found.num_cached_tokens:
                    found = other
        return found

    def _best(self, prompt: Prompt, num_slots: int | None, most: int) -> Match:
        return self._manager.match(
            prompt, num_slots=num_slots, max_cached_tokens=most, watermark_blocks=0
        )
