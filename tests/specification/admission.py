"""What a prompt finds, and what it needs to be admitted.

A prompt may continue from a position if every group has what the query there reads: full attention
all blocks before it, a window or a chunk the last ones, a state the state itself. Within a block it
continues in a copy, or takes over the end of a sequence that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from blockmgr.errors import (
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    SequenceStateError,
    StaleMatchError,
    UnknownSequenceError,
)
from tests.specification.blocks import NODES, Block, Prefix, Seq, common, cut
from tests.specification.layers import RecurrentState, Ring
from tests.specification.steps import ModelSteps

__all__ = ["ModelAdmission", "Plan", "Terms", "token_list", "whole"]


@dataclass
class Terms:
    """The limits of an admission on the cache and the pool."""

    watermark: int = 0
    read_cache: bool = True
    most: int | None = None  # tokens taken from the cache
    due: int | None = None  # exactly so many
    loaded: int = 0  # leading tokens that something else than a forward provides


ASKED = {
    "namespace": b"",
    "extras": None,
    "read_cache": True,
    "match": None,
    "max_cached_tokens": None,
    "watermark_blocks": None,
    "num_loaded_tokens": None,
}
"""Defaults of the arguments of an admission."""


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
        idle: Blocks that it shares or copies and that nobody uses: they are not available then.
        fresh_nodes: Likewise without full attention, of nodes.
        idle_nodes: Likewise.
        loaded: Leading tokens that are loaded; windows have no blocks for what only these read.
        left: Blocks of the unit in which the prompt continues that it does not take, because
            nothing behind the load reads them.
    """

    cached: int
    shared: dict[int, list[Block]] = field(default_factory=dict)
    copied: dict[int, Block] = field(default_factory=dict)
    taken_over: bool = False
    fresh: int = 0
    idle: int = 0
    fresh_nodes: int = 0
    idle_nodes: int = 0
    loaded: int = 0
    left: list[Block] = field(default_factory=list)

    first_query = property(lambda self: max(self.cached, self.loaded))
    needed = property(lambda self: self.fresh + self.idle)

    def acquired(self) -> list[Block]:
        return [b for blocks in self.shared.values() for b in blocks] + list(self.copied.values())


def whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
    return int(value)


def token_list(tokens: Iterable[int]) -> list[int]:
    out = [whole("tokens", token, 0, 2**32 - 1) for token in tokens]
    if not out:
        raise ValueError("tokens must not be empty")
    return out


def checked_key(namespace: object, extras: object) -> tuple[bytes, dict[int, bytes]]:
    extras = {} if extras is None else extras
    if not isinstance(namespace, bytes) or not isinstance(extras, Mapping):
        raise TypeError("namespace must be bytes, extras a mapping")
    if len(namespace) > 1024:
        raise ValueError(f"namespace must be at most 1024 bytes long, got {len(namespace)}")
    for index, extra in extras.items():
        whole("extras", index, 0, 2**62)
        if not isinstance(extra, bytes):
            raise TypeError(f"extras must map to bytes, got {extra!r}")
        if not 1 <= len(extra) <= 1024:
            raise ValueError(f"extras must be 1 to 1024 bytes long, got {len(extra)}")
    return namespace, dict(extras)


class ModelAdmission(ModelSteps):
    """Finds prompts, and plans their blocks."""

    past_slots = False
    """Whether a prompt continues within a unit for which it asks no slots."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.width = self.config.max_blocks_per_seq or self.capacity
        self.generations = [0] * self.config.max_seqs
        self.branches: set[Prefix] = set()
        """Ends of tails at which prompts diverge."""

    # ---- arguments ----------------------------------------------------------------------

    def sequence(self, handle: int) -> Seq:
        if handle not in self.seqs:
            raise UnknownSequenceError(handle)
        return self.seqs[handle]

    def running(self, handle: int) -> Seq:
        seq = self.sequence(handle)
        if seq.preempted:
            raise SequenceStateError(f"sequence {handle} is preempted")
        return seq

    def new_seq(self, handle: int = -1) -> Seq:
        return Seq(
            handle, b"", [], {}, self.size, self.lead, self.identity, [[] for _ in self.kinds]
        )

    def prompt(self, tokens: Iterable[int], namespace: object = b"", extras: object = None) -> Seq:
        seq = self.new_seq()
        seq.tokens = token_list(tokens)
        seq.namespace, seq.extras = checked_key(namespace, extras)
        return seq

    def new_rows(self, n: int) -> list[int]:
        taken = {handle & 0xFFFFFFFF for handle in self.seqs}
        rows = [row for row in range(self.config.max_seqs) if row not in taken]
        if len(rows) < n:
            raise OutOfSequencesError(n, len(rows))
        return [self.generations[row] << 32 | row for row in rows[:n]]

    def asked(
        self, tokens: Iterable[int], asked: Mapping[str, Any], num_slots: int | None = None
    ) -> tuple[Seq, Terms]:
        """The prompt and the limits in the arguments of an admission."""
        values = {**ASKED, **asked}
        seq = self.prompt(tokens, values["namespace"], values["extras"])
        held_back = values["watermark_blocks"]
        if held_back is not None:
            held_back = whole("watermark_blocks", held_back, 0, 2**62)
        most, match = values["max_cached_tokens"], values["match"]
        most = most if most is None else whole("max_cached_tokens", most, 0, 2**62)
        if match is not None and (most is not None or not values["read_cache"]):
            raise ValueError("match says what is taken from the cache")
        most = most if most is None else most + self.replay
        due = None if match is None else match.num_cached_tokens
        due = due + self.replay if due else due
        watermark = self.watermark(self.share(seq.namespace), held_back)
        loaded = self.first_behind_load(seq, values["num_loaded_tokens"], num_slots)
        most = most if due is None else due
        return seq, Terms(watermark, values["read_cache"], most, due, loaded)

    def first_behind_load(self, seq: Seq, num_loaded: object, num_slots: int | None) -> int:
        """Where the first forward begins behind a load; a load brings no ring."""
        length = len(seq.tokens)
        most = min(length, num_slots or length)
        end = min(length - 1, whole("num_loaded_tokens", num_loaded or 0, 0, most))
        if len(self.kinds) == 1:
            return 0  # full attention has all blocks anyway
        if end and self.replay:
            raise ValueError("num_loaded_tokens must be 0 with uncached windows")
        return end - end % self.restart

    def checked_slots(self, seq: Seq, num_slots: int | None, terms: Terms) -> int:
        """The slots asked for; an error if the prompt can never have them."""
        length = len(seq.tokens)
        slots = length if num_slots is None else whole("num_slots", num_slots, 1, 2**63 - 1)
        self.check_fits(seq, max(length, slots), terms.watermark)
        return slots

    def check_fits(self, seq: Seq, num_slots: int, watermark: int = 0) -> None:
        most = self.limit(self.share(seq.namespace)) - watermark
        if self.units(num_slots) > min(self.width, most):
            raise NeverFitsError(f"{num_slots} slots never fit")

    # ---- what a prompt finds ------------------------------------------------------------

    def most_like(self, group: int, prefix: Prefix, *, promised: bool = False) -> Block | None:
        """A block of the group whose unit starts with the last tokens of the prefix.

        promised: what this step's forward is going to write counts, too.
        """
        length = len(prefix[1])
        start = length // self.size * self.size
        for block in self.most_exact(self.children(group, cut(prefix, start)), prefix):
            assert block.content is not None
            end = len(block.content[1][1]) - (0 if promised else block.unwritten)
            if end >= length and cut(block.content[1], length) == prefix:
                return block
        return None

    def most_exact(self, blocks: list[Block], prefix: Prefix) -> list[Block]:
        """A tail with just these tokens comes first, because it can be taken over."""
        return sorted(blocks, key=lambda b: b.content is not None and b.content[1] != prefix)

    def found_at(self, prefix: Prefix, *, promised: bool = False) -> Plan | None:
        """A plan to continue a prompt after this prefix; None if some group cannot serve it."""
        length = len(prefix[1])
        full, rest = divmod(length, self.size)
        plan = Plan(length)
        if not self.can_start(length):
            return None
        for group, _ in self.attention() if rest else ():
            # In all groups, read or not: the block may be cached later as a whole unit.
            block = self.most_like(group, prefix, promised=promised)
            if block is None:
                return None
            plan.copied[group] = block
        for group, kind in self.attention():
            plan.shared[group] = []
            for unit in range(self.first_unit(kind, length), full):
                block = self.find((group, cut(prefix, (unit + 1) * self.size)))
                if block is None:
                    return None
                plan.shared[group].append(block)
        for group in self.recurrent() if length else ():
            block = self.find((group, prefix))
            if block is None or self.is_being_kept(block):
                return None
            plan.copied[group] = block
        return plan

    def can_go_on(self, prefix: Prefix) -> bool:
        return self.found_at(prefix) is not None

    def may_continue(self, length: int) -> bool:
        """Whether prompts may continue at a position, if something is found there."""
        return length % self.size == 0 or length % self.size >= self.min_partial_tokens > 0

    def deepest(self, seq: Seq, last: int, *, partial: bool) -> tuple[int, Plan] | None:
        """The deepest position from which the sequence can continue."""
        for full in self.full_attention():  # beyond its first gap, nothing is found
            units = range(1, last // self.size + 1)
            has = (self.find((full, seq.prefix(unit * self.size))) is not None for unit in units)
            reach = next((unit for unit, found in enumerate(has) if not found), len(units))
            last = min(last, (reach + 1) * self.size - 1)
        for length in range(last, 0, -1):
            if self.may_continue(length) and (length % self.size > 0) <= partial:
                plan = self.found_at(seq.prefix(length))
                if plan is not None:
                    return length, plan
        return None

    # ---- what it needs ------------------------------------------------------------------

    def can_be_taken_over(self, plan: Plan, prefix: Prefix) -> bool:
        """Whether the copied blocks are idle and end exactly at this prefix."""
        idle = self.idle()
        return bool(plan.copied) and all(
            block in idle and block.content == (group, prefix)
            for group, block in plan.copied.items()
        )

    def nothing(self) -> Plan:
        return Plan(0, {group: [] for group, _ in self.attention()})

    def plans(self, seq: Seq, num_slots: int, terms: Terms | None = None) -> Iterator[Plan]:
        """Plans, the best first; a later one is tried if those before it do not fit (rule 14)."""
        terms = terms or Terms()
        last = len(seq.tokens) - 1  # one token must be left to compute
        last = last if terms.most is None else min(last, terms.most)
        last = last if terms.read_cache else 0
        deep, whole_units = (self.deepest(seq, last, partial=p) for p in (True, False))
        if terms.loaded > (deep[0] if deep else 0):
            before = self.before_load(seq, last, terms.loaded)
            # A match may have looked for a prompt that loads nothing.
            if terms.due is None or terms.due == (before[0] if before else 0):
                deep, whole_units = None, before
        for found in (deep, whole_units):
            if found is None or (found is deep and whole_units and deep[0] == whole_units[0]):
                continue
            length, plan = found
            if (
                length % self.size
                and not self.past_slots
                and length // self.size >= self.units(num_slots)
            ):
                continue
            may_take_over = self.can_be_taken_over(plan, seq.prefix(length))
            self.leave_to_load(plan, terms.loaded)
            may_take_over &= not (self.recurrent() and length < terms.loaded)
            # Only the sequence that continues a tail needs it, unless prompts diverge there.
            is_end = length % self.size > 0 and seq.prefix(length) not in self.branches
            plan.taken_over = may_take_over and is_end
            yield self.priced(plan, seq, num_slots)
            if may_take_over and not plan.taken_over:
                yield self.priced(replace(plan, taken_over=True), seq, num_slots)
        yield self.priced(replace(self.nothing(), loaded=terms.loaded), seq, num_slots)

    def before_load(self, seq: Seq, last: int, loaded: int) -> tuple[int, Plan] | None:
        """The leading units that need not be loaded: of these, every group has what is read."""
        if self.identity is None:
            return None
        count = 0
        while count < min(last, loaded - 1) // self.size:
            prefix = seq.prefix((count + 1) * self.size)
            reads = (g for g, kind in self.attention() if count >= self.first_unit(kind, loaded))
            if any(self.find((group, prefix)) is None for group in {self.identity, *reads}):
                break
            count += 1
        plan = self.nothing()
        plan.cached = count * self.size
        for group, kind in self.attention():
            units = range(self.first_unit(kind, plan.cached), count)
            blocks = (self.find((group, seq.prefix((unit + 1) * self.size))) for unit in units)
            plan.shared[group] = list(blocks)  # type: ignore[arg-type]  # some are left below
        return (plan.cached, plan) if count else None

    def leave_to_load(self, plan: Plan, loaded: int) -> None:
        """Leaves what no query behind the load reads, and states, which come with the load."""
        plan.loaded = loaded
        for group, kind in self.attention() if loaded > plan.cached else ():
            first = self.first_unit(kind, plan.cached)
            unread = self.first_unit(kind, loaded) - first
            plan.shared[group] = plan.shared[group][max(0, unread) :]
            if group in plan.copied and first + unread > plan.cached // self.size:
                plan.left.append(plan.copied.pop(group))
        for group in self.recurrent() if loaded > plan.cached else ():
            plan.copied.pop(group, None)

    def priced(self, plan: Plan, seq: Seq, num_slots: int) -> Plan:
        units = self.units(max(num_slots, plan.cached))
        plan.fresh = len(self.singles())
        for group, kind in self.in_memory():
            first = self.first_unit(kind, plan.first_query)
            plan.fresh += max(0, units - first) - len(plan.shared[group])
        for _ in self.uncached():
            plan.fresh += units - self.start_of(plan.cached) // self.size
        if plan.taken_over:
            plan.fresh -= len(self.of_memory(plan.copied.values()))
        idle = self.idle_of(self.share(seq.namespace))
        plan.idle = len(set(plan.acquired()).intersection(idle))
        if self.nodes is not None:
            within = plan.taken_over and self.nodes in plan.copied
            plan.fresh_nodes = units - len(plan.shared[self.nodes]) - within
            plan.idle_nodes = len(set(plan.acquired()).intersection(self.idle_of(NODES)))
        return plan

    def has_nodes_for(self, plan: Plan) -> bool:
        needed = plan.fresh_nodes + plan.idle_nodes
        return not needed or needed <= self.available(NODES)

    def best_plan(self, seq: Seq, num_slots: int, terms: Terms) -> tuple[Plan, bool]:
        """The best plan that fits, or one that does not."""
        share = self.share(seq.namespace)
        room = self.available(share) - terms.watermark
        tried: list[Plan] = []
        plans = list(self.plans(seq, num_slots, terms))
        due = [plan for plan in plans if terms.due in (None, plan.cached)]
        if not due:
            raise StaleMatchError(terms.due or 0, plans[0].cached)
        for plan in due:
            if not self.may_fit(plan, num_slots, share):
                continue
            if (plan.needed == 0 or plan.needed <= room) and self.has_nodes_for(plan):
                return plan, True
            tried.append(plan)
        return self.plan_in_vain(tried), False

    def plan_in_vain(self, tried: list[Plan]) -> Plan:
        """Of plans that do not fit now, the one that a look-up answers with."""
        return max(tried, key=lambda plan: plan.cached, default=self.nothing())

    def may_fit(self, plan: Plan, num_slots: int, share: bytes | None) -> bool:
        """Whether the plan fits into its share if no other sequence uses it."""
        units = self.units(max(num_slots, plan.cached))
        first = [self.first_unit(kind, plan.first_query) for _, kind in self.in_memory()]
        first += [self.start_of(plan.cached) // self.size for _ in self.uncached()]
        return sum(units - unit for unit in first) + len(self.singles()) <= self.limit(share)

    def fitting_plan(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        plan, fits = self.best_plan(seq, num_slots, terms)
        if not fits:
            available = self.available(self.share(seq.namespace))
            raise OutOfBlocksError(plan.needed, available, terms.watermark)
        return plan

    # ---- taking it ----------------------------------------------------------------------

    def place(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        """Gives a sequence its blocks, or raises with nothing changed."""
        plan = self.fitting_plan(seq, num_slots, terms)
        self.expect(seq, plan, terms)
        self.hold_found(plan)
        self.fill(seq, num_slots, plan)
        return plan

    def hold_found(self, plan: Plan) -> None:
        """What it found stays, whatever is taken now; nobody else finds what it takes over."""
        self.held += plan.acquired()
        for block in plan.copied.values() if plan.taken_over else ():
            self.take_over(block)
        self.settle()

    def fill(self, seq: Seq, num_slots: int, plan: Plan) -> None:
        fresh = iter(self.take(plan.fresh, self.share(seq.namespace)))
        units = self.units(max(num_slots, plan.cached))
        seq.tables = [[] for _ in self.kinds]
        start = self.start_of(plan.cached)
        for group, kind in enumerate(self.kinds):
            table = seq.tables[group]
            if isinstance(kind, RecurrentState):
                own = self.going_on(group, plan, fresh)
                table += self.new_slots(group, chain([own] if own else [], fresh))
                continue
            if isinstance(kind, Ring):
                table.append(ring := next(fresh))
                self.empty(ring)
                continue
            if not kind.cached:
                table += [None] * (start // self.size)
                table += [next(fresh) for _ in range(units - len(table))]
                continue
            table += [None] * self.first_unit(kind, plan.first_query)
            table += plan.shared[group]
            if own := self.going_on(group, plan, fresh):
                table.append(own)
            table += self.more(group, units - len(table), fresh)
        seq.computed = seq.cached = plan.cached
        seq.replayed = seq.begun = start
        seq.since = seq.farthest = max(start, plan.loaded)
        seq.loads = plan.loaded if plan.loaded > plan.cached else 0
        seq.again = (start, plan.cached) if self.replay else (0, 0)
        seq.promoted = plan.cached // self.size
        seq.stands, seq.moves, seq.preempted, seq.slot = True, 0, False, 0
        self.settle_at(seq, plan.cached)
        self.enter(seq)

    def more(self, group: int, count: int, fresh: Iterator[Block]) -> list[Block]:
        """So many blocks of a group of attention."""
        if group == self.nodes:
            return self.take_nodes(count)
        return [next(fresh) for _ in range(count)]

    def new_slots(self, group: int, fresh: Iterator[Block]) -> list[Block | None]:
        return [next(fresh) for _ in range(1 + self.kinds[group].extra_blocks)]

    def going_on(self, group: int, plan: Plan, fresh: Iterator[Block]) -> Block | None:
        """The block in which the sequence continues what it found in part."""
        source = plan.copied.get(group)
        if source is None or plan.taken_over:
            return source
        [own] = self.more(group, 1, fresh)
        brought = self.size if group in self.recurrent() else plan.cached % self.size
        self.record(group, source, own, brought)
        return own

    def take_over(self, block: Block) -> None:
        block.content = None

    def settle_at(self, seq: Seq, length: int) -> None:
        """Its forward starts here; the unit may be unwritten before this step runs.

        Units before it are whole: nobody copies them.
        """
        seq.settled = seq.written = length
        unit, rest = divmod(length, self.size)
        for group, _ in self.attention() if rest else ():
            block = seq.own(group, unit)
            if block:
                seq.written = min(seq.written, (unit + 1) * self.size - block.unwritten)

    def num_computing(self, wanted: Prefix) -> int:
        """The most leading units of the prompt that one running sequence has or will commit."""
        running = (s for s in self.seqs.values() if not s.preempted and not s.outdated)
        alike = [s for s in running if self.config.prefix_caching and s.namespace == wanted[0]]
        ends = (s.num_tokens // self.size * self.size for s in alike)
        pairs = zip(alike, ends, strict=True)
        shared = (common(s.prefix(end)[1], wanted[1]) for s, end in pairs)
        return max(shared, default=0) // self.size

    # ---- what the order of eviction is told ---------------------------------------------
    # ``leaves.py`` and ``boundaries.py`` are the two orders; each says what matters to it.

    def expect(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        """A prompt is admitted; its blocks are not taken yet."""

    def expect_stops(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        """Decides where the forward should stop."""

    def enter(self, seq: Seq) -> None:
        """The sequence has its blocks."""

    def note_passing(self, seq: Seq, prefix: Prefix) -> None:
        """A unit of a sequence can be found."""

    def leave(self, seq: Seq) -> None:
        """A sequence leaves the path that it has computed."""

    def inherit(self, block: Block, twin: Block) -> None:
        """Two blocks with equal content become one."""

    def serves(self, prefix: Prefix) -> bool:
        """Whether prompts can continue here."""
        raise NotImplementedError

    def is_boundary_now(self, prefix: Prefix) -> bool:
        """A state is kept here; returns whether prompts can continue here now."""
        raise NotImplementedError

    def keep_as_shared(self, prefix: Prefix) -> None:
        """Several prompts will probably continue here."""

    def pass_no_more(self, prefix: Prefix) -> None:
        """A second sequence ends here, or stops here for another reason."""

    def pass_by(self, prefix: Prefix) -> None:
        """Prompts will probably not continue here."""
