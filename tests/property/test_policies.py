"""The core's eviction policies have the same victims as slow versions from the papers."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    PinBudgetError,
    Priority,
)
from tests.reference_policies import REFERENCES
from tests.stress.profiles import constant_digest
from tests.unit.engine import step

SHORTAGE = (OutOfBlocksError, OutOfSequencesError, NeverFitsError, PinBudgetError)
WORLDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tails": {"min_partial_tokens": 1},
    "append_only": {"dedup": "append_only", "null_block": True},
    "one digest": {"digest": constant_digest},
    "fences": {"steps_in_flight": 2},
    "retention": {"retention": True, "max_pinned_blocks": 3},
    "retained tails": {"retention": True, "max_pinned_blocks": 3, "min_partial_tokens": 1},
    "retention and fences": {"retention": True, "max_pinned_blocks": 3, "steps_in_flight": 2},
}
PRIORITIES = (None, Priority.LOW, Priority.NORMAL, Priority.EXPECTED, Priority.HIGH)


class Pair:
    """Two managers that get the same calls; the second uses the slow policy."""

    def __init__(self, name: str, num_blocks: int, **options: Any) -> None:
        self.managers = [
            BlockManager(num_blocks, 2, max_seqs=8, eviction=eviction, **options)
            for eviction in (name, REFERENCES[name])
        ]
        self.retains = bool(options.get("retention"))
        self.pins: list[tuple[int, ...]] = []
        self.fences = bool(options.get("steps_in_flight"))
        self.handles: list[tuple[int, ...]] = []
        self.tickets: list[int] = []
        self.last_ticket = 0

    def each(
        self, call: str, handle: tuple[int, ...] | None, *args: Any, **keywords: Any
    ) -> tuple[Any, ...] | None:
        results = []
        for i, manager in enumerate(self.managers):
            rest = args if handle is None else (handle[i], *args)
            try:
                results.append(getattr(manager, call)(*rest, **keywords))
            except SHORTAGE as shortage:
                results.append(type(shortage))
        assert isinstance(results[0], type) == isinstance(results[1], type)
        return None if isinstance(results[0], type) else tuple(results)

    def step(self) -> None:
        if len(self.tickets) == 2:
            self.complete()
        for manager in self.managers:
            step(manager)
        self.last_ticket += 1
        if self.fences:
            self.tickets.append(self.last_ticket)

    def complete(self) -> None:
        if self.tickets:
            ticket = self.tickets.pop(0)
            self.each("complete", None, ticket)

    def speak(self, rng: random.Random, prompt: list[int]) -> None:
        """Makes a random call of retention on a prompt, whether it is cached or not."""
        what = rng.random()
        if what < 0.2:
            self.each("touch", None, prompt)
        elif not self.retains:
            pass
        elif what < 0.6:
            priority = rng.choice(PRIORITIES)
            ttl = None if priority is None else rng.choice([None, 1, 2])
            self.each("retain_prefix", None, prompt, priority=priority, ttl=ttl)
        elif what < 0.75:
            if pins := self.each("pin", None, prompt):
                self.pins.append(pins)
        elif what < 0.9 and self.pins:
            self.each("unpin", self.pins.pop(rng.randrange(len(self.pins))))
        else:
            self.each("set_time", None, self.managers[0].time + 1)

    def compare(self) -> None:
        ours, theirs = self.managers
        assert ours.stats() == theirs.stats()
        for column, expected in zip(
            dataclasses.astuple(ours.blocks()), dataclasses.astuple(theirs.blocks()), strict=True
        ):
            assert column.tolist() == expected.tolist()
        ours.check_invariants()
        theirs.check_invariants()


def play(name: str, seed: int, steps: int, **options: Any) -> int:
    """Serves random prompts with common prefixes, freed in any order; counts evictions."""
    rng = random.Random(seed)
    num_blocks = rng.choice([3, 5, 8, 12, 24])
    vocabulary = rng.choice([2, 2, 3, 6])
    pair = Pair(name, num_blocks, **options)
    old: list[list[int]] = []
    for _ in range(steps):
        what = rng.random()
        if what < 0.45:
            prompt = list(rng.choice(old)) if old and rng.random() < 0.6 else []
            prompt += [rng.randrange(vocabulary) for _ in range(rng.randint(1, num_blocks))]
            old = [*old[-5:], prompt]
            if handles := pair.each("admit", None, prompt):
                pair.handles.append(handles)
                pair.step()
        elif what < 0.8 and pair.handles:
            hint = {"expect_reuse": rng.choice([None, True, False])} if pair.retains else {}
            pair.each("free", pair.handles.pop(rng.randrange(len(pair.handles))), **hint)
        elif what < 0.95 and pair.handles:
            pair.each("append", rng.choice(pair.handles), [rng.randrange(vocabulary)])
            pair.step()
        elif pair.handles:
            handle = rng.choice(pair.handles)
            if children := pair.each("fork", handle, 1):
                pair.handles.append(tuple(child for [child] in children))
        if old and rng.random() < 0.4:
            pair.speak(rng, rng.choice(old))
        if rng.random() < 0.5:
            pair.complete()
        pair.compare()
    return pair.managers[0].stats().evicted_blocks


@pytest.mark.parametrize(
    ("name", "world"),
    # LRU keeps the recency of retained blocks; other policies count them as used meanwhile.
    [(n, w) for n in REFERENCES for w in WORLDS if n != "lru" or "retention" not in WORLDS[w]],
)
def test_every_victim_is_that_of_the_slow_policy(name: str, world: str) -> None:
    evictions = sum(play(name, seed, 120, **WORLDS[world]) for seed in range(12))
    assert evictions > 500


@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "lru"])
def test_who_looks_at_a_pool_does_not_change_what_expires_when(name: str) -> None:
    """A block returns to its order when the time is set, not when a count is read."""
    left = []
    for looks in (False, True):
        manager = BlockManager(6, 1, eviction=name, retention=True)
        for token in range(5):
            handle = manager.admit([token])
            manager.commit(handle, 1)
            manager.free(handle)
            if token == 1:
                manager.retain_prefix([1], priority=Priority.HIGH, ttl=1)
                manager.set_time(2)
                if looks:
                    manager.stats()
        kept = []
        for taken in range(1, 6):
            manager.free(manager.admit([9] * taken))
            kept.append([token for token in range(5) if len(manager.match([token, 9]).block_ids)])
        left.append(kept)
    assert left[0] == left[1]
