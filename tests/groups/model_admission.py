"""The specification of groups, part three: what a prompt finds and what it allocates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.groups.kinds import Kind
from tests.groups.memory import Prefix
from tests.groups.model_pool import Block, NeverFits, OutOfBlocks, Seq, cut
from tests.groups.model_steps import ModelSteps


@dataclass
class Plan:
    """What an admission would do.

    Attributes:
        cached: Tokens found.
        shared: By group, the shared units, from the first that the group still reads.
        copied: By group, the block with the tokens of the unit in which the prompt continues, or
            with the state there; it is copied or taken over.
        taken_over: Takes over those blocks instead of copying them; no other prompt finds them
        then.
        fresh: Blocks to allocate.
    """

    cached: int
    shared: dict[int, list[Block]] = field(default_factory=dict)
    copied: dict[int, Block] = field(default_factory=dict)
    taken_over: bool = False
    fresh: int = 0

    def acquired(self) -> set[Block]:
        return {b for blocks in self.shared.values() for b in blocks} | set(self.copied.values())


class ModelAdmission(ModelSteps):
    """Admits prompts."""

    lookahead = 0
    """Tokens that may be truncated after their commit: drafts."""

    branches: set[Prefix]
    """Ends of tails at which prompts diverge."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kinds: Sequence[Kind],
        *,
        min_partial_tokens: int = 0,
        halfway_stop_tokens: int = 0,
        prompt_end_stop: int | None = None,
        quotas: Mapping[bytes, int] | None = None,
        retention: bool = True,
    ) -> None:
        del retention  # the specification always supports levels
        super().__init__(num_blocks, block_size, kinds, quotas)
        self.min_partial_tokens = min_partial_tokens
        self.halfway_stop_tokens = halfway_stop_tokens
        self.prompt_end_stop = prompt_end_stop
        self.branches = set()

    def can_go_on(self, prefix: Prefix) -> bool:
        return self.found_at(prefix) is not None

    def touch_prompt(self, tokens: list[int], namespace: bytes = b"") -> None:
        """A waiting prompt will soon continue from here, so the path counts as just used."""
        prefix = (namespace, tuple(tokens))
        partly = [p for p in range(1, len(tokens)) if p % self.size >= self.min_partial_tokens > 0]
        lengths = {*partly, *range(self.size, len(tokens), self.size)}
        found = (p for p in sorted(lengths, reverse=True) if self.can_go_on(cut(prefix, p)))
        end = next(found, 0)
        self.touch(cut(prefix, end))
        if end and end % self.size == 0:
            self.keep_boundary(cut(prefix, end))

    def most_like(self, group: int, prefix: Prefix, *, promised: bool = False) -> Block | None:
        """A block of the group whose unit starts with the last tokens of the prefix.

        promised: what this step's forward is going to write counts, too.
        """
        if (tail := self.find((group, prefix))) is not None:
            return tail  # it can be taken over
        length = len(prefix[1])
        start = length // self.size * self.size
        for block in self.blocks:
            if block.content is None or block.content[0] != group:
                continue
            end = len(block.content[1][1])
            if not start < end <= start + self.size:
                continue
            written = cut(block.content[1], end - (0 if promised else block.unwritten))
            if len(written[1]) >= length and cut(written, length) == prefix:
                return block
        return None

    def found_at(self, prefix: Prefix, *, promised: bool = False) -> Plan | None:
        """A plan to continue a prompt after this prefix; None if some group cannot serve it."""
        length = len(prefix[1])
        full, rest = divmod(length, self.size)
        plan = Plan(length)
        for group, kind in self.attention():
            plan.shared[group] = []
            for unit in range(self.first_unit(kind, length), full):
                block = self.find((group, cut(prefix, (unit + 1) * self.size)))
                if block is None:
                    return None
                plan.shared[group].append(block)
            if rest:  # all groups: the block may be cached later as a whole unit
                block = self.most_like(group, prefix, promised=promised)
                if block is None:
                    return None
                plan.copied[group] = block
        for group in self.recurrent() if length else ():
            block = self.find((group, prefix))
            if block is None or self.is_being_kept(block):
                return None
            plan.copied[group] = block
        return plan

    def can_be_taken_over(self, plan: Plan, prefix: Prefix) -> bool:
        """Whether the copied blocks are idle and end exactly at this prefix."""
        idle = self.evictable(self.share(prefix[0]))
        return all(
            block in idle and block.content == (group, prefix)
            for group, block in plan.copied.items()
        )

    def plans(self, seq: Seq, num_slots: int) -> Iterator[Plan]:
        """Plans, the best first; a later one is tried if those before it do not fit (rule 14)."""
        last = len(seq.tokens) - 1  # one token must be left to compute
        lengths = range(last, 0, -1)
        allowed = (p for p in lengths if p % self.size >= self.min_partial_tokens > 0)
        partial = next(((p, f) for p in allowed if (f := self.found_at(seq.prefix(p)))), None)
        whole = next(
            ((p, f) for p in lengths if p % self.size == 0 and (f := self.found_at(seq.prefix(p)))),
            None,
        )
        for found in (partial, whole):
            if found is None or (found is partial and whole is not None and whole[0] > found[0]):
                continue
            length, plan = found
            may_take_over = bool(plan.copied) and self.can_be_taken_over(plan, seq.prefix(length))
            if length % self.size and may_take_over and seq.prefix(length) not in self.branches:
                plan.taken_over = True  # only the sequence that continues a tail needs it
            yield self.priced(plan, num_slots)
            if may_take_over and not plan.taken_over:
                yield self.priced(
                    Plan(plan.cached, plan.shared, plan.copied, taken_over=True), num_slots
                )
        yield self.priced(Plan(0, {group: [] for group, _ in self.attention()}), num_slots)

    def priced(self, plan: Plan, num_slots: int) -> Plan:
        units = self.units(max(num_slots, plan.cached))
        plan.fresh = len(self.recurrent())
        for group, kind in self.attention():
            first = self.first_unit(kind, plan.cached)
            plan.fresh += max(0, units - first) - len(plan.shared[group])
        if plan.taken_over:
            plan.fresh -= len(plan.copied)
        return plan

    def fits(self, plan: Plan, share: bytes | None) -> bool:
        idle = len(plan.acquired().intersection(self.evictable(share)))
        return plan.fresh + idle <= self.available(share)

    def best_plan(self, seq: Seq, num_slots: int) -> Plan | None:
        share = self.share(seq.namespace)
        plans = (p for p in self.plans(seq, num_slots) if self.may_fit(p, num_slots, share))
        return next((plan for plan in plans if self.fits(plan, share)), None)

    def may_fit(self, plan: Plan, num_slots: int, share: bytes | None) -> bool:
        """Whether the plan fits into its share if no other sequence uses it."""
        units = self.units(max(num_slots, plan.cached))
        first = [self.first_unit(kind, plan.cached) for _, kind in self.attention()]
        blocks = sum(units - unit for unit in first) + len(self.recurrent())
        return blocks <= len(self.blocks_of(share))

    def later_peak(self, num_slots: int, num_tokens: int) -> int:
        """The peak of blocks after the first forward, if the engine then uses as few as possible.

        The sequence needs at least these, whatever its engine does (rule 14).
        """
        kinds = [kind for _, kind in self.attention()]
        most = 0
        for position in range(num_slots, num_tokens):
            last = max(0, position - self.lookahead)
            units = self.units(position + 1)
            most = max(most, sum(units - self.first_unit(kind, last) for kind in kinds))
        return most + len(self.recurrent())

    def peak(self, num_slots: int, num_tokens: int) -> int:
        """The same peak including the first forward, for a sequence that finds nothing."""
        first = len(list(self.attention())) * self.units(num_slots) + len(self.recurrent())
        return max(first, self.later_peak(num_slots, num_tokens))

    def never_fits(self, seq: Seq, num_slots: int) -> bool:
        """Whether the prompt can never fit, given what it finds now and the slots it needs."""
        share = self.share(seq.namespace)
        if self.later_peak(num_slots, len(seq.tokens)) > len(self.blocks_of(share)):
            return True
        return not any(self.may_fit(p, num_slots, share) for p in self.plans(seq, num_slots))

    def stops_of(self, seq: Seq) -> set[int]:
        """Positions where prompts may continue, so that a state is worth keeping (rule 11).

        These are the last unit of the prompt that can be served, and the end of what full attention
        has of it, where prompts diverge; the latter may be within a unit (rule 16). A window may
        have been evicted there; the forward computes it again.
        """
        last = (len(seq.tokens) - 1) // self.size * self.size
        asked = self.full_attention() or [g for g, _ in self.attention()]

        def served(length: int) -> bool:
            needed = [c for c in self.needs(seq.prefix(length)) if c[0] in asked]
            return all(map(self.find, needed))

        deepest = next(filter(served, range(last, 0, -self.size)), 0)
        within = self.shared_within(seq, deepest, asked) if self.recurrent() else 0
        seq.diverges = within or deepest
        return {last, seq.diverges or last} - {0}

    def halfway(self, seq: Seq, cached: int) -> set[int]:
        """Half of what a long prompt computes: it is found when the end is evicted.

        The state there takes a block in each recurrent group, so that the prompt must have at least
        eight for each.
        """
        first = cached // self.size
        blocks = (len(seq.tokens) - 1) // self.size - first
        enough = blocks >= 8 * len(self.recurrent()) > 0
        if not (enough and blocks * self.size >= self.halfway_stop_tokens > 0):
            return set()
        return {(first + blocks // 2) * self.size}

    def prompt_end(self, seq: Seq, others: set[int], cached: int) -> int:
        """The position near the prompt's end where only this option stops it; 0: none.

        If the next turn does not repeat the answer, it continues from there. A sequence that
        resumes has tokens that were not in its prompt, so it keeps the position.
        """
        if self.prompt_end_stop is None or not self.recurrent():
            return 0
        end = seq.prompt_end if seq.preempted else len(seq.tokens) - self.prompt_end_stop
        rest = end % self.size
        is_stop = not rest or rest >= self.min_partial_tokens > 0
        return end if is_stop and end > cached and end not in others else 0

    def shared_within(self, seq: Seq, deepest: int, asked: list[int]) -> int:
        """The end of the longest common prefix within a unit after the deepest one; 0: none."""
        if not self.min_partial_tokens or not asked:
            return 0
        lengths = range(
            min(deepest + self.size, len(seq.tokens) - 1), deepest + self.min_partial_tokens - 1, -1
        )

        def shares(length: int) -> bool:
            prefix = seq.prefix(length)
            return all(self.most_like(group, prefix, promised=True) for group in asked)

        return next(filter(shares, lengths), 0)

    def place(self, seq: Seq, num_slots: int) -> None:
        """Gives a sequence its blocks, or raises with nothing changed."""
        share = self.share(seq.namespace)
        if self.never_fits(seq, num_slots):
            raise NeverFits
        plan = self.best_plan(seq, num_slots)
        if plan is None:
            raise OutOfBlocks
        stops = self.stops_of(seq)
        self.count_end(seq.prefix(plan.cached))  # before a tail is taken over and disappears
        self.held += plan.acquired()
        if plan.taken_over:
            for block in plan.copied.values():
                block.content = None
            self.settle()
        fresh = iter(self.take(plan.fresh, share))
        units = self.units(max(num_slots, plan.cached))
        seq.tables = [[] for _ in self.kinds]
        for group, kind in self.attention():
            first = self.first_unit(kind, plan.cached)
            table = seq.tables[group]
            table += [None] * first
            table += plan.shared[group]
            if group in plan.copied:
                self.go_on(seq, group, plan, fresh)
            table += itertools.islice(fresh, units - len(table))
        for group in self.recurrent():
            if group in plan.copied:
                self.go_on(seq, group, plan, fresh)
            else:
                seq.tables[group].append(next(fresh))
        seq.computed = seq.cached = plan.cached
        seq.promoted = plan.cached // self.size
        seq.stands, seq.moves = True, 0
        # Blocks before the last one may be promised; only the last one is ever copied.
        seq.settled = seq.written = plan.cached
        stops |= self.halfway(seq, plan.cached)
        seq.prompt_end = self.prompt_end(seq, stops, plan.cached)
        stops = {stop for stop in {*stops, seq.prompt_end} if stop > plan.cached}
        seq.stops, seq.named = (stops, set()) if self.recurrent() else (set(), stops)
        seq.preempted = False
        last = (len(seq.tokens) - 1) // self.size * self.size
        seq.last = last if last in stops and last != seq.diverges else 0
        found = seq.prefix(plan.cached)
        self.passed.pop(found, None)  # a prompt continues from it
        if found in self.continued:
            self.shared.add(found)
        self.continued.add(found)

    def count_end(self, prefix: Prefix) -> None:
        """Counts a prompt that continues from this prefix."""
        if prefix not in self.observed:
            return
        if prefix in self.continued:
            self.agains += 1
        elif len(prefix[1]) % self.size:
            self.ends += 1
        else:
            self.wholes += 1
        if self.wholes + self.ends >= 1024:
            self.wholes, self.ends = -(-self.wholes // 2), self.ends // 2
            self.agains = -(-self.agains // 2)

    def settle_at(self, seq: Seq, length: int) -> None:
        """Its forward starts here; part of the prefix may be unwritten before this step runs."""
        seq.settled = seq.written = length
        for group, _ in self.attention():
            for unit, block in enumerate(seq.tables[group][: self.units(length)]):
                if block and block.unwritten:
                    seq.written = min(seq.written, (unit + 1) * self.size - block.unwritten)

    def go_on(self, seq: Seq, group: int, plan: Plan, fresh: Iterator[Block]) -> None:
        source = plan.copied[group]
        block = source if plan.taken_over else next(fresh)
        seq.tables[group].append(block)
        if not plan.taken_over:
            brought = plan.cached % self.size if group not in self.recurrent() else self.size
            self.record(group, source, block, brought)
