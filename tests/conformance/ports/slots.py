"""Slots for the conformance suite, which tests blocks: one slot for each block of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from blockmgr import BlockStateError
from blockmgr.ports.slots import SlotAllocator


class NoSlot(Exception):
    """``alloc`` returned -1."""


@dataclass(eq=False)
class Held:
    """The slots of one sequence, with versions that tell whether it still owns them."""

    num_tokens: int
    slots: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Slots:
    """Only allocates and frees slots; the prefix cache handles prefixes, one slot at a time."""

    features = frozenset()
    shortage = NoSlot
    misuse = BlockStateError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.allocator = SlotAllocator(num_blocks)
        self.capacity, self.size = num_blocks, block_size

    def start(self, tokens: list[int]) -> Held:
        held = Held(len(tokens))
        while len(held.slots) * self.size < len(tokens):
            slot = self.allocator.alloc()
            if slot < 0:
                self.finish(held)
                raise NoSlot
            held.slots.append(slot)
            held.versions.append(self.allocator.version(slot))
        return held

    def computed(self, sequence: Held) -> None:
        pass

    def finish(self, sequence: Held) -> None:
        for slot, version in zip(sequence.slots, sequence.versions, strict=True):
            if self.allocator.version(slot) != version:
                raise BlockStateError(slot, "is another sequence's")
            self.allocator.free(slot)

    def slots(self, sequence: Held) -> list[int]:
        cells = [slot * self.size + n for slot in sequence.slots for n in range(self.size)]
        return cells[: sequence.num_tokens]

    def num_cached(self, sequence: Held) -> int:
        return 0

    def take_copies(self) -> list[tuple[int, int]]:
        return []

    def num_available(self) -> int:
        return self.allocator.free_count

    def check(self) -> None:
        self.allocator.check_invariants()
