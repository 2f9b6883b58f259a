"""``ModelLayouts`` with one rule broken at a time: bugs that the manager could have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.specification.admission import Plan, Terms
from tests.specification.blocks import Block, Content, Copy, Prefix, Seq
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import RecurrentState, Ring
from tests.specification.layouts import LayoutSeq, ModelLayouts

# These serve wrong contents, or break the books: random worlds find them.


class WritesBehindWhatOthersNeed(ModelLayouts):
    """G2: the content behind the place belongs to a boundary."""

    def may_write(self, block: Block, position: int) -> bool:
        return block.stamp is not None and not self.fenced(block.fence)

    def shorten_content(self, block: Block, position: int) -> None:
        pass


class WritesWhereAStepMayStillWrite(ModelLayouts):
    """G3: the one who left is in a step in flight."""

    def fenced(self, fence: int) -> bool:
        return False


class KeepsWhatIsOverwritten(ModelLayouts):
    """G4: a window's block outlives the boundary that needed its end."""

    def shorten_content(self, block: Block, position: int) -> None:
        pass


class EvictsWhatAHitIsMadeOf(ModelLayouts):
    """G6: the blocks of the hit are not in use yet."""

    def place(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        plan = self.fitting_plan(seq, num_slots, terms)
        with self.call():
            self.take(plan.fresh, self.share(seq.namespace))
        return super().place(seq, num_slots, terms)


class ExchangesAStateForItsCopy(ModelLayouts):
    """G8: the worker was told its slot once."""

    def keep_at(self, seq: LayoutSeq, stop: int, room: int) -> bool:
        is_kept = super().keep_at(seq, stop, room)
        for copy in self.pending:
            table = seq.tables[copy.group]
            if copy.keeps and copy.source in table:
                table[table.index(copy.source)] = copy.destination
        return is_kept


class KeepsAStateBehindALaterStep(ModelLayouts):
    """G9: the next launch has advanced it."""

    def confirms(self, seq: Seq) -> bool:
        return True


class DropsAKeptStateWhenAStepAborts(ModelLayouts):
    """G9: the destination of its copy is in no table."""

    def is_awaited(self, copy: Copy) -> bool:
        return ModelBoundaries.is_awaited(self, copy)


class ForksShareWhereTheyGoOn(ModelLayouts):
    """G10: parent and child write into one block."""

    def entries_of_fork(self, parent: LayoutSeq, group: int) -> list[Any]:
        own = super().entries_of_fork(parent, group)
        if isinstance(self.kinds[group], RecurrentState | Ring):
            return own
        return parent.tables[group][: len(own)]

    def fork_group(self, child: LayoutSeq, parent: LayoutSeq, group: int) -> None:
        if isinstance(self.kinds[group], RecurrentState | Ring):
            super().fork_group(child, parent, group)


class ReadersAdvanceTheKeptState(ModelLayouts):
    """G11: a kept state is only read."""

    def is_continued(self, plan: Plan, group: int) -> bool:
        return group in self.recurrent() or super().is_continued(plan, group)

    def take_over_at(self, block: Block, position: int, group: int) -> None:
        if group not in self.recurrent():
            super().take_over_at(block, position, group)


class MergesTwins(ModelLayouts):
    """G12: a commit moves an entry to the block of another sequence."""

    def show(self, seq: LayoutSeq, group: int, stop: int) -> None:
        size, table = self.tokens_of(group), seq.tables[group]
        for entry in range(max(0, stop) // size):
            twin = self.find((group, seq.prefix((entry + 1) * size)))
            if table[entry] and twin:
                table[entry] = twin
        super().show(seq, group, stop)


class TakesTheFirstSlotToBeLive(ModelLayouts):
    """G13: each position of a step leaves its state in a slot of its own."""

    def slot_of(self, seq: LayoutSeq, group: int, position: int) -> int:
        return 0


class KeepsAStopFromTheLiveSlot(ModelLayouts):
    """G13: the stop lies inside the step."""

    def slot_of_stop(self, seq: LayoutSeq, group: int, stop: int) -> int:
        return seq.live[group]


class FindsWithoutLookingAhead(ModelLayouts):
    """G14: the last cells were computed with other tokens."""

    def holding(self, content: Content, ahead: Prefix | None = None) -> list[Block]:
        return super().holding(content)


class FallsToWhereAWindowHasAGap(ModelLayouts):
    """G15: the window has released what the query there reads."""

    def attention_can_fall_to(self, seq: LayoutSeq, group: int, position: int) -> bool:
        return True


class FallsToWhereTheRingIsOverwritten(ModelLayouts):
    """G15: the ring has later positions."""

    def is_still_in(self, seq: LayoutSeq, ring: Ring, length: int) -> bool:
        return True


class BeginsWithADirtyRing(ModelLayouts):
    """G16: it has what another sequence left."""

    def blocks_to_zero(self) -> list[int]:
        return []


class ForksGoOnWithAnEmptyRing(ModelLayouts):
    """G16: a fork copies it whole."""

    def fork_group(self, child: LayoutSeq, parent: LayoutSeq, group: int) -> None:
        if not isinstance(self.kinds[group], Ring):
            super().fork_group(child, parent, group)


class FindsWhereARingLacksItsBeginning(ModelLayouts):
    """G17: an empty ring is right at multiples of its restart only."""

    def can_start(self, length: int) -> bool:
        return True

    def may_hit(self, length: int) -> bool:
        return length == 0 or length > self.replay


class CountsNoRingsAndDrafts(ModelLayouts):
    """G18: an admission takes blocks that it did not count."""

    def priced(self, plan: Plan, seq: Seq, num_slots: int) -> Plan:
        priced = super().priced(plan, seq, num_slots)
        priced.fresh -= sum(isinstance(k, Ring) or k.extra_blocks > 0 for k in self.kinds)
        return priced


class ReplaysIntoBlocksOfOthers(ModelLayouts):
    """G19: the forward from the start writes all groups."""

    def place(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        plan = super().place(seq, num_slots, terms)
        assert isinstance(seq, LayoutSeq)
        seq.hit = seq.computed
        return plan


class ForksOfAReplayGoOnWhereItIs(ModelLayouts):
    """G20: what is computed below the hit says nothing of the other groups."""

    def position(self, seq: LayoutSeq, group: int) -> int:
        return min(seq.computed, super().position(seq, group))


WRONG: tuple[type[ModelLayouts], ...] = (
    WritesBehindWhatOthersNeed,
    WritesWhereAStepMayStillWrite,
    KeepsWhatIsOverwritten,
    EvictsWhatAHitIsMadeOf,
    ExchangesAStateForItsCopy,
    KeepsAStateBehindALaterStep,
    DropsAKeptStateWhenAStepAborts,
    ForksShareWhereTheyGoOn,
    ReadersAdvanceTheKeptState,
    MergesTwins,
    TakesTheFirstSlotToBeLive,
    KeepsAStopFromTheLiveSlot,
    FindsWithoutLookingAhead,
    FallsToWhereAWindowHasAGap,
    FallsToWhereTheRingIsOverwritten,
    BeginsWithADirtyRing,
    ForksGoOnWithAnEmptyRing,
    FindsWhereARingLacksItsBeginning,
    CountsNoRingsAndDrafts,
    ReplaysIntoBlocksOfOthers,
    ForksOfAReplayGoOnWhereItIs,
)

# These serve right contents, and find less or keep more: small worlds find them.


class FindsMultiplesOfAllSizesOnly(ModelLayouts):
    """G1: prompts that part inside a large block find nothing of it."""

    def places(self, seq: Seq, last: int) -> Iterator[int]:
        return (length for length in super().places(seq, last) if length % self.stop_tokens == 0)


class KeepsEachBoundaryItsOldestBlock(ModelLayouts):
    """G5, G7: a block is kept for tokens that another block has, too."""

    def holding(self, content: Content, ahead: Prefix | None = None) -> list[Block]:
        return sorted(super().holding(content, ahead), key=lambda block: block.linked)[:1]


class TakesAHitInsideTheReplay(ModelLayouts):
    """G19: it would be computed again as a whole."""

    def may_hit(self, length: int) -> bool:
        return length % self.restart == 0


class EvictsOneBoundaryOfABlock(ModelLayouts):
    """G22: boundaries of other paths go between those of one block."""

    def above(self, boundary: Prefix) -> Prefix | None:
        return None


LESS: tuple[type[ModelLayouts], ...] = (
    FindsMultiplesOfAllSizesOnly,
    KeepsEachBoundaryItsOldestBlock,
    TakesAHitInsideTheReplay,
    EvictsOneBoundaryOfABlock,
)
