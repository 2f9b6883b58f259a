"""The hit rate curve compared with managers of other sizes in lock-step, for any calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockmgr import BlockManager, NeverFitsError, OutOfBlocksError

WIDEST = 6  # blocks of the longest sequence
SHORTAGES = (OutOfBlocksError, NeverFitsError)


class Sizes:
    """One manager with ghosts, and one of every other size in its curve.

    The other managers get the same calls. One without room drops out; if the first has no room, no
    manager gets the call.
    """

    def __init__(self, rng: random.Random, **options: Any) -> None:
        self.rng = rng
        self.block_size = rng.choice([1, 2, 3])
        blocks, ghosts = rng.randint(6, 14), rng.randint(1, 20)
        options |= {"max_seqs": 8, "max_blocks_per_seq": WIDEST}
        self.first = BlockManager(blocks, self.block_size, ghost_blocks=ghosts, **options)
        self.others = {
            size: BlockManager(size, self.block_size, **options)
            for size in range(3, blocks + ghosts + 1)
        }
        self.sequences: list[dict[int, int]] = []  # handle of each manager, by its id
        self.prompts: list[list[int]] = []

    def call(self, make: Callable[[BlockManager], Any]) -> dict[int, Any] | None:
        try:
            results = {id(self.first): make(self.first)}
        except SHORTAGES:
            return None
        for size, manager in list(self.others.items()):
            try:
                results[id(manager)] = make(manager)
            except SHORTAGES:
                del self.others[size]
        self.first.check_invariants()
        return results

    def random_tokens(self, low: int, high: int) -> list[int]:
        return [self.rng.randint(0, 1) for _ in range(self.rng.randint(low, high))]

    def admit(self) -> None:
        longest = WIDEST * self.block_size
        if self.prompts and self.rng.random() < 0.7:
            known = self.rng.choice(self.prompts)
            tokens = known[: self.rng.randint(1, len(known))] + self.random_tokens(0, 3)
        else:
            tokens = self.random_tokens(1, longest)
        tokens = tokens[:longest]
        self.prompts = [*self.prompts[-11:], tokens]

        def admit(manager: BlockManager) -> int:
            handle = manager.admit(tokens)
            manager.commit(handle, len(tokens))
            manager.take_remaps()
            return handle

        if handles := self.call(admit):
            self.sequences.append(handles)

    def append(self, handles: dict[int, int]) -> None:
        tokens = self.random_tokens(1, 3)

        def append(manager: BlockManager) -> None:
            handle = handles[id(manager)]
            manager.append(handle, tokens)
            manager.copies_applied(manager.take_copies().ticket)
            manager.commit(handle, manager.sequence(handle).num_tokens)

        self.call(append)

    def fork(self, handles: dict[int, int]) -> None:
        if len(self.sequences) < 6 and (children := self.call(lambda m: m.fork(handles[id(m)])[0])):
            self.sequences.append(children)

    def truncate(self, handles: dict[int, int]) -> None:
        length = self.rng.randint(1, self.first.sequence(handles[id(self.first)]).num_tokens)
        self.call(lambda m: m.truncate(handles[id(m)], length))

    def preempt(self, handles: dict[int, int]) -> None:
        self.call(lambda m: m.preempt(handles[id(m)]))

        def resume(manager: BlockManager) -> bool:
            handle = handles[id(manager)]
            manager.resume(handle)
            manager.commit(handle, manager.sequence(handle).num_tokens)
            return True

        if not self.call(resume):
            self.free(handles)

    def free(self, handles: dict[int, int]) -> None:
        self.call(lambda m: m.free(handles[id(m)]))
        self.sequences.remove(handles)

    def step(self, *, together: bool) -> None:
        if not self.sequences or (together and len(self.sequences) < 4 and self.rng.random() < 0.4):
            self.admit()
            return
        act = self.rng.choice(
            [self.append, self.append, self.fork, self.truncate, self.preempt, self.free, self.free]
        )
        act(self.rng.choice(self.sequences))

    def check(self) -> None:
        curve = self.first.hit_rate_curve()
        own = self.first.stats()
        assert curve.query_tokens == own.query_tokens
        assert curve.hit_tokens[curve.num_blocks] == own.hit_tokens
        found = {size: manager.stats().hit_tokens for size, manager in self.others.items()}
        assert {size: int(curve.hit_tokens[size]) for size in self.others} == found


@pytest.mark.parametrize("together", [False, True], ids=["one at a time", "overlapping"])
@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_curve_is_what_managers_of_the_other_sizes_find(
    together: bool, rng: random.Random
) -> None:
    sizes = Sizes(rng)
    for _ in range(50):
        sizes.step(together=together)
        sizes.check()
    assert sizes.others


@pytest.mark.parametrize("seed", range(3))
def test_the_curve_stays_right_when_its_ticks_are_numbered_again(seed: int) -> None:
    """Uses are numbered; a long run needs many times the available numbers."""
    rng = random.Random(seed)
    first = BlockManager(90, 1, ghost_blocks=90)
    others = {size: BlockManager(size, 1) for size in (10, 40, 89, 90, 91, 130, 180)}
    for _ in range(1_500):
        tokens = [min(int(rng.expovariate(0.05)), 99), *(rng.randint(0, 2) for _ in range(3))]
        for manager in (first, *others.values()):
            handle = manager.admit(tokens)
            manager.commit(handle, len(tokens))
            manager.free(handle)
    curve = first.hit_rate_curve()
    found = {size: manager.stats().hit_tokens for size, manager in others.items()}
    assert {size: int(curve.hit_tokens[size]) for size in others} == found
    assert len(set(found.values())) > 4
    first.check_invariants()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    "options",
    [
        {"dedup": "append_only"},
        {"min_partial_tokens": 1},
        {"digest": lambda message: bytes(8)},
    ],
    ids=["append only", "partial reuse", "one digest for all"],
)
def test_where_other_sizes_are_estimates_the_own_size_is_exact(
    options: dict[str, Any], seed: int
) -> None:
    """The books stay right with duplicates, partial blocks and colliding digests."""
    sizes = Sizes(random.Random(seed), **options)
    sizes.others.clear()
    for _ in range(60):
        sizes.step(together=True)
        curve, own = sizes.first.hit_rate_curve(), sizes.first.stats()
        whole = own.hit_tokens - own.partial_hit_tokens
        assert curve.hit_tokens[curve.num_blocks] == whole
        assert (curve.hit_tokens[1:] >= curve.hit_tokens[:-1]).all()
        assert curve.hit_tokens[-1] <= curve.query_tokens
