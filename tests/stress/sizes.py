"""The engine for groups with the fields of ``ModelLayouts``: sizes, drafts, rings, replays.

The manager has none of these yet, so the specification stands in for it. Its tables never change
but where a call says so, its blocks have one writer, and its rings begin empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.specification.layers import Attention, RecurrentState, Ring
from tests.stress.layouts import LayoutWorld
from tests.stress.lockstep import DivergenceError
from tests.stress.memory import Work, slots_of

if TYPE_CHECKING:
    from tests.stress.lockstep import Entry

__all__ = ["SizesWorld"]


class SizesWorld(LayoutWorld):
    """A manager with any fields of groups, a device, an engine."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.device.one_writer = "K" in self.detectors
        self.shown: dict[Entry, tuple[tuple[int, ...], ...]] = {}
        self.drafts, self.places = self.places, False  # the specification knows where states are

    def size_of(self, group: int) -> int:
        return self.kinds[group].block_size or self.size

    def tables_of(self, handle: int) -> tuple[tuple[int, ...], ...]:
        view = self.manager.sequence(handle)
        if view.is_preempted:
            return ()
        return tuple(tuple(b.id if b else 0 for b in table) for table in view.tables)

    # ---- tables never change ----------------------------------------------------------------

    def settle(self) -> None:
        super().settle()
        for entry in self.entries:
            now = self.tables_of(entry.handle)
            for old, new in zip(self.shown.get(entry, ()), now, strict=False):
                if any(b not in {0, a} for a, b in zip(old, new, strict=False)):
                    raise DivergenceError(f"a table of {entry.handle} changed: {old}, {new}")
            self.shown[entry] = now

    def on(self, name: str, entry: Entry, *args: Any) -> Any:
        if name == "truncate":
            self.shown.pop(entry, None)
        return super().on(name, entry, *args)

    def reparent(self, entries: list[Entry], parents: list[int]) -> None:
        for entry in entries:
            self.shown.pop(entry, None)
        super().reparent(entries, parents)

    # ---- forwards ---------------------------------------------------------------------------

    def work_of(self, entry: Entry, view: Any) -> Work | None:
        """Slots for drafts tell nothing of two steps at once, so it waits for the commit."""
        base = super().work_of(entry, view)
        if base is None or (self.drafts and base.start > view.num_computed_tokens):
            return None
        tables, stop = self.tables_of(entry.handle), base.stop
        work = Work(base.name, [], base.prefixes, base.start, hit=view.hit)
        for group, kind in enumerate(self.kinds):
            table = tables[group]
            if isinstance(kind, RecurrentState):
                work.slots = [*work.slots, np.zeros(0, np.int64)]
                if stop > work.start:
                    work.states = {**work.states, group: self.states_of(entry, group, work, table)}
            elif isinstance(kind, Ring):
                around = np.arange(stop) % kind.width
                work.slots = [*work.slots, table[0] * self.device.stride + around]
                work.low = {**work.low, group: view.since}
            else:
                size = self.size_of(group)
                slots = slots_of(table, size, stop, self.device.stride)
                work.slots = [*work.slots, slots]
                work.first = {**work.first, group: self.first_of(kind, view, work.start)}
                if not kind.cached:
                    work.low = {**work.low, group: view.since}
        return work

    def blocks_to_zero(self) -> list[int]:
        return list(self.manager.blocks_to_zero())

    def first_of(self, kind: Attention, view: Any, start: int) -> int:
        """A replay writes uncached groups only; groups that look ahead write later (G14, G19)."""
        if not kind.cached:
            return start
        first = (
            max(view.proved, start - kind.look_ahead) if kind.look_ahead else max(view.hit, start)
        )
        return int(first)

    def states_of(self, entry: Entry, group: int, work: Work, table: Any) -> Any:
        """The slot that a step reads, and those that it writes (G13)."""
        kind = self.kinds[group]
        rows = [block * self.device.stride + np.arange(self.size) for block in table]
        if kind.moves:
            size = self.size_of(group)
            before = max(0, work.start - 1) // size
            return rows[before], {work.stop: rows[(work.stop - 1) // size]}
        live = rows[self.manager.state_slot(entry.handle, group)]
        if work.stop - work.start > 1 + kind.extra_blocks:
            return live, {work.stop: rows[0]}
        ends = range(work.start + 1, work.stop + 1)
        return live, {end: rows[end - work.start - 1] for end in ends}

    def note_run(self, entry: Entry, work: Work, held_back: int) -> None:
        """Of a few tokens, the last may be drafts that turn out wrong."""
        steps, least = (
            work.stop - work.start,
            min((k.extra_blocks for k in self.kinds if isinstance(k, RecurrentState)), default=0),
        )
        wrong = self.drafts and not self.early and 1 < steps <= 1 + least
        if wrong and work.stop == len(entry.tokens) and self.rng.random() < 0.6:
            accepted = self.rng.randint(work.start + 1, work.stop)
            entry.ran = entry.left_off = accepted
            self.declare(entry, accepted)
            if accepted < len(entry.tokens):
                self.truncate(entry, accepted)
            return
        super().note_run(entry, work, held_back)

    def check_fences(self, name: str) -> None:
        """Checks that no block is handed out for writing while a launched step may use it."""
        held: set[int] = set()
        busy = set().union(*(launched.blocks for launched in self.steps))
        for handle in self.manager.handles():
            view = self.manager.sequence(handle)
            for group, table in enumerate(self.tables_of(handle)):
                held.update(table)
                kind, first = self.kinds[group], 0
                if isinstance(kind, Attention):
                    start = self.first_of(kind, view, view.num_computed_tokens)
                    first = start // self.size_of(group)
                early = (set(table[first:]) - self.held) & busy - {0}
                if early:
                    raise DivergenceError(f"{name} handed out blocks {early}, still in flight")
        self.held = held
