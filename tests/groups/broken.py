"""The specification with one rule broken at a time: bugs that a core could have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from blockmgr.blocks import CopyPlan
from tests.specification.admission import Plan
from tests.specification.blocks import Block, Content, Prefix, Seq
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import Attention


class KeepsAStateItGoesOnWriting(ModelBoundaries):
    """Rule 9: the next chunk overwrites a state that can be found."""

    def keep_state(self, seq: Seq) -> None:
        if seq.computed in seq.stops and seq.stands:
            for group in self.recurrent():
                content = (group, seq.prefix(seq.computed))
                [state] = seq.tables[group]
                if state is not None and self.find(content) is None:
                    self.publish(state, content)
            self.stamps[seq.prefix(seq.computed)] = next(self.clock)


class ForksShareAState(ModelBoundaries):
    """Rule 9: two sequences advance one state."""

    def become_fork(self, child: Seq, parent: Seq, fresh: Iterator[Block] | None = None) -> None:
        super().become_fork(child, parent, fresh)
        for group in self.recurrent() if fresh else ():
            child.tables[group] = list(parent.tables[group])


class ForksBeforeComputeShareAState(ModelBoundaries):
    """Rule 9: harmless for K/V, where both sequences write the same into each slot."""

    def become_fork(self, child: Seq, parent: Seq, fresh: Iterator[Block] | None = None) -> None:
        super().become_fork(child, parent, fresh)
        for group in self.recurrent() if fresh and not parent.computed else ():
            child.tables[group] = list(parent.tables[group])


class DoesNotPlanTheCopyOfAFork(ModelBoundaries):
    """Rule 9: the child has a block without content."""

    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        if group in self.recurrent() and source.content is None:
            return num_tokens
        return super().record(group, source, destination, num_tokens, keeps=keeps)


class KeepsAStateBehindALaterStep(ModelBoundaries):
    """Rule 10: a step launched in the meantime has advanced the state."""

    def commit(self, handle: int, computed: int) -> None:
        in_flight, self.in_flight = self.in_flight, []
        try:
            super().commit(handle, computed)
        finally:
            self.in_flight = in_flight


class TakesEveryStateToStand(ModelBoundaries):
    """Rule 10: a sequence that ends during a forward leaves a state at an unknown position."""

    def take_copies(self) -> CopyPlan:
        copies = super().take_copies()
        for seq in self.moved:
            seq.stands = True
        return copies


class FindsPromptsWithoutTheirState(ModelBoundaries):
    """Rule 11: K/V alone does not serve a recurrent layer."""

    def found_at(self, prefix: Prefix, *, promised: bool = False) -> Plan | None:
        states = {block: block.content for block in self.live if block.content}
        found = super().found_at(prefix, promised=promised)
        if found is None and len(prefix[1]) % self.size == 0 and self.recurrent():
            found = Plan(len(prefix[1]))
            for group, kind in self.attention():
                found.shared[group] = []
                for unit in range(self.first_unit(kind, found.cached), found.cached // self.size):
                    wanted = (group, (prefix[0], prefix[1][: (unit + 1) * self.size]))
                    block = next((b for b, content in states.items() if content == wanted), None)
                    if block is None:
                        return None
                    found.shared[group].append(block)
        return found


class TruncatesToWhateverWasComputed(ModelBoundaries):
    """Rule 12: a window has dropped what the query there reads, and a state cannot go back."""

    def can_fall_to(self, seq: Seq, length: int, before: int) -> bool:
        return True

    def fall_to(self, seq: Seq, length: int, before: int) -> None:
        seq.computed = length


class LeavesTheStateAtATruncation(ModelBoundaries):
    """Rule 12: K/V goes back, the state does not."""

    def state_to_go_back_to(self, seq: Seq, group: int, length: int) -> Block | None:
        return seq.tables[group][0]


class ReadsAWindowAUnitShort(ModelBoundaries):
    """Rule 13: drops the first unit of a window that starts inside this unit."""

    def first_unit(self, kind: Attention, position: int) -> int:
        first = kind.first_read(position)
        return min(self.units(first), position // self.size)


class DropsWindowsByTheirSlots(ModelBoundaries):
    """Rule 14: the forward of a chunk reads tokens before its first one."""

    def drop_windows(self, seq: Seq) -> None:
        for group, kind in self.attention():
            first = self.first_unit(kind, max(seq.computed, self.num_slots(seq) - 1))
            table = seq.tables[group]
            table[:first] = [None] * min(first, len(table))


class LeavesBlocksThatNobodyNeeds(ModelBoundaries):
    """Rule 15: such blocks are neither free nor found."""

    def settle(self) -> None:
        needed = {c for prefix in self.stamps for c in self.needs(prefix)}
        dead = {b: b.content for b in self.idle_blocks() if b.content not in needed}
        super().settle()
        for block, content in dead.items():
            if block not in self.live and self.find(content) is None:  # type: ignore[arg-type]
                block.content = content
                self.live.append(block)


class EvictsOneBlockAtATime(ModelBoundaries):
    """Rule 15: a boundary that has lost a block is still offered to prompts."""

    def serves(self, prefix: Prefix) -> bool:
        return prefix in self.stamps or super().serves(prefix)


class CopiesPartOfAState(ModelBoundaries):
    """Rule 17: part of a state is useless."""

    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        part = max(1, num_tokens - 1) if group in self.recurrent() else num_tokens
        super().record(group, source, destination, part, keeps=keeps)
        return num_tokens


class WritesWhereOthersRead(ModelBoundaries):
    """A shared block is written without a copy."""

    def shared_at(self, seq: Seq, moving: Iterable[Block] = ()) -> dict[int, Block]:
        return {}


class CopiesOnlyTheFirstGroup(ModelBoundaries):
    """Rule 13: partial reuse copies the source in each group."""

    def record(
        self, group: int, source: Block, destination: Block, num_tokens: int, *, keeps: bool = False
    ) -> int:
        if group and group not in self.recurrent():
            return num_tokens
        return super().record(group, source, destination, num_tokens, keeps=keeps)


class ForgetsThatACopyReadsItsSource(ModelBoundaries):
    """Sources of copies are allocated before the copies are made."""

    def used(self) -> set[Block]:
        pending, self.pending = self.pending, []
        used = super().used()
        self.pending = pending
        return used


class KeepsStatesOfEarlyCommits(ModelBoundaries):
    """Rule 10: the state is where the previous step left it."""

    def commit(self, handle: int, computed: int) -> None:
        super().commit(handle, computed)
        seq = self.seqs[handle]
        if self.early:
            seq.stands = True
            with self.call():
                self.keep_state(seq)


class DropsWindowsByWhatIsPromised(ModelBoundaries):
    """An early commit names the end of the forward, but the forward reads before its start."""

    def drop_windows(self, seq: Seq) -> None:
        settled, seq.settled = seq.settled, seq.computed
        super().drop_windows(seq)
        seq.settled = settled


class ReusesTheBeginningOfWhatIsPromised(ModelBoundaries):
    """Partial reuse is a copy, and the forward writes after the copies."""

    def most_like(self, group: int, prefix: Prefix, *, promised: bool = False) -> Block | None:
        return super().most_like(group, prefix, promised=True)


class GoesWithoutWritingWhatItPromised(ModelBoundaries):
    """Other sequences rely on the promised tokens."""

    def promises(self, seq: Seq) -> bool:
        return False


class TakesAStateToStandAfterAnAbortedStep(ModelBoundaries):
    """Rule 10: the previous step is in flight and has advanced the state."""

    def copies_aborted(self, ticket: int) -> None:
        super().copies_aborted(ticket)
        for seq in self.moved:
            seq.stands = True


class LendsBlocksOfAQuota(ModelBoundaries):
    """A namespace is affected by other namespaces."""

    def free_blocks(self, share: bytes | None = None) -> list[int]:
        return super().free_blocks(share) or super().free_blocks(b"tenant")


class CountsTheBlocksOfAllShares(ModelBoundaries):
    """Unused blocks of another namespace's quota are not available to this one."""

    def available(self, share: bytes | None = None) -> int:
        return sum(
            super(CountsTheBlocksOfAllShares, self).available(s) for s in (None, *self.quotas)
        )


class TakesTheStateOfAForkFromTheRest(ModelBoundaries):
    """Blocks of states count towards the quota like any other."""

    def fork(self, handle: int, count: int = 1) -> list[int]:
        quotas, self.quotas = self.quotas, {}
        try:
            return super().fork(handle, count)
        finally:
            self.quotas = quotas


class LeavesWhatFollowsAnAbortedCopy(ModelBoundaries):
    """A copy planned after an aborted one may read what the aborted one has not brought yet."""

    def copies_aborted(self, ticket: int) -> None:
        later, self.pending = self.pending, []
        super().copies_aborted(ticket)
        self.pending += later


class HandsOutWhatAStepInFlightReads(ModelBoundaries):
    """With steps in flight, a released block waits for the last step that may read it."""

    def fenced(self, fence: int) -> bool:
        return False


class TakesOverWhatAStepInFlightReads(ModelBoundaries):
    """The sequence that takes over a tail or a state writes to it."""

    def can_be_taken_over(self, plan: Plan, prefix: Prefix) -> bool:
        in_flight, self.in_flight = self.in_flight, []
        free = super().can_be_taken_over(plan, prefix)
        self.in_flight = in_flight
        return free


class PromotesBeforeACopyArrived(ModelBoundaries):
    """A block can be found before the copy of its first tokens has run."""

    def is_destination(self, block: Block) -> bool:
        return False


class TakesOneGroupsDecisionForAll(ModelBoundaries):
    """Rule 5: assumes that all groups have a twin if one group has one."""

    def find(self, content: Content) -> Block | None:
        found = super().find(content)
        if found is None and content[0] and content[0] not in self.recurrent():
            found = super().find((0, content[1]))
        return found


class MovesTheSlotsOfOtherSequences(ModelBoundaries):
    """A commit merges one sequence: the next forward of a fork writes where the fork was before."""

    def merge(self, seq: Seq, group: int, unit: int, twin: Block, unwritten: int) -> None:
        block = seq.tables[group][unit]
        for one in self.seqs.values():
            if one.tables and one.tables[group][unit : unit + 1] == [block]:
                one.tables[group][unit] = twin


class CountsNoStates(ModelBoundaries):
    """Rule 14: an admission takes a block that it did not count."""

    def priced(self, plan: Plan, seq: Seq, num_slots: int) -> Plan:
        priced = super().priced(plan, seq, num_slots)
        priced.fresh -= len(self.recurrent())
        return priced


ALL: tuple[Callable[..., ModelBoundaries], ...] = (
    KeepsAStateItGoesOnWriting,
    ForksShareAState,
    ForksBeforeComputeShareAState,
    DoesNotPlanTheCopyOfAFork,
    KeepsAStateBehindALaterStep,
    TakesEveryStateToStand,
    FindsPromptsWithoutTheirState,
    TruncatesToWhateverWasComputed,
    LeavesTheStateAtATruncation,
    ReadsAWindowAUnitShort,
    DropsWindowsByTheirSlots,
    LeavesBlocksThatNobodyNeeds,
    EvictsOneBlockAtATime,
    CopiesPartOfAState,
    WritesWhereOthersRead,
    CopiesOnlyTheFirstGroup,
    ForgetsThatACopyReadsItsSource,
    TakesAStateToStandAfterAnAbortedStep,
    LendsBlocksOfAQuota,
    CountsTheBlocksOfAllShares,
    TakesTheStateOfAForkFromTheRest,
    KeepsStatesOfEarlyCommits,
    DropsWindowsByWhatIsPromised,
    ReusesTheBeginningOfWhatIsPromised,
    GoesWithoutWritingWhatItPromised,
    LeavesWhatFollowsAnAbortedCopy,
    HandsOutWhatAStepInFlightReads,
    TakesOverWhatAStepInFlightReads,
    PromotesBeforeACopyArrived,
    TakesOneGroupsDecisionForAll,
    MovesTheSlotsOfOtherSequences,
    CountsNoStates,
)
OPTIONS: dict[Callable[..., ModelBoundaries], dict[str, object]] = {
    KeepsStatesOfEarlyCommits: {"early_commit": True},
    DropsWindowsByWhatIsPromised: {"early_commit": True},
    ReusesTheBeginningOfWhatIsPromised: {
        "early_commit": True,
        "block_size": 4,
        "min_partial_tokens": 1,
        "habits": {"chunk": 8, "eager": True},
    },
    GoesWithoutWritingWhatItPromised: {"early_commit": True},
    TakesAStateToStandAfterAnAbortedStep: {"early_commit": False, "steps_in_flight": 8},
    LeavesWhatFollowsAnAbortedCopy: {
        "block_size": 3,
        "early_commit": False,
        "min_partial_tokens": 1,
        "steps_in_flight": 0,
    },
    HandsOutWhatAStepInFlightReads: {"steps_in_flight": 8},
    TakesOverWhatAStepInFlightReads: {"steps_in_flight": 8},
}
"""Options without which an engine never exercises the rule."""

BY_AUDIT = frozenset(
    {
        LeavesBlocksThatNobodyNeeds,
        EvictsOneBlockAtATime,
        CountsNoStates,
        LendsBlocksOfAQuota,
        CountsTheBlocksOfAllShares,
        TakesTheStateOfAForkFromTheRest,
        HandsOutWhatAStepInFlightReads,
        TakesOverWhatAStepInFlightReads,
        MovesTheSlotsOfOtherSequences,
        LeavesTheStateAtATruncation,
        ForgetsThatACopyReadsItsSource,
        LeavesWhatFollowsAnAbortedCopy,
    }
)
"""These seldom serve wrong K/V to a device that runs one step after the other. The audit notices
them, or a copy plan that depends on its order, or a call raises an unexpected error."""
