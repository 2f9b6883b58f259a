"""A fake memory for any groups of layers, in which every slot remembers what it was computed from.

A slot of attention has a name of the prefix for whose last token it was computed. A state fills a
block, and has a name of the prefix that it has consumed; a forward replaces it, so a state that is
used twice, too early or too late is wrong. Everything that a forward reads must belong to its own
prefix. So a wrong hit, a lost copy, a block that is reused too early or a write into another
sequence's block shows as a wrong read, even when every count is right. Reads are checked inside the
step, after its copies and writes: a later check would miss a copy that came too late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tests.specification.layers import FullAttention, RecurrentState, Ring

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence

    from tests.specification.layers import Kind

Prefixes = list[int]
Array = npt.NDArray[np.int64]


class WrongReadError(AssertionError):
    """A forward read something that was not computed from its own prefix."""


def extend_prefixes(
    prefixes: Prefixes,
    tokens: Iterable[int],
    block_size: int,
    namespace: bytes,
    extras: Mapping[int, bytes],
) -> None:
    """Appends a name of the prefix that ends at each token; names are chained hashes."""
    for token in tokens:
        before = prefixes[-1] if prefixes else hash(namespace)
        index, offset = divmod(len(prefixes), block_size)
        if offset == 0:
            before = hash((before, extras.get(index, b"")))
        prefixes.append(hash((before, token)))


def prefixes_of(
    tokens: Iterable[int],
    block_size: int,
    namespace: bytes = b"",
    extras: Mapping[int, bytes] | None = None,
) -> Prefixes:
    """The names of all prefixes of some tokens."""
    prefixes: Prefixes = []
    extend_prefixes(prefixes, tokens, block_size, namespace, extras or {})
    return prefixes


def slots_of(table: Sequence[int], block_size: int, stop: int, stride: int = 0) -> Array:
    """The slot of each of the first positions; without a block, one of the null block.

    stride: Slots of a block in memory, if it has more than the group's tokens.
    """
    blocks = np.zeros(-(-stop // block_size), np.int64)
    blocks[: len(table)] = table[: len(blocks)]
    return (blocks[:, None] * (stride or block_size) + np.arange(block_size)).reshape(-1)[:stop]


def stride_of(kinds: Sequence[Kind], block_size: int) -> int:
    """The slots of a block: the most tokens that a group has in one."""
    sizes = (
        kind.block_size or block_size for kind in kinds if not isinstance(kind, RecurrentState)
    )
    widths = (kind.width for kind in kinds if isinstance(kind, Ring))
    return max(block_size, *sizes, *widths, 0)


@dataclass
class Work:
    """A sequence's work in one forward: writes ``[start, stop)``, and reads what these queries do.

    Attributes:
        name: For messages.
        slots: For each group the slot of each position; for a state, all slots of its block.
        prefixes: Names of the prefixes that end at each position before ``stop``.
        start: The first position to write.
        handed: Slots to write in the first group, if the engine does not ask; None: those it reads.
        first: By group, the first position to write, if it is not ``start``.
        low: By group, the first position that may be read.
        hit: Before it, only groups that are not cached are computed, again.
        begun: Its rings need not be empty where it starts: an earlier forward has begun there.
        states: By group, the slots of the state to read, and by position those to write.
        placed: By position, in which of the slots of a sequence the state there is.
    """

    name: str
    slots: Sequence[Array]
    prefixes: Array
    start: int
    handed: Array | None = None
    first: Mapping[int, int] = field(default_factory=dict)
    low: Mapping[int, int] = field(default_factory=dict)
    hit: int = 0
    begun: bool = False
    states: Mapping[int, tuple[Array, Mapping[int, Array]]] = field(default_factory=dict)
    placed: Mapping[int, int] = field(default_factory=dict)

    stop = property(lambda self: len(self.prefixes))

    @classmethod
    def on_tables(
        cls,
        name: str,
        prefixes: Sequence[int],
        start: int,
        tables: Sequence[Sequence[int]],
        *,
        kinds: Sequence[Kind],
        block_size: int,
    ) -> Work:
        """The work on block tables; of a state, the table has the block of the state."""
        stop, stride = len(prefixes), stride_of(kinds, block_size)
        slots = []
        for kind, table in zip(kinds, tables, strict=True):
            end = block_size if isinstance(kind, RecurrentState) else stop
            if isinstance(kind, Ring):
                slots.append(table[0] * stride + np.arange(stop) % kind.width)
                continue
            slots.append(slots_of(table, kind.block_size or block_size, end, stride))
        return cls(name, slots, np.array(prefixes, np.int64), start)


@dataclass
class Step:
    """A launched step: the copy plan, and the work of every sequence in it."""

    ticket: int
    copies: list[tuple[int, int, int]]
    work: list[Work] = field(default_factory=list)
    plan: Any = None  # as the manager gave it
    emptied: Sequence[int] = ()  # blocks that are empty after the copies
    load: Work | None = None  # it is no forward: something else writes this


class Device:
    """Runs steps in the order they were launched, on one stream."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        rng: random.Random,
        *,
        kinds: Sequence[Kind] = (FullAttention(),),
        check: bool = True,
        null_block: bool = False,
    ) -> None:
        self.block_size, self.kinds = block_size, kinds
        self.stride = stride_of(kinds, block_size)
        self.cells = np.zeros(num_blocks * self.stride, np.int64)
        self.rng, self.check = rng, check
        self.first_slot = self.stride if null_block else 0
        self.queue: list[Step] = []
        self.num_reads = 0

    def launch(self, plan: Any) -> Step:
        """Queues a step with this copy plan; its work is added later."""
        step = Step(plan.ticket, [tuple(copy) for copy in plan], plan=plan)
        self.queue.append(step)
        return step

    def load(self, work: Work) -> None:
        """Queues the writes of something else than a forward."""
        self.queue.append(Step(-1, [], load=work))

    def cancel(self, step: Step) -> None:
        """The launch failed."""
        self.queue.remove(step)

    def spoil(self, block: int) -> None:
        """The memory of a block is released."""
        self.cells[block * self.stride : (block + 1) * self.stride] = -1

    def run(self, step: Step) -> None:
        """Runs everything up to and including the step."""
        while step in self.queue:
            self.forward(self.queue.pop(0))

    def forward(self, step: Step) -> None:
        """Runs the copies, then, group by group, all writes and then all reads."""
        if step.load is not None:
            self._load(step.load)
        self._copy(step)
        for block in step.emptied:
            self.cells[block * self.stride : (block + 1) * self.stride] = 0
        for group, kind in enumerate(self.kinds):
            for work in step.work:
                if isinstance(kind, RecurrentState):
                    self._advance(group, work)
                elif isinstance(kind, Ring):
                    self._turn(group, kind, work)
                else:
                    self._write(group, work)
            if isinstance(kind, RecurrentState | Ring) or not self.check:
                continue
            for work in step.work:
                first = kind.first_read(work.first.get(group, work.start))
                self._read(group, work, max(first, work.low.get(group, 0)))

    def _load(self, work: Work) -> None:
        """Writes what a group has blocks for, and the state at the end; a load brings no ring."""
        for group, kind in enumerate(self.kinds):
            if isinstance(kind, RecurrentState):
                marks = np.arange(1, self.block_size + 1) << 20
                self.cells[work.slots[group]] = self._names(group, work)[-1] ^ marks
            elif not isinstance(kind, Ring):
                slots, names = self._written(group, work)
                there = slots >= self.first_slot
                self.cells[slots[there]] = names[there]

    def _copy(self, step: Step) -> None:
        """Copies word by word in random order, because any order must be right for a plan."""
        size = self.stride
        words = [
            (source * size + word, destination * size + word)
            for source, destination, num_tokens, *_ in step.copies
            for word in range(num_tokens)
        ]
        self.rng.shuffle(words)
        for source, destination in words:
            if min(source, destination) < self.first_slot:
                raise WrongReadError(f"step {step.ticket} copies the null block")
            self.cells[destination] = self.cells[source]

    def _names(self, group: int, work: Work) -> Array:
        """What is due at each position."""
        return work.prefixes ^ (group << 40)

    def _written(self, group: int, work: Work) -> tuple[Array, Array]:
        """The slots that a forward writes, and what."""
        names, first = self._names(group, work), work.first.get(group, work.start)
        slots = work.slots[group] if group or work.handed is None else work.handed
        return slots[first : len(names)], names[first:]

    def _write(self, group: int, work: Work) -> None:
        slots, names = self._written(group, work)
        if (slots < self.first_slot).any():
            raise WrongReadError(f"{work.name} has no block in group {group} to write")
        self.cells[slots] = names

    def _turn(self, group: int, ring: Ring, work: Work) -> None:
        """Writes and reads position by position; at its first position, it must be empty."""
        if work.start == work.stop:
            return
        slots, names = work.slots[group], self._names(group, work)
        base = int(slots[0] // self.stride) * self.stride
        if base < self.first_slot:
            raise WrongReadError(f"{work.name} has no ring of group {group}")
        low = work.low.get(group, 0)
        if work.start == low and not work.begun and self.cells[base : base + ring.width].any():
            raise WrongReadError(
                f"{work.name} begins with a ring of group {group} that is not empty"
            )
        for position in range(work.start, work.stop):
            self.cells[slots[position]] = names[position]
            since = low if position < work.hit else 0
            read = np.arange(max(since, ring.first_read(position)), position + 1)
            if self.check and (self.cells[slots[read]] != names[read]).any():
                raise WrongReadError(f"{work.name} reads a foreign ring at {position}")
        self.num_reads += work.stop - work.start

    def _read(self, group: int, work: Work, first: int) -> None:
        """Reads what the queries do: from the first position that the first one reads."""
        names = self._names(group, work)
        slots = work.slots[group][first : len(names)]
        self.num_reads += len(slots)
        is_wrong = self.cells[slots] != names[first:]
        wrong = np.flatnonzero(is_wrong | (slots < self.first_slot))
        if len(wrong):
            raise WrongReadError(
                f"{work.name} computes [{work.start}, {work.stop}) and reads foreign K/V of group"
                f" {group} at positions {(wrong + first).tolist()}"
            )

    def _advance(self, group: int, work: Work) -> None:
        """A forward that starts at the first token starts with an empty state."""
        if work.start == work.stop:
            return
        names, usual = self._names(group, work), {work.stop: work.slots[group]}
        slots, written = work.states.get(group, (work.slots[group], usual))
        marks = np.arange(1, self.block_size + 1) << 20
        self.num_reads += 1
        if slots[0] < self.first_slot:
            raise WrongReadError(f"{work.name} has no state of group {group}")
        due = names[work.start - 1] ^ marks
        if work.start and self.check and (self.cells[slots] != due).any():
            raise WrongReadError(
                f"{work.name} continues from {work.start} with a wrong state of group {group}"
            )
        for end, written_slots in written.items():
            if (written_slots < self.first_slot).any():
                raise WrongReadError(f"{work.name} has no slot for the state of group {group}")
            self.cells[written_slots] = names[end - 1] ^ marks
