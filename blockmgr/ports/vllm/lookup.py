"""Finds the cached prefixes of requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from blockmgr import Match, RecurrentState
from blockmgr.groups import replay_of

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager, Prompt
    from blockmgr.ports.vllm.prompts import Prompts

__all__ = ["Lookup"]

NO_BLOCKS = np.zeros(0, np.int32)


class Lookup:
    """Looks requests up, and changes nothing.

    With a draft head, which computes each token's K/V from the token after it, a request finds one
    token less than is cached, or one block less if only whole blocks are looked for.

    As in vLLM, tokens that are found and computed again for some windows count as found.

    Args:
        manager: The manager.
        prompts: The converted tokens of waiting requests.
        least: The fewest tokens to reuse from a part of a block; 0 for never.

    Attributes:
        whole_only: Requests that found no room for the copy of a part of a block.
        stops: The last request looked up, and where its forwards should end.
    """

    def __init__(self, manager: BlockManager, prompts: Prompts, *, least: int) -> None:
        config = manager.config
        self._manager = manager
        self._prompts = prompts
        self._block_size = config.block_size
        self._least = config.min_partial_tokens
        self._least_copied = least or config.block_size
        self._behind = config.stop_margin_tokens
        # Slots for all of a long prompt would be that many blocks of a window.
        self._num_slots = 1 if config.groups else None
        self._replay = max(map(replay_of, config.groups), default=0)
        self._has_states = any(isinstance(each, RecurrentState) for each in config.groups)
        self.whole_only: set[str] = set()
        self.stops: tuple[str, tuple[int, ...]] = ("", ())

    def of(self, request: Request, limit: int | None) -> Match:
        """What the request finds.

        Args:
            request: The request, which finds at most all tokens except its last one.
            limit: Most tokens to find; if this limits the hit, only whole blocks are found.
        """
        prompt, partly = self._prompts.of(request), request.request_id not in self.whole_only
        found = self._find(prompt, len(prompt) - 1)
        is_cut = limit is not None and limit < found.num_cached_tokens
        if limit is not None and is_cut:
            found = self._find(prompt, limit - limit % self._block_size)
            partly = partly and not self._behind
        if self._behind and found.num_cached_tokens and not self._goes_on(found, is_cut):
            found = self._find(prompt, found.num_cached_tokens - self._behind)
        partial = found.num_partial_tokens
        if partial and not (partly and partial >= self._least_copied):
            found = self._match(prompt, self._num_slots, found.num_cached_tokens - partial)
        self.stops = request.request_id, found.stops
        return found

    def _goes_on(self, found: Match, is_cut: bool) -> bool:
        """Whether the tokens after the hit are cached, too.

        A state cannot go back to an earlier token, and a window may be kept at an earlier one only,
        so the hit may be before the end of what is cached. As in vLLM, a limit counts as the end,
        unless there are states.
        """
        behind = found.num_shared_tokens - found.num_cached_tokens
        return behind >= self._behind and (self._has_states or not is_cut)

    def _find(self, prompt: Prompt, most: int) -> Match:
        """The best match of at most this many tokens."""
        slots = self._num_slots
        found = self._match(prompt, slots, most)
        count = found.num_cached_tokens
        if slots and self._least and not found.num_partial_tokens and count + self._least <= most:
            return self._match(prompt, min(len(prompt), count + self._block_size), most)
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
        found = self._manager.match(
            prompt,
            num_slots=num_slots,
            max_cached_tokens=max(0, most - self._replay),
            watermark_blocks=0,
        )
        again = found.num_replayed_tokens
        return replace(found, num_cached_tokens=found.num_cached_tokens + again) if again else found

    def told(self, num_found: int) -> Match:
        """The match that an admission with exactly this hit needs."""
        return Match(max(0, num_found - self._replay), 0, NO_BLOCKS)
