"""Commits the tokens of requests, which makes their blocks findable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.ports.vllm.steps import Steps

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr.ports.vllm.events import KVEvents
    from blockmgr.ports.vllm.held import Held

__all__ = ["Publishing"]


class Publishing(Steps):
    """Commits computed tokens: a part of the manager."""

    enable_caching: bool
    kv_events: KVEvents | None

    def _publish(self, held: Held, request: Request, num_computed: int) -> None:
        """Makes whole blocks up to this token findable."""
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
        """Appends generated tokens up to this number; returns the number of known tokens.

        It never allocates: it only appends tokens that have slots.
        """
        tokens, known = request._all_token_ids, held.num_known
        most = min(len(tokens), held.num_slots, most)
        if most > known:
            self.manager.append(held.handle, tokens[known:most])
            held.num_known = known = most
        return known

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Commits tokens known since: asynchronous outputs, and tokens that a connector loaded."""
        held = self._held.get(request.request_id)
        if held is not None:
            held.is_loading = False
            self._publish(held, request, num_computed_tokens)

    def _publish_tail(self, held: Held, request: Request) -> None:
        """The next turn of a conversation begins at the end of this one, inside a block."""
        if not self.options.min_partial_tokens or held.is_loading or not self.enable_caching:
            return
        computed = request.num_computed_tokens - request.num_output_placeholders
        computed = min(computed, self._learn(held, request, computed))
        if computed > self.manager.sequence(held.handle).num_computed_tokens:
            self.manager.commit(held.handle, computed)
            self._committed_late = True
            if self.kv_events is not None:
                self.kv_events.stored_by(request)
