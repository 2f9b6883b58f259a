"""When the blocks of a request can be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.ports.vllm.steps import Steps

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr.ports.vllm.events import KVEvents
    from blockmgr.ports.vllm.held import Held

__all__ = ["Publishing"]


class Publishing(Steps):
    """Tells the block manager which tokens are computed: a part of the manager."""

    enable_caching: bool
    kv_events: KVEvents | None

    def _publish(self, held: Held, request: Request, num_computed: int) -> None:
        """Whole blocks up to there can be found from here on."""
        if num_computed < held.next_full or not self.enable_caching:
            return
        if num_computed > held.num_known:
            num_computed = self._learn(held, request, num_computed)
        full = num_computed - num_computed % self.block_size
        if full < held.next_full:
            return
        self.manager.commit(held.handle, full)
        held.next_full = full + self.block_size
        if self.kv_events is not None:
            self.kv_events.stored_by(request)
        if not self._in_step:
            self._committed_late = True

    def _learn(self, held: Held, request: Request, most: int) -> int:
        """Appends what the request has generated, to so many tokens; those that are known then.

        Never allocates: only tokens that have slots.
        """
        tokens, known = request._all_token_ids, held.num_known
        most = min(len(tokens), held.num_slots, most)
        if most > known:
            self.manager.append(held.handle, tokens[known:most])
            held.num_known = known = most
        return known

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publishes what is known by now: asynchronous outputs, and what a connector has loaded."""
        held = self._held.get(request.request_id)
        if held is not None:
            held.is_loading = False
            self._publish(held, request, num_computed_tokens)

    def _publish_tail(self, held: Held, request: Request) -> None:
        """The next turn of a conversation begins where this one ends, within a block."""
        if not self.options.min_partial_tokens or held.is_loading or not self.enable_caching:
            return
        computed = request.num_computed_tokens - request.num_output_placeholders
        computed = min(computed, self._learn(held, request, computed))
        if computed > self.manager.sequence(held.handle).num_computed_tokens:
            self.manager.commit(held.handle, computed)
            self._committed_late = True
            if self.kv_events is not None:
                self.kv_events.stored_by(request)
