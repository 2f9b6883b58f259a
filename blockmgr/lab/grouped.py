"""What a replay asks of a manager with groups of layers, for one request.

An engine computes a prompt in chunks, and so does this: ::

    match ──► admit the first chunk ──► copies, forward, commit ──► copies, reserve the next ──► ...
              if there is room for the rest

A chunk ends after ``ReplayConfig.forward_tokens``, and at each of ``BlockManager.stops``: a state
can be found only where a forward has stopped. Blocks of windows go back as chunks are committed.
A request is admitted only if there is room for all chunks and for the output, which it takes at
once: nothing waits or is preempted on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from blockmgr.lab.group_demand import extra_blocks, grouped_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.blocks import Match
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.request import Request, Tokens
    from blockmgr.manager import BlockManager

__all__ = ["GroupedSteps"]


class GroupedSteps:
    """The calls for one request after another.

    Args:
        manager: With the groups of ``config``.
        config: How to replay.
        apply_copies: Takes the copy plan of a step and reports it done.
        taken: Called with a sequence and the tokens of its next forward, whose blocks it has.
        clock: Measures what that costs.

    Attributes:
        watching_s: The time of that so far.
    """

    def __init__(
        self,
        manager: BlockManager,
        config: ReplayConfig,
        apply_copies: Callable[[], None],
        taken: Callable[[int, int, int], None],
        clock: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._config = config
        self._apply_copies = apply_copies
        self._taken = taken
        self._clock = clock
        self.watching_s = 0.0

    def start(self, request: Request, tokens: Tokens) -> list[int]:
        """Admit a request with all its samples; no handles if there is no room for them."""
        manager, prompt = self._manager, len(tokens)
        outputs = self._config.output_lengths(request)
        handle = self._admit(request, tokens)
        if handle is None:
            return []
        self._prefill(handle, prompt)
        handles = [handle]
        if request.num_samples > 1:
            handles += manager.fork(handle, request.num_samples - 1)
        for sample, output in zip(handles, outputs, strict=True):
            if output:
                manager.reserve(sample, prompt + output)
        if request.num_samples > 1:
            # Nothing is left to compute, so no forward of this step moves a state.
            self._apply_copies()
        manager.take_remaps()
        return handles

    def _admit(self, request: Request, tokens: Tokens) -> int | None:
        """The handle, with blocks for the first chunk; None if there is no room for the rest."""
        config, manager, space = self._config, self._manager, request.namespace
        outputs = config.output_lengths(request)
        most = grouped_blocks(len(tokens), outputs, config)
        # Asked for one slot, it does not leave out what is cached for lack of room for the rest.
        match = manager.match(tokens, namespace=space, num_slots=1)
        found = match.num_cached_tokens
        room = manager.num_available
        if most - self._used(match) + extra_blocks(match, config) > room:
            found = 0
            if most > room:
                return None
        slots = min(len(tokens), found + config.forward_tokens)
        limit = None if found == match.num_cached_tokens else 0
        return manager.admit(tokens, namespace=space, num_slots=slots, max_cached_tokens=limit)

    def _used(self, match: Match) -> int:
        """Blocks of full attention that other sequences hold: sharing them takes no room.

        A used block uses the blocks before it, so these are the first ones.
        """
        count = self._manager.ref_count
        return bisect_left(match.block_ids.tolist(), True, key=lambda block: not count(block))

    def _prefill(self, handle: int, prompt: int) -> None:
        manager = self._manager
        computed = manager.sequence(handle).num_computed_tokens
        stops = manager.stops(handle)
        self._apply_copies()
        while computed < prompt:
            ends = [stop for stop in stops if stop > computed]
            end = min(*ends, computed + self._config.forward_tokens, prompt)
            manager.reserve(handle, end)
            paused = self._clock()
            self._taken(handle, computed, end)
            self.watching_s += self._clock() - paused
            manager.commit(handle, end)
            if end < prompt:
                # A state that was kept there is held until the copy in which this goes on is made.
                self._apply_copies()
            computed = end
