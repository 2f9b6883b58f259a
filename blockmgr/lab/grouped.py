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

from typing import TYPE_CHECKING

from blockmgr.lab.group_demand import found_blocks, grouped_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.lab.full_reach import FullReach
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
        reach: Is shown which blocks each forward takes.
        clock: Measures what that costs.

    Attributes:
        watching_s: The time of that so far.
    """

    def __init__(
        self,
        manager: BlockManager,
        config: ReplayConfig,
        apply_copies: Callable[[], None],
        reach: FullReach,
        clock: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._config = config
        self._apply_copies = apply_copies
        self._reach = reach
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
            self._apply_copies()
            for sample in handles:
                manager.commit(sample, prompt)  # no forward of that step has moved its state
        manager.take_remaps()
        return handles

    def _admit(self, request: Request, tokens: Tokens) -> int | None:
        """The handle, with blocks for the first chunk; None if there is no room for the rest."""
        config, manager, space = self._config, self._manager, request.namespace
        outputs = config.output_lengths(request)
        most = grouped_blocks(len(tokens), outputs, config)
        # Asked for one slot, it says how many blocks the cached part itself takes.
        match = manager.match(tokens, namespace=space, num_slots=1)
        found = match.num_cached_tokens
        needed = most - found_blocks(found, config) + match.num_idle_blocks
        # In a pool that is nearly too small, what is found may take too much beside the rest.
        reuse = needed <= manager.num_available
        if not reuse:
            found = 0
        if not reuse and most > manager.num_available:
            return None
        slots = min(len(tokens), found + config.forward_tokens)
        limit = None if reuse else 0
        return manager.admit(tokens, namespace=space, num_slots=slots, max_cached_tokens=limit)

    def _prefill(self, handle: int, prompt: int) -> None:
        manager = self._manager
        computed = manager.sequence(handle).num_computed_tokens
        stops = manager.stops(handle)
        self._apply_copies()
        while computed < prompt:
            ends = [stop for stop in stops if stop > computed]
            end = min(*ends, computed + self._config.forward_tokens, prompt)
            manager.reserve(handle, end)
            self._show(self._reach.taken, handle, computed, end)
            manager.commit(handle, end)
            self._show(self._reach.committed, handle, end)
            if end < prompt:
                # A state that was kept there is held until the copy in which this goes on is made.
                self._apply_copies()
            computed = end

    def _show(self, call: Callable[..., None], *arguments: int) -> None:
        start = self._clock()
        call(*arguments)
        self.watching_s += self._clock() - start
