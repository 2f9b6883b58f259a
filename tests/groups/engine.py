"""Engines with random habits that run a manager with groups on a memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from blockmgr.errors import NeverFitsError, OutOfBlocksError, StepError
from tests.groups.memory import Copy, Memory, Work
from tests.groups.model import ModelManager
from tests.specification.blocks import Seq
from tests.specification.layers import (
    ChunkedAttention,
    FullAttention,
    Kind,
    RecurrentState,
    SlidingWindow,
)

SETS: tuple[tuple[Kind, ...], ...] = (
    (FullAttention(),),
    (SlidingWindow(5),),
    (FullAttention(), SlidingWindow(4)),
    (FullAttention(), SlidingWindow(5), SlidingWindow(1)),
    (FullAttention(), ChunkedAttention(8)),
    (FullAttention(), ChunkedAttention(6), SlidingWindow(7)),
    (RecurrentState(),),
    (FullAttention(), RecurrentState()),
    (SlidingWindow(9), RecurrentState()),
    (FullAttention(), SlidingWindow(6), RecurrentState(), RecurrentState()),
)
"""Some are those of released models; the widths are close to the size of a unit."""


Tables = tuple[tuple[int, ...], ...]

CALLS = {
    "admit": 6,
    "append": 8,
    "reserve": 3,
    "fork": 2,
    "branch": 2,
    "reparent": 1,
    "truncate": 2,
    "preempt": 1,
    "resume": 2,
    "turn": 2,
    "cache": 1,
    "retain": 1,
    "hold": 1,
    "touch": 1,
    "discard": 1,
    "free": 3,
}
AHEAD = CALLS | {"branch": 12, "free": 2, "truncate": 4}
"""Used while copies or writes are pending: favours calls that copy pending content."""


@dataclass(frozen=True)
class Habits:
    """The habits of an engine.

    Attributes:
        overlaps: It launches a step before it commits the previous one.
        stops: How often a forward ends at a stop of the admission.
        chunk: The most tokens of a forward.
        aborts: How often a closed step is not launched.
        affirms: It also commits sequences that it left out of a step, at their present length.
        drafts: Tokens that it may truncate after a commit.
        early: It commits what the forward of a step will write before it closes the step.
        late: It completes a step only after it has committed it.
        plans_ahead: It keeps planning while a step is closed and not yet launched.
    """

    overlaps: bool
    stops: float
    chunk: int
    aborts: float
    affirms: bool
    drafts: int
    early: bool
    late: bool
    plans_ahead: bool

    @classmethod
    def drawn(cls, rng: random.Random, kinds: Sequence[Kind]) -> Habits:
        recurrent = any(isinstance(kind, RecurrentState) for kind in kinds)
        return cls(
            overlaps=rng.random() < 0.3,
            stops=rng.choice([0.0, 0.5, 1.0, 1.0]),
            chunk=rng.choice([1, 3, 4, 8, 100]),
            aborts=rng.choice([0.0, 0.0, 0.2, 0.5]),
            affirms=rng.random() < 0.5,
            # A state that has consumed a rejected draft cannot go back.
            drafts=0 if recurrent else rng.choice([0, 0, 2]),
            early=rng.random() < 0.3,
            late=rng.random() < 0.5,
            plans_ahead=rng.random() < 0.4,
        )


@dataclass
class InFlight:
    """The blocks that a closed step may read and write, and which of them were released since."""

    blocks: set[int]
    released: set[int]


class Fences:
    """Checks that no block is written for another sequence while a step may still read it."""

    def __init__(self) -> None:
        self.steps: list[InFlight] = []

    def watch(self, manager: ModelManager) -> None:
        """Notes after each call which blocks are no longer held."""
        for step in self.steps:
            step.released |= step.blocks - manager.held_ids()

    def close(self, manager: ModelManager, copies: Sequence[Copy], work: Sequence[Work]) -> None:
        written = {copy.destination for copy in copies}
        for one in work:
            units = slice(one.start // manager.size, -(-one.stop // manager.size))
            for table, kind in zip(one.tables, manager.kinds, strict=True):
                written.update(table if isinstance(kind, RecurrentState) else table[units])
        # A cached block may be rewritten, because its tokens are the same.
        written -= {block.id for block in manager.blocks if block.content is not None}
        for step in self.steps:
            early = written & step.released
            assert not early, f"blocks {early} are written while a step in flight may read them"
        self.steps.append(InFlight(manager.held_ids(), set()))


class Engine:
    """Plans, launches and commits; it never breaks the step contract."""

    def __init__(
        self,
        seed: int,
        kinds: Sequence[Kind] | None = None,
        build: Callable[..., ModelManager] = ModelManager,
        *,
        audits: bool = True,
        habits: Mapping[str, Any] | None = None,
        more_blocks: int = 0,
    ) -> None:
        self.audits = audits
        self.rng = rng = random.Random(seed)
        self.kinds = tuple(rng.choice(SETS) if kinds is None else kinds)
        self.habits = replace(Habits.drawn(rng, self.kinds), **(habits or {}))
        has_states = any(isinstance(kind, RecurrentState) for kind in self.kinds)
        num_blocks = rng.choice([6, 10, 16, 30]) + 3 * len(self.kinds) + more_blocks
        apart = 2 * len(self.kinds) + more_blocks
        quotas = {b"q": rng.choice([4, 12]) + apart} if rng.random() < 0.3 else {}
        self.namespaces = [b"", b"", b"t", *quotas, *quotas]
        num_blocks += sum(quotas.values())
        self.manager = build(
            num_blocks,
            rng.choice([2, 4]),
            self.kinds,
            min_partial_tokens=(least := rng.choice([0, 1, 2])),
            halfway_stop_tokens=rng.choice([0, 1, 16]),
            prompt_end_stop=rng.choice([None, 0, 1, 3]) if least and has_states else None,
            quotas=quotas,
        )
        self.manager.lookahead = self.habits.drafts
        self.manager.early = self.habits.early
        self.manager.steps_in_flight = 8 * self.habits.overlaps
        self.memory = Memory(num_blocks, self.manager.size, self.kinds, rng)
        self.uncommitted: list[list[tuple[int, int]]] = []
        """For each closed, uncommitted step: its sequences, and the length it computes of each."""

        self.known: dict[int, tuple[Tables, int]] = {}
        """The tables and the computed length that the last call on a sequence left.

        The engine does not look them up again: no other call changes them.
        """

        self.holds: list[int] = []
        self.fences = Fences()
        self.texts: list[list[int]] = []
        self.before: tuple[object, ...] = ()
        self.found = 0
        self.calls = 0
        self.refused = 0
        self.decoded = 0

    # ---- planning -----------------------------------------------------------------------

    def text(self) -> list[int]:
        """Often the start of an earlier text, followed by other tokens."""
        rng = self.rng
        known = rng.choice(self.texts) if self.texts else []
        known = known[: rng.choice([rng.randint(0, 30), 30])]
        text = known + [rng.randrange(2) for _ in range(rng.randint(1, 9))]
        self.texts = [*self.texts[-8:], text]
        return text

    def admit(self) -> None:
        self.enter(self.text(), self.rng.choice(self.namespaces))

    def turn(self, seq: Seq) -> None:
        """Ends a sequence and immediately admits the next turn of its conversation."""
        self.free(seq)
        self.remember()
        self.enter([*seq.tokens, *self.rng.choices([0, 1], k=3)], seq.namespace)

    def echo(self, seq: Seq) -> None:
        """Admits another prompt that starts with the same tokens."""
        self.enter([*seq.tokens, *self.rng.choices([0, 1], k=3)], seq.namespace)

    def retain(self, seq: Seq) -> None:
        """Retains a random prefix or range of tokens."""
        level = self.rng.choice([-1, 1, 2])
        if self.rng.random() < 0.5:
            text = self.rng.choice([seq.tokens, *self.texts])
            self.manager.retain(text, level, seq.namespace)
            return
        most = min(len(seq.tokens), self.manager.num_slots(seq))
        if most:
            stop = self.rng.randint(1, most)
            self.manager.retain_tokens(seq.handle, self.rng.randrange(stop), stop, level)

    def cache(self, seq: Seq) -> None:
        """Caches a state where the engine did not have to stop."""
        self.manager.cache_state(seq.handle)
        self.learn(seq.handle)

    def hold(self, seq: Seq) -> None:
        """Holds a block, as a transfer of its K/V does, or releases a hold."""
        if self.holds and self.rng.random() < 0.5:
            self.manager.release([self.holds.pop(self.rng.randrange(len(self.holds)))])
        elif ids := self.ids_of(seq):
            self.holds.append(self.rng.choice(ids))
            self.manager.acquire(self.holds[-1:])

    def ids_of(self, seq: Seq) -> list[int]:
        return [block for table in self.manager.tables(seq.handle) for block in table if block]

    def touch(self, seq: Seq) -> None:
        text = self.rng.choice([seq.tokens, *self.texts])
        self.manager.touch_prompt(text, seq.namespace)

    def discard(self, seq: Seq) -> None:
        """Forgets a block, as if its content were wrong."""
        if ids := self.ids_of(seq):
            self.manager.forget([self.rng.choice(ids)])

    def enter(self, text: list[int], namespace: bytes) -> None:
        slots = self.rng.choice([None, None, self.rng.randint(1, len(text))])
        promised = self.manager.match(text, namespace)
        handle = self.manager.admit(text, namespace, slots)
        self.learn(handle)
        cached = self.manager.seqs[handle].cached
        assert slots is not None or cached == promised
        self.found += cached

    def some(self, *, preempted: bool = False) -> Seq | None:
        seqs = [seq for seq in self.manager.seqs.values() if seq.preempted == preempted]
        if self.manager.flight and self.rng.random() < 0.5:
            # Bugs in planning ahead show while copies are in flight.
            ends = {copy.destination for copy in self.manager.flight}
            seqs = [s for s in seqs if any(ends.intersection(t) for t in s.tables)] or seqs
        return self.rng.choice(seqs) if seqs else None

    def launched(self, seq: Seq) -> int:
        """The computed length after all closed steps have run."""
        stops = (stop for step in reversed(self.uncommitted) for h, stop in step if h == seq.handle)
        return next(stops, seq.settled)

    def forget(self, seq: Seq) -> None:
        """Drops the launched, uncommitted work of this sequence."""
        for step in self.uncommitted:
            step[:] = [entry for entry in step if entry[0] != seq.handle]

    def append(self, seq: Seq) -> None:
        count = self.rng.choice([1, 1, 5])
        with self.watching(seq):
            self.manager.append(seq.handle, [self.rng.randrange(2) for _ in range(count)])
        self.texts = [*self.texts[-8:], list(seq.tokens)]

    def reserve(self, seq: Seq) -> None:
        with self.watching(seq):
            self.manager.reserve(seq.handle, self.rng.randint(1, len(seq.tokens) + 5))

    @contextmanager
    def watching(self, seq: Seq) -> Iterator[None]:
        """If a call replaces a block, launched and uncommitted work in the previous one is lost."""
        before, _ = self.known[seq.handle]
        yield
        self.learn(seq.handle)
        after, _ = self.known[seq.handle]
        moved = any(
            old[unit] != new[unit]
            for old, new in zip(before, after, strict=True)
            for unit in range(len(old))
        )
        if moved:
            self.forget(seq)

    def learn(self, handle: int) -> None:
        """Remembers what a call on the sequence left."""
        self.known[handle] = self.manager.tables(handle), self.manager.seqs[handle].computed

    def fork(self, seq: Seq) -> list[int]:
        made = self.manager.fork(seq.handle, self.rng.randint(1, 2))
        for child in made:
            self.learn(child)
        return made

    def branch(self, seq: Seq) -> None:
        """Forks that diverge immediately, like samples of one prompt."""
        for child in self.fork(seq):
            self.remember()
            self.append(self.manager.seqs[child])

    def reparent(self, seq: Seq) -> None:
        running = [s for s in self.manager.seqs.values() if not s.preempted][:4]
        del seq
        parents = [self.rng.randrange(len(running)) for _ in running]
        self.manager.reparent([s.handle for s in running], parents)
        for index, (one, parent) in enumerate(zip(running, parents, strict=True)):
            self.learn(one.handle)
            if index != parent:
                self.forget(one)

    def truncate(self, seq: Seq) -> None:
        length = self.rng.randint(1, len(seq.tokens))
        launched = self.launched(seq)
        if self.manager.truncate(seq.handle, length) < launched:
            self.forget(seq)
        self.learn(seq.handle)

    def preempt(self, seq: Seq) -> None:
        self.forget(seq)
        self.manager.preempt(seq.handle)

    def free(self, seq: Seq) -> None:
        self.forget(seq)
        self.manager.free(seq.handle)

    def plan(self, name: str = "", seq: Seq | None = None) -> None:
        """Makes one call, which may be refused."""
        rng = self.rng
        weights = AHEAD if self.manager.flight else CALLS
        name = name or rng.choices(list(weights), list(weights.values()))[0]
        self.remember()
        try:
            if name == "admit":
                self.admit()
            elif name == "resume":
                if seq := self.some(preempted=True):
                    self.manager.resume(seq.handle)
                    self.learn(seq.handle)
            elif seq := seq or self.some():
                getattr(self, name)(seq)
        except (OutOfBlocksError, NeverFitsError, StepError):
            self.refused += 1
            if self.audits:
                assert self.manager.fingerprint() == self.before, f"{name} was done in part"
            if (seq := self.some()) and not self.manager.promises(seq):
                self.free(seq)
        self.check()

    def remember(self) -> None:
        """Records the state that a refused call must leave unchanged."""
        if self.audits:
            self.before = self.manager.fingerprint()

    def check(self) -> None:
        """What has to hold after each call."""
        self.calls += 1
        broken = self.manager.violations() if self.audits else []
        assert not broken, broken
        self.fences.watch(self.manager)

    # ---- steps --------------------------------------------------------------------------

    def stop_of(self, seq: Seq, start: int) -> int:
        """The position at which the forward of a sequence ends."""
        most = min(len(seq.tokens), self.manager.num_slots(seq), start + self.habits.chunk)
        for stop in sorted(seq.stops):
            if start < stop < most and self.rng.random() < self.habits.stops:
                return stop
        return most

    def step(self) -> None:
        """Closes a plan and launches or aborts it; then commits what is due."""
        manager, rng = self.manager, self.rng
        if self.habits.early:
            self.promise()
        work, step = [], []
        for seq in manager.seqs.values():
            if seq.preempted:
                continue
            tables, computed = self.known[seq.handle]
            if self.audits:
                now = manager.tables(seq.handle), seq.computed
                assert now == (tables, computed), f"{seq.handle} changed without a call on it"
            start = self.launched(seq)
            stop = seq.computed if self.habits.early else self.stop_of(seq, start)
            if stop > start and (self.habits.early or rng.random() < 0.7):
                name = f"sequence {seq.handle}"
                prefix = seq.prefix(len(seq.tokens))
                work.append(Work(name, prefix, start, stop, tables))
                step.append((seq.handle, stop))
        copies = manager.take_copies()
        if self.habits.overlaps and self.audits:
            self.fences.close(manager, copies, work)
        self.uncommitted.append([] if self.habits.early else step)
        while self.habits.plans_ahead and rng.random() < (0.75 if manager.flight else 0.3):
            self.plan()
        if rng.random() < self.habits.aborts * (2 if manager.flight else 1):
            manager.copies_aborted()
            self.uncommitted.pop()
            self.fences.steps = self.fences.steps[:-1]
            self.check()
            return
        self.memory.run(copies, work)
        manager.copies_applied()
        self.check()
        while len(self.uncommitted) > (self.habits.overlaps and rng.random() < 0.8):
            self.commit(self.uncommitted.pop(0))

    def promise(self) -> None:
        """Commits what this step will write, so that its other prompts find it."""
        for handle in list(self.manager.seqs):
            seq = self.manager.seqs.get(handle)
            stop = 0 if seq is None or seq.preempted else self.stop_of(seq, seq.settled)
            if seq and stop > seq.computed and self.rng.random() < 0.7:
                if self.rng.random() < 0.3:
                    self.plan("fork", seq)
                if handle not in self.manager.seqs:
                    continue  # there was no room for the fork
                self.manager.commit(handle, stop)
                self.learn(handle)
                self.check()
                if self.rng.random() < 0.6:
                    self.plan(self.rng.choice(["append", "echo"]), seq)
            while self.rng.random() < 0.3:
                self.plan()

    def complete(self) -> None:
        self.manager.complete()
        self.fences.steps = self.fences.steps[1:]

    def commit(self, step: list[tuple[int, int]]) -> None:
        manager = self.manager
        if not self.habits.late:
            self.complete()
        decoded = self.decode(step) if hasattr(manager, "decode") else set()
        for handle, stop in step:
            if handle in decoded:
                continue
            manager.commit(handle, stop)
            self.learn(handle)
            self.check()
            seq = manager.seqs[handle]
            if self.habits.drafts and self.rng.random() < 0.3:
                taken_back = self.rng.randint(0, min(self.habits.drafts, len(seq.tokens) - 1))
                self.forget(seq)
                manager.truncate(handle, len(seq.tokens) - taken_back)
                self.learn(handle)
                self.check()
        if self.habits.affirms and not self.uncommitted:
            for seq in manager.seqs.values():
                if not seq.preempted and not manager.promises(seq):
                    manager.commit(seq.handle, seq.computed)
                    self.learn(seq.handle)
            self.check()
        if self.habits.late:
            self.complete()

    def decode(self, step: list[tuple[int, int]]) -> set[int]:
        """Commits some sequences and appends a token to each, in one call; returns them."""
        later = {handle for other in self.uncommitted for handle, _ in other}
        batch = [
            handle
            for handle, stop in step
            if stop == len(self.manager.seqs[handle].tokens)
            and handle not in later
            and not self.manager.promises(self.manager.seqs[handle])
        ]
        if not batch or self.rng.random() < 0.5:
            return set()
        self.remember()
        try:
            self.manager.decode(batch, [self.rng.randrange(2) for _ in batch])
        except (OutOfBlocksError, NeverFitsError, StepError):
            self.refused += 1
            if self.audits:
                assert self.manager.fingerprint() == self.before, "decode was done in part"
            return set()
        self.decoded += len(batch)
        for handle in batch:
            self.learn(handle)
        self.check()
        return set(batch)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.rng.randint(0, 4)):
                self.plan()
            self.step()
