"""A replay on a manager with groups of layers: its calls for a request, and counts by group.

Like an engine, it computes a prompt in chunks: ::

    match ──► admit the first chunk ──► copies, forward, commit ──► copies, reserve the next ──► ...
              if there is room for the rest

A chunk ends after ``ReplayConfig.forward_tokens``, and at each of ``BlockManager.stops``, because a
state can be found only where a forward ended. Blocks of windows are released as chunks are
committed. A request is admitted only if there is room for all chunks and for the output. It takes
all of them immediately, so it never waits or is preempted later.

Blocks of each group are counted at a few moments, each just after an admission. Full attention
often has more of a prompt than is found, because a window or a state is missing. The tokens between
count for the group that lacks the next part.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blockmgr.blocks import BlockState
from blockmgr.explain import MissReason
from blockmgr.groups import ChunkedAttention, RecurrentState, SlidingWindow, sizes_of
from blockmgr.lab.demand import extra_blocks, held_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from blockmgr.blocks import Match
    from blockmgr.groups import Group
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.request import Request, Tokens
    from blockmgr.manager import BlockManager

__all__ = ["ByGroup", "GroupCounts", "GroupWatch", "GroupedSteps", "refusing"]


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


MOMENTS: Final = 16
"""Number of snapshots of a replay; each takes O(blocks) time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """All groups of layers that read the same tokens.

    Numbers of blocks are means over the moments of a replay.

    Attributes:
        group: Their kind, such as ``"SlidingWindow(width=1024)"``.
        num_groups: Number of these groups.
        used_blocks: Blocks in use.
        unfilled_used_blocks: Of those, the parts without computed tokens, in blocks.
        cached_blocks: Blocks that no sequence uses and that a prompt can find.
        unfilled_cached_blocks: Of those, the parts without computed tokens, in blocks.
        refused_tokens: Tokens that full attention has but no prompt found, because these groups
            lack the next part.
    """

    group: str
    num_groups: int
    used_blocks: float
    unfilled_used_blocks: float
    cached_blocks: float
    unfilled_cached_blocks: float
    refused_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ByGroup:
    """The counts of a replay by group of layers.

    Attributes:
        moments: Number of counts of blocks.
        groups: Groups in the order of ``ReplayConfig.groups``; those that read the same tokens are
            one.
        free_blocks: Free blocks, as a mean over the moments.
        peak_blocks: Most blocks that were used or cached at a time.
        cached_blocks_at_end: Blocks that a prompt can find after the last request.
    """

    moments: int
    groups: tuple[GroupCounts, ...]
    free_blocks: float
    peak_blocks: int
    cached_blocks_at_end: int

    @property
    def refused_tokens(self) -> int:
        """Tokens that full attention has but no prompt found."""
        return sum(group.refused_tokens for group in self.groups)

    def cells(self, num_blocks: int, query_tokens: int) -> list[list[str]]:
        """A line of a table for each of ``groups``.

        Args:
            num_blocks: Blocks in the pool.
            query_tokens: Prompt tokens of all requests.

        Returns:
            The number and the kind of groups; shares of the pool in use, cached and unfilled;
            refused tokens, and their share of all prompts.
        """
        lines = []
        for group in self.groups:
            unfilled = group.unfilled_used_blocks + group.unfilled_cached_blocks
            shares = (group.used_blocks, group.cached_blocks, unfilled)
            lines.append(
                [
                    f"{group.num_groups} x {group.group}",
                    *(f"{blocks / num_blocks:.2%}" for blocks in shares),
                    f"{group.refused_tokens:,}",
                    f"{group.refused_tokens / query_tokens:.2%}",
                ]
            )
        return lines

    def sized(self, bytes_per_block: int) -> list[dict[str, Any]]:
        """The groups for a JSON document, with bytes in addition to blocks."""
        return [
            {
                **asdict(group),
                **{
                    name.replace("_blocks", "_bytes"): round(value * bytes_per_block)
                    for name, value in asdict(group).items()
                    if name.endswith("_blocks")
                },
            }
            for group in self.groups
        ]


def refusing(groups: Sequence[Group]) -> Group | None:
    """The group that limits hits wherever full attention has more; None if there is none.

    A state is cached as long as a prompt can be found up to it, so a missing hit means a missing
    state. Of windows and chunks, the widest lacks something whenever another one does.
    """
    state = next((group for group in groups if isinstance(group, RecurrentState)), None)
    if state is not None:
        return state
    narrow = [g for g in groups if isinstance(g, SlidingWindow | ChunkedAttention)]
    return max(narrow, key=lambda group: group.width, default=None)


class GroupWatch:
    """Counts for ``ByGroup`` while a replay runs.

    Args:
        manager: The manager of the replay.
        config: Config of the replay.
        num_requests: Requests of the trace.
    """

    def __init__(self, manager: BlockManager, config: ReplayConfig, num_requests: int) -> None:
        self._manager = manager
        self._groups = config.groups
        self._sizes = sizes_of(config.groups, config.block_size)
        self._every = -(-num_requests // MOMENTS)
        self._refused_tokens = 0
        self._refused = 0  # for the request that is about to be admitted
        self._admitted = 0
        self._moments = 0
        self._least_free = manager.config.num_blocks
        self._free = 0
        # By group: used, unfilled, cached, unfilled, in tokens.
        self._sums = np.zeros((len(self._groups), 4))

    def before(self, request: Request, tokens: Tokens) -> None:
        """Called before a request is admitted."""
        misses = self._manager.explain(tokens, namespace=request.namespace).misses
        self._refused = sum(miss.num_tokens for miss in misses if miss.reason is MissReason.GROUP)

    def after(self) -> None:
        """Called when a request is admitted and its prompt is computed."""
        self._refused_tokens += self._refused
        self.note_free()
        if self._admitted % self._every == 0:
            self._count()
        self._admitted += 1

    def note_free(self) -> None:
        """Called when sequences have blocks for a forward, and before they end."""
        self._least_free = min(self._least_free, self._manager.quota_usage().free_blocks)

    def _count(self) -> None:
        blocks = self._manager.blocks()
        self._moments += 1
        self._free += blocks.count(BlockState.FREE)
        idle = blocks.state == BlockState.IDLE
        used = np.isin(blocks.state, (BlockState.OWNED, BlockState.CACHED))
        for number, group in enumerate(self._groups):
            for column, which in ((0, used), (2, idle)):
                chosen = which & (blocks.group == number)
                count = int(np.count_nonzero(chosen))
                filled = int(blocks.num_computed_tokens[chosen].sum(dtype=np.int64))
                whole = isinstance(group, RecurrentState)  # a state has no tokens
                size = self._sizes[number]
                unfilled = 0 if whole else count * size - filled
                self._sums[number, column : column + 2] += count, unfilled / size

    def result(self) -> ByGroup:
        """All counts."""
        moments = max(1, self._moments)
        stats = self._manager.stats()
        return ByGroup(
            moments=self._moments,
            groups=tuple(self._counts(group) for group in dict.fromkeys(self._groups)),
            free_blocks=self._free / moments,
            peak_blocks=stats.capacity - min(self._least_free, stats.free_blocks),
            cached_blocks_at_end=stats.cached_blocks,
        )

    def _counts(self, group: Group) -> GroupCounts:
        alike = [number for number, other in enumerate(self._groups) if other == group]
        means: npt.NDArray[np.float64] = self._sums[alike].sum(axis=0) / max(1, self._moments)
        used, unfilled_used, cached, unfilled_cached = means.tolist()
        return GroupCounts(
            group=repr(group),
            num_groups=len(alike),
            used_blocks=used,
            unfilled_used_blocks=unfilled_used,
            cached_blocks=cached,
            unfilled_cached_blocks=unfilled_cached,
            refused_tokens=self._refused_tokens if group == refusing(self._groups) else 0,
        )
