"""The calls of a replay on a manager with groups of layers, for one request.

Like an engine, it computes a prompt in chunks: ::

    match ──► admit the first chunk ──► copies, forward, commit ──► copies, reserve the next ──► ...
              if there is room for the rest

A chunk ends after ``ReplayConfig.forward_tokens``, and at each of ``BlockManager.stops``, because a
state can be found only where a forward ended. Blocks of windows are released as chunks are
committed. A request is admitted only if there is room for all chunks and for the output. It takes
all of them immediately, so it never waits or is preempted later.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from blockmgr.lab.demand import extra_blocks, held_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.blocks import Match
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.request import Request, Tokens
    from blockmgr.manager import BlockManager

__all__ = ["GroupedSteps"]


class GroupedSteps:
    """Makes the calls for requests in turn.

    Args:
        manager: A manager with the groups of ``config``.
        config: Config of the replay.
        apply_copies: Takes the copy plan of a step and reports it done.
        taken: Called when a sequence has the blocks for its next forward.
    """

    def __init__(
        self,
        manager: BlockManager,
        config: ReplayConfig,
        apply_copies: Callable[[], None],
        taken: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._config = config
        self._apply_copies = apply_copies
        self._taken = taken

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
            # There is nothing to compute, so no forward of this step moves a state.
            self._apply_copies()
        manager.take_remaps()
        return handles

    def _admit(self, request: Request, tokens: Tokens) -> int | None:
        """The handle, with blocks for the first chunk; None if there is no room for the rest."""
        config, manager, space = self._config, self._manager, request.namespace
        most = held_blocks(request, config)
        # With one slot, the admission does not reduce the hit if there is no room for the rest.
        match = manager.match(tokens, namespace=space, num_slots=1)
        found = match.num_cached_tokens
        room = manager.num_available
        if most - self._used(match) + extra_blocks(match, config) > room:
            found = 0
            if most > room:
                return None
        slots = min(len(tokens), found + config.forward_tokens)
        limit = None if found == match.num_cached_tokens else 0
        return manager.admit(
            tokens,
            namespace=space,
            num_slots=slots,
            max_cached_tokens=limit,
            session=config.session_name(request),
        )

    def _used(self, match: Match) -> int:
        """Blocks of full attention that other sequences hold, which can be shared for free.

        A used block keeps the blocks before it in use, so these are the first ones.
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
            self._taken()
            manager.commit(handle, end)
            if end < prompt or end in stops:
                # A state kept there is held until it is copied for this sequence.
                self._apply_copies()
            computed = end
