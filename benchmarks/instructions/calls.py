"""Python calls on short sequences, for callgrind to count. ``counted.py`` runs it.

Prints what ``core.cc`` prints: a line for each dump. The count of a call includes the loop around
it: some tens of instructions of the interpreter.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import TYPE_CHECKING

import numpy as np

from blockmgr import BlockManager

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

CALLS = 256
WARM_UP = 3
TOKENS = 20
BLOCK_SIZE = 16


class Counter:
    """Counts the instructions of the calls it runs, and prints a line for each."""

    def __init__(self, marks: ctypes.CDLL) -> None:
        self._toggle, self._dump = marks.toggle, marks.dump

    def __call__(self, name: str, run: Callable[[], object]) -> None:
        """Counts one run of ``CALLS`` calls."""
        self._toggle()
        run()
        self._toggle()
        self._dump(name.encode())
        print(name, CALLS, "call", sep="\t")


class Short:
    """As many short sequences as there are calls."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self.manager = BlockManager(
            8192, BLOCK_SIZE, max_seqs=2 * CALLS, max_blocks_per_seq=8, eviction="lru"
        )
        self.handles: list[int] = []
        self.children: list[int] = []
        self.batches: list[npt.NDArray[np.int64]] = []
        self.draw()

    def draw(self) -> None:
        """New prompts, which are not cached."""
        shape = (CALLS, TOKENS)
        self.arrays = list(self._random.integers(0, 128_000, shape, dtype=np.uint32))
        self.lists = [array.tolist() for array in self.arrays]

    def admit_arrays(self) -> None:
        admit = self.manager.admit
        self.handles = [admit(prompt) for prompt in self.arrays]

    def admit_lists(self) -> None:
        admit = self.manager.admit
        self.handles = [admit(prompt) for prompt in self.lists]

    def match(self) -> None:
        match = self.manager.match
        for prompt in self.arrays:
            match(prompt)

    def commit(self) -> None:
        commit = self.manager.commit
        for handle in self.handles:
            commit(handle, TOKENS)

    def commit_again(self) -> None:
        commit = self.manager.commit
        for handle in self.handles:
            commit(handle, TOKENS + 1)

    def append(self) -> None:
        append = self.manager.append
        tokens = [1]
        for handle in self.handles:
            append(handle, tokens)

    def decode_one(self) -> None:
        decode = self.manager.decode
        tokens = np.array([1], dtype=np.uint32)
        for handle in self.batches:
            decode(handle, tokens)

    def fork(self) -> None:
        fork = self.manager.fork
        self.children = [fork(handle)[0] for handle in self.handles]

    def free_children(self) -> None:
        free = self.manager.free
        for handle in self.children:
            free(handle)

    def free(self) -> None:
        free = self.manager.free
        for handle in self.handles:
            free(handle)

    def each(self, run: Callable[[str, Callable[[], object]], None]) -> None:
        """Runs every call, in an order in which each finds the state that it needs."""
        run("admit, a list", self.admit_lists)
        run("commit, promotes a block", self.commit)
        run("append", self.append)
        run("commit", self.commit_again)
        self.batches = [np.array([handle], dtype=np.int64) for handle in self.handles]
        run("decode of one", self.decode_one)
        run("fork", self.fork)
        run("free, a fork", self.free_children)
        run("free", self.free)
        run("match", self.match)
        run("admit again, an array", self.admit_arrays)
        self.free()


def main() -> None:
    """Runs everything uncounted once, until memory is laid out, then counted."""
    counter = Counter(ctypes.CDLL(sys.argv[1]))
    gc.disable()  # its time is not a property of a call
    short = Short()
    for _ in range(WARM_UP):
        short.each(lambda _, run: run())
        short.draw()
    short.each(counter)
    stats = short.manager.stats()
    assert stats.promoted_blocks == (WARM_UP + 1) * CALLS
    assert stats.used_blocks == 0


if __name__ == "__main__":
    main()
