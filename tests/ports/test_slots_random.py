"""Random calls of slots and their prefix cache beside a model and a fake KV memory.

The model keeps the tokens of each slot and scans all slots. It does not predict evictions unless
there is room for everything.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from blockmgr import BlockStateError, OutOfBlocksError, SequenceStateError
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
from tests.ports.test_slots import Memory
from tests.specification.blocks import common

prompts = st.lists(st.sampled_from([1, 1, 2]), min_size=1, max_size=6).map(tuple)
number = st.integers(0, 3)
Tokens = tuple[int, ...]


class SlotMachine(RuleBasedStateMachine):
    """A few slots, two token values, and a cache that may be too small."""

    @initialize(max_slots=st.integers(1, 4), max_capacity=st.sampled_from([100, 100, 3, 6, 9]))
    def build(self, max_slots: int, max_capacity: int) -> None:
        self.slots = SlotAllocator(max_slots)
        self.cache = PrefixCacheManager(max_capacity, slots=self.slots)
        self.memory = Memory(max_slots, 8)
        self.count, self.roomy = max_slots, max_capacity == 100
        self.occupied: set[int] = set()
        self.versions = [0] * max_slots
        self.known: list[Tokens] = [()] * max_slots  # tokens inserted into the cache
        self.pins: Counter[Tokens] = Counter()
        self.freed = list(range(max_slots))  # freed earliest first

    def pinned_slots(self) -> set[int]:
        return {slot for slot in range(self.count) if self.slots._pool.ref_count(slot)} - (
            self.occupied
        )

    def write(self, slot: int, tokens: Tokens) -> None:
        """Writes the owner's K/V for all of its tokens."""
        self.memory.write(slot, tokens)

    @rule(tokens=prompts, done=st.sampled_from([True, True, False]))
    def serves(self, tokens: Tokens, done: bool) -> None:
        """Serves a sequence in a slot and inserts it; frees the slot if it is done."""
        before = self.occupied.copy()
        self.allocs(tokens)
        for slot in self.occupied - before:
            pins = self.pins.total()
            self.inserts(slot, len(tokens))
            if done:
                if self.pins.total() > pins:
                    self.unpin(tokens)
                self.frees(slot)

    @rule(tokens=prompts)
    def allocs(self, tokens: Tokens) -> None:
        takeable = [slot for slot in self.freed if slot not in self.pinned_slots()]
        slot = self.slots.alloc()
        if not takeable:
            assert slot == -1
            return
        assert slot in takeable
        if not self.pins:
            assert slot == takeable[0]
        self.freed.remove(slot)
        self.occupied.add(slot)
        self.versions[slot] += 1
        self.known[slot] = ()
        self.memory.cells[slot] = 0
        self.write(slot, tokens)

    @rule(slot=number)
    def frees(self, slot: int) -> None:
        if slot in self.occupied:
            self.slots.free(slot)
            self.occupied.remove(slot)
            self.freed.append(slot)
        elif slot < self.count:
            with pytest.raises(BlockStateError):
                self.slots.free(slot)

    @rule(tokens=prompts)
    def reuses_directly(self, tokens: Tokens) -> None:
        length, slot, version = self.cache.find(tokens)
        if length and self.slots.is_free(slot):
            assert version == self.versions[slot]
            self.slots.occupy(slot, length)
            self.occupied.add(slot)
            self.freed.remove(slot)
            self.known[slot] = self.known[slot][:length]
            self.memory.cells[slot, length:] = 0
            self.memory.write(slot, tokens, length)
        elif length:
            with pytest.raises(BlockStateError):
                self.slots.occupy(slot, length)

    @rule(slot=number, length=st.integers(1, 8))
    def inserts(self, slot: int, length: int) -> None:
        if slot not in self.occupied:
            return
        cells = self.memory.cells[slot].tolist()
        tokens = tuple(cells[: min(length, cells.index(0))])
        if not tokens:
            return
        try:
            self.cache.insert(tokens, slot, self.versions[slot])
        except OutOfBlocksError:
            assert not self.roomy
            return
        except ValueError:  # larger than the cache
            assert not self.roomy
            return
        self.pins[tokens] += 1
        if len(tokens) > len(self.known[slot]):
            self.known[slot] = tokens

    @rule(tokens=prompts)
    def pins_one(self, tokens: Tokens) -> None:
        length = self.cache.find(tokens)[0]
        if length == len(tokens):
            self.cache.pin(tokens)
            self.pins[tokens] += 1
        else:
            with pytest.raises(ValueError, match="token_ids must be"):
                self.cache.pin(tokens)

    @rule(tokens=prompts, data=st.data())
    def releases(self, tokens: Tokens, data: st.DataObject) -> None:
        if self.pins:
            self.unpin(data.draw(st.sampled_from(sorted(self.pins))))
        else:
            with pytest.raises(ValueError, match="token_ids must be pinned"):
                self.cache.release(tokens)

    def unpin(self, tokens: Tokens) -> None:
        self.cache.release(tokens)
        self.pins[tokens] -= 1
        self.pins += Counter()
        self.reorder()

    def reorder(self) -> None:
        """Reads the order of freed slots from the pool: a slot is freed when its last pin goes."""
        order = [s for s in self.slots._pool.idle_blocks().tolist() if s in self.freed]
        self.freed = [s for s in self.freed if s not in order] + order

    @rule(tokens=prompts, slot=number)
    def copies(self, tokens: Tokens, slot: int) -> None:
        length, source, _ = self.cache.find(tokens)
        if slot not in self.occupied or not length:
            return
        wanted = tokens[:length]
        keep = common(self.known[slot], wanted)
        try:
            self.cache.copy_kv(wanted, slot, self.memory)
        except SequenceStateError:
            assert self.pins
            return
        assert self.memory.holds(slot, wanted)
        if slot != source:
            self.known[slot] = self.known[slot][:keep]
            self.memory.cells[slot, length:] = 0

    @rule(tokens=prompts)
    def finds(self, tokens: Tokens) -> None:
        length, slot, version = self.cache.find(tokens)
        best = max(common(known, tokens) for known in self.known)
        if self.roomy:
            assert length == best
        assert length <= best
        if length:
            assert version == self.versions[slot]
            assert self.memory.holds(slot, tokens[:length])
            assert common(self.known[slot], tokens) >= length

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "slots"):
            return
        self.slots.check_invariants()
        self.cache.check_invariants()
        for slot in range(self.count):
            assert self.slots.version(slot) == self.versions[slot]
            assert self.memory.holds(slot, self.known[slot])
        for tokens in self.pins:
            length, slot, version = self.cache.find(tokens)
            assert length == len(tokens)
            assert self.memory.holds(slot, tokens)
            assert version == self.versions[slot]
            assert not self.slots.is_free(slot)
        assert self.cache._pool.num_cached <= self.cache._pool.num_blocks
        free = [slot for slot in range(self.count) if self.slots.is_free(slot)]
        assert self.slots.free_count == len(free)
        assert set(free) == set(self.freed) - self.pinned_slots()
        if not self.pins:
            assert self.cache._pool.num_used == 0
            assert set(free) == set(self.freed)


TestSlots: Any = SlotMachine.TestCase
