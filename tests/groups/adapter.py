"""The manager, or its specification, as the small worlds of these tests drive it.

Both have the same calls. The adapter knows no tickets, and looks at tables by group. What it has
not itself, it asks the manager for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockmgr import Priority, groups
from tests.specification import layers as kinds
from tests.specification.blocks import Prefix
from tests.specification.boundaries import ModelBoundaries

MAX_SEQS = 256


class Copy(NamedTuple):
    """A copy of the leading tokens of a block, by block ids."""

    source: int
    destination: int
    num_tokens: int
    group: int


def group_of(kind: kinds.Kind) -> groups.Group:
    if isinstance(kind, kinds.SlidingWindow):
        return groups.SlidingWindow(kind.width, None, kind.cached, kind.replay)
    if isinstance(kind, kinds.ChunkedAttention):
        return getattr(groups, type(kind).__name__)(kind.width)  # type: ignore[no-any-return]
    if isinstance(kind, kinds.Ring):
        return groups.Ring(kind.width, kind.restart)
    return getattr(groups, type(kind).__name__)()  # type: ignore[no-any-return]


@dataclass(eq=False)
class Running:
    """An engine's view of a sequence, read from the manager after each call."""

    manager: Adapter
    handle: int
    namespace: bytes
    tokens: list[int]
    preempted: bool = False
    settled_before: int = 0

    @property
    def cached(self) -> int:
        return int(self.manager.core.sequence(self.handle).num_cached_tokens)

    @property
    def computed(self) -> int:
        return int(self.manager.core.sequence(self.handle).num_computed_tokens)

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


class Adapter:
    """A manager with groups, created at its first call: its engine sets its habits before that."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kinds: Sequence[kinds.Kind],
        *,
        build: Callable[..., Any] = ModelBoundaries,
        retention: bool = False,
        **options: Any,
    ) -> None:
        usual = {
            "min_partial_tokens": 0,
            "retention": retention,
            "max_pinned_blocks": 6 * retention,
        }
        self.build, self.options = build, usual | options
        self.num_blocks, self.size, self.kinds = num_blocks, block_size, tuple(kinds)
        self.lookahead, self.early, self.steps_in_flight = 0, False, 0
        self.made: Any = None
        self.seqs: dict[int, Running] = {}
        self.tickets: list[int] = []  # of steps that are not complete
        self.zeros: list[int] = []  # blocks that the last plan empties

    @property
    def core(self) -> Any:
        if self.made is None:
            self.made = self.build(
                self.num_blocks,
                self.size,
                max_seqs=MAX_SEQS,
                groups=[group_of(kind) for kind in self.kinds],
                max_rollback_tokens=self.lookahead,
                steps_in_flight=self.steps_in_flight,
                early_commit=self.early,
                null_block=True,
                debug=1,
                **self.options,
            )
        return self.made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    # ---- calls ----------------------------------------------------------------------------

    def match(self, tokens: list[int], namespace: bytes = b"") -> int:
        return int(self.core.match(tokens, namespace=namespace).num_cached_tokens)

    def admit(self, tokens: list[int], namespace: bytes = b"", num_slots: int | None = None) -> int:
        handle = int(self.core.admit(tokens, namespace=namespace, num_slots=num_slots))
        self.seqs[handle] = seq = Running(self, handle, namespace, list(tokens))
        seq.settled_before = seq.computed
        return handle

    def resume(self, handle: int) -> None:
        self.core.resume(handle)
        seq = self.seqs[handle]
        seq.preempted = False
        seq.settled_before = seq.computed

    def reserve(self, handle: int, num_slots: int) -> None:
        self.core.reserve(handle, num_slots)
        self.seqs[handle].settle()

    def append(self, handle: int, tokens: list[int]) -> None:
        self.core.append(handle, tokens)
        self.seqs[handle].tokens += tokens
        self.seqs[handle].settle()

    def fork(self, handle: int, count: int = 1) -> list[int]:
        made = [int(child) for child in self.core.fork(handle, count)]
        self.seqs |= {child: self.like(child, self.seqs[handle]) for child in made}
        return made

    def like(self, handle: int, parent: Running) -> Running:
        seq = Running(self, handle, parent.namespace, list(parent.tokens))
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
        priority = Priority(Priority.NORMAL + level)
        return int(self.core.retain_prefix(tokens, priority=priority, namespace=namespace))

    def retain_tokens(self, handle: int, start: int, stop: int, level: int) -> None:
        self.core.retain(handle, start, stop, priority=Priority(Priority.NORMAL + level))

    # ---- steps ------------------------------------------------------------------------------

    def take_copies(self) -> list[Copy]:
        plan = self.core.take_copies()
        self.tickets.append(plan.ticket)
        self.zeros = [] if plan.zeros is None else plan.zeros.tolist()
        groups_of = [0] * len(plan) if plan.groups is None else plan.groups.tolist()
        return [
            Copy(int(c.source), int(c.destination), int(c.num_tokens), group)
            for group, c in zip(groups_of, plan, strict=True)
        ]

    def copies_applied(self) -> None:
        self.core.copies_applied(self.tickets[-1])
        for seq in self.seqs.values():
            if not seq.preempted:
                seq.settled_before = seq.computed

    def copies_aborted(self) -> None:
        self.core.copies_aborted(self.tickets.pop())

    def complete(self) -> None:
        """The oldest step in flight is done."""
        if self.steps_in_flight:
            self.core.complete(self.tickets.pop(0))

    # ---- looking at it ------------------------------------------------------------------------

    def tables(self, handle: int) -> tuple[tuple[int, ...], ...]:
        row, units = self.core.row(handle), self.core.sequence(handle).num_blocks
        single = kinds.RecurrentState | kinds.Ring
        ends = (1 if isinstance(kind, single) else units for kind in self.kinds)
        return tuple(
            tuple(self.core.group_table(group)[row, :end].tolist())
            for group, end in enumerate(ends)
        )

    def num_slots(self, seq: Running) -> int:
        return int(self.core.sequence(seq.handle).num_slots)

    def fingerprint(self) -> tuple[object, ...]:
        """What a call may change, and what a call which raises must leave unchanged."""
        seqs = [(h, s.computed, self.tables(h)) for h, s in self.seqs.items() if not s.preempted]
        order = [(b, b.stamp, b.content) for b in self.live] if self.is_specification else []
        return seqs, self.pending, order

    @property
    def is_specification(self) -> bool:
        return isinstance(self.core, ModelBoundaries)

    def violations(self) -> list[str]:
        return list((self.core if self.is_specification else self.core._core).violations())

    def available(self, share: bytes | None = None) -> int:
        usage = self.core.quota_usage(share or b"")
        return int(usage.free_blocks + usage.idle_blocks)

    @property
    def pending(self) -> list[Copy]:
        """The copies that are planned but not taken."""
        if self.is_specification:
            return [
                Copy(c.source.id, c.destination.id, c.num_tokens, c.group)
                for c in self.core.pending
            ]
        found = self.core.blocks()
        columns = (found.group, found.copy_source, found.copy_tokens, found.copy_taken)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Copy(source, block, count, group)
            for block, (group, source, count, taken) in enumerate(rows)
            if source >= 0 and source != block and not taken
        ]
