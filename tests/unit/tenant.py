"""A tenant whose choices depend only on its own random numbers and on results it gets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

from blockmgr import BlockManager, NeverFitsError, OutOfBlocksError, StepError

Observation = tuple[Any, ...]
Translate = Callable[[int], int]


class Tenant:
    """Makes random calls in one namespace and records everything it can observe.

    Handles are recorded by the order in which this tenant got them, because rows depend on other
    tenants; everything else is recorded unchanged, including block ids.
    """

    def __init__(
        self,
        manager: BlockManager,
        namespace: bytes,
        seed: int,
        *,
        translate: Translate = int,
        greed: int = 1,
    ) -> None:
        self.manager, self.namespace = manager, namespace
        self.rng = random.Random(seed)
        self.translate, self.greed = translate, greed
        self.live: list[int] = []
        self.names: dict[int, int] = {}
        self.seen: list[Observation] = []

    # ---- calls ---------------------------------------------------------------------------

    def act(self) -> None:
        """Makes a random call and records the state of its own sequences."""
        calls = [self.admit, self.admit, self.ask, self.ask, self.commit, self.commit]
        if self.live:
            calls += [self.append, self.decode, self.fork, self.truncate, self.reserve]
            calls += [self.free, self.free, self.preempt_or_resume, self.reparent]
        call = self.rng.choice(calls)
        try:
            answer = call()
        except OutOfBlocksError as error:
            answer = (error.needed, error.available, error.reserved_by_watermark)
        except NeverFitsError as error:
            answer = str(error)
        except StepError:
            answer = "not in this step"
        self.seen.append((call.__name__, answer, *self.look()))

    def look(self) -> Iterator[Any]:
        yield astuple(self.manager.quota_usage(self.namespace))
        for handle in self.live:
            view = self.manager.sequence(handle)
            yield (
                self.names[handle],
                view.num_tokens,
                view.num_computed_tokens,
                view.num_cached_tokens,
                view.is_preempted,
                view.stops,
                self.tables(handle),
            )

    def tables(self, handle: int) -> list[list[int]]:
        """The blocks of a sequence in each group of layers."""
        row, groups = self.manager.row(handle), range(len(self.manager.config.groups))
        if not groups:
            return [self.manager.sequence(handle).block_ids.tolist()]
        return [self.manager.group_table(group)[row].tolist() for group in groups]

    def tokens(self, most: int) -> list[int]:
        """Few values, so that prompts have common prefixes."""
        return [
            self.translate(self.rng.choice((1, 1, 2))) for _ in range(self.rng.randint(1, most))
        ]

    def own(self) -> int:
        return self.rng.choice(self.live)

    def keep(self, *handles: int) -> list[int]:
        for handle in handles:
            self.names[handle] = len(self.names)
            self.live.append(handle)
        return [self.names[handle] for handle in handles]

    def running(self) -> list[int]:
        return [h for h in self.live if not self.manager.sequence(h).is_preempted]

    def admit(self) -> Any:
        return self.keep(self.manager.admit(self.tokens(9 * self.greed), namespace=self.namespace))

    def ask(self) -> Any:
        tokens = self.tokens(9)
        match = self.manager.match(tokens, namespace=self.namespace)
        admission = self.manager.can_admit(tokens, namespace=self.namespace)
        touched = self.manager.touch(tokens, namespace=self.namespace)
        found = (match.num_cached_tokens, match.num_partial_tokens, match.block_ids.tolist())
        return found, admission, touched

    def commit(self) -> Any:
        for handle in self.running():
            view = self.manager.sequence(handle)
            self.manager.commit(handle, min(view.num_tokens, view.num_slots))

    def append(self) -> Any:
        handle = self.own()
        if handle in self.running():
            self.manager.append(handle, self.tokens(4))

    def decode(self) -> Any:
        views = [self.manager.sequence(handle) for handle in self.running()]
        ready = [view.handle for view in views if view.num_slots >= view.num_tokens]
        new = [self.translate(self.rng.choice((1, 2))) for _ in ready]
        return self.manager.decode(ready, new).tolist()

    def fork(self) -> Any:
        handle = self.own()
        if handle in self.running() and len(self.live) < 12:
            return self.keep(*self.manager.fork(handle, self.rng.randint(1, 2)))
        return None

    def reparent(self) -> Any:
        handles = self.running()
        self.manager.reparent(handles, [self.rng.randrange(len(handles)) for _ in handles])

    def truncate(self) -> Any:
        handle = self.own()
        if handle in self.running():
            view = self.manager.sequence(handle)
            self.manager.truncate(handle, self.rng.randint(1, view.num_tokens))

    def reserve(self) -> Any:
        handle = self.own()
        if handle in self.running():
            self.manager.reserve(handle, self.rng.randint(1, 12))

    def free(self) -> Any:
        handle = self.own()
        self.manager.free(handle)
        self.live.remove(handle)

    def preempt_or_resume(self) -> Any:
        handle = self.own()
        if handle in self.running():
            self.manager.preempt(handle)
        else:
            self.manager.resume(handle)

    # ---- steps ---------------------------------------------------------------------------

    def see_step(self, copies: list[tuple[int, int, int]], remaps: list[Any]) -> None:
        """Records the copies into its own blocks and the remaps of its own sequences."""
        held = {b for h in self.live for table in self.tables(h) for b in table}
        mine = sorted(copy for copy in copies if copy[1] in held)
        moved = [
            (self.names[r.handle], r.index, r.old, r.new) for r in remaps if r.handle in self.names
        ]
        self.seen.append(("step", mine, moved))


def play(manager: BlockManager, tenants: list[Tenant], rounds: int) -> None:
    """All tenants act in turn; steps come at the same times for any set of tenants."""
    open_steps: list[int] = []
    limit = manager.config.steps_in_flight
    for round_number in range(rounds):
        for tenant in tenants:
            for _ in range(tenant.greed):
                tenant.act()
        if round_number % 3:
            continue
        for tenant in tenants:
            if not manager.config.early_commit:
                tenant.commit()
        if limit and len(open_steps) == limit:
            manager.complete(open_steps.pop(0))
        plan = manager.take_copies()
        manager.copies_applied(plan.ticket)
        if limit:
            open_steps.append(plan.ticket)
        copies = [(copy.source, copy.destination, copy.num_tokens) for copy in plan]
        remaps = manager.take_remaps()
        for tenant in tenants:
            tenant.see_step(copies, remaps)
    manager.check_invariants()
