"""Rules for every port: exhaustion, sharing, forks, copies, accounting, eviction, no leaks.

Each port is driven through a small adapter, against a fake memory in which a slot remembers the
prefix it was computed from. So a wrong hit, a lost copy or a recycled block is noticed when it is
read, even if every count is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conformance.ports import ADAPTERS, FEATURES, Adapter


@dataclass(eq=False)
class Running:
    """A sequence, and the tokens it should have."""

    sequence: Any
    tokens: list[int]


@dataclass
class World:
    """A port and the memory its slots stand for."""

    port: Adapter
    memory: dict[int, tuple[int, ...]] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    finished: list[Any] = field(default_factory=list)

    def start(self, tokens: list[int]) -> Running:
        entry = Running(self.port.start(list(tokens)), list(tokens))
        self.running.append(entry)
        self.forward(entry, self.port.num_cached(entry.sequence))
        return entry

    def append(self, entry: Running, token: int) -> None:
        self.port.append(entry.sequence, token)
        entry.tokens.append(token)
        self.forward(entry, len(entry.tokens) - 1)

    def fork(self, entry: Running) -> Running:
        child = Running(self.port.fork(entry.sequence), list(entry.tokens))
        self.running.append(child)
        self.check()
        return child

    def finish(self, entry: Running) -> None:
        self.running.remove(entry)
        self.port.finish(entry.sequence)
        self.finished.append(entry.sequence)
        self.check()

    def finish_all(self) -> None:
        for entry in list(self.running):
            self.finish(entry)

    def forward(self, entry: Running, start: int) -> None:
        """Runs the copies, then writes the tokens from ``start`` on."""
        copies = self.port.take_copies()
        read = {source: self.memory.get(source, ()) for source, _ in copies}
        for source, destination in copies:
            self.memory[destination] = read[source]
        slots = self.port.slots(entry.sequence)
        assert len(slots) == len(entry.tokens)
        for position in range(start, len(slots)):
            self.memory[slots[position]] = tuple(entry.tokens[: position + 1])
        self.port.computed(entry.sequence)
        self.check()

    def check(self) -> None:
        for entry in self.running:
            slots = self.port.slots(entry.sequence)
            assert len(set(slots)) == len(slots)
            for position, slot in enumerate(slots):
                assert self.memory[slot] == tuple(entry.tokens[: position + 1])
        assert 0 <= self.port.num_available() <= self.port.capacity
        self.port.check()


Make = Callable[[int, int], World]


def adapters(*needed: str) -> Any:
    """A test for every port that has these features."""
    assert set(needed) <= FEATURES
    able = {name: a for name, a in ADAPTERS.items() if a.features >= set(needed)}
    return pytest.mark.parametrize("adapter", able.values(), ids=list(able))


@adapters()
def test_features_are_known(adapter: type[Adapter]) -> None:
    assert adapter.features <= FEATURES


@adapters()
def test_a_prompt_has_a_slot_for_every_token_and_reads_back(adapter: type[Adapter]) -> None:
    world = World(adapter(8, 4))
    for n in (1, 3, 4, 5, 9):
        world.start([n] * n)


@adapters()
def test_running_out_changes_nothing_and_passes_when_something_ends(
    adapter: type[Adapter],
) -> None:
    world = World(adapter(4, 4))
    first = world.start([1] * 8)
    world.start([2] * 7)
    before = world.port.num_available()
    for n in (16, 12):
        with pytest.raises(adapter.shortage):
            world.port.start([3] * n)
        assert world.port.num_available() == before
        world.check()
    world.finish(first)
    world.start([3] * 7)


@adapters()
def test_everything_comes_back(adapter: type[Adapter]) -> None:
    world = World(adapter(8, 4))
    assert world.port.num_available() == world.port.capacity == 8
    for round_ in range(5):
        for t in range(3):
            world.start([t, round_, t, t, t])
        world.finish_all()
        assert world.port.num_available() == 8


@adapters()
def test_ending_twice_is_an_error_that_changes_nothing(adapter: type[Adapter]) -> None:
    world = World(adapter(8, 4))
    kept = world.start([2] * 6)
    ended = world.start([1] * 6)
    world.finish(ended)
    before = world.port.num_available()
    with pytest.raises(adapter.misuse):
        world.port.finish(ended.sequence)
    assert world.port.num_available() == before
    world.check()
    world.finish(kept)


@adapters("shares")
def test_running_sequences_that_begin_alike_share_slots(adapter: type[Adapter]) -> None:
    world = World(adapter(8, 4))
    one = world.start([1, 2, 3, 4, 5, 6, 7, 8, 9])
    available = world.port.num_available()
    two = world.start([1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert world.port.num_cached(two.sequence) == 8
    slots = [world.port.slots(entry.sequence) for entry in (one, two)]
    assert slots[0][:8] == slots[1][:8]
    assert slots[0][8] != slots[1][8]
    assert available - world.port.num_available() == 1


@adapters("shares")
def test_a_shared_prefix_outlives_whoever_began_it(adapter: type[Adapter]) -> None:
    world = World(adapter(4, 4))
    one = world.start([1] * 9)
    two = world.start([1] * 8 + [2])
    world.finish(one)
    slots = world.port.slots(two.sequence)
    with pytest.raises(adapter.shortage):
        world.port.start([3] * 9)
    assert world.port.slots(two.sequence) == slots
    world.check()


@adapters("caches")
def test_a_finished_prompt_is_found_again(adapter: type[Adapter]) -> None:
    world = World(adapter(8, 4))
    world.finish(world.start([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    again = world.start([1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert world.port.num_cached(again.sequence) >= 8
    other = world.start([9, 2, 3, 4, 5, 6, 7, 8, 9])
    assert world.port.num_cached(other.sequence) == 0


@adapters("caches")
def test_a_token_is_always_left_to_compute(adapter: type[Adapter]) -> None:
    """The forward has to produce the next token from something."""
    world = World(adapter(8, 4))
    world.finish(world.start([1] * 8))
    again = world.start([1] * 8)
    assert world.port.num_cached(again.sequence) < 8


@adapters("caches", "evicts")
def test_what_is_cached_makes_room(adapter: type[Adapter]) -> None:
    world = World(adapter(4, 4))
    for t in range(6):
        world.finish(world.start([t] * 9))
    world.start([7] * 16)


@adapters("caches", "evicts")
def test_the_least_recently_used_prompt_goes_first(adapter: type[Adapter]) -> None:
    world = World(adapter(6, 4))
    one, two = [1] * 9, [2] * 9
    world.finish(world.start(one))
    world.finish(world.start(two))
    world.finish(world.start(one))  # used again, so two is the older one from here on
    world.finish(world.start([3] * 9))
    assert world.port.num_cached(world.start(one).sequence) >= 8
    world.finish_all()
    assert world.port.num_cached(world.start(two).sequence) < 8


@adapters("caches", "evicts", "tail_first")
def test_the_end_of_a_prompt_is_evicted_before_its_start(adapter: type[Adapter]) -> None:
    world = World(adapter(4, 4))
    world.finish(world.start([1] * 13))
    world.finish(world.start([2] * 7))
    assert 4 <= world.port.num_cached(world.start([1] * 13).sequence) < 12


@adapters("append")
def test_a_sequence_grows_token_by_token(adapter: type[Adapter]) -> None:
    world = World(adapter(4, 4))
    entry = world.start([1, 2, 3])
    for token in range(13):
        world.append(entry, token)
    before = world.port.slots(entry.sequence), world.port.num_available()
    with pytest.raises(adapter.shortage):
        world.port.append(entry.sequence, 9)
    assert (world.port.slots(entry.sequence), world.port.num_available()) == before
    world.check()


@adapters("append", "caches")
def test_what_was_generated_is_found_again(adapter: type[Adapter]) -> None:
    world = World(adapter(8, 4))
    entry = world.start([1, 2, 3])
    for token in (4, 5, 6, 7, 8, 9):
        world.append(entry, token)
    world.finish(entry)
    again = world.start([1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert world.port.num_cached(again.sequence) >= 8


@adapters("fork")
def test_a_fork_takes_no_blocks_and_reads_the_same(adapter: type[Adapter]) -> None:
    world = World(adapter(8, 4))
    parent = world.start([1] * 7)
    available = world.port.num_available()
    child = world.fork(parent)
    assert world.port.slots(child.sequence) == world.port.slots(parent.sequence)
    assert world.port.num_available() == available
    world.finish(parent)
    assert world.port.num_available() == available


@adapters("fork", "append", "copy_on_write")
def test_the_writer_of_a_shared_block_moves_and_the_last_one_stays(
    adapter: type[Adapter],
) -> None:
    world = World(adapter(8, 4))
    parent = world.start([1] * 6)
    slots = world.port.slots(parent.sequence)
    children = [world.fork(parent) for _ in range(2)]
    for token, child in enumerate(children):
        world.append(child, token)
        assert world.port.slots(child.sequence)[:4] == slots[:4]
        assert not set(world.port.slots(child.sequence)[4:]) & set(slots[4:])
    world.append(parent, 9)
    assert world.port.slots(parent.sequence)[:6] == slots
    world.finish_all()
    assert world.port.num_available() == 8


@adapters("fork", "append", "copy_on_write")
def test_a_fork_that_cannot_move_stays_as_it_was(adapter: type[Adapter]) -> None:
    world = World(adapter(2, 4))
    parent = world.start([1] * 6)
    child = world.fork(parent)
    with pytest.raises(adapter.shortage):
        world.port.append(child.sequence, 2)
    world.check()
    world.finish(parent)
    world.append(child, 2)


class Machine(RuleBasedStateMachine):
    """Random requests in a tiny pool: every read is right, and every block is freed."""

    adapter: type[Adapter]

    @initialize(num_blocks=st.integers(2, 8), block_size=st.integers(1, 4))
    def build(self, num_blocks: int, block_size: int) -> None:
        self.world = World(self.adapter(num_blocks, block_size))

    def can_append(self) -> bool:
        return "append" in self.adapter.features and bool(self.world.running)

    def can_fork(self) -> bool:
        return "fork" in self.adapter.features and bool(self.world.running)

    def entry(self, index: int) -> Running:
        return self.world.running[index % len(self.world.running)]

    def unless_short(self, call: Callable[[], object]) -> None:
        available = self.world.port.num_available()
        try:
            call()
        except self.adapter.shortage:
            assert self.world.port.num_available() == available
            self.world.check()

    @rule(tokens=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=9))
    def start(self, tokens: list[int]) -> None:
        self.unless_short(lambda: self.world.start(tokens))

    @precondition(can_append)
    @rule(index=st.integers(0, 5), token=st.integers(0, 1), count=st.integers(1, 3))
    def append(self, index: int, token: int, count: int) -> None:
        entry = self.entry(index)
        for _ in range(count):
            self.unless_short(lambda: self.world.append(entry, token))

    @precondition(can_fork)
    @rule(index=st.integers(0, 5))
    def fork(self, index: int) -> None:
        if len(self.world.running) < 6:
            self.world.fork(self.entry(index))

    @precondition(lambda self: self.world.running)
    @rule(index=st.integers(0, 5))
    def finish(self, index: int) -> None:
        self.world.finish(self.entry(index))

    @precondition(lambda self: self.world.finished)
    @rule(index=st.integers(0, 5))
    def finish_again(self, index: int) -> None:
        ended = self.world.finished[index % len(self.world.finished)]
        before = self.world.port.num_available()
        with pytest.raises(self.adapter.misuse):
            self.world.port.finish(ended)
        assert self.world.port.num_available() == before
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish_all()
            assert self.world.port.num_available() == self.world.port.capacity


@adapters()
def test_any_life_reads_back_and_gives_everything_back(adapter: type[Adapter]) -> None:
    machine = type("PortMachine", (Machine,), {"adapter": adapter})
    run_state_machine_as_test(machine)  # type: ignore[no-untyped-call]
