"""The KV oracle: a fake memory in which every slot stores the prefix it was computed from.

A wrong hit, a lost copy, a recycled block or a write into a foreign block shows up here as a wrong
read, even when every count is right. Reads are checked inside the step, after its copies and
writes: a later check would miss a copy that came too late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

Prefixes = list[int]
Slots = npt.NDArray[np.int64]


class KVMismatchError(AssertionError):
    """A sequence read K/V that was computed from another prefix than its own."""


def extend_prefixes(
    prefixes: Prefixes,
    tokens: list[int],
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


@dataclass
class Work:
    """A sequence's work in one forward: writes ``[start, end)``, then reads ``[0, end)``."""

    name: str
    slots: Slots
    prefixes: npt.NDArray[np.int64]
    start: int
    handed: Slots | None = None  # slots to write, if it does not ask; None: those it reads


@dataclass
class Step:
    """A launched step: the copy plan, and the work of every sequence in it."""

    ticket: int
    copies: list[tuple[int, int, int]]
    work: list[Work] = field(default_factory=list)


class Device:
    """Runs steps in the order they were launched, on one stream."""

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random, check: bool) -> None:
        self.block_size = block_size
        self.cells = np.zeros(num_blocks * block_size, np.int64)
        self.rng = rng
        self.check = check
        self.queue: list[Step] = []

    def launch(self, plan: Any) -> Step:
        """Queues a step with this copy plan; its work is added later."""
        step = Step(plan.ticket, [tuple(copy) for copy in plan])
        self.queue.append(step)
        return step

    def cancel(self, step: Step) -> None:
        """The launch failed."""
        self.queue.remove(step)

    def run(self, step: Step) -> None:
        """Runs everything up to and including the step."""
        while step in self.queue:
            self._run(self.queue.pop(0))

    def _run(self, step: Step) -> None:
        self._copy(step)
        for work in step.work:
            written = work.slots if work.handed is None else work.handed
            self.cells[written[work.start :]] = work.prefixes[work.start :]
        for work in step.work if self.check else ():
            wrong = np.flatnonzero(self.cells[work.slots] != work.prefixes)
            if len(wrong):
                raise KVMismatchError(
                    f"step {step.ticket}: {work.name} reads foreign K/V at positions"
                    f" {wrong.tolist()}, it wrote from {work.start}"
                )

    def _copy(self, step: Step) -> None:
        """Copies word by word in random order, because any order must be right for a plan."""
        size = self.block_size
        words = [
            (source * size + word, destination * size + word)
            for source, destination, num_tokens in step.copies
            for word in range(num_tokens)
        ]
        self.rng.shuffle(words)
        for source, destination in words:
            self.cells[destination] = self.cells[source]
