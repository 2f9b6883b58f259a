"""Managers with one planted bug each, like those of other block managers.

Each is the model with one changed method. If the detectors miss one of them, they would also miss
the same bug in the core: see ``test_mutants.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.stress.model import ModelManager, Plan
from tests.stress.model_admission import Terms
from tests.stress.model_pool import Block, Content, Copy, Seq

MUTANTS: list[type[ModelManager]] = []


def mutant(cls: type[ModelManager]) -> type[ModelManager]:
    MUTANTS.append(cls)
    return cls


@mutant
class WritesIntoSharedBlocks(ModelManager):
    def must_copy(self, seq: Seq, leaving: Iterable[Block] = ()) -> Block | None:
        return None


@mutant
class WritesIntoCachedBlocks(ModelManager):
    def must_copy(self, seq: Seq, leaving: Iterable[Block] = ()) -> Block | None:
        block = super().must_copy(seq, leaving)
        return block if block is not None and self.references(block) > 1 else None


@mutant
class EverySharerCopies(ModelManager):
    def must_copy(self, seq: Seq, leaving: Iterable[Block] = ()) -> Block | None:
        return super().must_copy(seq, ())


@mutant
class CopiesOneTokenTooFew(ModelManager):
    def record(self, source: Block, destination: Block, num_tokens: int) -> None:
        super().record(source, destination, max(1, num_tokens - 1))


@mutant
class DoesNotCollapseCopies(ModelManager):
    def record(self, source: Block, destination: Block, num_tokens: int) -> None:
        self.pending.append(Copy(source, destination, num_tokens))
        self.count["planned_copies"] += 1


@mutant
class DoesNotPinCopySources(ModelManager):
    def used(self) -> list[Block]:
        sources, taken = [copy.source for copy in self.pending], self.taken
        tables = [block for seq in self.seqs.values() for block in seq.blocks] + self.leaving
        found = super().used()
        return [b for b in found if b in tables or (b not in sources and not taken)]


@mutant
class UnpinsWhenCopiesAreTaken(ModelManager):
    def used(self) -> list[Block]:
        taken, self.taken = self.taken, None
        found = super().used()
        self.taken = taken
        return found


@mutant
class DropsCopiesOnAbort(ModelManager):
    def copies_aborted(self, ticket: int) -> None:
        if self.resolve(ticket):
            self.resolve(ticket).clear()
        super().copies_aborted(ticket)


@mutant
class DoesNotCollapseOnAbort(ModelManager):
    def copies_aborted(self, ticket: int) -> None:
        later, self.pending = self.pending, []
        super().copies_aborted(ticket)
        self.pending += later


@mutant
class NeverCancelsCopies(ModelManager):
    def settle_down(self) -> None:
        pending, self.pending = self.pending, []
        super().settle_down()
        self.pending = pending


@mutant
class IgnoresTheNamespace(ModelManager):
    def find(self, content: Content) -> Block | None:
        found = (b for b in self.live if b.content and b.content[1] == content[1])
        return next(found, None)


@mutant
class IgnoresExtras(ModelManager):
    def find(self, content: Content) -> Block | None:
        def key(content: Content) -> Any:
            return content[0], [tokens for _, tokens in content[1]]

        return next((b for b in self.live if b.content and key(b.content) == key(content)), None)


@mutant
class IgnoresTheParent(ModelManager):
    def find(self, content: Content) -> Block | None:
        same = super().find(content)
        tail = content[1][-1]
        others = (b for b in self.live if b.content and b.content[1][-1] == tail)
        return same or next(others, None)


@mutant
class ServesTheLastToken(ModelManager):
    def plan(self, seq: Seq, num_slots: int, partial: bool, terms: Terms) -> Plan:
        seq.tokens.append(0)
        plan = super().plan(seq, num_slots, partial, terms)
        seq.tokens.pop()
        return plan


@mutant
class PromotesBeforeItIsComputed(ModelManager):
    def promote(self, seq: Seq) -> None:
        computed = seq.num_computed_tokens
        seq.num_computed_tokens = min(seq.num_tokens, seq.num_slots)
        super().promote(seq)
        seq.num_computed_tokens = computed


@mutant
class PromotesDestinationsOfOpenCopies(ModelManager):
    def unresolved(self, block: Block) -> bool:
        return False


@mutant
class ReleasesHeadFirst(ModelManager):
    def give_back(self, seq: Seq) -> None:
        table = list(seq.blocks)
        super().give_back(seq)
        idle = [block for block in table if block in self.idle()]
        stamps = [block.stamp for block in idle]
        for block, stamp in zip(idle, reversed(stamps), strict=True):
            block.stamp = stamp


@mutant
class EvictsTheNewest(ModelManager):
    def idle(self) -> list[Block]:
        for block in (found := super().idle()):
            block.stamp = -abs(block.stamp or 0)
        return found


@mutant
class DoesNotCountIdleHits(ModelManager):
    def plan(self, seq: Seq, num_slots: int, partial: bool, terms: Terms) -> Plan:
        plan = super().plan(seq, num_slots, partial, terms)
        plan.needed = plan.num_blocks - len(plan.hits)
        return plan


@mutant
class IgnoresTheWatermark(ModelManager):
    def fitting_plan(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        return super().fitting_plan(seq, num_slots, replace(terms, watermark=0))


@mutant
class IgnoresFences(ModelManager):
    def fence(self) -> int:
        return 0


@mutant
class ForkSharesTheTable(ModelManager):
    def become_fork(self, child: Seq, parent: Seq) -> None:
        super().become_fork(child, parent)
        child.blocks = parent.blocks


@mutant
class ForkSharesLookAhead(ModelManager):
    def shared_by_fork(self, seq: Seq) -> list[Block]:
        return seq.blocks


@mutant
class PreemptKeepsComputed(ModelManager):
    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        computed = self.sequence(handle).num_computed_tokens
        super().preempt(handle, withdraw=withdraw)
        self.sequence(handle).num_computed_tokens = computed


@mutant
class ReparentsOneAfterAnother(ModelManager):
    def reparent(self, handles: Iterable[int], parents: Iterable[int]) -> None:
        handles, parents = list(handles), list(parents)
        super().reparent(handles, range(len(handles)))
        for index, parent in enumerate(parents):
            if 0 <= parent < len(handles) and parent != index:
                super().reparent([handles[index], handles[parent]], [1, 1])


@mutant
class TruncateLeavesPromoted(ModelManager):
    def truncate(self, handle: int, num_tokens: int) -> None:
        promoted = self.sequence(handle).promoted
        super().truncate(handle, num_tokens)
        self.sequence(handle).promoted = min(promoted, self.sequence(handle).num_blocks)


@mutant
class KeepsUncomputedTails(ModelManager):
    def keep_tail(self, seq: Seq) -> None:
        if not seq.is_preempted:
            seq.num_computed_tokens = min(seq.num_tokens, seq.num_slots)
        super().keep_tail(seq)


@mutant
class TakesOverTailsInUse(ModelManager):
    def can_be_taken_over(self, tail: Block, tokens: list[int]) -> bool:
        return len(tail.tokens) < self.size and tokens[: len(tail.tokens)] == list(tail.tokens)


@mutant
class TakesOverPartsOfTails(ModelManager):
    def can_be_taken_over(self, tail: Block, tokens: list[int]) -> bool:
        return len(tail.tokens) < self.size and tail in self.idle()


@mutant
class ReusesWhatIsNotWrittenYet(ModelManager):
    def best_child(self, parent: Content, extras: bytes, tokens: list[int]) -> Block | None:
        promised = [(block, block.unwritten) for block in self.live]
        for block, _ in promised:
            block.unwritten = 0
        found = super().best_child(parent, extras, tokens)
        for block, unwritten in promised:
            block.unwritten = unwritten
        return found


@mutant
class FreesWhatWasPromised(ModelManager):
    def check_not_promised(self, seq: Seq) -> None:
        pass


@mutant
class ForgetsHowFarEarlyCommitsWent(ModelManager):
    def make_writable(self, seq: Seq, fresh: Block | None) -> None:
        seq.settled = seq.num_computed_tokens
        super().make_writable(seq, fresh)


@mutant
class KeepsDuplicates(ModelManager):
    def promote(self, seq: Seq) -> None:
        real, self.find = self.find, lambda content: None  # type: ignore[method-assign]
        try:
            super().promote(seq)
        finally:
            self.find = real  # type: ignore[method-assign]


@mutant
class KeepsBlocksForTheirTwins(ModelManager):
    def part_twins(self) -> None:
        pass


@mutant
class DecodeFallsBack(ModelManager):
    def decode(self, handles: Iterable[int], tokens: Iterable[int]) -> Any:
        handles = list(handles)
        slots = super().decode(handles, tokens)
        for handle in handles:
            seq = self.sequence(int(handle))
            if seq.num_tokens % self.size > 1 and self.must_copy(seq) is None and self.pending:
                seq.num_computed_tokens -= 1
        return slots


@mutant
class MergesIntoPromises(ModelManager):
    def promote(self, seq: Seq) -> None:
        written, seq.written = seq.written, min(seq.written, seq.num_computed_tokens - 1)
        super().promote(seq)
        seq.written = written


@mutant
class ReusesHandles(ModelManager):
    def free(self, handle: int, **hint: Any) -> None:
        super().free(handle, **hint)
        self.generations[handle & 0xFFFFFFFF] -= 1


@mutant
class LosesRemaps(ModelManager):
    def take_remaps(self) -> list[Any]:
        return super().take_remaps()[:-1]


@mutant
class LeaksABlockWhenAdmissionFails(ModelManager):
    def fitting_plan(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        try:
            return super().fitting_plan(seq, num_slots, terms)
        except Exception:
            if self.free_ids():
                self.share_of_id.setdefault(self.free_ids()[0], None)
                self.fence_of_id[self.free_ids()[0]] = -1
                self.in_flight.insert(0, -1)
            raise
