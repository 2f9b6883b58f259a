"""The order of eviction with several groups: boundaries, the deepest of the oldest path first.

A *boundary* is a prefix at which a prompt can continue: every group holds what the next query
reads. Boundaries are remembered and evicted, not blocks (rule 15). An idle block that no boundary
needs is free at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from blockmgr.blocks import Priority
from blockmgr.errors import NeverFitsError
from tests.specification.admission import Plan, Terms
from tests.specification.blocks import NODES, Block, Content, Prefix, Seq, cut
from tests.specification.resuming import ModelResuming

__all__ = ["ModelBoundaries"]

BLOCKS_PER_UNIT, MOST_COUNTED = 32, 64
"""Blocks to evict in one order, for each unit that a prompt computes again, and where counts of
prompts are halved."""


class ModelBoundaries(ModelResuming):
    """A manager for any groups."""

    past_slots = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.halfway_stop_tokens = self.config.halfway_stop_tokens
        margin = self.config.stop_margin_tokens
        self.stop_margin_tokens, self.hit_margin = (margin, 0) if self.recurrent() else (0, margin)
        self.stamps: dict[Prefix, int] = {}
        """The boundaries, and when each was last used."""

        self.passed: dict[Prefix, None] = {}
        """Those at which prompts will probably not continue, in the order in which they go."""

        self.continued: set[Prefix] = set()
        """Those from which a prompt has continued, or where prompts diverge."""

        self.shared: set[Prefix] = set()
        """Those from which a second prompt has continued, or where prompts diverge."""

        self.observed: set[Prefix] = set()
        """For one sequence in 32: where it continued, its last whole unit, and its end. Prompts
        that continue from these are counted."""

        self.in_one_order: Counter[bytes | None] = Counter()
        """By share, blocks to evict as if no boundary were passed; below 0 if those were more."""

        self.found_passed: Counter[bytes | None] = Counter()
        self.missed: Counter[bytes | None] = Counter()
        """By share, prompts that continued from what was only passed, and that would have."""

        self.wholes, self.ends, self.agains, self.num_ended = 1, 4, 1, 0
        self.levels: dict[Prefix, int] = {}
        """The levels of units that callers want kept longer, or less long; 0 for all others."""

        self.known_needs: dict[Prefix, list[Content]] = {}
        self.known_keeps: dict[Prefix, list[Content]] = {}

    # ---- what a boundary needs ----------------------------------------------------------

    def needs(self, prefix: Prefix) -> list[Content]:
        """What must be cached for a prompt to continue after this prefix (rules 11 and 13)."""
        if prefix not in self.known_needs:
            self.known_needs[prefix] = self.needs_of(prefix)
        return self.known_needs[prefix]

    def keeps(self, prefix: Prefix) -> list[Content]:
        """What it keeps of that, and what a hit reads that continues a margin before it."""
        if not self.hit_margin:
            return self.needs(prefix)
        if prefix not in self.known_keeps:
            first = max(0, len(prefix[1]) - self.hit_margin)
            self.known_keeps[prefix] = self.needs_of(prefix, first)
        return self.known_keeps[prefix]

    def needs_of(self, prefix: Prefix, first: int | None = None) -> list[Content]:
        length = len(prefix[1])
        first = length if first is None else first
        found: list[Content] = []
        for group, kind in self.attention():
            units = range(self.first_unit(kind, first), self.units(length))
            ends = (min((unit + 1) * self.size, length) for unit in units)
            found += [(group, cut(prefix, end)) for end in ends]
        return found + [(group, prefix) for group in self.recurrent() if length]

    def serves(self, prefix: Prefix) -> bool:
        """Whether every group has what the query after this prefix reads."""
        starts = self.can_start(len(prefix[1]))
        return starts and all(self.find(content) for content in self.needs(prefix))

    def cached_prefixes(self) -> set[Prefix]:
        """The prefixes that cached blocks hold."""
        return {block.content[1] for block in self.live if block.content is not None}

    def settle(self) -> None:
        """Forgets boundaries that have lost a block, and frees blocks that no boundary needs."""
        super().settle()
        self.stamps = self.served()
        self.passed = {p: None for p in self.passed if p in self.stamps}
        for notes in (self.continued, self.shared, self.observed):
            notes.intersection_update(self.stamps)
        for block in self.useless():
            self.lose(block)
        known = self.cached_prefixes()
        self.levels = {p: level for p, level in self.levels.items() if p in known}
        self.give_levels(known)

    def served(self) -> dict[Prefix, int]:
        """The boundaries that have lost no block."""
        return {p: stamp for p, stamp in self.stamps.items() if self.serves(p)}

    def useless(self) -> list[Block]:
        """The idle blocks that no boundary needs."""
        needed = {content for prefix in self.stamps for content in self.keeps(prefix)}
        return [block for block in self.idle_blocks() if block.content not in needed]

    def let_go(self, blocks: list[Block]) -> None:
        """The order of release does not matter, only that of boundaries."""
        self.dropped = []

    # ---- eviction -----------------------------------------------------------------------

    def evict(self, share: bytes | None) -> None:
        ignores_passing, before = self.ignores_passing(share), len(self.free_blocks(share))
        del self.stamps[self.next_victim(share, ignores_passing=ignores_passing)]
        self.settle()
        self.count["evicted_blocks"] += 1
        if ignores_passing:
            self.in_one_order[share] -= max(1, len(self.free_blocks(share)) - before)

    def ignores_passing(self, share: bytes | None) -> bool:
        """Whether all boundaries are in one order now: prompts have missed what was passed.

        Boundaries in use, and those that are retained, still go behind all that are passed.
        """
        return self.in_one_order[share] > 0 and any(
            self.level(p) <= 0 and not self.runs_along(p) for p in self.candidates(share)
        )

    def next_victim(self, share: bytes | None, *, ignores_passing: bool = False) -> Prefix:
        """The boundary to evict next.

        Boundaries that sequences only passed go first, whatever their level and whatever they free:
        the oldest path first, and of a path the deepest. Then the lowest level goes first; within a
        level the oldest path, with its deepest boundary first; paths in use go last. A boundary
        whose blocks are all in use frees nothing and is not a victim.
        """
        passed = [p for p in self.passed if self.share(p[0]) == share]
        if passed and not ignores_passing:
            return passed[0]

        def order(prefix: Prefix) -> tuple[int, bool, int]:
            in_use, stamp = self.runs_along(prefix), self.stamps[prefix]
            return self.level(prefix), in_use, -stamp if in_use else stamp

        return min(self.candidates(share), key=order)

    def candidates(self, share: bytes | None) -> list[Prefix]:
        """The boundaries that keep a block which nobody uses."""
        idle = {block.content for block in self.idle_of(share)}
        return [p for p in self.stamps if idle.intersection(self.keeps(p))]

    def runs_along(self, boundary: Prefix) -> bool:
        """Whether a running sequence has this prefix computed."""
        length = len(boundary[1])
        return any(
            s.prefix(length) == boundary and s.computed >= length
            for s in self.seqs.values()
            if not s.preempted
        )

    # ---- what makes a boundary ----------------------------------------------------------

    def use(self, prefix: Prefix) -> None:
        """Marks the path as just used; its deepest boundary will be evicted first."""
        length = len(prefix[1])
        ends = {length, *range(self.size, length + 1, self.size)} - {0}
        for end in sorted(ends, reverse=True):
            if self.serves(cut(prefix, end)):
                self.stamps[cut(prefix, end)] = next(self.clock)

    def leave(self, seq: Seq) -> None:
        self.use(seq.prefix(seq.computed))

    def is_boundary_now(self, prefix: Prefix) -> bool:
        if is_served := self.serves(prefix):
            self.stamps[prefix] = next(self.clock)
        return is_served

    def keep_boundary(self, boundary: Prefix) -> None:
        """Marks a boundary from which prompts will probably continue."""
        if boundary not in self.stamps:
            self.stamps[boundary] = next(self.clock)
        self.passed.pop(boundary, None)
        self.continued.add(boundary)

    def pass_no_more(self, prefix: Prefix) -> None:
        self.passed.pop(prefix, None)
        alike = self.alike(prefix)
        # Without states, a longer block that is found first stands for it.
        if self.recurrent() or alike[0].content == (self.identity, prefix):
            ends = (self.find((group, prefix)) for group, _ in self.attention())
            self.bring_forward(filter(None, ends))

    def alike(self, prefix: Prefix) -> list[Block]:
        """The blocks of full attention that begin with the last tokens of a prefix."""
        if self.identity is None or not prefix[1]:
            return []
        start = (self.units(len(prefix[1])) - 1) * self.size
        after = self.children(self.identity, cut(prefix, start))
        return [b for b in after if b.content and cut(b.content[1], len(prefix[1])) == prefix]

    def bring_forward(self, blocks: Iterable[Block]) -> None:
        """Of blocks with a common beginning, the next prompt that diverges there copies these."""
        for block in blocks:
            block.linked = next(self.clock)

    def keep_as_shared(self, prefix: Prefix) -> None:
        self.passed.pop(prefix, None)
        self.continued.add(prefix)
        self.shared.add(prefix)

    def touch(
        self, tokens: Iterable[int], *, namespace: object = b"", extras: object = None
    ) -> None:
        """A waiting prompt will soon continue from here, so the path counts as just used."""
        seq = self.prompt(tokens, namespace, extras)
        found = self.deepest(seq, len(seq.tokens) - 1, partial=True)
        end = found[0] if found else 0
        self.use(seq.prefix(end))
        if end and end % self.size == 0:
            self.keep_boundary(seq.prefix(end))
        self.settle()

    # ---- what is only passed ------------------------------------------------------------

    def note_passing(self, seq: Seq, prefix: Prefix) -> None:
        """Notes whether a unit that can be found now is only passed.

        If the prefix is a boundary, and neither a state nor a stop made it one, it is evicted
        before all boundaries that are not passed.
        """
        several = len(self.kinds) > 1 and not self.recurrent()
        passes = several and len(prefix[1]) not in seq.named
        if not passes:
            self.passed.pop(prefix, None)
        if self.serves(prefix) and prefix not in self.stamps:
            self.stamps[prefix] = next(self.clock)
            if passes:
                self.pass_by(prefix)
            elif several and len(prefix[1]) == seq.last:
                self.pass_earlier(seq, len(prefix[1]) - self.size)
        if several and not passes and len(prefix[1]) == seq.diverges and prefix in self.stamps:
            self.continued.add(prefix)
            self.shared.add(prefix)

    def pass_earlier(self, seq: Seq, most: int) -> None:
        """Passes the ends of earlier turns: the next turn continues from the end of this one."""
        found = min(most, self.end_behind(seq.cached)) if seq.cached else 0
        for end in range(found // self.size * self.size, 0, -self.size):
            earlier = seq.prefix(end)
            if earlier in self.passed and earlier in self.continued:
                return  # an earlier turn passed those before it
            ends = earlier in self.stamps and earlier not in self.passed
            if ends and not self.serves_others(earlier):
                self.pass_by(earlier)
                self.continued.add(earlier)

    def serves_others(self, boundary: Prefix) -> bool:
        """Whether more than one path needs it, or a caller wants it kept."""
        length = len(boundary[1])
        next_units = range(length + 1, length + self.size + 1)
        after = {
            p
            for p in self.cached_prefixes()
            if len(p[1]) in next_units and cut(p, length) == boundary
        }
        users = [self.references(b) for b in self.live if b.content and b.content[1] == boundary]
        return (
            boundary in self.shared
            or max(users, default=0) > 1
            or len(after) > 1
            or self.level(boundary) > 0
        )

    def pass_by(self, prefix: Prefix) -> None:
        """Marks a boundary as passed, before its parent if that is passed: the deepest first."""
        if prefix in self.passed:
            return
        order = list(self.passed)
        parent = cut(prefix, len(prefix[1]) - self.stride)
        order.insert(order.index(parent) if parent in self.passed else len(order), prefix)
        self.passed = dict.fromkeys(order)

    # ---- what a prompt tells ------------------------------------------------------------

    def expect(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        """Decides where the forward should stop, and counts the prompt."""
        self.expect_stops(seq, plan, terms)
        self.count_end(seq.prefix(plan.cached))  # before a tail is taken over and disappears

    def expect_stops(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        stops = self.stops_of(seq, terms) | self.halfway(seq, plan.cached)
        if self.hit_margin and seq.diverges <= self.end_behind(plan.cached):
            stops.discard(seq.diverges)
            seq.diverges = 0
        seq.prompt_end = self.prompt_end(seq, stops, plan.cached)
        stops = {stop for stop in {*stops, seq.prompt_end} if stop > plan.cached}
        seq.stops, seq.named = (stops, set()) if self.recurrent() else (set(), stops)
        last = self.last_stop(seq)
        seq.last = last if last in stops and last != seq.diverges else 0

    def hold_found(self, plan: Plan) -> None:
        if plan.cached % self.size:
            within = (plan.copied.get(group) for group, _ in self.attention())
            self.bring_forward([*filter(None, within), *plan.left])
        super().hold_found(plan)

    def enter(self, seq: Seq) -> None:
        found, share = self.continued_boundary(seq, seq.cached), self.share(seq.namespace)
        self.found_passed[share] += found in self.passed
        self.continue_from(found)
        if missed := max(0, seq.diverges - seq.cached) // self.size:
            self.count_missed(missed, share)

    def count_missed(self, units: int, share: bytes | None) -> None:
        """Full attention has so many units of a prompt that it computes again.

        The more often prompts continue from what was only passed, the more blocks go in one order.
        """
        if self.recurrent():
            return
        self.missed[share] += 1
        found, missed = self.found_passed[share], self.missed[share]
        blocks = self.in_one_order[share] + BLOCKS_PER_UNIT * units * found // (found + missed)
        self.in_one_order[share] = min(self.config.num_blocks, blocks)
        if found + missed >= MOST_COUNTED:
            self.found_passed[share], self.missed[share] = found // 2, missed // 2

    def end_behind(self, cached: int) -> int:
        """The last place of a boundary that lets prompts find so much: a margin behind it.

        Without parts of units, it is at the end of a unit.
        """
        end = cached + self.hit_margin
        return end if self.min_partial_tokens else -(-end // self.size) * self.size

    def continued_boundary(self, seq: Seq, cached: int) -> Prefix:
        """The boundary from which a prompt continues that finds so much.

        With a margin, this is behind what it finds: the windows there are kept for it.
        """
        last = min(self.end_behind(cached), len(seq.tokens)) if cached and self.hit_margin else 0
        ends = map(seq.prefix, range(last // self.size * self.size, cached, -self.size))
        return next((end for end in ends if end in self.stamps), seq.prefix(cached))

    def continue_from(self, found: Prefix) -> None:
        self.passed.pop(found, None)
        if found in self.continued:
            self.shared.add(found)
        self.continued.add(found)

    @property
    def stride(self) -> int:
        """The least distance of whole units after which sequences can begin (G17)."""
        return math.lcm(self.size, self.restart)

    def last_place(self, end: int) -> int:
        """The last place up to here where a sequence can begin; with states, also within a unit."""
        within = self.restart > 1 and bool(self.recurrent())

        def fits(place: int) -> bool:
            return self.can_start(place) and (
                self.restart == 1 or place % self.size == 0 or (within and self.may_continue(place))
            )

        return next(filter(fits, range(end, 0, -1)), 0)

    def is_known(self, prefix: Prefix) -> bool:
        """Whether a boundary or a running sequence is at, or behind, this place of the path."""
        length = len(prefix[1])
        return any(cut(p, length) == prefix and len(p[1]) >= length for p in self.stamps) or any(
            s.promoted * self.size >= length and s.prefix(length) == prefix
            for s in self.seqs.values()
        )

    def deepest(self, seq: Seq, last: int, *, partial: bool) -> tuple[int, Plan] | None:
        """As where there is full attention, beyond the first unit that is not known nothing is."""
        if not self.full_attention():
            units = range(1, last // self.size + 1)
            reach = (unit for unit in units if not self.is_known(seq.prefix(unit * self.size)))
            last = min(last, (next(reach, len(units) + 1)) * self.size - 1)
        return super().deepest(seq, last, partial=partial)

    def stops_of(self, seq: Seq, terms: Terms) -> set[int]:
        """Positions where prompts may continue, so that a state is worth keeping (rule 11).

        These are the last unit of the prompt that can be served, and the end of what full attention
        has of it, where prompts diverge; the latter may be within a unit (rule 16). A window may
        have been evicted there; the forward computes it again.
        """
        # What a hit needs behind it may be all of the prompt.
        last = (len(seq.tokens) - (not self.stop_margin_tokens)) // self.size * self.size
        end = self.last_stop(seq)
        asked = self.full_attention() or [g for g, _ in self.attention()]

        def served(length: int) -> bool:
            if not self.full_attention():
                return self.is_known(seq.prefix(length))
            needed = [c for c in self.needs(seq.prefix(length)) if c[0] in asked]
            return all(map(self.find, needed))

        deepest = within = 0
        if terms.read_cache:
            deepest = next(filter(served, range(last, 0, -self.size)), 0)
            within = self.shared_within(seq, deepest, asked) if self.recurrent() else 0
        shared = max(0, (within or deepest) - self.stop_margin_tokens)
        if not self.may_continue(shared):
            shared -= shared % self.size
        seq.diverges = self.last_place(shared)
        return {end, seq.diverges or end} - {0}

    def last_stop(self, seq: Seq) -> int:
        """The last unit of the prompt that another one can continue from, or repeat."""
        last = len(seq.tokens) - max(1, self.stop_margin_tokens)
        return max(0, last) // self.stride * self.stride

    def shared_within(self, seq: Seq, deepest: int, asked: list[int]) -> int:
        """The end of the longest common prefix within a unit after the deepest one; 0: none."""
        if not self.min_partial_tokens or not asked:
            return 0
        most = min(deepest + self.size, len(seq.tokens) - (not self.stop_margin_tokens))

        def shares(length: int) -> bool:
            prefix = seq.prefix(length)
            if not self.full_attention():
                return self.is_known(prefix)
            return all(self.most_like(group, prefix, promised=True) for group in asked)

        return next(filter(shares, range(most, deepest + self.min_partial_tokens - 1, -1)), 0)

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
        return {(first + blocks // 2) * self.size // self.stride * self.stride}

    def prompt_end(self, seq: Seq, others: set[int], cached: int) -> int:
        """The position near the prompt's end where only this option stops it; 0: none.

        If the next turn does not repeat the answer, it continues from there. A sequence that
        resumes has tokens that were not in its prompt, so it keeps the position.
        """
        if self.prompt_end_stop is None or not self.recurrent():
            return 0
        end = len(seq.tokens) - self.prompt_end_stop - self.stop_margin_tokens
        if seq.preempted:
            end = seq.prompt_end
        starts = self.may_continue(end) and self.can_start(end)
        return end if starts and end > cached and end not in others else 0

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

    # ---- what fits ----------------------------------------------------------------------

    def later_peak(self, num_slots: int, num_tokens: int) -> int:
        """The peak of blocks after the first forward, if the engine then uses as few as possible.

        The sequence needs at least these, whatever its engine does (rule 14).
        """
        kinds = [kind for _, kind in (*self.in_memory(), *self.uncached())]
        most = 0
        for position in range(num_slots, num_tokens):
            last = max(0, position - self.lookahead)
            units = self.units(position + 1)
            most = max(most, sum(units - self.first_unit(kind, last) for kind in kinds))
        return most + len(self.singles())

    def peak(self, num_slots: int, num_tokens: int) -> int:
        """The same peak including the first forward, for a sequence that finds nothing."""
        growing = len(self.growing()) - (self.nodes is not None)
        first = growing * self.units(num_slots) + len(self.singles())
        return max(first, self.later_peak(num_slots, num_tokens))

    def checked_slots(self, seq: Seq, num_slots: int | None, terms: Terms) -> int:
        """A prompt never fits if not even what it would find now leaves it room."""
        slots = len(seq.tokens) if num_slots is None else num_slots
        share = self.share(seq.namespace)
        fits = (self.may_fit(plan, slots, share) for plan in self.plans(seq, slots, terms))
        self.check_growth(seq, max(slots, len(seq.tokens)))
        if self.later_peak(slots, len(seq.tokens)) > self.limit(share) or not any(fits):
            raise NeverFitsError(f"{slots} slots never fit")
        return slots

    def check_growth(self, seq: Seq, num_slots: int) -> None:
        """What a window has released makes room for what it reads next, but no node is released."""
        if self.units(num_slots) > self.num_nodes:
            raise NeverFitsError(f"{num_slots} slots take more nodes than there are")

    # ---- the end of a sequence ----------------------------------------------------------

    def give_back(
        self, seq: Seq, *, resumes: bool = False, expect_reuse: bool | None = None
    ) -> None:
        is_end = self.keep_end(seq)
        end = self.last_end(seq)
        path, cached = seq.prefix(end), seq.cached
        if not is_end or end % self.size == 0:
            whole = seq.promoted * self.size // self.stride * self.stride
            self.passed.pop(seq.prefix(whole), None)
        seq.tables = [[] for _ in self.kinds]
        self.use(seq.prefix(seq.computed) if end == 0 else path)
        if is_end and self.recurrent() and path in self.stamps:
            self.end_path(path, cached, resumes=resumes)

    def end_path(self, path: Prefix, cached: int, *, resumes: bool) -> None:
        """Decides which of a sequence's boundaries are only passed.

        A sequence continued from one boundary, stopped at the end of its last whole unit and ended
        in a tail. One sequence in 32 is observed: none of its three boundaries is then passed.
        """
        self.num_ended += 1
        observes = self.num_ended % 32 == 0
        whole = cut(path, len(path[1]) // self.size * self.size)
        if whole != path and whole in self.stamps and whole not in self.continued:
            if observes:
                self.observed |= {whole, path}
            elif not resumes and self.prefers_whole(whole, len(path[1])):
                self.pass_by(path)
            else:
                self.pass_by(whole)
        found = cut(path, cached)
        if cached % self.size or not 0 < cached < len(whole[1]):
            return
        if found in self.stamps and found not in self.shared:
            if observes:
                self.observed.add(found)
            elif not self.outlives(found):
                self.pass_by(found)

    def prefers_whole(self, whole: Prefix, length: int) -> bool:
        """Whether the last whole unit serves more tokens per block than the end after it.

        The former serves prompts that continue from either, the latter only prompts that continue
        from the end.
        """
        units, blocks = self.units(len(whole[1])), len(self.recurrent())
        by_whole = Fraction((self.wholes + self.ends) * len(whole[1]), units + blocks)
        return by_whole > Fraction(self.ends * length, units + blocks + 1)

    def outlives(self, found: Prefix) -> bool:
        """Whether a boundary from which one prompt continued is worth its states.

        It is, if prompts continue from such a boundary a second time often enough that its states
        serve as much as the same number of blocks of another path.
        """
        units, blocks = self.units(len(found[1])), len(self.recurrent())
        return Fraction(self.agains, self.wholes + self.ends) >= Fraction(blocks, units + blocks)

    # ---- levels -------------------------------------------------------------------------

    def level(self, boundary: Prefix) -> int:
        """The highest level of the units that continue it: it never rises with depth (rule 3)."""
        length = len(boundary[1])
        longer = {boundary} | {p for p in self.cached_prefixes() if cut(p, length) == boundary}
        return max(self.levels.get(p, 0) for p in longer)

    def retain_prefix(
        self,
        tokens: Iterable[int],
        *,
        priority: int,
        ttl: None = None,
        namespace: object = b"",
        extras: object = None,
    ) -> int:
        """Gives the units of a prompt this level; returns their number.

        Only units up to the last boundary get it. With a level above normal, the end is more than
        passed.
        """
        seq, level = self.prompt(tokens, namespace, extras), priority - Priority.NORMAL
        ends = range(len(seq.tokens) // self.size * self.size, 0, -self.size)
        end = next((end for end in ends if self.can_go_on(seq.prefix(end))), 0)
        units = {seq.prefix(length) for length in range(self.size, end + 1, self.size)}
        self.levels |= dict.fromkeys(units & self.cached_prefixes(), level)
        if level > 0 and end:
            self.keep_boundary(seq.prefix(end))
        return end // self.size

    def retain(
        self, handle: int, start: int, stop: int, *, priority: int, ttl: None = None
    ) -> None:
        """Gives the units of these tokens a level.

        A level above normal means that prompts will probably continue from the end of the range. So
        a forward should stop there, also within a unit if a tail with the state may be kept there.
        """
        seq, level = self.running(handle), priority - Priority.NORMAL
        with self.call():
            known = self.cached_prefixes()
            for unit in range(start // self.size, self.units(stop)):
                prefix = seq.prefix(min((unit + 1) * self.size, seq.computed))
                seq.retained[unit] = level
                if unit < self.units(seq.computed) and prefix in known:
                    self.levels[prefix] = level
                    del seq.retained[unit]
            if level > 0:
                self.expect_end(seq, stop)

    def expect_end(self, seq: Seq, stop: int) -> None:
        within = bool(self.recurrent()) and self.may_continue(stop)
        end = self.last_place(stop if within else stop // self.size * self.size)
        if end > seq.computed:
            stops = seq.stops if self.recurrent() else seq.named
            if seq.prompt_end == end:
                seq.prompt_end = 0  # it is more than that
            if seq.retained_end != seq.diverges:
                stops.discard(seq.retained_end)  # the last request counts
            stops.add(end)
            seq.retained_end = end
        elif end and end % self.size == 0 and self.can_go_on(seq.prefix(end)):
            self.keep_boundary(seq.prefix(end))

    def give_levels(self, known: set[Prefix]) -> None:
        """Gives units the levels that running sequences requested, once they can be found.

        With several requests, the highest level wins.
        """
        for seq in self.seqs.values():
            for unit, level in list(seq.retained.items()):
                prefix = seq.prefix(min((unit + 1) * self.size, seq.computed))
                if unit < self.units(seq.computed) and prefix in known:
                    self.levels[prefix] = max(level, self.levels.get(prefix, level))
                    del seq.retained[unit]

    # ---- looking at it ------------------------------------------------------------------

    def check_invariants(self) -> None:
        assert not self.violations(), self.violations()

    def violations(self) -> list[str]:
        """Violations of invariants, which no call may leave behind."""
        found = []
        running = [seq for seq in self.seqs.values() if not seq.preempted]
        states = [slot for seq in running for g in self.recurrent() for slot in seq.tables[g]]
        if len(states) != len(set(states)):
            found.append("two sequences share a state")
        if any(block is None or block.content for block in states):
            found.append("a state that is written is findable")
        destinations = [c.destination for c in self.pending]
        if len(destinations) != len(set(destinations)):
            found.append("a copy has two sources")
        if {c.source for c in self.pending} & set(destinations):
            found.append("a copy reads what another one writes")
        needed = {c for prefix in self.stamps for c in self.needs(prefix)}
        found += [f"{content} is needed and gone" for content in needed if not self.find(content)]
        found += [f"{block} is of no use" for block in self.useless()]
        contents = [b.content for b in self.live if b.content is not None]
        if len(contents) != len(set(contents)):
            found.append("two blocks are findable by one content")
        held = [(s, b) for s in running for table in s.tables for b in table if b]
        if any(b.share not in {self.share(seq.namespace), NODES} for seq, b in held):
            found.append("a sequence holds a block of another share")
        for seq in running:
            for group, kind in self.attention():
                if None in seq.tables[group][self.first_unit(kind, seq.settled) :]:
                    found.append(f"sequence {seq.handle} has a gap in group {group}")
            for group, kind in self.uncached():
                again = seq.begins < seq.again[1]
                first = seq.begins if again else kind.first_read(seq.settled)
                own = seq.tables[group][first // self.size :]
                if None in own or any(b.content or self.references(b) > 1 for b in own if b):
                    found.append(f"sequence {seq.handle} lacks or shares blocks of group {group}")
        return found
