"""Counts events in a manager, so that a test can check that its engines reach them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from blockmgr.blocks import CopyPlan
from blockmgr.errors import StepError
from tests.specification.admission import Plan, Terms
from tests.specification.blocks import Block, Prefix, Seq
from tests.specification.boundaries import ModelBoundaries
from tests.specification.manager import Growth


class CountingManager(ModelBoundaries):
    """The specification; ``events`` counts how often each interesting case occurred."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.events: Counter[str] = Counter()

    # ---- admissions ---------------------------------------------------------------------

    def place(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        best = next(self.plans(seq, num_slots))
        again = seq.preempted
        plan = super().place(seq, num_slots, terms)
        if again:
            self.events[f"resumed: {'something' if plan.cached else 'nothing'} found"] += 1
        else:
            self.events[f"admitted: {self.how(plan)}"] += 1
        self.events["finds what is promised"] += seq.written < seq.settled
        self.events["a better plan did not fit"] += plan.cached < best.cached
        self.events["no room for the copy"] += plan.taken_over and not best.taken_over
        self.events["asked to stop where prompts part"] += len(seq.stops) > 1
        self.events["asked to stop halfway"] += bool(self.halfway(seq, plan.cached))
        self.events["closed step"] += bool(self.taken)
        self.events["tables with a gap at the front"] += any(
            table and table[0] is None for table in seq.tables
        )
        return plan

    def how(self, plan: Plan) -> str:
        if not plan.cached:
            return "nothing found"
        kind = "within a unit" if plan.cached % self.size else "whole units"
        state = ", with a state" if self.recurrent() else ""
        return f"{kind}{state}{', taken over' if plan.taken_over else ''}"

    def found_at(self, prefix: Prefix, *, promised: bool = False) -> Plan | None:
        found = super().found_at(prefix, promised=promised)
        if found is None and len(prefix[1]) % self.size == 0 and self.needs(prefix):
            gone = {c[0] for c in self.needs(prefix) if self.find(c) is None}
            refusing = {type(self.kinds[group]).__name__ for group in gone}
            if refusing and len(gone) < len({c[0] for c in self.needs(prefix)}):
                self.events[f"refused by {' and '.join(sorted(refusing))}"] += 1
        return found

    # ---- growth -------------------------------------------------------------------------

    def checked_growth(
        self, seqs: list[Seq], slots: list[int], *, write: bool = True, left: bool = False
    ) -> list[Growth]:
        [seq, *_] = seqs
        try:
            return super().checked_growth(seqs, slots, write=write, left=left)
        except StepError:
            waits = "for what is promised" if seq.stands else "for a state to stand"
            self.events[f"a copy on write that waits {waits}"] += 1
            raise

    def take_growth(self, seqs: list[Seq], wanted: list[Growth], *, write: bool = True) -> None:
        seq, (shared, _) = seqs[0], wanted[0]
        computed = seq.computed
        super().take_growth(seqs, wanted, write=write)
        self.events["copy on write"] += bool(shared)
        self.events["copy on write of some groups"] += 0 < len(shared) < len(self.kinds)
        self.events["copy on write takes tokens back"] += seq.computed < computed

    def promote(self, seq: Seq) -> None:
        before = [list(table) for table in seq.tables]
        super().promote(seq)
        pairs = [
            (o, n)
            for old, new in zip(before, seq.tables, strict=True)
            for o, n in zip(old, new, strict=True)
        ]
        merged = sum(o is not n for o, n in pairs)
        self.events["merged blocks"] += merged
        waits = seq.promoted < seq.computed // self.size
        self.events["promotions that wait"] += waits
        self.events["early commits"] += self.promises(seq)
        self.events["early commits with a state"] += self.promises(seq) and bool(self.recurrent())

    def keep_state(self, seq: Seq) -> None:
        at_stop = seq.computed in seq.stops
        at_end = at_stop and seq.computed == seq.prompt_end
        before = len(self.pending)
        super().keep_state(seq)
        self.events["commits at a stop"] += at_stop
        self.events["kept states"] += len(self.pending) > before
        self.events["kept near the end of a prompt"] += at_end and len(self.pending) > before
        self.events["commits at a stop that keep nothing new"] += (
            at_stop and len(self.pending) == before
        )

    def cache_state(self, handle: int) -> bool:
        is_kept = super().cache_state(handle)
        self.events["states cached where nothing stops"] += is_kept
        return is_kept

    def drop_windows(self, seq: Seq) -> None:
        before = [table.count(None) for table in seq.tables]
        super().drop_windows(seq)
        for group, count in enumerate(before):
            name = type(self.kinds[group]).__name__
            self.events[f"blocks dropped by {name}"] += seq.tables[group].count(None) - count

    # ---- ends ---------------------------------------------------------------------------

    def fork(self, handle: int, n: int = 1) -> list[int]:
        made = super().fork(handle, n)
        seq = self.seqs[handle]
        self.events["forks"] += 1
        self.events["forks before anything is computed"] += not seq.computed
        self.events["forks within a unit"] += seq.computed % self.size > 0
        self.events["forks of a prompt computed in part"] += 0 < seq.computed < len(seq.tokens) - 1
        return made

    def reparent(self, handles: Iterable[int], parents: Iterable[int]) -> None:
        handles, parents = list(handles), list(parents)
        super().reparent(handles, parents)
        changed = sum(i != p for i, p in enumerate(parents))
        self.events["reparents that change something"] += changed > 0
        self.events["reparents that exchange"] += any(
            p != i and parents[p] == i for i, p in enumerate(parents)
        )

    def truncate(self, handle: int, num_tokens: int) -> int:
        seq = self.running(handle)
        most = min(seq.computed, num_tokens)
        tables = [list(table) for table in seq.tables]
        length = super().truncate(handle, num_tokens)
        self.events["truncations"] += 1
        self.events["truncations that fall"] += length < most
        self.events["truncations that fall part of the way"] += 0 < length < most
        self.events["truncations to a state"] += bool(self.recurrent()) and any(
            copy.source.content == (copy.group, seq.prefix(length)) for copy in self.pending
        )
        self.events["truncations that find a window again"] += any(
            old is None and new is not None
            for before, after in zip(tables, seq.tables, strict=True)
            for old, new in zip(before, after, strict=False)
        )
        self.events["truncations that lose slots"] += self.num_slots(seq) < len(seq.tokens)
        return length

    def keep_end(self, seq: Seq) -> bool:
        before = {b.content for b in self.live}
        is_end = super().keep_end(seq)
        new = {b.content for b in self.live} - before
        rest = seq.computed % self.size
        self.events["ends kept"] += bool(new)
        self.events["ends kept within a unit, with a state"] += (
            bool(new) and rest > 0 and bool(self.recurrent())
        )
        return is_end

    # ---- blocks and steps ---------------------------------------------------------------

    def next_victim(self, share: bytes | None) -> Prefix:
        victim = super().next_victim(share)
        lowest = min(map(self.level, self.stamps))
        self.events["evictions below a level"] += lowest < max(map(self.level, self.stamps))
        self.events["evictions of what was retained"] += self.level(victim) > 0
        self.events["evictions in a quota"] += share is not None
        self.events["evictions"] += 1
        self.events["evictions behind a running sequence"] += self.runs_along(victim)
        needed = set(self.needs(victim))
        others = {c for p in self.stamps if p != victim for c in self.needs(p)}
        alone = {c[0] for c in needed - others}
        for group in alone:
            self.events[f"evictions that free {type(self.kinds[group]).__name__}"] += 1
        self.events["evictions that free nothing"] += not alone
        return victim

    def take(self, count: int, share: bytes | None) -> list[Block]:
        self.events["blocks taken while some are fenced"] += bool(count) and any(
            self.fenced(fence) for fence in self.fence_of_id.values()
        )
        return super().take(count, share)

    def take_copies(self) -> CopyPlan:
        self.events["steps"] += 1
        self.events["steps while one is in flight"] += bool(self.in_flight)
        plan = super().take_copies()
        for copy in self.taken or ():
            kind = self.kinds[copy.group]
            self.events[f"copies of {type(kind).__name__}"] += 1
        sources = plan.sources.tolist()
        self.events["sources copied twice"] += len(sources) - len(set(sources))
        return plan

    def copies_aborted(self, ticket: int) -> None:
        self.events["aborted steps"] += 1
        self.events["aborted steps with copies"] += bool(self.taken)
        self.events["aborted copies of copies"] += any(
            later.source is copy.destination for later in self.pending for copy in self.taken or ()
        )
        super().copies_aborted(ticket)
