"""What sequences share when they resume together.

Each finds what a prompt with its tokens would find. Sequences that begin at one place and have the
next units in common share those, too, although nothing of them is cached: as forks do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from blockmgr.errors import NeverFitsError, OutOfBlocksError, SequenceStateError
from tests.specification.admission import Plan, Terms
from tests.specification.blocks import NODES, Block, Seq, common
from tests.specification.manager import Specification

__all__ = ["ModelResuming"]

ATTEMPTS = ("each", "agreed", "whole", "nothing")
"""What the sequences find: each all that it can; those that compute a unit together, the same;
nothing within a unit; nothing at all."""

OF_A_FORK = ("computed", "settled", "written", "promoted", "outdated", "stands", "moves", "slot")
OF_A_FORK += ("since", "farthest")


@dataclass(eq=False)
class Member:
    """A sequence that resumes with others.

    Attributes:
        seq: The sequence.
        slots: What it asks for.
        found: What it continues from, at most.
        whole: The end of what it finds in whole units.
        plan: What it does, if it begins on its own.
        donor: The member whose units it shares, also those that are not cached; None: it begins on
            its own.
        units: How many of its leading units are those of the donor.
        blocks: Its units in full attention.
    """

    seq: Seq
    slots: int
    found: Plan
    whole: int
    plan: Plan = field(default_factory=lambda: Plan(0))
    donor: Member | None = None
    units: int = 0
    blocks: int = 0

    length = property(lambda self: len(self.seq.tokens))

    def in_common(self, other: Member) -> int:
        pair = [one.seq.prefix(one.length) for one in (self, other)]
        return common(pair[0][1], pair[1][1]) if pair[0][0] == pair[1][0] else 0

    @property
    def order(self) -> tuple[Any, ...]:
        """Beside those with the same beginning, and behind those that continue it."""
        namespace, tokens = self.seq.prefix(self.length)
        parts = (token if isinstance(token, tuple) else (token, b"") for token in tokens)
        return namespace, *((0, extra, token) for token, extra in parts), (1,)


class ModelResuming(Specification):
    """Resumes sequences together."""

    def resume_together(
        self, handles: Iterable[int], *, num_slots: int | None = None, read_cache: bool = True
    ) -> None:
        """All of them, or none; the more they share, the less of the cache they need."""
        terms = Terms(read_cache=read_cache)
        members = self.members(list(handles), num_slots, terms)
        held_back = self.held_back(members) | ({} if self.nodes is None else {NODES: 0})
        shortages: list[OutOfBlocksError] = []
        may_fit = False
        for attempt in ATTEMPTS:
            self.plan_all(members, attempt)
            room = {share: self.available(share) - held_back[share] for share in held_back}
            needed = {share: self.num_needed(members, share) for share in held_back}
            lacking = [s for s, count in needed.items() if count and count > room[s]]
            if not lacking:
                return self.place_all(members, terms)
            shortages += [
                OutOfBlocksError(needed[s], self.available(s), held_back[s]) for s in lacking
            ]
            may_fit |= all(self.num_held(members, s) <= self.limit(s) for s in held_back)
        if not may_fit:
            raise NeverFitsError("they take more blocks together than there are")
        raise min(shortages, key=lambda shortage: shortage.needed)

    def members(self, handles: list[int], num_slots: int | None, terms: Terms) -> list[Member]:
        for index, handle in enumerate(handles):
            if not self.sequence(handle).preempted:
                raise SequenceStateError(f"sequence {handle} is running")
            if handle in handles[:index]:
                raise ValueError(f"handles must be distinct, got {handle} twice")
        seqs = [self.sequence(handle) for handle in handles]
        slots = [self.checked_slots(seq, num_slots, Terms()) for seq in seqs]
        members = []
        for seq, count in zip(seqs, slots, strict=True):
            plans = list(self.plans(seq, count, terms))
            whole = next(plan.cached for plan in plans if plan.cached % self.size == 0)
            members.append(Member(seq, count, plans[0], whole))
        return sorted(members, key=lambda member: member.order)

    def held_back(self, members: list[Member]) -> dict[bytes | None, int]:
        """The watermark, for sequences that can resume in an empty pool in any case."""
        before = [(member.found, member.whole) for member in members]
        self.plan_all(members, "nothing")
        most = {share: self.num_held(members, share) for share in (None, *self.quotas)}
        for member, (member.found, member.whole) in zip(members, before, strict=True):
            share = self.share(member.seq.namespace)
            most[share] = max(most[share], self.units(max(member.length, member.slots)))
        spare = {share: max(0, self.limit(share) - count) for share, count in most.items()}
        return {share: min(self.watermark(share), count) for share, count in spare.items()}

    # ---- what each does -----------------------------------------------------------------

    def plan_all(self, members: list[Member], attempt: str) -> None:
        for member in members:
            if attempt == "whole":
                end = min(member.whole, member.found.cached // self.size * self.size)
                member.found = self.plan_to(member, end)
            elif attempt == "nothing":
                member.found = self.nothing()
        if attempt != "each":
            self.agree(members)
        for index, member in enumerate(members):
            member.plan = replace(member.found)
            member.blocks = self.units(max(member.slots, member.plan.cached))
            self.choose_donor(member, members[:index])
        alone = [member for member in members if member.donor is None]
        for member in alone:
            plan, end = member.plan, self.end_of(member.plan)
            if attempt != "each":
                plan.taken_over = self.can_be_taken_over(plan, member.seq.prefix(plan.cached))
            plan.taken_over &= sum(self.end_of(other.plan) is end for other in alone) == 1
        for member in alone:
            self.priced(member.plan, member.seq, member.slots)

    def plan_to(self, member: Member, length: int) -> Plan:
        plan = self.found_at(member.seq.prefix(length)) if length else self.nothing()
        assert plan is not None
        return plan

    def end_of(self, plan: Plan) -> Block | None:
        """The last block that it finds, in the group that has one of each unit."""
        lead = self.identity or 0
        return plan.copied.get(lead) or next(reversed(plan.shared[lead]), None)

    def shared_units(self, member: Member, donor: Member, in_common: int) -> int:
        """The leading units that both may share.

        The last one, too, if the tokens of the member in it are those of the other. Slots behind
        tokens belong to one sequence.
        """
        units = in_common // self.size
        if in_common == member.length and member.slots <= member.length:
            units = self.units(member.length)
        if donor.slots > donor.length:
            units = min(units, donor.length // self.size)
        return min(units, donor.blocks, member.blocks)

    def agree(self, members: list[Member]) -> None:
        """Those that compute the same unit begin at one place, the earlier of their starts."""
        changed = True
        while changed:
            changed = False
            for pair in pairwise(members):
                for member in pair:
                    member.blocks = self.units(max(member.slots, member.found.cached))
                first, other = sorted(pair, key=lambda member: member.found.cached)
                shared = self.shared_units(pair[1], pair[0], pair[1].in_common(pair[0]))
                if first.found.cached < min(other.found.cached, shared * self.size):
                    other.found, other.whole = first.found, first.whole
                    changed = True

    def choose_donor(self, member: Member, earlier: list[Member]) -> None:
        """The nearest of those before it with which it shares most, beyond what it finds."""
        member.donor, member.units = None, member.plan.cached // self.size
        for other in reversed(earlier):
            if other.plan.cached == member.plan.cached:
                units = self.shared_units(member, other, member.in_common(other))
                if units > member.units:
                    member.donor, member.units = other, units

    # ---- what they take -----------------------------------------------------------------

    def num_fresh(self, member: Member, share: bytes | None = None) -> int:
        if member.donor is None:
            return member.plan.fresh_nodes if share == NODES else member.plan.fresh
        units = max(member.units, self.units(member.slots)) - member.units
        return units if share == NODES else units * len(self.in_memory()) + len(self.singles())

    def what_takes(self, members: list[Member], share: bytes | None) -> tuple[int, set[Block]]:
        """The fresh blocks of a share that they take, and those that they find."""
        of_share = [m for m in members if share in {NODES, self.share(m.seq.namespace)}]
        found = {b for m in of_share if not m.donor for b in m.plan.acquired()}
        found = {b for b in found if (b.share == NODES) == (share == NODES)}
        return sum(self.num_fresh(member, share) for member in of_share), found

    def num_held(self, members: list[Member], share: bytes | None) -> int:
        """The blocks of a share that they have afterwards."""
        fresh, found = self.what_takes(members, share)
        return fresh + len(found)

    def num_needed(self, members: list[Member], share: bytes | None) -> int:
        """Those of them that are available now."""
        fresh, found = self.what_takes(members, share)
        return fresh + len(found.intersection(self.idle_of(share)))

    def place_all(self, members: list[Member], terms: Terms) -> None:
        with self.call():
            for member in members:
                expect = self.expect_stops if member.donor else self.expect
                expect(member.seq, member.plan, terms)
            for member in members:
                self.hold_found(member.plan if not member.donor else self.nothing())
            for member in members:
                if member.donor is None:
                    self.fill(member.seq, member.slots, member.plan)
                else:
                    self.join(member, member.donor)
        for member in members if terms.read_cache else ():
            self.count_hits(member.seq, "resumed_")

    def join(self, member: Member, donor: Member) -> None:
        """It becomes a fork of the other one, cut to what both have, and then grows again."""
        seq, fork = member.seq, self.new_seq()
        fresh = iter(self.take(self.num_fresh(member), self.share(seq.namespace)))
        self.become_fork(fork, donor.seq, fresh)
        for name in OF_A_FORK:
            setattr(seq, name, getattr(fork, name))
        seq.cached, seq.preempted, seq.tables = seq.computed, False, fork.tables
        units = max(member.units, self.units(member.slots))
        for group in self.growing():
            del seq.tables[group][member.units :]
            seq.tables[group] += self.more(group, units - member.units, fresh)
