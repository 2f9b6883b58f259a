"""Commits the tokens of requests, which makes their blocks findable.

vLLM publishes blocks before the forward that fills them, and requests of the same step find them:
``early_commit``. The planning of a step ends with ``take_kv_cache_block_copies``, the scheduler's
last call; blocks published between two steps were written by an earlier step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

from blockmgr.ports.vllm.held import ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm.v1.request import Request

    from blockmgr import BlockManager
    from blockmgr.ports.vllm.events import KVEvents
    from blockmgr.ports.vllm.held import Held
    from blockmgr.ports.vllm.layers import Layers

__all__ = ["Commits"]

NEVER: Final = 1 << 62  # as a number of tokens


class Commits:
    """Commits whole blocks, as often as the smallest block of a group ends.

    With windows it does so without prefix caching, too, because they release blocks at commits.

    Args:
        manager: The manager.
        layers: The groups of layers.
        held: The requests that have blocks, by id.
        caching: Whether requests may find blocks.
        events: What publishes blocks that become findable, if anything does.

    Attributes:
        in_step: Whether a step is being planned.
        free_later: Where loads of a connector do not wait for the steps in flight, what releases
            blocks once these have run.
        most_in_flight: The most steps in flight then, with the one that is planned.
    """

    def __init__(
        self,
        manager: BlockManager,
        layers: tuple[Layers, ...],
        held: Mapping[str, Held],
        *,
        caching: bool,
        events: KVEvents | None,
    ) -> None:
        self._manager = manager
        self._layers = layers
        self._held = held
        self._caching = caching
        self._events = events
        self._block_size = manager.config.block_size
        self._every = min(each.block_size for each in layers)
        self._windows = [group for group, each in enumerate(layers) if each.is_passed]
        self.free_later: Callable[[list[int]], None] | None = None
        self.most_in_flight = 1
        self._copied_blocks: list[list[int]] = []  # of the copies of each of the last steps
        self._has_groups = bool(manager.config.groups)
        self._has_parts = bool(caching and manager.config.min_partial_tokens)
        self.in_step = False
        self._committed_late = False  # since the step's planning ended
        self._passed: list[Held] = []  # whose windows pass blocks with this step

    # Steps.

    def start_step(self) -> None:
        """Begins the planning of a step."""
        self.close_late()
        self.let_go(self.most_in_flight - 1)
        self.in_step = True
        passed, self._passed = self._passed, []
        for held in passed:
            self._release_windows(held)

    def _release_windows(self, held: Held) -> None:
        """Commits again what the last step wrote, so that windows release the blocks behind it."""
        if self._is_live(held) and self._ended_there(held):
            self._commit(held, held.num_committed)

    def _ended_there(self, held: Held) -> bool:
        """Whether the request may be committed again as far as it is."""
        return True

    def _is_live(self, held: Held) -> bool:
        return self._held.get(held.request.request_id) is held and not held.is_sent

    def end_planning(self) -> list[KVCacheBlockCopy]:
        """The copies to run before the step's forward."""
        plan = self._manager.take_copies()
        if self.free_later is not None:
            both = [block for copy in plan for block in (copy.source, copy.destination)]
            self._manager.acquire(both)
            self._copied_blocks.append(both)
        self._manager.copies_applied(plan.ticket)
        self.in_step = self._committed_late = False
        return [KVCacheBlockCopy(copy.source, copy.destination) for copy in plan]

    @property
    def kept(self) -> set[int]:
        """Blocks that are held because loads may overtake the copies of steps in flight."""
        return {block for blocks in self._copied_blocks for block in blocks}

    def let_go(self, steps: int = 0) -> None:
        """Releases them, except those of the last steps.

        vLLM's scheduler cannot do so: for it, a step that only copies is not in flight, and what it
        copies would stay until another request comes.
        """
        while len(self._copied_blocks) > steps:
            self._manager.release(self._copied_blocks.pop(0))

    def take_kept_states(self) -> dict[str, list[tuple[int, int, int]]]:
        """States that the copies of the last planned step keep: none, without recurrent states."""
        return {}

    def close_late(self) -> None:
        """Ends the commits made between steps: an earlier step wrote their blocks."""
        if not self._committed_late or self.in_step:
            return
        plan = self._manager.take_copies()
        if len(plan):  # only in a step: later copies would run too late
            self._manager.copies_aborted(plan.ticket)
            return
        self._manager.copies_applied(plan.ticket)
        self._committed_late = False

    # Requests.

    def may_start(self, request: Request, num_before: int) -> bool:
        """Whether it is best to admit the request in this step: always."""
        return True

    def start(self, held: Held) -> None:
        """After the admission of a request."""
        held.next_commit = NEVER
        if self._caching or self._has_groups:
            held.next_commit = self._next_end(held.num_committed)

    def up_to(self, held: Held, num_computed: int) -> None:
        """Commits a request's tokens up to this one, if a commit is due."""
        if num_computed < held.next_commit:
            return
        num_computed = min(num_computed, self._learn(held, num_computed))
        if num_computed < held.next_commit:
            return
        self._commit(held, num_computed)
        held.next_commit = self._next_end(num_computed)
        self._committed_late |= not self.in_step
        if self._has_groups:
            self._passed.append(held)

    def launch(self, held: Held, end: int) -> None:
        """After a request took slots for a step that ends with this token."""
        if not held.request.resumable:  # the tokens of a session change between turns
            held.num_covered = min(held.next_commit - 1, held.num_slots)

    def loaded(self, held: Held, num_tokens: int) -> None:
        """After a connector loaded these leading tokens; the last one of all is computed."""
        held.is_loading = False
        num_tokens = min(num_tokens, held.num_known - 1)
        if held.next_commit == NEVER or num_tokens <= held.num_committed:
            return
        self._commit(held, num_tokens)
        held.next_commit = self._next_end(num_tokens)
        self._committed_late |= not self.in_step

    def loads_in_step(self, held: Held, num_tokens: int, end: int) -> None:
        """A connector will load these leading tokens between the step's copies and its forward.

        The forward ends with token ``end``.
        """
        self.loaded(held, num_tokens)

    def truncated(self, held: Held, num_tokens: int) -> None:
        """After a request was cut to this many tokens."""
        held.num_committed = min(held.num_committed, num_tokens)
        held.next_commit = min(held.next_commit, self._next_end(num_tokens))

    def finish(self, held: Held) -> None:
        """Before a request's end: the next turn of its conversation begins inside a block."""
        if self.in_step:
            return
        if self._has_parts and not held.is_loading:
            request = held.request
            computed = request.num_computed_tokens - request.num_output_placeholders
            computed = min(computed, self._learn(held, computed))
            if computed > held.num_committed:
                self._commit(held, computed)
                self._committed_late = True
        self.close_late()

    def hand_over(self, held: Held) -> None:
        """Before the table of a request that has ended is read, perhaps for some steps."""
        if self._windows and not held.is_loading:
            self.close_late()
            self._release_windows(held)
            self._committed_late = True
        held.is_sent = True

    def _next_end(self, num_tokens: int) -> int:
        """The next number of tokens at which a block of the smallest size ends."""
        return num_tokens - num_tokens % self._every + self._every

    def _commit(self, held: Held, num_tokens: int) -> None:
        """Commits, again if need be: a block may become findable once its step has ended."""
        if self.free_later is None or not self._windows:
            self._manager.commit(held.handle, num_tokens)
        else:  # steps in flight may still read what it releases
            before = self._window_blocks(held)
            self._manager.acquire(before)
            self._manager.commit(held.handle, num_tokens)
            now = set(self._window_blocks(held))
            self._manager.release([block for block in before if block in now])
            self.free_later([block for block in before if block not in now])
        held.num_committed = num_tokens
        if self._events is not None:
            self._events.stored_by(held.request)

    def _window_blocks(self, held: Held) -> list[int]:
        row, slots = held.handle & ROW, held.num_slots
        found: list[int] = []
        for group in self._windows:
            table = self._manager.group_table(group)[row, : self._layers[group].num_entries(slots)]
            found += table[table != 0].tolist()  # a long table begins with many that have gone
        return found

    def _learn(self, held: Held, most: int) -> int:
        """Appends generated tokens up to this number; returns the number of known tokens.

        It never allocates: it only appends tokens that have slots.
        """
        tokens, known = held.request._all_token_ids, held.num_known
        most = min(len(tokens), held.num_slots, most)
        if most > known:
            self._manager.append(held.handle, tokens[known:most])
            held.num_known = known = most
        return known
