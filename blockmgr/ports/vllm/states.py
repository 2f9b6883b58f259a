"""Commits for models in which some layers have a recurrent state (Mamba), and ends of chunks.

A request has one block for its state in each such group, and each forward replaces the state. The
block manager caches a copy of a state where a forward stopped, and the request keeps its block.

The scheduler cuts prefills into chunks that end where states are worth caching. vLLM would end them
at multiples of the block size, and cache a state for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.ports.vllm.commits import Commits
from blockmgr.ports.vllm.held import ROW
from blockmgr.ports.vllm.naming import namespace
from blockmgr.ports.vllm.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
    from vllm.v1.request import Request

    from blockmgr.ports.vllm.held import Held
    from blockmgr.ports.vllm.lookup import Lookup

__all__ = ["StateCommits"]


class StateCommits(Commits):
    """``Commits`` that tells the manager where the states of requests are.

    Args:
        *arguments: As in ``Commits``.
        lookup: Knows where the forwards of a waiting request should end.
        has_quotas: Whether some requests may be short of blocks while others are not.
        **named: As in ``Commits``.
    """

    def __init__(self, *arguments: Any, lookup: Lookup, has_quotas: bool, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lookup = lookup
        self._has_quotas = has_quotas
        self._states = next(each for each in self._layers if each.has_states)
        self._has_slots = self._states.num_blocks(1) > 1
        self._launched: dict[int, Held] = {}  # with several slots: by handle, who had a step lately
        # Whose forward of so many tokens ends at a stop or with a block, in this step or the last.
        self._stopped: list[tuple[Held, int]] = []
        self._copied: list[tuple[Held, int]] = []
        self._ahead: list[Held] = []  # whose forward gets tokens that are not known yet
        self._groups = [group for group, each in enumerate(self._layers) if each.has_states]
        self._kept: list[tuple[Held, int]] = []  # whose state at so many tokens the step may copy
        self._offers: dict[str, list[tuple[int, int, int]]] = {}
        self.finished_loads: Callable[[], Collection[str]] = tuple  # ids of requests

    # Chunks.

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
        if self._has_slots and num_external_computed_tokens and start % self._states.block_size:
            # Drafts that only fill up the step might be wrong behind the end of the block, whose
            # column names the slot that this step reads.
            num_new_tokens = min(num_new_tokens, request.num_tokens - start)
        prefill_end: int = max(request.num_prompt_tokens, request.num_tokens - 1)
        if start >= prefill_end:
            return num_new_tokens
        end = start + num_new_tokens
        if end < prefill_end and end - end % self._block_size > start:
            end -= end % self._block_size
        return min((s for s in self._stops_of(request) if start < s < end), default=end) - start

    def _stops_of(self, request: Request) -> tuple[int, ...]:
        held = self._held.get(request.request_id)
        if held is not None:
            return held.stops
        name, stops = self._lookup.stops
        if name == request.request_id:
            return stops
        last: int = request.num_tokens - 1
        return (last - last % self._block_size,)

    # Requests.

    def may_start(self, request: Request, num_before: int) -> bool:
        """False if this step computes or copies a state that the request can use in a later one."""
        if not self._caching or request.skip_reading_prefix_cache:
            return True
        tokens = request._all_token_ids
        for held, end in [*self._stopped, *self._copied]:
            other, shared = held.request, end + self._manager.config.stop_margin_tokens
            if (
                num_before < end
                and shared < len(tokens)
                and tokens[end - 1] == other._all_token_ids[end - 1]  # most differ there
                and self._is_live(held)
                and tokens[:shared] == other._all_token_ids[:shared]
                and namespace(other) == namespace(request)
            ):
                return False
        return True

    def start(self, held: Held) -> None:
        """After the admission of a request."""
        held.stops = self._manager.stops(held.handle)
        held.next_commit = held.num_committed + 1
        if self._has_slots:
            size, drafts = self._states.block_size, self._states.num_drafts
            held.slots = Slots.after(held.num_before, size, drafts)

    def launch(self, held: Held, end: int) -> None:
        """With several slots, notes the step's tokens, and how many of them are drafts."""
        request = held.request
        if held.slots is None:
            super().launch(held, end)
            return
        held.slots.report(self._num_right(request))
        start = request.num_computed_tokens or held.slots.computed  # admitted in this step
        known = request.num_tokens + request.num_output_placeholders
        held.slots.launch(end - start, max(0, end - known))
        self._launched[held.handle] = held

    def loaded(self, held: Held, num_tokens: int) -> None:
        """After a connector loaded these leading tokens, and the state behind them."""
        super().loaded(held, num_tokens)
        held.next_commit = held.num_committed + 1

    def loads_in_step(self, held: Held, num_tokens: int, end: int) -> None:
        """The step's copies would read a state that is not loaded yet, so none is kept there.

        The commit includes the first token of the forward, which moves the state.
        """
        if held.slots is not None:
            held.slots.load_in_step(end)
        self._commit(held, min(num_tokens + 1, held.num_known))
        held.next_commit = held.num_committed + 1
        self._committed_late |= not self.in_step

    def up_to(self, held: Held, num_computed: int) -> None:
        """Commits at the end of a block and at a stop, which may be inside a block.

        The first forward after a commit tells the manager its tokens, which thus knows that the
        state moves. Otherwise it would cache the state of a request that is preempted as one that
        is still where the commit said.
        """
        held.next_commit = self._next_commit(held)
        if num_computed > self._learn(held, num_computed):
            self._ahead.append(held)
        if num_computed < held.next_commit:
            return
        super().up_to(held, num_computed)
        at_end = held.num_committed == num_computed
        if at_end and (num_computed % self._block_size == 0 or num_computed in held.stops):
            self._stopped.append((held, num_computed))
        held.next_commit = held.num_committed + 1

    def _next_commit(self, held: Held) -> int:
        """Number of computed tokens at which the next commit is due."""
        committed = held.num_committed
        due = committed - committed % self._block_size + self._block_size
        return min((stop for stop in held.stops if committed < stop < due), default=due)

    def _ended_there(self, held: Held) -> bool:
        """A commit tells where the state is, so it must not name an earlier token."""
        return held.slots is None and held.num_committed == held.request.num_computed_tokens

    def finish(self, held: Held) -> None:
        """Before a request's end: the next turn of its conversation begins with its state."""
        if self.in_step or not self._commit_state(held):
            super().finish(held)
            return
        self.close_late()
        self._commit(held, held.num_committed)

    # Commits after the forward: an early commit never makes a state findable.

    def start_step(self) -> None:
        """Caches the states of requests whose forwards ended at a stop or with a block."""
        self._copied, self._stopped = self._stopped, []
        stopped = [held for held, _ in self._copied]
        # Requests that are preempted should continue from their states. Copies hold blocks until
        # they have run, so states are then cached at stops only.
        is_scarce = self._is_scarce()
        if is_scarce:
            live = [held for held in self._held.values() if self._is_live(held)]
            stopped = [held for held in live if self._commit_state(held)]
        elif self._has_slots:
            live = [held for held in self._launched.values() if self._is_live(held)]
            stopped = [held for held in live if self._commit_state(held, at_stops=True)]
            self._launched = {each.handle: each for each in live if each.slots and each.slots.steps}
        super().start_step()
        loaded = self._loaded_since()  # its copies would keep the step before from being closed
        for held in [*stopped, *([] if is_scarce else loaded)]:
            if self._is_live(held):
                self._commit(held, held.num_committed)  # the forward has ended there
                if not is_scarce:
                    self._manager.cache_state(held.handle)  # at no stop either, as vLLM does
                if held.num_committed % self._block_size == 0:
                    self._kept.append((held, held.num_committed))

    def end_planning(self) -> list[KVCacheBlockCopy]:
        """The step is planned: its forwards move the states of requests that run ahead."""
        copies = super().end_planning()
        for held in self._ahead:
            if self._is_live(held):
                self._manager.mark_state_moved(held.handle)
        self._ahead.clear()
        self._offer(copies)
        return copies

    def take_kept_states(self) -> dict[str, list[tuple[int, int, int]]]:
        """States that the copies of the last planned step keep.

        Returns:
            By request: the group, the block of the copy, and the number of tokens.
        """
        offers, self._offers = self._offers, {}
        return offers

    def _offer(self, copies: list[KVCacheBlockCopy]) -> None:
        """Finds the kept states among the copies of the step.

        Some need no copy, and those whose request has left since have none: its row is empty.
        """
        kept, self._kept = self._kept, []
        copied: dict[int, int] = dict(copies) if kept else {}
        self._offers = {}
        for held, num_tokens in kept:
            offers = [
                (group, copied[block], num_tokens)
                for group in self._groups
                for block in self._manager.group_table(group)[held.handle & ROW].tolist()
                if block in copied
            ]
            if offers:
                self._offers[held.request.request_id] = offers

    def _loaded_since(self) -> list[Held]:
        """Commits what connectors have loaded since the last step; returns these requests."""
        waiting = [self._held.get(name) for name in self.finished_loads()]
        loaded = [held for held in waiting if held is not None and held.is_loading]
        for held in loaded:
            self.loaded(held, held.request.num_computed_tokens)
        return loaded

    def _is_scarce(self) -> bool:
        """Whether requests may have to be preempted soon."""
        most = 2 * len(self._held) * len(self._layers)
        return self._has_quotas or self._manager.num_available < most

    def _commit_state(self, held: Held, *, at_stops: bool = False) -> bool:
        """Commits what earlier steps computed up to a request's state, as part of the coming step.

        Args:
            held: The request.
            at_stops: Whether it does so only if states there are cached.

        Returns:
            Whether the manager can keep the state: it is where the commit says.
        """
        if held.is_loading:
            return False
        num_tokens = self._num_in_state(held)
        if num_tokens < held.num_committed or num_tokens > self._learn(held, num_tokens):
            return False
        if at_stops and num_tokens % self._block_size and num_tokens not in held.stops:
            return False
        if held.slots is not None and (state := held.slots.state):
            self._manager.place_state(held.handle, held.slot_of(state.column))
        if num_tokens > held.num_committed:
            self._commit(held, num_tokens)
            held.next_commit = num_tokens + 1
            held.num_covered = 0
            self._committed_late = True
        return True

    def _num_in_state(self, held: Held) -> int:
        """Tokens of a request's state; below 0 if a forward in flight may move it."""
        if held.slots is None:
            in_flight = held.request.num_output_placeholders
            return -1 if in_flight else held.request.num_computed_tokens
        held.slots.report(self._num_right(held.request))
        state = held.slots.known()
        return -1 if state is None else state.num_tokens

    @staticmethod
    def _num_right(request: Request) -> int:
        """Tokens that steps with a known outcome computed."""
        computed: int = request.num_computed_tokens - request.num_in_flight_tokens
        return computed
