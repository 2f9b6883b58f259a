"""Contents, eviction order and promises under retention, for any calls."""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockmgr import BlockManager, OutOfBlocksError, OutOfSequencesError, PinBudgetError, Priority
from blockmgr.blocks import BlockState
from blockmgr.config import EVICTION_POLICIES

SIZE = 2
PRIORITIES = (None, Priority.LOW, Priority.NORMAL, Priority.EXPECTED, Priority.HIGH)
WORLDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "append_only": {"dedup": "append_only", "null_block": True},
    "ghosts": {"ghost_blocks": 5},
    "tails": {"min_partial_tokens": 1},
}


class Engine:
    """Serves random prompts, and records the tokens computed into every block."""

    def __init__(self, rng: random.Random, eviction: str, **options: Any) -> None:
        self.rng = rng
        options |= {"retention": True, "max_pinned_blocks": 4, "max_seqs": 4}
        self.manager = BlockManager(10, SIZE, eviction=eviction, **options)
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}  # (block, place): all up to it
        self.running: list[int] = []
        self.prompts: list[list[int]] = []
        self.pins: list[int] = []
        self.found = self.evicted = 0

    def read(self, handle: int) -> None:
        """Checks that a forward reads for each token what its own prefix computed."""
        sequence = self.manager.sequence(handle)
        tokens, blocks = sequence.tokens.tolist(), sequence.block_ids.tolist()
        for i in range(sequence.num_computed_tokens):
            assert self.written[blocks[i // SIZE], i % SIZE] == tuple(tokens[: i + 1])

    def prompt(self) -> list[int]:
        known = self.rng.choice(self.prompts) if self.prompts and self.rng.random() < 0.7 else []
        prompt = known[: self.rng.randint(0, len(known))]
        prompt = (prompt + [self.rng.randint(0, 1) for _ in range(self.rng.randint(1, 6))])[:12]
        self.prompts = [*self.prompts[-7:], prompt]
        return prompt

    def admit(self) -> None:
        prompt = self.prompt()
        expected = self.manager.match(prompt)
        idle = self.idle_priorities()
        try:
            handle = self.manager.admit(prompt)
        except (OutOfBlocksError, OutOfSequencesError):
            if self.running:
                self.end()
            return
        if not expected.num_partial_tokens:
            self.check_order(idle)
        sequence = self.manager.sequence(handle)
        full = len(expected.block_ids)
        assert sequence.block_ids.tolist()[:full] == expected.block_ids.tolist()
        assert full * SIZE <= sequence.num_cached_tokens <= expected.num_cached_tokens
        self.found += sequence.num_cached_tokens
        self.write_copies()
        self.read(handle)
        self.compute(handle)
        self.running.append(handle)

    def write_copies(self) -> None:
        plan = self.manager.take_copies()
        for source, destination, count in plan:
            for place in range(count):
                self.written[destination, place] = self.written[source, place]
        self.manager.copies_applied(plan.ticket)

    def compute(self, handle: int) -> None:
        sequence = self.manager.sequence(handle)
        tokens, blocks = sequence.tokens.tolist(), sequence.block_ids.tolist()
        for i in range(sequence.num_computed_tokens, len(tokens)):
            self.written[blocks[i // SIZE], i % SIZE] = tuple(tokens[: i + 1])
        sequence.commit(len(tokens))

    def idle_priorities(self) -> dict[int, int]:
        blocks = self.manager.blocks()
        return {int(b): int(blocks.priority[b]) for b in blocks.ids(BlockState.IDLE)}

    def check_order(self, before: dict[int, int]) -> None:
        """No idle block is evicted while one of a lower priority is left."""
        state = self.manager.blocks().state
        gone = [priority for b, priority in before.items() if state[b] == BlockState.OWNED]
        left = [priority for b, priority in before.items() if state[b] == BlockState.IDLE]
        self.evicted += len(gone)
        assert not gone or not left or max(gone) <= min(left)

    def end(self) -> None:
        handle = self.running.pop(self.rng.randrange(len(self.running)))
        self.manager.free(handle, expect_reuse=self.rng.choice([None, True, False]))

    def speak(self) -> None:
        prompt, rng, manager = self.rng.choice(self.prompts or [[0]]), self.rng, self.manager
        priority = rng.choice(PRIORITIES)
        said = {"priority": priority, "ttl": None if priority is None else rng.choice([None, 1, 2])}
        what = rng.randrange(6)
        if what == 0:
            manager.retain_prefix(prompt, **said)
        elif what == 1 and self.running:
            handle = rng.choice(self.running)
            manager.retain(handle, 0, rng.randint(1, manager.sequence(handle).num_tokens), **said)
        elif what == 2:
            manager.touch(prompt)
        elif what == 3:
            manager.set_time(manager.time + rng.choice([0, 1]))
        elif what == 4:
            try:
                self.pins.append(manager.pin(prompt))
            except PinBudgetError:
                self.unpin()
        else:
            self.unpin()

    def unpin(self) -> None:
        if self.pins:
            self.manager.unpin(self.pins.pop(self.rng.randrange(len(self.pins))))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_hits_are_right_and_the_lowest_priority_goes_first(eviction: str, world: str) -> None:
    """Every token served from the cache was computed from exactly the requesting prefix."""
    found = evicted = 0
    for seed in range(8):
        engine = Engine(random.Random(seed), eviction, **WORLDS[world])
        for _ in range(80):
            engine.rng.choice([engine.admit, engine.admit, engine.speak])()
            for handle in engine.running:
                engine.read(handle)
            if engine.running and engine.rng.random() < 0.4:
                engine.end()
            engine.manager.check_invariants()
        found, evicted = found + engine.found, evicted + engine.evicted
    assert found > 100
    assert evicted > 100


@pytest.mark.parametrize("how", ["pin", "high"])
@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_what_is_kept_above_the_others_is_found_whatever_goes_on_below(
    eviction: str, how: str
) -> None:
    """Three of ten blocks are kept, and running work never needs more than the other seven."""
    rng = random.Random(0)
    manager = BlockManager(10, SIZE, eviction=eviction, retention=True, max_pinned_blocks=3)
    kept = [5, 5, 6, 6, 7, 7]

    def serve(prompt: list[int], **hint: Any) -> int:
        handle = manager.admit(prompt)
        found = manager.sequence(handle).num_cached_tokens
        manager.commit(handle, len(prompt))
        manager.free(handle, **hint)
        return found

    serve(kept)
    if how == "pin":
        manager.pin(kept)
    else:
        manager.retain_prefix(kept, priority=Priority.HIGH)
    for _ in range(60):
        prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 14))]
        serve(prompt, expect_reuse=rng.choice([None, True, False]))
        assert len(manager.match([*kept, 0]).block_ids) == 3
        if rng.random() < 0.2:
            assert serve([*kept, 0]) == 6
        manager.check_invariants()
    assert manager.stats().evicted_blocks > 60
    assert manager.stats().evicted_pinned_blocks == 0


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_memory_does_not_grow_with_use(eviction: str) -> None:
    rng = random.Random(1)
    engine = Engine(rng, eviction, ghost_blocks=7)
    manager = engine.manager

    def usage() -> int:
        """After the longest possible prompt, whose scratch stays allocated."""
        handle = manager.admit([9] * 12)
        manager.commit(handle, 12)
        manager.free(handle)
        manager.take_remaps()
        return manager.memory_usage()

    before = usage()
    for _ in range(400):
        rng.choice([engine.admit, engine.speak])()
        if engine.running and rng.random() < 0.5:
            engine.end()
    while engine.running:
        engine.end()
    assert manager.stats().evicted_blocks > 100
    assert usage() == before


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_a_block_whose_kept_child_goes_comes_back_to_its_order(eviction: str) -> None:
    manager = BlockManager(3, 1, eviction=eviction, retention=True)
    handle = manager.admit([1, 2])
    manager.commit(handle, 2)
    manager.retain(handle, 1, 2, priority=Priority.HIGH)
    manager.free(handle)
    manager.free(manager.admit([8, 9]))  # one free block, and the child: the parent has to wait
    assert len(manager.match([1, 2, 3]).block_ids) == 1
    manager.check_invariants()  # the policy orders the parent again: no child keeps it
    manager.free(manager.admit([7, 8, 9]))
    assert len(manager.match([1, 2, 3]).block_ids) == 0
    manager.check_invariants()
