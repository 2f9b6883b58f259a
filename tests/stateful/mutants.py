"""Managers with one planted bug each, like those of other block managers.

Each is the model with one changed method. If the detectors miss one of them, they would also miss
the same bug in the core: see ``test_mutants.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tests.specification.admission import Plan, Terms
from tests.specification.blocks import Block, Content, Copy, Prefix, Seq
from tests.specification.leaves import ModelLeaves

MUTANTS: list[type[ModelLeaves]] = []


def mutant(cls: type[ModelLeaves]) -> type[ModelLeaves]:
    MUTANTS.append(cls)
    return cls


@mutant
class WritesIntoSharedBlocks(ModelLeaves):
    def shared_at(self, seq: Seq, moving: Iterable[Block] = ()) -> dict[int, Block]:
        return {}


@mutant
class WritesIntoCachedBlocks(ModelLeaves):
    def shared_at(self, seq: Seq, moving: Iterable[Block] = ()) -> dict[int, Block]:
        found = super().shared_at(seq, moving)
        return {group: block for group, block in found.items() if self.references(block) > 1}


@mutant
class EverySharerCopies(ModelLeaves):
    def shared_at(self, seq: Seq, moving: Iterable[Block] = ()) -> dict[int, Block]:
        return super().shared_at(seq, ())


@mutant
class CopiesOneTokenTooFew(ModelLeaves):
    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        return super().record(group, source, destination, max(1, num_tokens - 1))


@mutant
class DoesNotCollapseCopies(ModelLeaves):
    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        self.pending.append(Copy(group, source, destination, num_tokens))
        self.count["planned_copies"] += 1
        return num_tokens


@mutant
class DoesNotPinCopySources(ModelLeaves):
    def used(self) -> set[Block]:
        sources, taken = [copy.source for copy in self.pending], self.taken
        tables = [block for seq in self.seqs.values() for block in seq.blocks] + self.leaving
        found = super().used()
        return {b for b in found if b in tables or (b not in sources and not taken)}


@mutant
class UnpinsWhenCopiesAreTaken(ModelLeaves):
    def used(self) -> set[Block]:
        taken, self.taken = self.taken, None
        found = super().used()
        self.taken = taken
        return found


@mutant
class DropsCopiesOnAbort(ModelLeaves):
    def copies_aborted(self, ticket: int) -> None:
        if self.resolve(ticket):
            self.resolve(ticket).clear()
        super().copies_aborted(ticket)


@mutant
class DoesNotCollapseOnAbort(ModelLeaves):
    def copies_aborted(self, ticket: int) -> None:
        later, self.pending = self.pending, []
        super().copies_aborted(ticket)
        self.pending += later


@mutant
class NeverCancelsCopies(ModelLeaves):
    def settle(self) -> None:
        pending, self.pending = self.pending, []
        super().settle()
        self.pending = pending


@mutant
class IgnoresTheNamespace(ModelLeaves):
    def find(self, content: Content) -> Block | None:
        tokens = content[1][1]
        return next((b for b in self.live if b.content and b.content[1][1] == tokens), None)


@mutant
class IgnoresExtras(ModelLeaves):
    def find(self, content: Content) -> Block | None:
        def key(content: Content) -> Any:
            marks = content[1][1]
            return content[1][0], [m[0] if isinstance(m, tuple) else m for m in marks]

        return next((b for b in self.live if b.content and key(b.content) == key(content)), None)


@mutant
class IgnoresTheParent(ModelLeaves):
    def find(self, content: Content) -> Block | None:
        same = super().find(content)

        def last(content: Content) -> Any:
            tokens = content[1][1]
            return tokens[(len(tokens) - 1) // self.size * self.size :]

        others = (b for b in self.live if b.content and last(b.content) == last(content))
        return same or next(others, None)


@mutant
class ServesTheLastToken(ModelLeaves):
    def plans(self, seq: Seq, num_slots: int, terms: Terms | None = None) -> Iterator[Plan]:
        seq.tokens.append(0)
        plans = list(super().plans(seq, num_slots, terms))
        seq.tokens.pop()
        yield from plans


@mutant
class PromotesBeforeItIsComputed(ModelLeaves):
    def promote(self, seq: Seq) -> None:
        computed = seq.computed
        seq.computed = min(seq.num_tokens, seq.num_slots)
        super().promote(seq)
        seq.computed = computed


@mutant
class PromotesDestinationsOfOpenCopies(ModelLeaves):
    def is_destination(self, block: Block) -> bool:
        return False


@mutant
class ReleasesHeadFirst(ModelLeaves):
    def give_back(self, seq: Seq, **asked: Any) -> None:
        table = list(seq.blocks)
        super().give_back(seq, **asked)
        idle = [block for block in table if block in self.idle()]
        stamps = [block.stamp for block in idle]
        for block, stamp in zip(idle, reversed(stamps), strict=True):
            block.stamp = stamp


@mutant
class EvictsTheNewest(ModelLeaves):
    def idle(self) -> list[Block]:
        for block in (found := super().idle()):
            block.stamp = -abs(block.stamp or 0)
        return found


@mutant
class DoesNotCountIdleHits(ModelLeaves):
    def priced(self, plan: Plan, seq: Seq, num_slots: int) -> Plan:
        plan = super().priced(plan, seq, num_slots)
        plan.idle = 0
        return plan


@mutant
class IgnoresTheWatermark(ModelLeaves):
    def fitting_plan(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        return super().fitting_plan(seq, num_slots, replace(terms, watermark=0))


@mutant
class IgnoresFences(ModelLeaves):
    def last_fence(self) -> int:
        return 0


@mutant
class ForkSharesTheTable(ModelLeaves):
    def become_fork(self, child: Seq, parent: Seq, fresh: Iterator[Block] | None = None) -> None:
        super().become_fork(child, parent, fresh)
        child.tables = parent.tables


@mutant
class ForkSharesLookAhead(ModelLeaves):
    def become_fork(self, child: Seq, parent: Seq, fresh: Iterator[Block] | None = None) -> None:
        tables = [list(table) for table in parent.tables]
        super().become_fork(child, parent, fresh)
        child.tables = tables


@mutant
class PreemptKeepsComputed(ModelLeaves):
    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        computed = self.sequence(handle).computed
        super().preempt(handle, withdraw=withdraw)
        self.sequence(handle).computed = computed


@mutant
class ReparentsOneAfterAnother(ModelLeaves):
    def reparent(self, handles: Iterable[int], parents: Iterable[int]) -> None:
        handles, parents = list(handles), list(parents)
        super().reparent(handles, range(len(handles)))
        for index, parent in enumerate(parents):
            if 0 <= parent < len(handles) and parent != index:
                super().reparent([handles[index], handles[parent]], [1, 1])


@mutant
class TruncateLeavesPromoted(ModelLeaves):
    def truncate(self, handle: int, num_tokens: int) -> int:
        promoted = self.sequence(handle).promoted
        left = super().truncate(handle, num_tokens)
        self.sequence(handle).promoted = min(promoted, self.sequence(handle).num_blocks)
        return left


@mutant
class KeepsUncomputedTails(ModelLeaves):
    def keep_end(self, seq: Seq) -> bool:
        seq.computed = min(seq.num_tokens, seq.num_slots)
        return super().keep_end(seq)


@mutant
class TakesOverTailsInUse(ModelLeaves):
    def can_be_taken_over(self, plan: Plan, prefix: Prefix) -> bool:
        return any(block.content == (0, prefix) for block in plan.copied.values())


@mutant
class TakesOverPartsOfTails(ModelLeaves):
    def can_be_taken_over(self, plan: Plan, prefix: Prefix) -> bool:
        return any(self.is_tail(block) and block in self.idle() for block in plan.copied.values())


@mutant
class ReusesWhatIsNotWrittenYet(ModelLeaves):
    def most_like(self, group: int, prefix: Prefix, *, promised: bool = False) -> Block | None:
        return super().most_like(group, prefix, promised=True)


@mutant
class FreesWhatWasPromised(ModelLeaves):
    def check_not_promised(self, seq: Seq) -> None:
        pass


@mutant
class ForgetsHowFarEarlyCommitsWent(ModelLeaves):
    def make_writable(self, seq: Seq, shared: dict[int, Block], fresh: list[Block]) -> None:
        seq.settled = seq.computed
        super().make_writable(seq, shared, fresh)


@mutant
class KeepsDuplicates(ModelLeaves):
    def promote(self, seq: Seq) -> None:
        real, self.find = self.find, lambda content: None  # type: ignore[method-assign]
        try:
            super().promote(seq)
        finally:
            self.find = real  # type: ignore[method-assign]


@mutant
class KeepsBlocksForTheirTwins(ModelLeaves):
    def part_twins(self) -> None:
        pass


@mutant
class DecodeFallsBack(ModelLeaves):
    def decode(self, handles: Iterable[int], tokens: Iterable[int]) -> Any:
        handles = list(handles)
        slots = super().decode(handles, tokens)
        for handle in handles:
            seq = self.sequence(int(handle))
            if seq.num_tokens % self.size > 1 and not self.shared_at(seq) and self.pending:
                seq.computed -= 1
        return slots


@mutant
class MergesIntoPromises(ModelLeaves):
    def promote(self, seq: Seq) -> None:
        written, seq.written = seq.written, min(seq.written, seq.computed - 1)
        super().promote(seq)
        seq.written = written


@mutant
class ReusesHandles(ModelLeaves):
    def free(self, handle: int, **hint: Any) -> None:
        super().free(handle, **hint)
        self.generations[handle & 0xFFFFFFFF] -= 1


@mutant
class LosesRemaps(ModelLeaves):
    def take_remaps(self) -> list[Any]:
        return super().take_remaps()[:-1]


@mutant
class LeaksABlockWhenAdmissionFails(ModelLeaves):
    def fitting_plan(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        try:
            return super().fitting_plan(seq, num_slots, terms)
        except Exception:
            if free := self.free_blocks():
                self.fence_of_id[free[0]] = -1
                self.in_flight.insert(0, -1)
            raise
