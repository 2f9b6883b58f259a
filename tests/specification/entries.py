"""The tables of groups with any block sizes: what a prompt finds, and how they grow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.specification.admission import Plan, Terms
from tests.specification.blocks import Block, Prefix, Seq, cut
from tests.specification.layers import Attention, RecurrentState, Ring
from tests.specification.manager import Growth
from tests.specification.parts import LayoutSeq, ModelParts

__all__ = ["ModelEntries"]


class ModelEntries(ModelParts):
    """Admission, stops, growth and commits; an entry never changes."""

    # ---- what a prompt finds --------------------------------------------------------------

    def found_at(
        self, prefix: Prefix, *, promised: bool = False, ahead: Prefix | None = None
    ) -> Plan | None:
        length = len(prefix[1])
        if not self.may_hit(length):
            return None
        plan = Plan(length)
        for group, _ in self.cached():
            size, plan.shared[group] = self.tokens_of(group), []
            for entry in range(self.goes_on(group, length), self.num_entries(group, length)):
                end = min((entry + 1) * size, length)
                block = next(iter(self.holding((group, cut(prefix, end)), ahead)), None)
                if block is None:
                    return None
                if end % size == 0:
                    plan.shared[group].append(block)
                elif promised or self.reaches(block) - block.unwritten >= length:
                    plan.copied[group] = block
                else:
                    return None
        for group in self.recurrent() if length else ():
            block = self.find((group, prefix))
            if block is None or self.is_being_kept(block):
                return None
            plan.copied[group] = block
        return plan

    def places(self, seq: Seq, last: int) -> Iterator[int]:
        """Where the prompt may continue: nodes, ends, and without states any common beginning."""
        least = 0 if self.recurrent() else self.min_partial_tokens
        for length in range(last, 0, -1):
            prefix, rest = seq.prefix(length), length % self.size
            if (
                prefix in self.stamps
                or (rest == 0 and self.is_known(prefix))
                or (
                    rest >= least > 0
                    and any(
                        cut(p, length) == prefix and len(p[1]) > length
                        for p in self.cached_prefixes()
                    )
                )
            ):
                yield length

    def deepest(self, seq: Seq, last: int, *, partial: bool) -> tuple[int, Plan] | None:
        """The deepest place from which it can continue, in a copy of attention only if partial."""
        ahead = seq.prefix(len(seq.tokens))
        for length in self.places(seq, last):
            plan = self.found_at(seq.prefix(length), ahead=ahead)
            if plan and (partial or not set(plan.copied) - set(self.recurrent())):
                return length, plan
        return None

    def can_be_taken_over(self, plan: Plan, prefix: Prefix) -> bool:
        """Whether the copied blocks are idle, so that it can do without copies."""
        idle = self.idle_of(self.share(prefix[0]))
        return bool(plan.copied) and all(b in idle for b in plan.copied.values())

    def plans(self, seq: Seq, num_slots: int, terms: Terms | None = None) -> Iterator[Plan]:
        terms = terms or Terms()
        last = len(seq.tokens) - 1 if terms.most is None else min(len(seq.tokens) - 1, terms.most)
        for partial in (True, False):
            found = self.deepest(seq, last * terms.read_cache, partial=partial)
            if found is None:
                continue
            plan = found[1]
            yield self.priced(plan, seq, num_slots)
            if self.can_be_taken_over(plan, seq.prefix(plan.cached)):
                again = Plan(plan.cached, plan.shared, plan.copied, taken_over=True)
                yield self.priced(again, seq, num_slots)
        yield self.priced(self.nothing(), seq, num_slots)

    def nothing(self) -> Plan:
        return Plan(0, {group: [] for group, _ in self.cached()})

    def is_continued(self, plan: Plan, group: int) -> bool:
        """Whether the sequence writes in the block that it found, and takes no copy."""
        block = plan.copied[group]
        return plan.taken_over or (
            group not in self.recurrent() and self.may_write(block, plan.cached)
        )

    def table_for(self, plan: Plan, group: int, slots: int) -> list[Any]:
        """The entries of a group: blocks that were found, None, and ``Block`` for a new one."""
        kind, hit = self.kinds[group], plan.cached
        if isinstance(kind, Ring):
            return [Block]
        own = (
            [plan.copied[group]] if group in plan.copied and self.is_continued(plan, group) else []
        )
        end = self.num_entries(group, max(slots, hit))
        if isinstance(kind, RecurrentState):
            first = self.goes_on(group, hit)
            more = end - first if kind.moves else 1 + kind.extra_blocks
            return [None] * first + (own + [Block] * more)[: max(1, more)]
        first = self.goes_on(group, hit if kind.cached else self.start_of(hit))
        table = [None] * first + plan.shared.get(group, []) + own
        return table + [Block] * (end - len(table))

    def priced(self, plan: Plan, seq: Seq, num_slots: int) -> Plan:
        tables = [self.table_for(plan, group, num_slots) for group in range(len(self.kinds))]
        plan.fresh = sum(table.count(Block) for table in tables)
        idle = self.idle_of(self.share(seq.namespace))
        plan.idle = len(set(plan.acquired()).intersection(idle))
        return plan

    def place(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        """Gives a sequence its blocks, or raises with nothing changed."""
        assert isinstance(seq, LayoutSeq)
        plan = self.fitting_plan(seq, num_slots, terms)
        self.expect(seq, plan, terms)
        tables = [self.table_for(plan, group, num_slots) for group in range(len(self.kinds))]
        for group, block in plan.copied.items():
            if self.is_continued(plan, group):
                self.take_over_at(block, plan.cached, group)
                block.writer = seq
        self.held += plan.acquired()  # before anything is evicted (G6)
        self.settle()
        fresh = iter(self.take(plan.fresh, self.share(seq.namespace)))
        seq.live = dict.fromkeys(self.recurrent(), 0)
        seq.tables = [[next(fresh) if b is Block else b for b in table] for table in tables]
        for group, source in plan.copied.items():
            own = self.block_at(seq, group, plan.cached)
            if own is not source:
                self.copy_beginning(group, source, own, plan.cached)
        seq.hit = seq.proved = plan.cached
        seq.computed = seq.cached = seq.since = self.start_of(plan.cached)
        seq.begin = seq.reached = seq.computed
        seq.promoted = plan.cached // self.size
        seq.stands, seq.moves, seq.preempted = True, 0, False
        self.to_zero += [seq.tables[ring][0] for ring in self.rings()]
        self.adopt(seq)
        self.settle_at(seq, seq.hit)
        seq.settled = seq.computed
        self.enter(seq)
        return plan

    def take_over_at(self, block: Block, position: int, group: int) -> None:
        if group in self.recurrent():
            block.content = None
        else:
            self.shorten_content(block, position)

    def block_at(self, seq: LayoutSeq, group: int, position: int) -> Block:
        """The block in which it goes on at a position."""
        entry = seq.live.get(group, 0)
        if self.kinds[group].moves:
            entry = self.goes_on(group, position)
        elif isinstance(self.kinds[group], Attention):
            entry = position // self.tokens_of(group)
        block = seq.tables[group][entry]
        assert block is not None
        return block

    def copy_beginning(self, group: int, source: Block, own: Block, position: int) -> None:
        """A state is copied whole, of attention what is before the position."""
        kind = self.kinds[group]
        part = position % self.tokens_of(group) if isinstance(kind, Attention) else self.size
        self.record(group, source, own, kind.width if isinstance(kind, Ring) else part)

    def enter(self, seq: Seq) -> None:
        assert isinstance(seq, LayoutSeq)
        self.continue_from(self.continued_boundary(seq, seq.hit))

    def settle_at(self, seq: Seq, length: int) -> None:
        seq.settled = seq.written = length
        for group, _ in self.cached():
            for block in seq.tables[group][: self.num_entries(group, length)]:
                if block and block.unwritten and block.content:
                    seq.written = min(seq.written, self.reaches(block) - block.unwritten)

    # ---- stops ----------------------------------------------------------------------------

    def stops_of(self, seq: Seq, terms: Terms) -> set[int]:
        """The last node, the last place of a coarse grid, and where full attention parts."""
        super().stops_of(seq, terms)
        last = len(seq.tokens) - max(1, self.look_ahead)
        grid = math.lcm(self.size, self.restart)
        seq.diverges = seq.diverges // grid * grid
        coarse = last // self.stop_tokens * self.stop_tokens
        return {last // grid * grid, coarse // grid * grid, seq.diverges} - {0}

    def shared_within(self, seq: Seq, deepest: int, asked: list[int]) -> int:
        return 0

    def halfway(self, seq: Seq, cached: int) -> set[int]:
        return {stop for stop in super().halfway(seq, cached) if self.may_hit(stop)}

    # ---- what fits ------------------------------------------------------------------------

    def num_held(self, position: int, slots: int) -> int:
        """The blocks of a sequence that has computed so much and has these slots."""
        count = 0
        for group, kind in enumerate(self.kinds):
            if group in self.growing():
                before = max(0, position - kind.look_ahead)
                count += max(1, self.num_entries(group, slots)) - self.goes_on(group, before)
            else:
                count += 1 + kind.extra_blocks
        return count

    def later_peak(self, num_slots: int, num_tokens: int) -> int:
        ends = range(num_slots, num_tokens)
        return max((self.num_held(max(0, n - self.lookahead), n + 1) for n in ends), default=0)

    def may_fit(self, plan: Plan, num_slots: int, share: bytes | None) -> bool:
        tables = [self.table_for(plan, group, num_slots) for group in range(len(self.kinds))]
        return sum(b is not None for table in tables for b in table) <= self.limit(share)

    # ---- growth, and what was computed ----------------------------------------------------

    def shared_at(self, seq: Seq, moving: Any = ()) -> dict[int, Block]:
        """Where it writes, it is the writer; no entry changes (G10)."""
        return {}

    def make_writable(self, seq: Seq, shared: dict[int, Block], fresh: list[Block]) -> None:
        """It is."""

    def take_growth(self, seqs: list[Seq], wanted: list[Growth], *, write: bool = True) -> None:
        super().take_growth(seqs, wanted, write=write)
        for seq in seqs:
            self.adopt(seq)

    def first_unit(self, kind: Any, position: int) -> int:
        before = max(0, position - kind.look_ahead)
        return int(kind.first_read(before) // (kind.block_size or self.size))

    def follow(self, seq: Seq, *, within: bool = True) -> None:
        assert isinstance(seq, LayoutSeq)
        if seq.settled > seq.reached:
            seq.begin, seq.reached = seq.reached, seq.settled
            for group in self.recurrent():
                seq.live[group] = self.slot_of(seq, group, seq.settled)
        super().follow(seq, within=within)

    def slot_of(self, seq: LayoutSeq, group: int, position: int) -> int:
        """The slot in which the last step left the state at a position (G13).

        A step of no more tokens than there are slots leaves each state in a slot of its own.
        """
        steps, extra = position - seq.begin, self.kinds[group].extra_blocks
        return steps - 1 if 0 < steps <= 1 + extra else 0

    def leaves_each(self, seq: LayoutSeq) -> bool:
        """Whether the last step left the state of each of its positions."""
        least = min((self.kinds[group].extra_blocks for group in self.recurrent()), default=0)
        return seq.reached - seq.begin <= 1 + least

    def confirms(self, seq: Seq) -> bool:
        """With slots for drafts, also where the step began must be known."""
        extra = any(kind.extra_blocks for kind in self.kinds)
        return seq.stands or seq.moves <= 1 or not (self.in_flight or extra)

    def promote(self, seq: Seq) -> None:
        """Its blocks have what is computed of whole nodes; those of others stay (G7)."""
        assert isinstance(seq, LayoutSeq)
        end = seq.computed // self.size * self.size
        if not self.config.prefix_caching or seq.outdated or seq.promoted * self.size >= end:
            return
        own = [b for g, _ in self.cached() for b in seq.tables[g] if b and self.writer(b) is seq]
        if any(map(self.is_destination, own)):
            return
        for group, kind in self.cached():
            stop = (seq.computed - kind.look_ahead) // self.size * self.size
            self.show(seq, group, stop)
        for unit in range(seq.promoted, end // self.size):
            seq.promoted = unit + 1
            self.note_passing(seq, seq.prefix(seq.promoted * self.size))
        self.settle()

    def show(self, seq: LayoutSeq, group: int, stop: int) -> None:
        """Its own blocks of a group can be found up to here."""
        size, ahead = self.tokens_of(group), self.kinds[group].look_ahead
        for entry, block in enumerate(seq.tables[group][: self.num_entries(group, max(0, stop))]):
            end = min((entry + 1) * size, stop)
            if block is None or self.writer(block) is not seq:
                continue
            if block.content is None or self.reaches(block) < end:
                block.linked = block.linked or next(self.clock)
                block.content = (group, seq.prefix(end + ahead))
                block.unwritten = max(0, end + ahead - max(seq.written, entry * size))

    def drop_windows(self, seq: Seq) -> None:
        assert isinstance(seq, LayoutSeq)
        for group in self.growing():
            kind, settled = self.kinds[group], max(0, seq.settled - self.lookahead)
            if isinstance(kind, Attention) and kind.cached:
                proved = seq.proved if kind.look_ahead else seq.hit
                known = settled if seq.computed >= seq.hit else seq.hit
                settled = max(known - kind.look_ahead, min(proved, known))
            first, table = self.goes_on(group, settled), seq.tables[group]
            table[:first] = [None] * min(first, len(table))
