"""The engine for several groups of layers, and what the manager and the specification must share.

Such an engine computes in chunks, and often ends a forward where an admission asks it to, so that a
state can be kept there. It never asks again where a launched forward has ended, because a state
cannot be advanced twice. Between calls on a sequence, its tables must not change.

The specification chooses among equals otherwise than the manager does, once something is evicted.
So the two are compared until then; the invariants and the memory are checked to the end.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr import BlockManager, BlockState, Priority
from blockmgr.errors import NeverFitsError, OutOfBlocksError, OutOfSequencesError, StepError
from tests.specification.admission import Terms
from tests.specification.layers import Kind, RecurrentState, Ring
from tests.stress.lockstep import DivergenceError, Entry
from tests.stress.memory import Step, Work, extend_prefixes
from tests.stress.mirror import GroupMirror
from tests.stress.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tests.stress.lockstep import Launched

__all__ = ["LayoutWorld"]

Tables = tuple[tuple[int, ...], ...]

UNSPECIFIED = frozenset({"hold", "let_go", "touch_blocks", "forget", "pin", "unpin", "set_time"})
UNSPECIFIED |= {"reset", "take_remaps"}
"""Operations that the specification of several groups does not have."""

REFUSALS = {OutOfBlocksError, OutOfSequencesError, NeverFitsError, StepError}
"""Which of these comes first is not specified."""


class LayoutWorld(World):
    """A manager with any groups of layers, optionally its specification, a device, an engine."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        told = self.mirror is not None and self.distinct and "E" in self.detectors
        self.mirror = GroupMirror() if told else None
        states = [kind for kind in self.kinds if isinstance(kind, RecurrentState)]
        self.extra = max((kind.extra_blocks for kind in states), default=0)
        self.places = self.extra > 0

    places: bool
    """Whether the engine says in which slot a state is."""

    replayed = 0  # tokens that were found, and are computed again

    tied = False
    """Whether a copy comes from another one of several blocks with the same prefix."""

    @property
    def is_specified(self) -> bool:
        """Whether only calls that the specification has can be made."""
        return self.model is not None or not isinstance(self.manager, BlockManager)

    def skips(self, op: str) -> bool:
        return self.is_specified and op in UNSPECIFIED

    @cached_property
    def sizes(self) -> list[tuple[Kind, int]]:
        """Each kind of layer, and the tokens of its blocks."""
        return [(kind, kind.block_size or self.size) for kind in self.kinds]

    @cached_property
    def columns(self) -> list[tuple[int, int]]:
        """By group, the tokens of a block, and its number of columns, or 0 if that varies."""
        return [
            (size, 1 + kind.extra_blocks if isinstance(kind, RecurrentState | Ring) else 0)
            for kind, size in self.sizes
        ]

    # ---- tables -------------------------------------------------------------------------

    def tables_of(self, handle: int) -> Tables:
        """By group, the ids of the blocks of a sequence; 0 where it has none."""
        view = self.manager.sequence(handle)
        if view.is_preempted:
            return ()
        slots = view.num_slots
        ends = [end or -(-slots // size) for size, end in self.columns]
        if isinstance(self.manager, BlockManager):
            row = self.manager.row(handle)
            rows = zip(self.shown_tables, ends, strict=True)
            return tuple(tuple(table[row, :end].tolist()) for table, end in rows)
        ids = ([block.id if block else 0 for block in table] for table in view.tables)
        return tuple(
            tuple(table[:end] + [0] * (end - len(table)))
            for table, end in zip(ids, ends, strict=False)
        )

    @cached_property
    def shown_tables(self) -> list[npt.NDArray[np.int32]]:
        """By group, the table of all sequences, which is always the same array."""
        return [self.manager.group_table(group) for group in range(len(self.kinds))]

    def blocks_of(self, entry: Entry) -> set[int]:
        return {block for table in self.tables_of(entry.handle) for block in table} - {0}

    def hand(self, entry: Entry) -> None:
        entry.tables = self.tables_of(entry.handle)

    def hand_after_commit(self, entry: Entry) -> None:
        """A commit may take entries that windows have passed; if told so, it changes no other."""
        before = entry.tables
        self.hand(entry)
        if self.manager.config.dedup == "remap":
            return
        for old, new in zip(before, entry.tables, strict=True):
            if any(now not in {block, 0} for block, now in zip(old, new, strict=True)):
                raise DivergenceError(f"a commit changed the table {old} to {new}")

    def hand_anew(self, entry: Entry) -> None:
        """Growth that moved the sequence to another block loses what a launched forward writes."""
        now = self.tables_of(entry.handle)
        pairs = zip(entry.tables, now, strict=True)
        if any(old != new[: len(old)] for old, new in pairs):
            self.lose_launched(entry)
        entry.tables = now

    def lose_launched(self, entry: Entry) -> None:
        entry.version += 1
        entry.ahead.clear()
        entry.left_off = entry.ran = self.manager.sequence(entry.handle).num_computed_tokens
        self.take_slot(entry, entry.placed, entry.ran)

    def take_slot(self, entry: Entry, slot: int, after: int) -> None:
        """After so many tokens, the state is in this slot."""
        entry.slot, entry.slot_at = slot, after

    # ---- what an engine does ------------------------------------------------------------

    def begin_entry(self, entry: Entry) -> None:
        super().begin_entry(entry)
        self.replayed += self.manager.sequence(entry.handle).num_replayed_tokens
        entry.ran = entry.left_off
        entry.placed = 0
        self.take_slot(entry, 0, entry.start)
        entry.begins = True

    def trust_what_is_computed(self, entry: Entry) -> None:
        super().trust_what_is_computed(entry)
        entry.left_off = entry.ran = entry.start
        entry.placed = 0
        self.take_slot(entry, 0, entry.start)
        self.hand(entry)

    def first_to_write(self, entry: Entry) -> int:
        return entry.start if self.early else entry.left_off

    def stop_of(self, entry: Entry, view: Any) -> int:
        """Where the next forward of the sequence ends."""
        start = self.first_to_write(entry)
        known = view.num_tokens + len(entry.ahead)
        most = min(known, view.num_slots, start + self.habits.chunk)
        for stop in self.manager.stops(entry.handle):
            if start < stop < most and self.rng.random() < self.habits.stops:
                return int(stop)
        return max(start, int(most))

    def work_of(self, entry: Entry, view: Any) -> Work | None:
        if not entry.running or entry.loads:
            return None
        tables, start = self.tables_of(entry.handle), self.first_to_write(entry)
        if tables != entry.tables:
            raise DivergenceError(f"the tables of {entry.handle} changed without a call on it")
        stop = view.num_computed_tokens if self.early else self.stop_of(entry, view)
        if not self.early and self.rng.random() < self.habits.idles:
            stop = start
        work = Work.on_tables(
            f"sequence {entry.handle}",
            self.prefixes_ahead(entry)[:stop],
            start,
            tables,
            kinds=self.kinds,
            block_size=self.size,
        )
        begins = start if entry.begins else -1
        work.low = dict.fromkeys(self.rings(), begins)
        if any(kind.replay for kind in self.kinds):
            self.replay_in(work, entry, view)
        if self.places:
            self.place_work(entry, work)
        return work

    def prefixes_ahead(self, entry: Entry) -> list[int]:
        """Names of the prefixes of its tokens, and of those that the manager does not know yet."""
        prefixes = list(entry.prefixes)
        extend_prefixes(prefixes, entry.ahead, self.size, entry.namespace, entry.extras)
        return prefixes

    def sample_ahead(self, entry: Entry) -> None:
        """Makes room for one more token, if all before it are computed or about to be."""
        # One that no forward was launched over yet is as good as unknown: a fork may share its
        # block since.
        del entry.ahead[max(0, entry.left_off - len(entry.tokens)) :]
        known = len(entry.tokens) + len(entry.ahead)
        if not entry.running or entry.loads or entry.left_off < known or self.rng.random() < 0.3:
            return
        if len(entry.ahead) > self.in_flight_limit:
            return
        if self.on("reserve", entry, known + 1):
            self.hand_anew(entry)
            if entry.left_off == known:
                entry.ahead.append(self.rng.randrange(2))
        self.settle()

    def learn(self, entry: Entry, work: Work) -> None:
        """The tokens that a forward was launched over are known now."""
        count = work.stop - len(entry.tokens)
        tokens, entry.ahead = entry.ahead[:count], entry.ahead[count:]
        before = entry.version
        super().append(entry, tokens)
        if entry.version == before and len(entry.tokens) < work.stop:  # refused
            self.lose_launched(entry)

    def rings(self) -> list[int]:
        return [group for group, kind in enumerate(self.kinds) if isinstance(kind, Ring)]

    def replay_in(self, work: Work, entry: Entry, view: Any) -> None:
        """Before its hit, a forward writes uncached groups only, and these read no more (G19)."""
        since = view.num_cached_tokens
        work.hit, work.begun = since + view.num_replayed_tokens, not entry.begins
        uncached = [g for g, kind in enumerate(self.kinds) if not kind.cached]
        work.low = {**work.low, **dict.fromkeys(uncached, since)}
        if work.start < work.hit:
            work.low = {**work.low, **dict.fromkeys(self.rings(), since)}
        cached = set(range(len(self.kinds))) - {*uncached, *self.rings()}
        work.first = dict.fromkeys(cached, max(work.start, work.hit))
        self.check_slots(work, entry)

    def check_slots(self, work: Work, entry: Entry) -> None:
        """Slots are those of the tables, and none where nothing is to be written."""
        for group, (kind, size) in enumerate(self.sizes):
            if isinstance(kind, RecurrentState | Ring) or not isinstance(
                self.manager, BlockManager
            ):
                continue
            slots = self.manager.slot_mapping(entry.handle, work.start, work.stop, group=group)
            table = self.tables_of(entry.handle)[group]
            for position, slot in zip(range(work.start, work.stop), slots.tolist(), strict=True):
                due = table[position // size] * size + position % size
                if slot != (due if position >= work.first.get(group, work.start) else -1):
                    raise DivergenceError(f"slot {slot} of group {group} at {position}")

    def place_work(self, entry: Entry, work: Work) -> None:
        """A forward of a few tokens leaves the state after each in a slot of its own."""
        ends, slots = [work.stop] if work.stop > work.start else [], list(range(1 + self.extra))
        self.rng.shuffle(slots)
        if work.stop - work.start <= len(slots) and self.rng.random() < 0.7:
            ends = list(range(work.start + 1, work.stop + 1))
        work.placed = {work.start: entry.slot} | dict(zip(ends, slots, strict=False))
        for group, kind in enumerate(self.kinds):
            if not isinstance(kind, RecurrentState):
                continue
            rows = [b * self.device.stride + np.arange(self.size) for b in entry.tables[group]]
            written = {end: rows[work.placed[end]] for end in ends}
            work.states = {**work.states, group: (rows[entry.slot], written)}

    def complete_step(self, step: Step) -> None:
        """A ring is copied whole, and emptied after the copies."""
        step.emptied = step.plan.zeros.tolist() if step.plan.zeros is not None else []
        groups = step.plan.groups.tolist() if step.plan.groups is not None else []
        for index, group in enumerate(groups):
            if isinstance(self.kinds[group], Ring):
                step.copies[index] = (*step.copies[index][:2], self.device.stride)
        if set(step.emptied) & set(step.plan.destinations.tolist()):
            raise DivergenceError(f"a copy fills a ring that is emptied: {step.emptied}")

    def note_launch(self, entry: Entry, view: Any, work: Work) -> None:
        super().note_launch(entry, view, work)
        entry.begins &= work.stop == work.start
        if not self.early:
            entry.left_off = work.stop
        self.take_slot(entry, work.placed.get(work.stop, 0), work.stop)

    def note_run(self, entry: Entry, work: Work, held_back: int) -> None:
        if work.stop > len(entry.tokens):
            before = entry.version
            self.learn(entry, work)
            if entry.version > before:
                return
        entry.ran = max(entry.ran, work.stop)
        computed = self.manager.sequence(entry.handle).num_computed_tokens
        if self.early:
            if self.habits.affirms and entry.start == computed and self.open is None:
                self.declare(entry, computed)
        elif work.stop > computed - self.habits.affirms and not held_back:
            self.declare(entry, self.accepted(entry, work), work.placed)

    def accepted(self, entry: Entry, work: Work) -> int:
        """Where a forward over drafts goes on: the last of them may be wrong."""
        few = 1 < work.stop - work.start == len(work.placed) - 1
        if not few or entry.left_off != work.stop or self.rng.random() < 0.5:
            return int(work.stop)
        # Of more drafts, a ring has overwritten what is read before them.
        drafts = min((k.width - k.restart for k in self.kinds if isinstance(k, Ring)), default=100)
        least = max(work.start + 1, work.stop - drafts)
        entry.ran = entry.left_off = accepted = self.rng.randint(least, work.stop)
        self.take_slot(entry, work.placed[accepted], accepted)
        entry.version += 1  # a step that was launched since does nothing
        return accepted

    def note_abort(self, entry: Entry, work: Work) -> None:
        entry.begins |= work.start in work.low.values()
        if not self.early:
            entry.left_off = min(entry.left_off, work.start)
        self.take_slot(entry, work.placed.get(work.start, 0), work.start)

    def place(self, entry: Entry, slot: int) -> None:
        """Says in which slot the states are, before a commit."""
        if self.places and self.on("place_state", entry, slot):
            entry.placed = slot

    def declare(
        self, entry: Entry, num_computed_tokens: int, placed: Mapping[int, int] | None = None
    ) -> None:
        self.place(entry, (placed or {}).get(num_computed_tokens, entry.slot))
        if self.on("commit", entry, num_computed_tokens):
            self.hand_after_commit(entry)
        self.settle()

    def written_until(self, entry: Entry) -> int:
        """The tokens that a forward has written; -1 while one that writes more is launched."""
        if entry.loads:
            return -1
        if self.early:
            return entry.start
        return entry.ran if entry.ran == entry.left_off else -1

    def committable(self, entry: Entry) -> int:
        view = self.manager.sequence(entry.handle)
        stop = self.stop_of(entry, view) if self.early else self.written_until(entry)
        return max(stop, int(view.num_computed_tokens))

    def commit(self, entry: Entry, num_computed_tokens: int) -> None:
        """Says where the last forward ended, or something that must be refused."""
        view, n = self.manager.sequence(entry.handle), num_computed_tokens
        if entry.loads:
            self.finish_load(entry, n)
            return
        if entry.running and not self.early:
            if self.written_until(entry) < 0:
                return
            if view.num_computed_tokens <= n <= min(view.num_tokens, view.num_slots):
                n = self.committable(entry)
        self.declare(entry, n)

    def begin(self, skip: int = -1, applied: bool = False) -> Launched | None:
        """Without steps in flight, a step is committed before the next one."""
        for launched in list(self.steps) if not self.in_flight_limit else ():
            if launched is not self.open and not launched.finished:
                self.finish(launched)
        if not self.habits.samples_ahead or self.early:
            return super().begin(skip, applied)
        for entry in self.entries if self.open is None else ():
            self.sample_ahead(entry)
        launched = super().begin(skip, applied=True)
        for entry, _, work in launched.entries if launched else ():
            if work.stop > len(entry.tokens):
                key = {} if work.start % 4 else {"num_slots": work.stop}
                self.both("mark_state_moved", [entry.handle], [entry.twin], **key)
        return launched

    def abort(self) -> None:
        """Of forwards over unknown tokens, none is aborted: they run once they are launched."""
        if not self.habits.samples_ahead:
            super().abort()

    def append(self, entry: Entry, tokens: list[int]) -> None:
        """Nothing, while the next token is one that a forward samples."""
        if not entry.ahead:
            super().append(entry, tokens)

    # ---- calls --------------------------------------------------------------------------

    def both(self, name: str, ours: Sequence[Any], theirs: Sequence[Any], **kw: Any) -> Any:
        answer = super().both(name, ours, theirs, **kw)
        if answer is not None and name in {"can_admit", "touch"}:
            return answer[0], answer[0]
        return answer

    def compare_errors(self, call: str, error: Any, refusal: Any) -> None:
        """After a shortage because the manager keeps a block for others, they differ."""
        if type(error) is type(refusal):
            return
        if {type(error), type(refusal)} <= REFUSALS:
            return
        if isinstance(error, OutOfBlocksError) and self.num_kept_for_others():
            self.model = None
        else:
            self.differ(f"{call}: {error!r}, expected {refusal!r}")

    def admit(
        self,
        tokens: list[int],
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
        num_slots: int | None = None,
        read_cache: bool = True,
        *,
        by_match: bool = False,
        session: bytes = b"",
        **limits: int | None,
    ) -> Entry | None:
        slots = num_slots and min(num_slots, len(tokens))
        session = session if self.manager.config.retention else b""
        key: dict[str, Any] = {"by_match": by_match, "session": session, **limits}
        num_loaded = min(limits.get("num_loaded_tokens") or 0, slots or len(tokens))
        if self.is_specified:
            key, extras, read_cache, num_slots = {}, None, True, slots
            key |= {"by_match": by_match} if num_loaded else {}
        key |= {"num_loaded_tokens": num_loaded} if num_loaded else {}
        entry = super().admit(tokens, namespace, extras, num_slots, read_cache, **key)
        if entry is not None:
            rings = (kind.restart for kind in self.kinds if isinstance(kind, Ring))
            behind = min(num_loaded, len(tokens) - 1)
            behind -= behind % math.lcm(*rings)
            entry.loads = behind if behind > entry.start else 0
        return entry

    def finish_load(self, entry: Entry, num_computed_tokens: int) -> None:
        """A commit of what is loaded; one of less is refused."""
        if num_computed_tokens < entry.loads:
            self.declare(entry, num_computed_tokens)
            return
        work = Work.on_tables(
            f"the load of {entry.handle}",
            entry.prefixes[: entry.loads],
            entry.start,
            entry.tables,
            kinds=self.kinds,
            block_size=self.size,
        )
        self.device.load(work)
        self.declare(entry, entry.loads)
        if self.manager.sequence(entry.handle).num_computed_tokens == entry.loads:
            entry.start = entry.left_off = entry.ran = entry.loads
            self.take_slot(entry, 0, entry.loads)
            entry.loads = 0

    def preempt(self, entry: Entry, *, withdraw: bool = False) -> None:
        super().preempt(entry, withdraw=withdraw)
        if not entry.running:
            entry.loads = 0
            entry.ahead.clear()

    def match(
        self,
        tokens: list[int],
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
        **asked: int | None,
    ) -> Any:
        """What does not fit now may find anything: no admission will use it."""
        found, error = self.attempt(
            self.manager, "match", [tokens], {"namespace": namespace, "extras": extras, **asked}
        )
        if self.model is not None and error is None:
            seq = self.model.prompt(tokens, namespace, extras)
            plan, fits = self.model.best_plan(seq, asked["num_slots"] or len(tokens), Terms())
            if fits and self.model.start_of(plan.cached) != found.num_cached_tokens:
                if self.num_kept_for_others():
                    self.model = None  # less fits
                else:
                    self.differ(f"match found {found.num_cached_tokens}, expected {plan}")
        return None if error else (found, found)

    def resume_together(self, entries: list[Entry], **key: Any) -> bool:
        """Of ends that two of them find, one begins in a copy, so the choice among equals shows."""
        for entry in entries if self.model is not None else ():
            seq = self.model.seqs[entry.twin]
            if not seq.preempted:
                continue
            plan = next(self.model.plans(seq, key.get("num_slots") or len(entry.tokens)))
            self.tied |= len(self.model.alike(seq.prefix(plan.cached))) > 1
        return super().resume_together(entries, **key)

    def decode(self, entries: list[Entry], tokens: list[int]) -> None:
        pairs = [pair for pair in zip(entries, tokens, strict=True) if not pair[0].ahead]
        entries, tokens = [entry for entry, _ in pairs], [token for _, token in pairs]
        for entry in entries:
            if self.written_until(entry) == len(entry.tokens):  # else a forward is yet to place it
                self.place(entry, entry.slot)
        super().decode(entries, tokens)
        for entry in entries:
            self.hand(entry)

    def truncate(self, entry: Entry, num_tokens: int) -> None:
        if answer := self.on("truncate", entry, num_tokens):
            if answer[0] != answer[1]:
                self.differ(f"truncate to {num_tokens} left {answer[0]}, expected {answer[1]}")
            del entry.tokens[num_tokens:], entry.prefixes[num_tokens:]
            if answer[0] < entry.left_off:
                self.lose_launched(entry)
            entry.start = min(entry.start, answer[0])
            if answer[0] < entry.slot_at:
                self.take_slot(entry, entry.placed, answer[0])
            self.hand(entry)
        self.settle()

    def cache_state(self, entry: Entry) -> None:
        if (answer := self.on("cache_state", entry)) and answer[0] != answer[1]:
            self.differ(f"cache_state answered {answer[0]}, expected {answer[1]}")
        if answer:
            self.hand_after_commit(entry)
        self.settle()

    def retain(self, entry: Entry, start: int, stop: int, **key: Any) -> None:
        view = self.manager.sequence(entry.handle)
        specified = key["priority"] is not None and key["ttl"] is None and entry.running
        fits = start < stop <= min(view.num_tokens, view.num_slots)
        if not self.is_specified or (specified and fits and self.manager.config.retention):
            super().retain(entry, start, stop, **key)

    def retain_prefix(self, entry: Entry, priority: Priority) -> None:
        if self.manager.config.retention:
            key = {"priority": priority, "namespace": entry.namespace, "extras": entry.extras}
            self.same_answer("retain_prefix", [entry.tokens], **key)

    # ---- detectors ----------------------------------------------------------------------

    def differ(self, how: str) -> None:
        """With a tie, blocks differ that only a copy keeps, and what finds them."""
        if not self.tied:
            raise DivergenceError(how)
        self.model = None

    def check_fences(self, name: str) -> None:
        """Checks that no block is handed out for writing while a launched step may use it."""
        held: set[int] = set()
        busy = set().union(*(launched.blocks for launched in self.steps))
        for handle in self.manager.handles():
            view = self.manager.sequence(handle)
            computed = max(
                view.num_computed_tokens, view.num_cached_tokens + view.num_replayed_tokens
            )
            for (kind, size), table in zip(self.sizes, self.tables_of(handle), strict=False):
                held.update(table)
                if not busy:
                    continue
                state = isinstance(kind, RecurrentState | Ring)
                writable = table if state else table[computed // size :]
                early = (set(writable) - self.held) & busy - {0}
                if early:
                    raise DivergenceError(f"{name} handed out blocks {early}, still in flight")
        self.held = held

    held: frozenset[int] | set[int] = frozenset()
    """The blocks in all tables after the last call."""

    def compare(self) -> None:
        """Compares what is visible, up to the ids of blocks, until something is evicted."""
        if self.model.count["evicted_blocks"] or self.manager.stats().evicted_blocks:
            self.model = None
            return
        how = self.difference()
        if how:
            self.differ(how)

    def difference(self) -> str:
        names: dict[int, int] = {}
        for entry in self.entries:
            facts = self.facts(self.manager, entry.handle), self.facts(self.model, entry.twin)
            if facts[0] != facts[1]:
                return f"sequence {entry.handle}: {facts[0]}, expected {facts[1]}"
            for mine, theirs in self.pairs(entry):
                if bool(mine) != bool(theirs) or names.setdefault(mine, theirs) != theirs:
                    return f"block {mine} of {entry.handle} stands for two of the specification"
        if len(set(names.values())) != len(names):
            return "two blocks stand for one of the specification"
        free = sum(len(self.model.free_blocks(share)) for share in (None, *self.model.quotas))
        found = self.manager.stats().free_blocks
        # The manager keeps a block as long as one that continues it is in use.
        if not 0 <= free - found <= self.num_kept_for_others():
            return f"{found} free blocks, expected {free}"
        return self.difference_of_copies(names)

    def facts(self, manager: Any, handle: int) -> tuple[object, ...]:
        seq = manager.sequence(handle)
        tokens = list(map(int, seq.tokens))
        if seq.is_preempted:
            return tokens, "preempted"
        found = seq.num_cached_tokens, seq.num_replayed_tokens
        return tokens, seq.num_computed_tokens, found, seq.num_slots, tuple(manager.stops(handle))

    def pairs(self, entry: Entry) -> Iterator[tuple[int, int]]:
        """Blocks of the manager and of the specification in the same place of a table."""
        tables = self.model.sequence(entry.twin).tables if entry.running else ()
        tables = tables[: len(self.kinds)]  # and what the specification has beside them
        for mine, theirs in zip(self.tables_of(entry.handle), tables, strict=True):
            ids = [block.id if block else 0 for block in theirs]
            yield from zip(mine, ids, strict=True)

    def difference_of_copies(self, names: dict[int, int]) -> str:
        expected = [copy for copy in self.model.waiting() if copy.group != self.model.nodes]
        if not expected and not self.model.in_flight:
            self.tied = False
        planned = self.planned_copies()
        found = [copy for copy in planned if copy[1] != copy[2]]
        zeros = {block.id for block in (*self.model.due_zeros, *self.model.taken_zeros)}
        emptied = {names[to] for _, source, to, _ in planned if source == to and to in names}
        known = set(names.values())
        # Of a copy whose destination has left its table, the name is not known.
        due = {(c.group, c.destination.id, c.num_tokens) for c in expected}
        due = {copy for copy in due if copy[1] in known - zeros}
        seen = {(group, names[to], n) for group, _, to, n in found if to in names}
        if seen != due:
            return f"copies {seen}, expected {due}"
        if emptied != zeros & known:
            return f"rings {emptied} are emptied, expected {zeros & known}"
        sources = {copy.destination.id: copy.source.id for copy in expected}
        for _, source, destination, _ in found:
            other = sources.get(names.get(destination, -1))
            if other is not None and (source in names or other in known):
                self.tied |= names.get(source) != other
        return ""

    def planned_copies(self) -> list[tuple[int, int, int, int]]:
        """Group, source, destination and tokens of each copy that is not applied."""
        facts = self.manager.blocks()
        rows = zip(facts.group, facts.copy_source, facts.copy_tokens, strict=True)
        return [
            (int(group), int(source), block, int(count))
            for block, (group, source, count) in enumerate(rows)
            if source >= 0
        ]

    def num_kept_for_others(self) -> int:
        facts = self.manager.blocks()
        return int(((facts.state == BlockState.CACHED) & (facts.ref_count == 0)).sum())

    def compare_plan(self, plan: Any, expected: Any) -> None:
        model, self.model = self.model, None
        super().compare_plan(plan, expected)
        self.model = model
