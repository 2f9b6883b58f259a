"""Random block tables of the Aphrodite port beside a fake KV memory.

In the memory a slot remembers the prefix that it was computed from. So a wrong hit, a lost copy or
a recycled block is noticed when it is read, even if every count is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from blockmgr import SequenceStateError
from blockmgr.ports.aphrodite import BlockTable, CpuGpuBlockAllocator, Device, NoFreeBlocksError

Running = tuple[BlockTable, list[int]]


class Tables(RuleBasedStateMachine):
    """Sequences that start alike, grow, fork and end, in a pool that is often exhausted."""

    kind: ClassVar[Literal["naive", "prefix_caching"]]

    @initialize(num_blocks=st.integers(2, 8), block_size=st.integers(1, 4))
    def build(self, num_blocks: int, block_size: int) -> None:
        self.allocator = CpuGpuBlockAllocator.create(self.kind, num_blocks, 0, block_size)
        self.num_blocks, self.size = num_blocks, block_size
        self.memory: dict[int, tuple[int, ...]] = {}
        self.running: list[Running] = []
        self.ended: list[BlockTable] = []

    def slots(self, table: BlockTable) -> list[int]:
        ids = table.physical_block_ids
        return [
            ids[p // self.size] * self.size + p % self.size for p in range(table.num_full_slots)
        ]

    def num_available(self) -> int:
        return self.allocator.get_num_free_blocks(Device.GPU)

    def forward(self, table: BlockTable, tokens: list[int], start: int) -> None:
        """Runs the copies, then writes the tokens from ``start`` on."""
        size = self.size
        copies = [
            (source * size + i, destination * size + i)
            for source, destination in self.allocator.clear_copy_on_writes()
            for i in range(size)
        ]
        read = {source: self.memory.get(source, ()) for source, _ in copies}
        self.memory.update((destination, read[source]) for source, destination in copies)
        slots = self.slots(table)
        assert len(slots) == len(tokens)
        for position in range(start, len(slots)):
            self.memory[slots[position]] = tuple(tokens[: position + 1])
        self.allocator.mark_blocks_as_computed(table.physical_block_ids)
        self.check()

    def check(self) -> None:
        for table, tokens in self.running:
            slots = self.slots(table)
            assert len(set(slots)) == len(slots)
            assert [self.memory[s] for s in slots] == [
                tuple(tokens[: position + 1]) for position in range(len(slots))
            ]
        assert 0 <= self.num_available() <= self.num_blocks
        self.allocator.pool_of(Device.GPU).pool.check_invariants()

    def unless_short(self, call: Callable[[], object]) -> bool:
        available = self.num_available()
        try:
            call()
        except NoFreeBlocksError:
            assert self.num_available() == available
            self.check()
            return False
        return True

    def one(self, index: int) -> Running:
        return self.running[index % len(self.running)]

    @rule(tokens=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=9))
    def start(self, tokens: list[int]) -> None:
        table = BlockTable(self.size, self.allocator)
        if self.unless_short(lambda: table.allocate(tokens)):
            known = [table.physical_block_ids]
            found = self.allocator.get_common_computed_block_ids(known)
            assert len(found) * self.size < len(tokens)  # one token is left to compute
            self.running.append((table, tokens))
            self.forward(table, tokens, len(found) * self.size)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 5), token=st.integers(0, 1), count=st.integers(1, 3))
    def append(self, index: int, token: int, count: int) -> None:
        table, tokens = self.one(index)
        for _ in range(count):
            if self.unless_short(lambda: table.append_token_ids([token])):
                tokens.append(token)
                self.forward(table, tokens, len(tokens) - 1)

    @precondition(lambda self: 0 < len(self.running) < 6)
    @rule(index=st.integers(0, 5))
    def fork(self, index: int) -> None:
        table, tokens = self.one(index)
        available = self.num_available()
        self.running.append((table.fork(), list(tokens)))
        assert self.num_available() == available
        self.check()

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 5))
    def end(self, index: int) -> None:
        table, _ = self.running.pop(index % len(self.running))
        table.free()
        self.ended.append(table)
        self.check()

    @precondition(lambda self: self.ended)
    @rule(index=st.integers(0, 5))
    def end_again(self, index: int) -> None:
        available = self.num_available()
        with pytest.raises(SequenceStateError):
            self.ended[index % len(self.ended)].free()
        assert self.num_available() == available
        self.check()

    def teardown(self) -> None:
        if hasattr(self, "running"):
            while self.running:
                self.end(0)
            assert self.num_available() == self.num_blocks


@pytest.mark.parametrize("kind", ["naive", "prefix_caching"])
def test_any_life_reads_back_and_gives_everything_back(kind: str) -> None:
    machine: Any = type("Machine", (Tables,), {"kind": kind})
    run_state_machine_as_test(machine)  # type: ignore[no-untyped-call]
