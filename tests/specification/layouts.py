"""Groups with block sizes of their own, whose tables never change: what the manager will be.

``ModelLayouts`` takes any layout of ``layers.py``, and answers as ``boundaries.py`` does but for
what is here. The block size of the manager is the *node*: prompts are told apart there.

- *What a block has* is one prefix: all tokens of the block that are in it. It serves every prompt
  that begins with them, at any boundary inside it, in any number of nodes, or in a part of one.
  So no places are kept: the place of a node is any block that has its tokens.
- *A block has one writer*: the sequence that took it, as long as it is in its table. Another
  sequence that continues inside the block becomes its writer if there is none and nobody needs what
  is behind; the block then has less. Else it continues in a copy.
- *Of several blocks with the same tokens* a boundary needs one: one in use, else the one that other
  boundaries need anyway, else the oldest. The others are free with their last table.
- *What is kept of a state* is a copy; the sequence keeps its slot.
- *Before a hit* a forward computes groups that are not cached again, and writes no other group.

Nothing merges, and no call changes an entry of a table but ``truncate`` and ``reparent``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from blockmgr.blocks import Match
from blockmgr.errors import StepError
from tests.specification.admission import Plan, Terms
from tests.specification.blocks import ANY_NUMBER, Block, Content, Copy, Prefix, Seq, cut
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import Attention, Kind, RecurrentState, Ring, check_layout
from tests.specification.manager import Growth

__all__ = ["ModelLayouts"]


@dataclass(eq=False)
class LayoutSeq(Seq):
    """A sequence, and what the fields of its groups ask to remember."""

    kinds: tuple[Kind, ...] = ()
    hit: int = 0  # up to here, cached groups were found; ``cached`` is where its forward began
    since: int = 0  # from here on, groups that are not cached have all that they computed
    proved: int = 0  # up to here, groups that look ahead were found
    begin: int = 0  # where the last step began, and
    reached: int = 0  # where it ended
    farthest: int = 0  # what a launched forward may have written, when it was last cut
    live: dict[int, int] = field(default_factory=dict)
    """By group of states, the slot in which the state is."""

    @property
    def num_slots(self) -> int:
        tables = zip(self.kinds, self.tables, strict=True)
        growing = [(kind, t) for kind, t in tables if isinstance(kind, Attention) or kind.moves]
        return min((len(t) * (k.block_size or self.size) for k, t in growing), default=ANY_NUMBER)


class ModelLayouts(ModelBoundaries):
    """A manager for any layout, append-only."""

    def __init__(self, *args: Any, stop_tokens: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        check_layout(self.kinds, self.size)
        sizes = [self.tokens_of(group) for group, _ in self.cached()]
        self.stop_tokens = stop_tokens or max(sizes, default=self.size)
        self.replay = max(kind.replay for kind in self.kinds)
        self.look_ahead = max(kind.look_ahead for kind in self.kinds)
        asked = (k.restart for k in self.kinds if not self.is_replayed(k))
        self.restart = math.lcm(*asked)
        self.to_zero: list[Block | None] = []
        self.zeroed: list[Block] = []  # in the step that is open

    # ---- groups ---------------------------------------------------------------------------

    def tokens_of(self, group: int) -> int:
        return self.kinds[group].block_size or self.size

    def is_replayed(self, kind: Kind) -> bool:
        """Whether a replay computes all that its query at the hit reads (G17)."""
        return self.replay > 0 and (kind.replay > 0 or kind.restart <= self.replay + 1)

    def cached(self) -> Iterator[tuple[int, Attention]]:
        return ((group, kind) for group, kind in self.attention() if kind.cached)

    def rings(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, Ring)]

    def growing(self) -> list[int]:
        return [g for g, k in enumerate(self.kinds) if isinstance(k, Attention) or k.moves]

    def num_entries(self, group: int, num_tokens: int) -> int:
        return -(-num_tokens // self.tokens_of(group))

    def goes_on(self, group: int, position: int) -> int:
        """The first entry that a sequence which goes on here reads or writes."""
        kind = self.kinds[group]
        if isinstance(kind, RecurrentState):  # one column, or the live one
            return max(0, position - 1) // self.tokens_of(group) if kind.moves else 0
        return kind.first_read(position) // self.tokens_of(group)

    def position(self, seq: LayoutSeq, group: int) -> int:
        """Where its next forward begins to write in a group."""
        kind = self.kinds[group]
        if not kind.cached or not isinstance(kind, Attention):
            return seq.computed
        # What looks ahead waits for the tokens after it (G14).
        written = max(seq.proved, seq.computed - kind.look_ahead) if kind.look_ahead else 0
        return written if kind.look_ahead else max(seq.hit, seq.computed)

    # ---- what blocks have -------------------------------------------------------------------

    def new_seq(self, handle: int = -1) -> LayoutSeq:
        tables: list[list[Block | None]] = [[] for _ in self.kinds]
        return LayoutSeq(handle, b"", [], {}, self.size, self.lead, tables, kinds=self.kinds)

    def reaches(self, block: Block) -> int:
        """The end of the tokens that a block has."""
        assert block.content is not None
        return len(block.content[1][1]) - self.kinds[block.content[0]].look_ahead

    def holding(self, content: Content, ahead: Prefix | None = None) -> list[Block]:
        """The blocks that have this: those in use, and then the oldest, first.

        ahead: the prompt, which must agree as far as the group looks ahead; None: any prompt.
        """
        group, prefix = content
        if group in self.recurrent():
            return [block for block in self.live if block.content == content]
        end, size, ahead_by = len(prefix[1]), self.tokens_of(group), self.kinds[group].look_ahead
        start, seen, most = (end - 1) // size * size, end + ahead_by, ahead_by + size
        found = [
            block
            for block in self.live
            if block.content is not None
            and block.content[0] == group
            and seen <= len(block.content[1][1]) <= start + most
            and cut(block.content[1], end) == prefix
            and (ahead is None or cut(block.content[1], seen) == cut(ahead, seen))
        ]
        return sorted(found, key=lambda b: (b.unwritten, b.stamp is not None, b.linked))

    def find(self, content: Content) -> Block | None:
        return next(iter(self.holding(content)), None)

    def writer(self, block: Block) -> Seq | None:
        """The sequence that may write in it, if any (G2)."""
        own = block.writer
        held = own is not None and any(block in table for table in own.tables)
        return own if held else None

    def is_needed_behind(self, block: Block, position: int, seq: Seq | None = None) -> bool:
        """Whether anybody else needs what a block has from a position on."""
        if any(block in t for s in self.seqs.values() if s is not seq for t in s.tables):
            return True
        if block.content is None or self.reaches(block) <= position:
            return False
        contents = {c for p in self.stamps for c in self.needs(p) if len(c[1][1]) > position}
        return any(self.holding(c) == [block] for c in contents if c[0] == block.content[0])

    def may_write(self, block: Block, position: int) -> bool:
        """Whether a sequence may become its writer there (G2, G3)."""
        return (
            block.stamp is not None  # a copy that waits may have kept it from its fence
            and not self.fenced(block.fence)
            and not block.unwritten
            and not self.is_needed_behind(block, position)
        )

    def shorten_content(self, block: Block, position: int) -> None:
        """What is behind will be overwritten (G4)."""
        if block.content is not None and self.reaches(block) > position:
            group, prefix = block.content
            prefix = cut(prefix, position + self.kinds[group].look_ahead)
            has_some = position % self.tokens_of(group) > 0
            block.content = (group, prefix) if has_some else None

    def adopt(self, seq: Seq) -> None:
        """Nobody else has what is new in its tables."""
        for block in (block for table in seq.tables for block in table if block):
            if block.content is None and self.writer(block) is None:
                block.writer = seq

    def useless(self) -> list[Block]:
        """The idle blocks of which no boundary needs anything (G5, G6, G7)."""
        kept = {block for block in self.live if block.stamp is None}
        needed = {content for prefix in self.stamps for content in self.needs(prefix)}
        for content in sorted(needed, key=lambda content: -len(content[1][1])):
            found = self.holding(content)
            if not kept.intersection(found):
                kept.update(found[:1])
        return [block for block in self.live if block not in kept]

    def is_awaited(self, copy: Copy) -> bool:
        """A kept state is in no table (G9)."""
        return super().is_awaited(copy) or copy.destination.content is not None

    def is_being_kept(self, block: Block) -> bool:
        return any(block is copy.destination and copy.keeps for copy in self.waiting())

    # ---- boundaries -----------------------------------------------------------------------

    def may_hit(self, length: int) -> bool:
        """Whether rings are right there when they begin empty, or are computed again (G17, G19)."""
        return length == 0 or (length % self.restart == 0 and length > self.replay)

    def needs_of(self, prefix: Prefix) -> list[Content]:
        length = len(prefix[1])
        found: list[Content] = []
        for group, _ in self.cached():
            size = self.tokens_of(group)
            entries = range(self.goes_on(group, length), self.num_entries(group, length))
            found += [(group, cut(prefix, min((j + 1) * size, length))) for j in entries]
        return found + [(group, prefix) for group in self.recurrent() if length]

    def serves(self, prefix: Prefix) -> bool:
        return self.may_hit(len(prefix[1])) and super().serves(prefix)

    def cached_prefixes(self) -> set[Prefix]:
        ends = {block.content[1] for block in self.live if block.content is not None}
        nodes = {cut(p, n) for p in ends for n in range(self.size, len(p[1]) + 1, self.size)}
        return nodes | set(self.stamps)

    def is_known(self, prefix: Prefix) -> bool:
        """Whether a boundary or a running sequence is at, or behind, this place of the path."""
        length = len(prefix[1])
        return any(cut(p, length) == prefix and len(p[1]) >= length for p in self.stamps) or any(
            s.promoted * self.size >= length and s.prefix(length) == prefix
            for s in self.seqs.values()
        )

    def evict(self, share: bytes | None) -> None:
        """If nothing is free then, the boundary above it in the same block goes, too (G22)."""
        victim: Prefix | None = self.next_victim(share)
        free = len(self.free_blocks(share))
        while victim is not None and len(self.free_blocks(share)) == free:
            self.stamps.pop(victim, None)
            self.settle()
            victim = self.above(victim)
        self.count["evicted_blocks"] += 1

    def candidates(self, share: bytes | None) -> list[Prefix]:
        idle = self.idle_of(share)
        return [p for p in self.stamps if any(self.find(c) in idle for c in self.needs(p))]

    def above(self, boundary: Prefix) -> Prefix | None:
        length = len(boundary[1])
        largest = max((self.tokens_of(group) for group, _ in self.cached()), default=1)
        start = (length - 1) // largest * largest
        over = [p for p in self.stamps if start < len(p[1]) < length]
        over = [p for p in over if cut(boundary, len(p[1])) == p]
        return max(over, key=lambda p: len(p[1]), default=None)

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

    def match(self, tokens: Iterable[int], *, num_slots: int | None = None, **asked: Any) -> Match:
        found = super().match(tokens, num_slots=num_slots, **asked)
        return replace(found, num_cached_tokens=self.start_of(Plan(found.num_cached_tokens)))

    def start_of(self, plan: Plan) -> int:
        """Where its forward begins: before the hit if groups are computed again (G19)."""
        return plan.cached - min(self.replay, plan.cached)

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
        first = self.goes_on(group, hit if kind.cached else self.start_of(plan))
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
        seq.computed = seq.cached = seq.since = self.start_of(plan)
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
        self.continue_from(seq.prefix(seq.hit))

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

    # ---- states, and ends -----------------------------------------------------------------

    def keep_state(self, seq: Seq) -> None:
        """At a stop, a copy of the state is kept (G8), also of a place inside the step (G13)."""
        assert isinstance(seq, LayoutSeq)
        if not seq.stands:
            return
        for stop in sorted(stop for stop in seq.stops if stop <= seq.computed):
            seq.stops.discard(stop)
            inside = seq.begin < stop and self.leaves_each(seq)
            room = self.available(self.share(seq.namespace))
            is_kept = (stop == seq.computed or inside) and self.keep_at(seq, stop, room)
            if is_kept and stop in {seq.diverges, seq.retained_end}:
                self.keep_as_shared(seq.prefix(stop))

    def keep_whole(self, seq: Seq, room: int) -> bool:
        assert isinstance(seq, LayoutSeq)
        return self.keep_at(seq, seq.computed, room)

    def keep_at(self, seq: LayoutSeq, stop: int, room: int) -> bool:
        prefix = seq.prefix(stop)
        missing = [g for g in self.recurrent() if self.find((g, prefix)) is None]
        # The slot that a state leaves for its next column is the kept one.
        left = [g for g in missing if self.kinds[g].moves and stop % self.tokens_of(g) == 0]
        copied = [group for group in missing if group not in left]
        if len(copied) > room or seq.promoted * self.size < stop:
            return False
        for group, kept in zip(
            copied, self.take(len(copied), self.share(seq.namespace)), strict=True
        ):
            entry = self.goes_on(group, stop)
            own = seq.tables[group][
                entry if self.kinds[group].moves else self.slot_of_stop(seq, group, stop)
            ]
            assert own is not None
            self.publish(kept, (group, prefix))
            self.record(group, own, kept, self.size, keeps=True)
        for group in left:
            own = seq.tables[group][self.goes_on(group, stop)]
            if own is None or self.is_destination(own):
                return False
            self.publish(own, (group, prefix))
        return self.is_boundary_now(prefix)

    def slot_of_stop(self, seq: LayoutSeq, group: int, stop: int) -> int:
        return seq.live[group] if stop == seq.computed else self.slot_of(seq, group, stop)

    def keep_end(self, seq: Seq) -> bool:
        """The end of a sequence can be found at any token; its own state is the kept one."""
        assert isinstance(seq, LayoutSeq)
        end, states = seq.computed - self.look_ahead, self.recurrent()
        prefix = seq.prefix(max(0, end))
        if not self.may_keep_end(seq, end):
            return False
        if self.found_at(prefix, promised=True) is not None and self.serves(prefix):
            return end % self.size == 0
        own = {g: self.block_at(seq, g, end) for g in states if self.find((g, prefix)) is None}
        if not all(self.may_be_given(block) for block in own.values()):
            return False
        for group, _ in self.cached():
            self.show(seq, group, end)
        for group, block in own.items():
            self.publish(block, (group, prefix))
        self.count["cached_tails"] += end % self.size > 0
        return True

    def may_keep_end(self, seq: LayoutSeq, end: int) -> bool:
        stands = not self.recurrent() or (seq.stands and end == seq.computed)
        cached = (b for group, _ in self.cached() for b in seq.tables[group] if b)
        arrived = not any(self.is_destination(b) for b in cached if self.writer(b) is seq)
        whole = seq.promoted * self.size >= seq.computed // self.size * self.size
        caches = self.config.prefix_caching and not seq.outdated
        return (
            caches and stands and arrived and whole and end >= max(1, seq.hit) and self.may_hit(end)
        )

    def withdraw(self, seq: Seq) -> None:
        """Its blocks have no more than what is written; nobody may share the rest."""
        if not self.promises(seq):
            return
        self.check_no_open_ticket()
        own = [b for t in seq.tables for b in t if b and self.writer(b) is seq and b.unwritten]
        if any(self.references(block) > 1 for block in own):
            raise StepError(f"others share what sequence {seq.handle} committed")
        for block in own:
            assert block.content is not None
            self.shorten_content(block, self.reaches(block) - block.unwritten)
            block.unwritten = 0
        seq.promoted = min(seq.promoted, seq.settled // self.size)
        self.limit_computed(seq, seq.settled)
        self.settle()

    def may_be_given(self, block: Block | None) -> bool:
        return super().may_be_given(block) and not self.is_kept(block)  # type: ignore[arg-type]

    # ---- forks ----------------------------------------------------------------------------

    def entries_of_fork(self, parent: LayoutSeq, group: int) -> list[Any]:
        """What it shares, and ``Block`` where it goes on: there it has its own (G10)."""
        table = parent.tables[group]
        if group not in self.growing():
            return [Block for _ in table]
        kind = self.kinds[group]
        first = self.position(parent, group) // self.tokens_of(group)
        if isinstance(kind, RecurrentState):
            first = self.goes_on(group, parent.computed)
            return [None] * first + [Block] * len(table[first:])
        end = max(first, self.num_entries(group, len(parent.tokens)))
        return table[:first] + [Block for _ in table[first:end]]

    def num_forked(self, parent: Seq) -> int:
        assert isinstance(parent, LayoutSeq)
        tables = [self.entries_of_fork(parent, group) for group in range(len(self.kinds))]
        return sum(table.count(Block) for table in tables)

    def become_fork(self, child: Seq, parent: Seq, fresh: Iterator[Block] | None = None) -> None:
        assert isinstance(child, LayoutSeq)
        assert isinstance(parent, LayoutSeq)
        super().become_fork(child, parent)
        child.tables = [list(table) for table in parent.tables]
        child.hit, child.proved, child.since = parent.hit, parent.proved, parent.since
        child.live = dict(parent.live)
        child.begin, child.reached = parent.begin, parent.reached
        if fresh is None:
            return
        for group in range(len(self.kinds)):
            entries = self.entries_of_fork(parent, group)
            child.tables[group] = [next(fresh) if b is Block else b for b in entries]
            self.fork_group(child, parent, group)
        child.live = dict.fromkeys(self.recurrent(), 0)
        child.begin = child.reached  # of the slots for drafts, only the live one is copied
        self.adopt(child)

    def fork_group(self, child: LayoutSeq, parent: LayoutSeq, group: int) -> None:
        kind, position = self.kinds[group], self.position(parent, group)
        if isinstance(kind, Attention):
            if position % self.tokens_of(group) and position // self.tokens_of(group) < len(
                child.tables[group]
            ):
                source = self.block_at(parent, group, position)
                self.copy_beginning(group, source, self.block_at(child, group, position), position)
            return
        if not parent.computed:
            self.to_zero += child.tables[group] if isinstance(kind, Ring) else []
            return
        entry = self.goes_on(group, parent.computed) if kind.moves else 0
        source, own = self.block_at(parent, group, parent.computed), child.tables[group][entry]
        assert own is not None
        if source in self.to_zero:
            self.to_zero.append(own)
        else:
            self.copy_beginning(group, source, own, parent.computed)

    # ---- going back -----------------------------------------------------------------------

    def check_parent(self, parent: Seq) -> None:
        super().check_parent(parent)
        if self.rings() and not parent.stands:
            raise StepError(f"sequence {parent.handle} has a ring at an unknown position")

    def truncate(self, handle: int, num_tokens: int) -> int:
        seq = self.running(handle)
        assert isinstance(seq, LayoutSeq)
        launched = 0 if seq.stands else min(len(seq.tokens), seq.num_slots)
        seq.farthest = max(seq.computed, launched)
        return super().truncate(handle, num_tokens)

    def reach(self, seq: Seq) -> int:
        assert isinstance(seq, LayoutSeq)
        return max(seq.hit, seq.computed)

    def kept_position(self, seq: LayoutSeq, group: int, length: int, before: int) -> int:
        """Where a group goes on if the sequence falls to a length."""
        ahead = self.kinds[group].look_ahead
        if not ahead:
            return length
        end = min(length, len(seq.tokens))
        whole = end >= seq.proved + ahead and length == before
        return (
            max(seq.proved, length - ahead)
            if whole
            else max(0, min(length, max(seq.proved, length)) - ahead)
        )

    def can_fall_to(self, seq: Seq, length: int, before: int) -> bool:
        assert isinstance(seq, LayoutSeq)
        places = self.places_after(seq, length, before)
        moved = [self.moves_at(seq, group, place) for group, place in places.items()]
        return (
            (self.replay > 0 or not self.replays(seq, length))
            and self.rings_can_fall_to(seq, length)
            and all(self.attention_can_fall_to(seq, group, p) for group, p in places.items())
            and self.states_can_fall_to(seq, length, before)
            and len(moved) - moved.count(None) <= self.available(self.share(seq.namespace))
        )

    def places_after(self, seq: LayoutSeq, length: int, before: int) -> dict[int, int]:
        """By group of attention that is not computed again, where it goes on."""
        replays = self.replays(seq, length)
        kept = (group for group, kind in self.attention() if kind.cached or not replays)
        return {group: self.kept_position(seq, group, length, before) for group in kept}

    def attention_can_fall_to(self, seq: LayoutSeq, group: int, position: int) -> bool:
        size = self.tokens_of(group)
        for entry in range(self.goes_on(group, position), self.num_entries(group, position)):
            end = min((entry + 1) * size, position)
            if seq.own(group, entry) is None and (end % size or not self.again(seq, group, end)):
                return False
        return True

    def again(self, seq: LayoutSeq, group: int, end: int) -> Block | None:
        """A cached block that has what it has released."""
        if not self.kinds[group].cached or end + self.kinds[group].look_ahead > len(seq.tokens):
            return None
        found = self.holding((group, seq.prefix(end)), seq.prefix(len(seq.tokens)))
        return next(iter(found), None)

    def moves_at(self, seq: LayoutSeq, group: int, position: int) -> Block | None:
        """The block in which it would go on, if it may not write there."""
        block = seq.own(group, position // self.tokens_of(group))
        if block is None or not position % self.tokens_of(group):
            return None
        may = self.writer(block) is seq and not self.is_needed_behind(block, position, seq)
        return None if may else block

    def rings_can_fall_to(self, seq: LayoutSeq, length: int) -> bool:
        rings = [kind for kind in self.kinds if isinstance(kind, Ring)]
        return all(
            length % ring.restart == 0
            or self.is_still_in(seq, ring, length)
            or (self.is_replayed(ring) and length > self.replay)
            for ring in rings
        )

    def is_still_in(self, seq: LayoutSeq, ring: Ring, length: int) -> bool:
        """Whether the ring has what the query there reads."""
        first = max(seq.since, ring.first_read(length))
        return seq.computed >= length > seq.since and first >= seq.farthest - ring.width

    def states_can_fall_to(self, seq: LayoutSeq, length: int, before: int) -> bool:
        if not length or not self.recurrent() or (length == before and seq.stands):
            return True
        if seq.stands and seq.begin < length <= seq.reached and self.leaves_each(seq):
            return not any(self.kinds[group].moves for group in self.recurrent())
        return all(self.state_again(seq, group, length) for group in self.recurrent())

    def state_again(self, seq: LayoutSeq, group: int, length: int) -> Block | None:
        """A kept state; none if its own slot is the source of a copy, or one writes it now."""
        table = seq.tables[group]
        own = (
            table[self.goes_on(group, length)] if self.goes_on(group, length) < len(table) else None
        )
        source = self.find((group, seq.prefix(length)))
        if own is None or self.is_kept(own) or own.content or source is None:
            return None
        is_written = any(own is copy.destination for copy in self.taken or ())
        return None if is_written or self.is_being_kept(source) else source

    def fall_to(self, seq: Seq, length: int, before: int) -> None:
        assert isinstance(seq, LayoutSeq)
        places = self.places_after(seq, length, before)
        back = length < before or not seq.stands
        within = seq.stands and seq.begin < length <= seq.reached and self.leaves_each(seq)
        for group, position in places.items():
            self.fall_in(seq, group, position)
        for group in self.recurrent() if back and length else ():
            if within:
                seq.live[group] = self.slot_of(seq, group, length)
            else:
                source, seq.live[group] = self.state_again(seq, group, length), 0
                assert source is not None
                self.record(group, source, self.block_at(seq, group, length), self.size)
        for group in self.growing():
            first, table = self.goes_on(group, length), seq.tables[group]
            if isinstance(self.kinds[group], RecurrentState) and table[first:][:1] == [None]:
                del table[first:]  # it begins again
        if back:
            seq.stands, seq.moves = True, 0
            if not within or not length:
                seq.live = dict.fromkeys(self.recurrent(), 0)
        start = self.start_again(seq, length, replays=self.replays(seq, length))
        for group, position in places.items():
            if self.kinds[group].look_ahead and position < seq.proved:
                seq.proved = position
        seq.hit = min(seq.hit, length) if start == length else length
        seq.computed = start
        if back:
            seq.begin, seq.reached = (seq.begin, length) if within else (start, start)
        self.settle_at(seq, seq.hit if start < length else length)
        seq.settled = start
        seq.written = min(seq.written, max(start, seq.hit))

    def fall_in(self, seq: LayoutSeq, group: int, position: int) -> None:
        """Finds again what a window has released, and moves where it may not write."""
        table, size = seq.tables[group], self.tokens_of(group)
        for entry in range(self.goes_on(group, position), position // size):
            if table[entry] is None:
                table[entry] = self.again(seq, group, (entry + 1) * size)
        entry = position // size
        if position % size == 0:
            kept = entry
        elif source := self.moves_at(seq, group, position):
            self.held.append(source)
            [own] = self.take(1, self.share(seq.namespace))
            table[entry], own.writer, kept = own, seq, entry + 1
            self.copy_beginning(group, source, own, position)
        else:
            self.shorten_content(table[entry], position)  # type: ignore[arg-type]
            kept = entry + 1
        for later in range(kept, len(table)):
            block = table[later]
            own = block and self.writer(block) is seq and self.references(block) == 1
            if not own or block.content:
                del table[later:]
                break

    def replays(self, seq: LayoutSeq, length: int) -> bool:
        """Whether groups that are not cached are computed again before this place (G15)."""
        for group, kind in self.attention():
            entries = range(self.goes_on(group, length), self.num_entries(group, length))
            held = seq.computed >= length and kind.first_read(length) >= min(seq.since, length)
            if not kind.cached and not (held and all(seq.own(group, entry) for entry in entries)):
                return True
        rings = [kind for kind in self.kinds if isinstance(kind, Ring)]
        return any(length % r.restart and not self.is_still_in(seq, r, length) for r in rings)

    def start_again(self, seq: LayoutSeq, length: int, *, replays: bool) -> int:
        """Where its forward begins; a ring that it does not continue begins empty."""
        start = length - min(self.replay, length) if replays else length
        for ring in self.rings():
            kind, [own] = self.kinds[ring], seq.tables[ring]
            assert isinstance(kind, Ring)
            if replays or not self.is_still_in(seq, kind, length):
                assert own is not None
                self.to_zero.append(own)
                seq.since = start
        if replays:
            seq.since = start
            for group, kind in self.attention():
                if not kind.cached:
                    seq.tables[group][:] = [None] * self.goes_on(group, start)
        return start

    # ---- steps ----------------------------------------------------------------------------

    def take_copies(self) -> Any:
        """The plan lists the rings to zero, too; no copy fills one that begins empty (G16)."""
        if self.taken is None:
            self.pending = [c for c in self.pending if c.destination not in self.to_zero]
        plan = super().take_copies()
        self.zeroed = [block for block in self.to_zero if block and self.references(block)]
        self.to_zero = []
        return plan

    def copies_aborted(self, ticket: int) -> None:
        super().copies_aborted(ticket)
        self.to_zero = self.zeroed + self.to_zero

    def blocks_to_zero(self) -> list[int]:
        return [block.id for block in self.zeroed]

    # ---- looking at it --------------------------------------------------------------------

    def slot(self, seq: Seq, position: int) -> int:
        lead = self.lead
        if lead is None:
            return 0
        block = seq.own(lead, position // self.tokens_of(lead))
        return (block.id if block else 0) * self.size + position % self.tokens_of(lead)

    def state_slot(self, handle: int, group: int) -> int:
        """The entry of a group's table in which the state of a sequence is."""
        seq = self.running(handle)
        assert isinstance(seq, LayoutSeq)
        moves = self.kinds[group].moves
        return self.goes_on(group, seq.computed) if moves else seq.live[group]

    def violations(self) -> list[str]:
        found = []
        running = [s for s in self.seqs.values() if not s.preempted]
        destinations = [copy.destination for copy in self.pending]
        if len(destinations) != len(set(destinations)):
            found.append("a copy has two sources")
        if {copy.source for copy in self.pending} & set(destinations):
            found.append("a copy reads what another one writes")
        needed = {c for prefix in self.stamps for c in self.needs(prefix)}
        found += [f"{content} is needed and gone" for content in needed if not self.find(content)]
        found += [f"{block} is of no use" for block in self.useless()]
        for seq in running:
            assert isinstance(seq, LayoutSeq)
            for group, kind in enumerate(self.kinds):
                table, position = seq.tables[group], self.position(seq, group)
                if None in table[self.goes_on(group, position) :]:
                    found.append(f"sequence {seq.handle} has a gap in group {group}")
                first = position // self.tokens_of(group) if isinstance(kind, Attention) else 0
                own = [block for block in table[first:] if block and not block.content]
                if any(self.references(block) > 1 for block in own):
                    found.append(f"a block of {seq.handle} has two writers in group {group}")
                if any(block.share != self.share(seq.namespace) for block in table if block):
                    found.append("a sequence holds a block of another share")
        return found
