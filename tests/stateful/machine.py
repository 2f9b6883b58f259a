"""The state machine over every public call, with all three detectors after each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests import strategies
from tests.specification.leaves import ModelLeaves
from tests.stress.world import Entry, World

who = st.integers(0, 4)
some = st.integers(0, 6)
STALE_CALLS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("append", ([0],)),
    ("commit", (1,)),
    ("reserve", (1,)),
    ("truncate", (1,)),
    ("fork", (1,)),
    ("free", ()),
    ("preempt", ()),
    ("resume", ()),
    ("slot_mapping", (0, 1)),
)


class ManagerMachine(RuleBasedStateMachine):
    """Random calls on a tiny manager, its model and a fake device."""

    manager: ClassVar[Callable[..., Any]]
    model: ClassVar[Callable[..., Any]] = ModelLeaves
    digest: ClassVar[str] = "any"
    evictions: ClassVar[Sequence[Any]] = ("lru",)

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[tuple[list[int], bytes, Any]] = []

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        kind = type(self)
        config = data.draw(strategies.configs(kind.digest, kind.evictions), label="config")
        self.world = World(config, manager=kind.manager, model=kind.model)

    # The prompts admitted last are looked up again after every rule. Cached and evicted blocks
    # otherwise show only in counts.
    def look_up_again(self) -> None:
        for prompt in self.prompts:
            self.world.match(*prompt)

    def entry(self, index: int) -> Entry:
        return self.world.entries[index % len(self.world.entries)]

    def any_entry(self) -> bool:
        return bool(self.world.entries)

    def any_dead(self) -> bool:
        return bool(self.world.dead)

    def any_open(self) -> bool:
        return self.world.open is not None

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.step()

    # ---- admission ----------------------------------------------------------------------

    @rule(
        tokens=strategies.prompts,
        namespace=strategies.namespaces,
        extras=strategies.extras,
        num_slots=strategies.slots,
        read_cache=st.sampled_from([True, True, True, False]),
        by_match=st.booleans(),
        limits=strategies.limits,
    )
    def admit(
        self,
        tokens: list[int],
        namespace: bytes,
        extras: Any,
        num_slots: int,
        *,
        read_cache: bool,
        by_match: bool,
        limits: dict[str, int],
    ) -> None:
        self.world.admit(
            tokens, namespace, extras, num_slots, read_cache, by_match=by_match, **limits
        )
        self.prompts = [*self.prompts[-2:], (tokens, namespace, extras)]
        self.look_up_again()

    @precondition(any_entry)
    @rule(index=who, more=strategies.prompts)
    def admit_next_turn(self, index: int, more: list[int]) -> None:
        entry = self.entry(index)
        self.world.admit(entry.tokens + more, entry.namespace, entry.extras)
        self.look_up_again()

    @rule(tokens=strategies.prompts, namespace=strategies.namespaces)
    def serve(self, tokens: list[int], namespace: bytes) -> None:
        """Admission and a whole step: the shortest way to cached blocks."""
        self.world.admit(tokens, namespace)
        self.world.step()
        self.prompts = [*self.prompts[-2:], (tokens, namespace, None)]
        self.look_up_again()

    @precondition(lambda self: any(not e.running for e in self.world.entries))
    @rule(index=who, num_slots=strategies.slots, read_cache=st.booleans())
    def resume_a_preempted_one(self, index: int, num_slots: int | None, read_cache: bool) -> None:
        waiting = [e for e in self.world.entries if not e.running]
        self.world.resume(waiting[index % len(waiting)], num_slots, read_cache)
        self.look_up_again()

    @precondition(any_entry)
    @rule(index=who, num_slots=strategies.slots)
    def resume(self, index: int, num_slots: int | None) -> None:
        self.world.resume(self.entry(index), num_slots)
        self.look_up_again()

    @rule(reset_hit_rate=st.booleans())
    def reset(self, reset_hit_rate: bool) -> None:
        self.world.reset(reset_hit_rate=reset_hit_rate)
        self.look_up_again()

    @precondition(any_entry)
    @rule(indices=st.lists(some, max_size=4))
    def look_for_a_common_prefix(self, indices: list[int]) -> None:
        entries = [self.entry(index) for index in indices]
        ours, theirs = [e.handle for e in entries], [e.twin for e in entries]
        answer = self.world.both("num_common_prefix_blocks", [ours], [theirs])
        assert answer is None or answer[0] == answer[1]
        self.world.settle()

    # ---- one sequence -------------------------------------------------------------------

    @precondition(any_entry)
    @rule(index=who, tokens=st.lists(strategies.token, min_size=1, max_size=4))
    def append(self, index: int, tokens: list[int]) -> None:
        self.world.append(self.entry(index), tokens)
        self.look_up_again()

    @precondition(any_entry)
    @rule(index=who, num_slots=st.integers(1, 14))
    def reserve(self, index: int, num_slots: int) -> None:
        self.world.reserve(self.entry(index), num_slots)

    @precondition(any_entry)
    @rule(index=who, n=st.integers(0, 12))
    def commit(self, index: int, n: int) -> None:
        self.world.commit(self.entry(index), n)
        self.look_up_again()

    @precondition(any_entry)
    @rule(index=who)
    def commit_all(self, index: int) -> None:
        entry = self.entry(index)
        self.world.commit(entry, self.world.committable(entry))
        self.look_up_again()

    @precondition(any_entry)
    @rule(index=who, n=st.integers(0, 10))
    def truncate(self, index: int, n: int) -> None:
        self.world.truncate(self.entry(index), n)

    @precondition(any_entry)
    @rule(index=who, n=st.integers(0, 2))
    def fork(self, index: int, n: int) -> None:
        self.world.fork(self.entry(index), n)

    @precondition(any_entry)
    @rule(index=who, tokens=st.lists(strategies.token, min_size=1, max_size=3))
    def branch(self, index: int, tokens: list[int]) -> None:
        """Two samples of one prompt diverge."""
        parent = self.entry(index)
        for child in self.world.fork(parent):
            self.world.append(child, tokens)
            for grandchild in self.world.fork(child):
                self.world.append(grandchild, [0])
        self.world.append(parent, [1])

    @precondition(any_entry)
    @rule(parents=st.lists(some, min_size=1, max_size=5))
    def reparent(self, parents: list[int]) -> None:
        entries = self.world.entries[: len(parents)]
        self.world.reparent(entries, [p % (len(entries) + (p == 6)) for p in parents])

    @precondition(any_entry)
    @rule(
        index=who,
        expect_reuse=st.sampled_from([None, None, True, False]),
        withdraw=st.sampled_from([False, False, True]),
    )
    def free(self, index: int, expect_reuse: bool | None, withdraw: bool) -> None:
        self.world.free(self.entry(index), expect_reuse, withdraw=withdraw)
        self.look_up_again()

    @precondition(any_entry)
    @rule(index=who, withdraw=st.sampled_from([False, False, True]))
    def preempt(self, index: int, withdraw: bool) -> None:
        self.world.preempt(self.entry(index), withdraw=withdraw)
        self.look_up_again()

    @precondition(any_entry)
    @rule(tokens=st.lists(strategies.token, min_size=1, max_size=5), backwards=st.booleans())
    def decode(self, tokens: list[int], backwards: bool) -> None:
        entries = self.world.entries[:: -1 if backwards else 1][: len(tokens)]
        self.world.decode(entries, tokens[: len(entries)])
        self.look_up_again()

    @precondition(any_dead)
    @rule(index=who, call=st.sampled_from(STALE_CALLS))
    def use_a_dead_handle(self, index: int, call: tuple[str, tuple[Any, ...]]) -> None:
        self.world.on_dead(call[0], index, *call[1])

    # ---- single blocks ------------------------------------------------------------------

    @rule(which=some, count=st.integers(0, 3), twice=st.booleans())
    def hold(self, which: int, count: int, twice: bool) -> None:
        self.world.hold(which, count, twice=twice)

    @precondition(lambda self: self.world.holds)
    @rule(which=some, count=st.integers(1, 4), again=st.sampled_from([False, False, True]))
    def let_go(self, which: int, count: int, again: bool) -> None:
        self.world.let_go(which, count, again=again)
        self.look_up_again()

    @rule(which=some, count=st.integers(1, 2))
    def touch_blocks(self, which: int, count: int) -> None:
        self.world.touch_blocks(which, count)
        self.look_up_again()

    @rule(which=some, count=st.integers(1, 2))
    def forget(self, which: int, count: int) -> None:
        self.world.forget(which, count)
        self.look_up_again()

    # ---- retention ----------------------------------------------------------------------

    @precondition(any_entry)
    @rule(index=who, start=some, length=some, priority=strategies.retained, ttl=strategies.ttls)
    def retain(self, index: int, start: int, length: int, priority: Any, ttl: Any) -> None:
        ttl = None if priority is None else ttl
        stop = start + length
        self.world.retain(self.entry(index), start, stop, priority=priority, ttl=ttl)

    @precondition(lambda self: self.prompts)
    @rule(index=who, priority=strategies.retained, ttl=strategies.ttls)
    def retain_prefix(self, index: int, priority: Any, ttl: Any) -> None:
        tokens, namespace, extras = self.prompts[index % len(self.prompts)]
        key = {"priority": priority, "ttl": None if priority is None else ttl}
        key |= {"namespace": namespace, "extras": extras}
        self.world.same_answer("retain_prefix", [tokens], **key)

    @precondition(lambda self: self.prompts)
    @rule(index=who)
    def pin(self, index: int) -> None:
        tokens, namespace, extras = self.prompts[index % len(self.prompts)]
        self.world.pin(tokens, namespace=namespace, extras=extras)

    @precondition(lambda self: self.world.pins)
    @rule(which=some, again=st.booleans())
    def unpin(self, which: int, again: bool) -> None:
        self.world.unpin(which, again=again)

    @precondition(lambda self: self.prompts)
    @rule(index=who)
    def touch(self, index: int) -> None:
        tokens, namespace, extras = self.prompts[index % len(self.prompts)]
        self.world.same_answer("touch", [tokens], namespace=namespace, extras=extras)
        self.look_up_again()

    @precondition(lambda self: self.world.manager.config.retention)
    @rule(seconds=st.sampled_from([0.5, 1, 3, -1]))
    def set_time(self, seconds: float) -> None:
        self.world.same_answer("set_time", [self.world.manager.time + seconds])

    # ---- steps --------------------------------------------------------------------------

    @rule(skip=st.sampled_from([-1, -1, 0, 1]), held_back=st.sampled_from([0, 0, 1]))
    def step(self, skip: int, held_back: int) -> None:
        self.world.step(skip, held_back)
        self.look_up_again()

    @rule(skip=st.sampled_from([-1, -1, 0, 1]), applied=st.booleans())
    def begin(self, skip: int, applied: bool) -> None:
        self.world.begin(skip, applied)

    @precondition(any_open)
    @rule()
    def copies_applied(self) -> None:
        self.world.resolve("copies_applied")

    @precondition(lambda self: any(not launched.finished for launched in self.world.steps))
    @rule(index=some, held_back=st.sampled_from([0, 0, 1]))
    def finish(self, index: int, held_back: int) -> None:
        waiting = [launched for launched in self.world.steps if not launched.finished]
        self.world.finish(waiting[index % len(waiting)], held_back)
        self.look_up_again()

    @precondition(lambda self: self.world.open or self.world.manager.stats().pending_copies)
    @rule()
    def abort(self) -> None:
        self.world.abort()

    @rule(tokens=strategies.prompts, expect_reuse=st.booleans(), again=st.booleans())
    def take_a_turn(self, tokens: list[int], expect_reuse: bool, again: bool) -> None:
        """A request from admission to end, with a hint whether another one follows."""
        entry = self.world.admit(tokens)
        if entry is not None:
            self.world.step()
            if again:
                self.world.pin(tokens)
            self.world.free(entry, expect_reuse if self.world.manager.config.retention else None)
        self.prompts = [*self.prompts[-2:], (tokens, b"", None)]
        self.look_up_again()

    @precondition(lambda self: self.world.in_flight_limit and self.world.steps)
    @rule(count=st.integers(1, 2))
    def complete(self, count: int) -> None:
        self.world.complete(count)

    @precondition(lambda self: self.world.open or len(self.world.entries) == 1)
    @rule(ticket=st.integers(-1, 3), name=st.sampled_from(["copies_applied", "copies_aborted"]))
    def resolve_a_wrong_ticket(self, ticket: int, name: str) -> None:
        if self.world.open is None or self.world.open.step.ticket != ticket:
            self.world.both(name, [ticket], [ticket])
            self.world.settle()

    @precondition(lambda self: self.world.remaps)
    @rule()
    def take_remaps(self) -> None:
        self.world.take_remaps()
