"""The manager itself, as the engines of these tests drive it.

It has the calls of the specification, and shows what the tests inspect: tables by group, copies,
and the progress of each sequence. ``lockstep.py`` checks that it decides like the specification,
the memory that a forward reads the right content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockmgr import BlockManager, BlockState, Priority, groups
from tests.groups.model import Copy
from tests.specification import layers as kinds
from tests.specification.blocks import Prefix

MAX_SEQS = 256


def group_of(kind: kinds.Kind) -> groups.Group:
    if isinstance(kind, kinds.SlidingWindow | kinds.ChunkedAttention):
        return getattr(groups, type(kind).__name__)(kind.width)  # type: ignore[no-any-return]
    return getattr(groups, type(kind).__name__)()  # type: ignore[no-any-return]


@dataclass(eq=False)
class CoreSeq:
    """An engine's view of a sequence, read from the manager after each call."""

    manager: CoreManager
    handle: int
    namespace: bytes
    tokens: list[int]
    cached: int = 0
    preempted: bool = False
    settled_before: int = 0

    @property
    def row(self) -> Any:
        return self.manager.core.sequence(self.handle)

    @property
    def computed(self) -> int:
        return int(self.row.num_computed_tokens)

    @property
    def settled(self) -> int:
        """With early commits, the computed length before this step: its forward starts here."""
        return min(self.settled_before, self.computed) if self.manager.early else self.computed

    @property
    def stops(self) -> set[int]:
        return set(self.manager.core.stops(self.handle))

    @property
    def tables(self) -> list[list[int]]:
        return [list(table) for table in self.manager.tables(self.handle)]

    def settle(self) -> None:
        """Updates the settled length after a call, which may reduce the computed length."""
        self.settled_before = min(self.settled_before, self.computed)

    def prefix(self, length: int) -> Prefix:
        return self.namespace, tuple(self.tokens[:length])


class CoreManager:
    """``BlockManager`` with groups, behind the interface of the specification."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kinds: Sequence[kinds.Kind],
        *,
        min_partial_tokens: int = 0,
        halfway_stop_tokens: int = 0,
        prompt_end_stop: int | None = None,
        quotas: Mapping[bytes, int] | None = None,
        eviction: str = "lru",
        events: bool = False,
        retention: bool = False,
    ) -> None:
        self.eviction, self.events, self.retention = eviction, events, retention
        self.num_blocks, self.size, self.kinds = num_blocks, block_size, tuple(kinds)
        self.min_partial_tokens, self.quotas = min_partial_tokens, quotas or {}
        self.halfway_stop_tokens, self.prompt_end_stop = halfway_stop_tokens, prompt_end_stop
        self.lookahead, self.early, self.steps_in_flight = 0, False, 0
        self.made: BlockManager | None = None
        self.seqs: dict[int, CoreSeq] = {}
        self.ticket = 0
        self.open: list[int] = []

    @property
    def core(self) -> BlockManager:
        """Created at the first call, because engines set their habits before that."""
        if self.made is None:
            self.made = BlockManager(
                self.num_blocks,
                self.size,
                max_seqs=MAX_SEQS,
                groups=[group_of(kind) for kind in self.kinds],
                max_rollback_tokens=self.lookahead,
                min_partial_tokens=self.min_partial_tokens,
                halfway_stop_tokens=self.halfway_stop_tokens,
                prompt_end_stop=self.prompt_end_stop,
                quotas=self.quotas,
                eviction=self.eviction,
                events=self.events,
                retention=self.retention,
                max_pinned_blocks=6 if self.retention else 0,
                steps_in_flight=self.steps_in_flight,
                early_commit=self.early,
                null_block=True,
                debug=1,
            )
        return self.made

    def recurrent(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, kinds.RecurrentState)]

    # ---- calls ----------------------------------------------------------------------------

    def match(self, tokens: list[int], namespace: bytes = b"") -> int:
        return int(self.core.match(tokens, namespace=namespace).num_cached_tokens)

    def admit(self, tokens: list[int], namespace: bytes = b"", num_slots: int | None = None) -> int:
        found = self.core.match(tokens, namespace=namespace, num_slots=num_slots)
        handle = self.core.admit(tokens, namespace=namespace, num_slots=num_slots)
        assert found.stops == self.core.stops(handle)
        seq = CoreSeq(self, handle, namespace, list(tokens))
        seq.cached = seq.settled_before = seq.computed
        self.seqs[handle] = seq
        return int(handle)

    def resume(self, handle: int) -> None:
        self.core.resume(handle)
        seq = self.seqs[handle]
        seq.preempted = False
        seq.cached = seq.settled_before = seq.computed

    def reserve(self, handle: int, num_slots: int) -> None:
        self.core.reserve(handle, num_slots)
        self.seqs[handle].settle()

    def append(self, handle: int, tokens: list[int]) -> None:
        self.core.append(handle, tokens)
        self.seqs[handle].tokens += tokens
        self.seqs[handle].settle()

    def commit(self, handle: int, computed: int) -> None:
        self.core.commit(handle, computed)

    def fork(self, handle: int, count: int = 1) -> list[int]:
        made = [int(child) for child in self.core.fork(handle, count)]
        for child in made:
            self.seqs[child] = self.like(child, self.seqs[handle])
        return made

    def like(self, handle: int, parent: CoreSeq) -> CoreSeq:
        seq = CoreSeq(self, handle, parent.namespace, list(parent.tokens), parent.cached)
        seq.settled_before = parent.settled_before
        return seq

    def reparent(self, handles: list[int], parents: list[int]) -> None:
        self.core.reparent(handles, parents)
        before = [self.like(handle, self.seqs[handle]) for handle in handles]
        for handle, parent in zip(handles, parents, strict=True):
            if handles[parent] != handle:
                vars(self.seqs[handle]).update(vars(self.like(handle, before[parent])))

    def truncate(self, handle: int, num_tokens: int) -> int:
        left = int(self.core.truncate(handle, num_tokens))
        seq = self.seqs[handle]
        del seq.tokens[num_tokens:]
        seq.settle()
        assert left == seq.computed
        return left

    def preempt(self, handle: int) -> None:
        self.core.preempt(handle)
        self.seqs[handle].preempted = True

    def free(self, handle: int) -> None:
        self.core.free(handle)
        del self.seqs[handle]

    def retain(self, tokens: list[int], level: int, namespace: bytes = b"") -> int:
        if not self.retention:
            return 0
        priority = Priority(Priority.NORMAL + level)
        found = self.core.retain_prefix(tokens, priority=priority, namespace=namespace)
        return int(found)

    def retain_tokens(self, handle: int, start: int, stop: int, level: int) -> None:
        if self.retention:
            self.core.retain(handle, start, stop, priority=Priority(Priority.NORMAL + level))

    def acquire(self, ids: list[int]) -> None:
        self.core.acquire(ids)

    def release(self, ids: list[int]) -> None:
        self.core.release(ids)

    def touch_prompt(self, tokens: list[int], namespace: bytes = b"") -> None:
        self.core.touch(tokens, namespace=namespace)

    def forget(self, ids: list[int]) -> None:
        self.core.forget(ids)

    # ---- steps ------------------------------------------------------------------------------

    def take_copies(self) -> list[Copy]:
        plan = self.core.take_copies()
        self.ticket = plan.ticket
        if self.steps_in_flight:
            self.open.append(plan.ticket)
        groups_of = [0] * len(plan) if plan.groups is None else plan.groups.tolist()
        return [
            Copy(c.source, c.destination, c.num_tokens, group)
            for group, c in zip(groups_of, plan, strict=True)
        ]

    def copies_applied(self) -> None:
        self.core.copies_applied(self.ticket)
        for seq in self.seqs.values():
            if not seq.preempted:
                seq.settled_before = seq.computed

    def copies_aborted(self) -> None:
        self.core.copies_aborted(self.ticket)
        if self.steps_in_flight:
            self.open.pop()

    def complete(self) -> None:
        if self.steps_in_flight:
            self.core.complete(self.open.pop(0))

    # ---- looking at it ------------------------------------------------------------------------

    def tables(self, handle: int) -> tuple[tuple[int, ...], ...]:
        row, units = self.core.row(handle), self.core.sequence(handle).num_blocks
        return tuple(
            tuple(self.core.group_table(group)[row, :units].tolist())
            for group in range(len(self.kinds))
        )

    def num_slots(self, seq: CoreSeq) -> int:
        return len(self.core.sequence(seq.handle).block_ids) * self.size

    def fingerprint(self) -> tuple[object, ...]:
        return (tuple(self.tables(h) for h, s in self.seqs.items() if not s.preempted),)

    def violations(self) -> list[str]:
        return list(self.core._core.violations())

    def available(self, share: bytes | None = None) -> int:
        if share in self.quotas:
            usage = self.core.quota_usage(share or b"")
            return usage.free_blocks + usage.idle_blocks
        usage = self.core.quota_usage()
        return usage.free_blocks + usage.idle_blocks

    def idle_blocks(self) -> list[int]:
        return self.core.blocks().ids(BlockState.IDLE).tolist()

    def free_blocks(self) -> list[int]:
        return self.core.blocks().ids(BlockState.FREE).tolist()

    @property
    def pending(self) -> list[Copy]:
        """The copies that are planned but not taken."""
        found = self.core.blocks()
        return [
            Copy(source, block, count, group)
            for block, (group, source, count, taken) in enumerate(
                zip(
                    found.group.tolist(),
                    found.copy_source.tolist(),
                    found.copy_tokens.tolist(),
                    found.copy_taken.tolist(),
                    strict=True,
                )
            )
            if source >= 0 and not taken
        ]
