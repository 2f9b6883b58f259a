"""Engines of different habits, drawn from a seed, which run a manager of groups on a memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.groups.kinds import (
    ChunkedAttention,
    FullAttention,
    Kind,
    RecurrentState,
    SlidingWindow,
)
from tests.groups.memory import Memory, Work
from tests.groups.model import ModelManager
from tests.groups.model_pool import NeverFits, OutOfBlocks, Seq, WrongStep

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
"""Some are what released models have; the widths are about the size of a unit, or beside it."""


@dataclass(frozen=True)
class Habits:
    """How an engine goes about it.

    Attributes:
        overlaps: It launches a step before it commits the one before.
        stops: How often a forward ends where an admission said.
        chunk: The most tokens of a forward.
        aborts: How often a step that was closed is not launched.
        affirms: It commits what it left out of a step too, where it stands.
        drafts: Tokens that it may take back after a commit.
    """

    overlaps: bool
    stops: float
    chunk: int
    aborts: float
    affirms: bool
    drafts: int

    @classmethod
    def drawn(cls, rng: random.Random, kinds: Sequence[Kind]) -> Habits:
        recurrent = any(isinstance(kind, RecurrentState) for kind in kinds)
        return cls(
            overlaps=rng.random() < 0.3,
            stops=rng.choice([0.0, 0.5, 1.0, 1.0]),
            chunk=rng.choice([1, 3, 4, 8, 100]),
            aborts=rng.choice([0.0, 0.0, 0.2]),
            affirms=rng.random() < 0.5,
            # A state that has consumed a rejected draft cannot go back.
            drafts=0 if recurrent else rng.choice([0, 0, 2]),
        )


class Engine:
    """Plans, launches and commits; nothing it does breaks the contract of a step."""

    def __init__(
        self,
        seed: int,
        kinds: Sequence[Kind] | None = None,
        build: Callable[..., ModelManager] = ModelManager,
        *,
        audits: bool = True,
    ) -> None:
        self.audits = audits
        self.rng = rng = random.Random(seed)
        self.kinds = tuple(rng.choice(SETS) if kinds is None else kinds)
        self.habits = Habits.drawn(rng, self.kinds)
        num_blocks = rng.choice([6, 10, 16, 30]) + 3 * len(self.kinds)
        self.manager = build(
            num_blocks, rng.choice([2, 4]), self.kinds, min_partial_tokens=rng.choice([0, 1, 2])
        )
        self.manager.lookahead = self.habits.drafts
        self.manager.steps_in_flight = int(self.habits.overlaps)
        self.memory = Memory(num_blocks, self.manager.size, self.kinds, rng)
        self.launched: dict[int, int] = {}
        """By sequence, what of it is computed by forwards that are not committed."""

        self.uncommitted: list[list[tuple[int, int]]] = []
        self.texts: list[list[int]] = []
        self.found = 0
        self.refused = 0

    # ---- planning -----------------------------------------------------------------------

    def text(self) -> list[int]:
        """Often the beginning of an earlier one, with something after it."""
        rng = self.rng
        known = rng.choice(self.texts)[: rng.randint(0, 30)] if self.texts else []
        text = known + [rng.randrange(2) for _ in range(rng.randint(1, 9))]
        self.texts = [*self.texts[-8:], text]
        return text

    def admit(self) -> None:
        text = self.text()
        namespace = self.rng.choice([b"", b"", b"t"])
        slots = self.rng.choice([None, None, self.rng.randint(1, len(text))])
        promised = self.manager.match(text, namespace)
        handle = self.manager.admit(text, namespace, slots)
        cached = self.manager.seqs[handle].cached
        assert slots is not None or cached == promised
        self.found += cached

    def some(self, *, preempted: bool = False) -> Seq | None:
        seqs = [seq for seq in self.manager.seqs.values() if seq.preempted == preempted]
        return self.rng.choice(seqs) if seqs else None

    def forget(self, seq: Seq) -> None:
        """What was launched for it is nobody's any more."""
        self.launched.pop(seq.handle, None)
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
        """A block that moves leaves behind what was launched into it and is not committed."""
        before = [list(table) for table in seq.tables]
        yield
        moved = any(
            old[unit] is not new[unit]
            for old, new in zip(before, seq.tables, strict=True)
            for unit in range(len(old))
        )
        if moved:
            self.forget(seq)

    def fork(self, seq: Seq) -> None:
        self.manager.fork(seq.handle, self.rng.randint(1, 2))

    def reparent(self, seq: Seq) -> None:
        running = [s for s in self.manager.seqs.values() if not s.preempted][:4]
        del seq
        parents = [self.rng.randrange(len(running)) for _ in running]
        self.manager.reparent([s.handle for s in running], parents)
        for index, (one, parent) in enumerate(zip(running, parents, strict=True)):
            if index != parent:
                self.forget(one)

    def truncate(self, seq: Seq) -> None:
        length = self.rng.randint(1, len(seq.tokens))
        if self.manager.truncate(seq.handle, length) < self.launched.get(seq.handle, 0):
            self.forget(seq)

    def preempt(self, seq: Seq) -> None:
        self.forget(seq)
        self.manager.preempt(seq.handle)

    def free(self, seq: Seq) -> None:
        self.forget(seq)
        self.manager.free(seq.handle)

    def plan(self) -> None:
        """One call, which may be refused."""
        rng = self.rng
        name = rng.choices(
            [
                "admit",
                "append",
                "reserve",
                "fork",
                "reparent",
                "truncate",
                "preempt",
                "resume",
                "free",
            ],
            [6, 8, 3, 2, 1, 2, 1, 2, 4],
        )[0]
        try:
            if name == "admit":
                self.admit()
            elif name == "resume":
                if seq := self.some(preempted=True):
                    self.manager.resume(seq.handle)
            elif seq := self.some():
                getattr(self, name)(seq)
        except (OutOfBlocks, NeverFits, WrongStep):
            self.refused += 1
            if seq := self.some():
                self.free(seq)
        self.check()

    def check(self) -> None:
        broken = self.manager.violations() if self.audits else []
        assert not broken, broken

    # ---- steps --------------------------------------------------------------------------

    def stop_of(self, seq: Seq, start: int) -> int:
        """Where the forward of a sequence ends."""
        most = min(len(seq.tokens), self.manager.num_slots(seq), start + self.habits.chunk)
        for stop in sorted(seq.stops):
            if start < stop < most and self.rng.random() < self.habits.stops:
                return stop
        return most

    def step(self) -> None:
        """Closes a plan, and launches it or not; then commits what is due."""
        manager, rng = self.manager, self.rng
        work, step = [], []
        for seq in list(manager.seqs.values()):
            if seq.preempted:
                continue
            start = self.launched.get(seq.handle, seq.computed)
            stop = self.stop_of(seq, start)
            if stop > start and rng.random() < 0.7:
                name = f"sequence {seq.handle}"
                prefix = seq.prefix(len(seq.tokens))
                work.append(Work(name, prefix, start, stop, manager.tables(seq.handle)))
                step.append((seq.handle, stop))
        copies = manager.take_copies()
        if rng.random() < self.habits.aborts:
            manager.copies_aborted()
            self.check()
            return
        self.memory.run(copies, work)
        manager.copies_applied()
        self.launched.update(step)
        self.uncommitted.append(step)
        self.check()
        while len(self.uncommitted) > (self.habits.overlaps and rng.random() < 0.8):
            self.commit(self.uncommitted.pop(0))

    def commit(self, step: list[tuple[int, int]]) -> None:
        manager = self.manager
        manager.complete()
        for handle, stop in step:
            if self.launched.get(handle) == stop:
                del self.launched[handle]
            manager.commit(handle, stop)
            self.check()
            seq = manager.seqs[handle]
            if self.habits.drafts and self.rng.random() < 0.3:
                taken_back = self.rng.randint(0, min(self.habits.drafts, len(seq.tokens) - 1))
                self.forget(seq)
                manager.truncate(handle, len(seq.tokens) - taken_back)
                self.check()
        if self.habits.affirms and not self.uncommitted:
            for seq in manager.seqs.values():
                if not seq.preempted and seq.handle not in self.launched:
                    manager.commit(seq.handle, seq.computed)
            self.check()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.rng.randint(0, 4)):
                self.plan()
            self.step()
