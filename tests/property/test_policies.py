"""The core's eviction policies beside slow ones out of the papers: every victim is the same."""

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
)
from blockmgr.stress.profiles import constant_digest
from tests.reference_policies import REFERENCES
from tests.unit.engine import step

SHORTAGE = (OutOfBlocksError, OutOfSequencesError, NeverFitsError)
WORLDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tails": {"min_partial_tokens": 1},
    "append_only": {"dedup": "append_only", "null_block": True},
    "one digest": {"digest": constant_digest},
    "fences": {"steps_in_flight": 2},
}


class Pair:
    """Two managers that are told the same; the other one evicts by the slow policy."""

    def __init__(self, name: str, num_blocks: int, **options: Any) -> None:
        self.managers = [
            BlockManager(num_blocks, 2, max_seqs=8, eviction=eviction, **options)
            for eviction in (name, REFERENCES[name])
        ]
        self.fences = bool(options.get("steps_in_flight"))
        self.handles: list[tuple[int, ...]] = []
        self.tickets: list[int] = []
        self.last_ticket = 0

    def each(self, call: str, handle: tuple[int, ...] | None, *args: Any) -> tuple[Any, ...] | None:
        results = []
        for i, manager in enumerate(self.managers):
            rest = args if handle is None else (handle[i], *args)
            try:
                results.append(getattr(manager, call)(*rest))
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
    """Random prompts that begin alike, freed in any order; the number of evictions."""
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
            pair.each("free", pair.handles.pop(rng.randrange(len(pair.handles))))
        elif what < 0.95 and pair.handles:
            pair.each("append", rng.choice(pair.handles), [rng.randrange(vocabulary)])
            pair.step()
        elif pair.handles:
            handle = rng.choice(pair.handles)
            if children := pair.each("fork", handle, 1):
                pair.handles.append(tuple(child for [child] in children))
        if rng.random() < 0.5:
            pair.complete()
        pair.compare()
    return pair.managers[0].stats().evicted_blocks


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", REFERENCES)
def test_every_victim_is_that_of_the_slow_policy(name: str, world: str) -> None:
    evictions = sum(play(name, seed, 120, **WORLDS[world]) for seed in range(12))
    assert evictions > 500
