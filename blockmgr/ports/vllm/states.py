"""The manager for models in which some layers have a recurrent state (Mamba).

A request has one block for its state in each such group, and each forward replaces the state. The
block manager caches a copy of a state where a forward stopped, and the request keeps its block.
Workers of vLLM expect the state in the column of the last token: they read it at the last token
before the step, and write it at the last token of the step. So every column of their tables names
the block of the state.

The scheduler cuts prefills into chunks that end where states are worth caching. vLLM would end them
at multiples of the block size, and cache a state for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr import Admission, FullAttention, RecurrentState
from blockmgr.ports.vllm.held import ROW
from blockmgr.ports.vllm.hybrid import HybridKVCacheManager
from blockmgr.ports.vllm.naming import namespace

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import Match, Prompt
    from blockmgr.ports.vllm.blocks import SomeBlocks
    from blockmgr.ports.vllm.held import Held, Room

__all__ = ["StatefulKVCacheManager"]


class StatefulKVCacheManager(HybridKVCacheManager):
    """``HybridKVCacheManager`` for several groups, some of which have a recurrent state."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._has_full_only = all(
            isinstance(each.group, FullAttention | RecurrentState) for each in self.layers
        )
        self._found_stops: tuple[int, ...] = ()  # of the last match
        self._next_stops: tuple[str, tuple[int, ...]] = ("", ())  # of the last request looked up
        self._stopped: list[Held] = []  # whose forward ends at a stop or with a block
        self._ahead: list[Held] = []  # whose forward gets tokens that are not known yet

    # Chunks.

    def get_computed_blocks(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[SomeBlocks, int, int]:
        """As for windows; also notes where the forwards of the request should end."""
        self._found_stops = (self._last_boundary(request),)
        found = super().get_computed_blocks(request, max_cache_hit_length)
        self._next_stops = request.request_id, self._found_stops
        return found

    def _match(self, prompt: Prompt, num_slots: int, most: int) -> Match:
        found = super()._match(prompt, num_slots, most)
        if num_slots == 1 and self.options.min_partial_tokens:
            # A tail may be further than the last whole block with a state.
            for stop in found.stops:
                slots = min(len(prompt), stop + 1)
                if slots <= self.block_size:
                    continue
                other = super()._match(prompt, slots, most)
                if other.num_cached_tokens > found.num_cached_tokens:
                    found = other
        self._found_stops = found.stops
        return found

    def clip_chunk(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """Number of tokens of a prefill's next chunk, instead of ``_mamba_block_aligned_split``.

        It ends at the first stop, or else, if it is not the last chunk, with a whole block: as in
        vLLM, the state there is cached if there is room.
        """
        start: int = request.num_computed_tokens + num_new_local_computed_tokens
        start += num_external_computed_tokens
        prefill_end: int = max(request.num_prompt_tokens, request.num_tokens - 1)
        if start >= prefill_end:
            return num_new_tokens
        end = start + num_new_tokens
        if end < prefill_end and end - end % self.block_size > start:
            end -= end % self.block_size
        return min((s for s in self._stops_of(request) if start < s < end), default=end) - start

    def _stops_of(self, request: Request) -> tuple[int, ...]:
        held = self._held.get(request.request_id)
        if held is not None:
            return held.stops
        name, stops = self._next_stops
        return stops if name == request.request_id else (self._last_boundary(request),)

    def _last_boundary(self, request: Request) -> int:
        last: int = request.num_tokens - 1
        return last - last % self.block_size

    # Growth.

    def _admit(self, request: Request, num_found: int, room: Room) -> Held | None:
        if self.prefix_cache_lookup_enabled(request) and self._finds_more_soon(request, num_found):
            return None
        held = super()._admit(request, num_found, room)
        if held is not None:
            held.request = request
            held.stops = self.manager.stops(held.handle)
            held.next_full = num_found + 1
        return held

    def _finds_more_soon(self, request: Request, num_found: int) -> bool:
        """Whether a forward of this step computes a state that the request can use in the next."""
        tokens = request._all_token_ids
        for held in self._stopped:
            end, other = held.num_committed, held.request
            assert other is not None
            if not num_found < end < len(tokens):
                continue
            if (
                tokens[end - 1] == other._all_token_ids[end - 1]  # most differ there
                and self._held.get(other.request_id) is held
                and tokens[:end] == other._all_token_ids[:end]
                and namespace(other) == namespace(request)
            ):
                return True
        return False

    def _whole_fits(self, prompt: Prompt, room: Room, match: Match | None) -> bool:
        if not self._has_full_only:
            return super()._whole_fits(prompt, room, match)
        verdict = self.manager.can_admit(
            prompt,
            num_slots=max(room.whole, room.slots),
            read_cache=match is not None,
            match=match,
            watermark_blocks=room.headroom,
        )
        return verdict is Admission.NOW

    def _publish(self, held: Held, request: Request, num_computed: int) -> None:
        """Commits at the end of a block and at a stop, which may be inside a block.

        The first forward after a commit tells the manager its tokens, which thus knows that the
        state moves. Otherwise it would cache the state of a request that is preempted as one that
        is still where the commit said.
        """
        held.next_full = self._next_commit(held)
        if num_computed > self._learn(held, request, num_computed):
            self._ahead.append(held)
        if num_computed < held.next_full:
            return
        super()._publish(held, request, num_computed)
        at_end = held.num_committed == num_computed
        if at_end and (num_computed % self.block_size == 0 or num_computed in held.stops):
            self._stopped.append(held)
        held.next_full = held.num_committed + 1

    def _next_commit(self, held: Held) -> int:
        """Number of computed tokens at which the next commit is due."""
        committed = held.num_committed
        due = committed - committed % self.block_size + self.block_size
        return min((stop for stop in held.stops if committed < stop < due), default=due)

    def _release_passed(self, held: Held, request: Request) -> None:
        # A commit tells where the state is, so it must not name an earlier token.
        if held.num_committed == request.num_computed_tokens:
            self._commit_again(held)

    # Commits after the forward: an early commit never makes a state findable.

    def new_step_starts(self) -> None:
        """Caches the states of requests whose forwards ended at a stop or with a block."""
        stopped, self._stopped = self._stopped, []
        # Requests that are preempted should continue from their states. Copies hold blocks until
        # they have run, so states are then cached at stops only.
        is_scarce = self._is_scarce()
        if is_scarce:
            stopped = list(self._held.values())
            stopped = [held for held in stopped if self._is_known(held)]
            for held in stopped:
                self._commit_computed(held)
        super().new_step_starts()
        for held in stopped:
            assert held.request is not None
            if self._held.get(held.request.request_id) is held:
                self._commit_again(held, everywhere=not is_scarce)

    @staticmethod
    def _is_known(held: Held) -> bool:
        """Whether no forward in flight computes a token of it that is not known yet."""
        assert held.request is not None
        return not held.request.num_output_placeholders

    def _is_scarce(self) -> bool:
        """Whether requests may have to be preempted soon."""
        most = 2 * len(self._held) * self.num_kv_cache_groups
        return self._has_shares or self.manager.num_available < most

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        """The step is planned: its forwards move the states of requests that run ahead."""
        taken = super().take_kv_cache_block_copies()
        for held in self._ahead:
            assert held.request is not None
            if self._held.get(held.request.request_id) is held:
                self.manager.mark_state_moved(held.handle)
        self._ahead.clear()
        return taken

    def _commit_computed(self, held: Held) -> None:
        """Commits all that earlier steps computed, as part of the step that comes."""
        request = held.request
        assert request is not None
        if held.is_loading:
            return
        computed = request.num_computed_tokens - request.num_output_placeholders
        computed = min(computed, self._learn(held, request, computed))
        if computed > held.num_committed:
            self._commit_to(held, request, computed)
            held.next_full = computed + 1
            self._nothing_to_do.pop(request.request_id, None)
            self._committed_late = True

    def _commit_again(self, held: Held, *, everywhere: bool = False) -> None:
        """Tells the manager that the forward has ended at the last committed token.

        Args:
            held: The request.
            everywhere: Also cache a state that is at no stop, as vLLM does.
        """
        assert held.request is not None
        self._commit_to(held, held.request, held.num_committed)
        if everywhere:
            self.manager.cache_state(held.handle)

    def _end(self, held: Held, request: Request) -> None:
        if not self._in_step and not held.is_loading and self._is_known(held):
            self._commit_computed(held)
            self._close_late_commits()
            self._commit_again(held)
        super()._end(held, request)

    # Tables.

    def _by_group(self, held: Held, start: int) -> tuple[list[int], ...]:
        row = held.handle & ROW
        groups = zip(self._entries(held, start), self._tables, self.layers, strict=True)
        return tuple(
            [int(table[row, 0])] * layers.num_more_entries(held.num_slots, start)
            if layers.has_states
            else ids.tolist()
            for ids, table, layers in groups
        )
