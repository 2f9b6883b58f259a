"""A manager under random calls, and what the last call on each sequence left."""

from __future__ import annotations

import random
from typing import Any

from blockmgr import BlockManager, BlockMgrError

LOWERS = {"truncate", "preempt", "reparent"}
LOWERS_EARLY = {"append", "reserve"}
CALLS = (
    *("admit", "append", "commit", "commit", "decode", "fork", "close", "close", "free"),
    *("reserve", "reparent", "truncate", "preempt", "resume", "forget", "reset"),
)


class Watcher:
    """Makes calls that need not make sense; each returns the sequences that it named."""

    def __init__(self, seed: int, *, early: bool, flies: bool, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.early, self.flies = early, flies
        self.manager = BlockManager(
            self.rng.choice([14, 24, 40]),
            self.rng.choice([2, 3]),
            max_seqs=8,
            early_commit=early,
            steps_in_flight=int(flies),
            debug=1,
            **options,
        )
        self.known: dict[int, tuple[object, int]] = {}
        self.open: int | None = None
        self.made: set[str] = set()

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(2) for _ in range(count)]

    def running(self) -> list[int]:
        handles = self.manager.handles()
        return [h for h in handles if not self.manager.sequence(h).is_preempted]

    def facts(self, handle: int) -> tuple[object, int]:
        """The blocks of a sequence in all groups, and its computed tokens."""
        view, row = self.manager.sequence(handle), self.manager.row(handle)
        groups = len(self.manager.config.groups) or 1
        tables = [self.manager.group_table(group)[row].tolist() for group in range(groups)]
        return tables, view.num_computed_tokens

    # Calls.

    def admit(self) -> list[int]:
        prompt = self.tokens(self.rng.randint(1, 9))
        return [self.manager.admit(prompt, read_cache=self.rng.random() < 0.6)]

    def close(self) -> list[int]:
        """Takes a plan, or applies the one that is taken."""
        if self.open is None:
            self.open = self.manager.take_copies().ticket
            return []
        self.manager.copies_applied(self.open)
        if self.flies:
            self.manager.complete(self.open)
        self.open = None
        return []

    def reset(self) -> list[int]:
        self.manager.reset_prefix_cache()
        return []

    def decode(self) -> list[int]:
        running = self.running()
        batch = self.rng.sample(running, self.rng.randint(min(1, len(running)), len(running)))
        if batch:
            self.manager.decode(batch, self.tokens(len(batch)))
        return batch

    def reparent(self) -> list[int]:
        running = self.running()
        self.manager.reparent(running, [self.rng.randrange(len(running)) for _ in running])
        return running

    def commit(self, handle: int) -> None:
        view = self.manager.sequence(handle)
        most = min(view.num_tokens, view.num_slots)
        self.manager.commit(handle, self.rng.randint(view.num_computed_tokens, most))

    def append(self, handle: int) -> None:
        self.manager.append(handle, self.tokens(1))

    def reserve(self, handle: int) -> None:
        length = self.manager.sequence(handle).num_tokens
        self.manager.reserve(handle, length + self.rng.randint(0, 4))

    def truncate(self, handle: int) -> None:
        length = self.manager.sequence(handle).num_tokens
        self.manager.truncate(handle, self.rng.randint(1, length))

    def fork(self, handle: int) -> None:
        self.manager.fork(handle)

    def forget(self, handle: int) -> None:
        """Its sequence keeps the block."""
        if blocks := list(self.manager.block_ids(handle)):
            self.manager.forget([self.rng.choice(blocks)])

    def call(self, name: str) -> list[int]:
        if name in {"admit", "close", "reset", "decode", "reparent"}:
            named: list[int] = getattr(self, name)()
            return named
        handles = self.running()
        if name in {"free", "resume"}:
            handles = self.manager.handles()
        if not handles:
            return []
        handle = self.rng.choice(handles)
        getattr(self if hasattr(self, name) else self.manager, name)(handle)
        return [] if name in {"fork", "forget"} else [handle]

    # What it leaves.

    def make(self, name: str) -> None:
        """Makes a call, and checks the rest of the sequences, which it did not name."""
        named: list[int] = []
        try:
            named = self.call(name)
            self.made.add(name)
        except BlockMgrError:
            pass  # a refused call changes nothing
        before, self.known = self.known, {handle: self.facts(handle) for handle in self.running()}
        for handle in set(before) & set(self.known):
            was, now = before[handle], self.known[handle]
            if handle not in named:
                assert was == now, f"{name} changed a sequence that it does not name"
            elif now[1] < was[1]:
                early = self.early and self.open is None and name in LOWERS_EARLY
                assert name in LOWERS or early, f"{name} lowered num_computed_tokens"
