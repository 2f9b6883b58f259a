"""How many launches does a list of copies take in waves? Run ``benchmarks.kv.waves``.

The usual way to run an arbitrary list: reduce it to one source per destination, launch the copies
whose destination is not a source of a pending copy, then those that have become ready, and so on;
when only cycles remain, copy one block to a scratch block. blockmgr orders the copies within one
launch instead. Both results are compared with the list carried out one copy after the other.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from blockmgr import _core

if TYPE_CHECKING:
    from collections.abc import Callable

Pairs = list[tuple[int, int]]


def assignment(pairs: Pairs) -> dict[int, int]:
    """Maps each changed destination to the block whose original content it ends with."""
    content: dict[int, int] = {}
    for source, destination in pairs:
        content[destination] = content.get(source, source)
    return {block: root for block, root in content.items() if block != root}


def waves(sources: dict[int, int], scratch: int) -> list[Pairs]:
    """Launches whose copies may run in any order, for a map of destination to source."""
    left = dict(sources)
    readers = Counter(left.values())
    ready = [block for block in left if not readers[block]]
    launches: list[Pairs] = []
    while left:
        if not ready:  # every remaining block is a source of another one
            parked = next(iter(left))
            launches.append([(parked, scratch)])
            for block, source in left.items():
                if source == parked:
                    left[block] = scratch
            readers[scratch], readers[parked] = readers[parked], 0
            ready = [parked]
        launch = [(left.pop(block), block) for block in ready]
        launches.append(launch)
        ready = []
        for source, _ in launch:
            readers[source] -= 1
            if not readers[source] and source in left:
                ready.append(source)
    return launches


def in_waves(pairs: Pairs, memory: list[int]) -> tuple[int, list[int]]:
    """Number of launches, and the memory after them."""
    memory = [*memory, -1]
    launches = waves(assignment(pairs), scratch=len(memory) - 1)
    for launch in launches:
        # No copy of a launch reads a destination, so every order gives this.
        for source, destination in launch:
            memory[destination] = memory[source]
    return len(launches), memory[:-1]


def in_one_launch(pairs: Pairs, memory: list[int], rng: random.Random) -> list[int]:
    """The memory after one launch: components in any order, each in the given order."""
    sources, destinations = np.array(pairs, np.int32).reshape(-1, 2).T.copy()
    starts, moves = _core.order_copies(sources, destinations, len(memory), True)
    components = [moves[a:b].tolist() for a, b in pairwise(starts.tolist())]
    rng.shuffle(components)
    memory = list(memory)
    for component in components:
        register = -1
        for source, destination in component:
            value = register if source < 0 else memory[source]
            if destination < 0:
                register = value
            else:
                memory[destination] = value
    return memory


def snapshot(pairs: Pairs, memory: list[int]) -> list[int]:
    """The memory after ``x[destinations] = x[sources]``, which reads all before it writes."""
    after = list(memory)
    for source, destination in pairs:
        after[destination] = memory[source]
    return after


def unordered(pairs: Pairs, memory: list[int], rng: random.Random) -> list[tuple[int, ...]]:
    """The memory after one launch of the unchanged list.

    Each block has four words; each copy loads and stores them one by one, interleaved at random
    with the other copies.
    """
    words = [[content] * 4 for content in memory]
    steps = [(copy, word) for copy in range(len(pairs)) for word in range(4)] * 2
    rng.shuffle(steps)
    held: dict[tuple[int, int], int] = {}
    for copy, word in steps:  # the first time a load, the second time a store
        source, destination = pairs[copy]
        if (copy, word) in held:
            words[destination][word] = held[copy, word]
        else:
            held[copy, word] = words[source][word]
    return [tuple(block) for block in words]


def one_after_another(pairs: Pairs, memory: list[int]) -> list[int]:
    """The memory after the copies of the list, one after another."""
    memory = list(memory)
    for source, destination in pairs:
        memory[destination] = memory[source]
    return memory


def small(rng: random.Random) -> tuple[int, Pairs]:
    """One to eight random copies among two to nine blocks."""
    num_blocks = rng.randint(2, 9)
    return num_blocks, _random_pairs(rng, num_blocks, rng.randint(1, 8))


def sparse(rng: random.Random) -> tuple[int, Pairs]:
    """256 random copies among 4,096 blocks."""
    return 4096, _random_pairs(rng, 4096, 256)


def dense(rng: random.Random) -> tuple[int, Pairs]:
    """256 random copies among 256 blocks."""
    return 256, _random_pairs(rng, 256, 256)


def shift(rng: random.Random) -> tuple[int, Pairs]:
    """256 neighbouring blocks, each moved up by one: the last first."""
    first = rng.randint(0, 63)
    return 320, [(block, block + 1) for block in reversed(range(first, first + 256))]


def rotation(rng: random.Random) -> tuple[int, Pairs]:
    """A rotation: a shift whose last block moves to the first place, through a spare block."""
    num_blocks, moves = shift(rng)
    last, first = moves[0][0], moves[-1][0]
    return num_blocks, [(last, last + 1), *moves[1:], (last + 1, first)]


CASES: tuple[Callable[[random.Random], tuple[int, Pairs]], ...] = (
    small,
    sparse,
    dense,
    shift,
    rotation,
)


def _random_pairs(rng: random.Random, num_blocks: int, count: int) -> Pairs:
    return [(rng.randrange(num_blocks), rng.randrange(num_blocks)) for _ in range(count)]


@dataclass
class Tally:
    """Counts over the lists of one kind; ``wrong`` has one for each way of running them."""

    lists: int = 0
    launches: list[int] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)


def count(case: Callable[[random.Random], tuple[int, Pairs]], lists: int) -> Tally:
    """Runs every list in every way and compares with the correct result."""
    rng = random.Random(case.__name__)
    timing = random.Random(case.__name__)  # separate, so that the lists do not depend on it
    tally = Tally(lists)
    for _ in range(lists):
        num_blocks, pairs = case(rng)
        before = list(range(num_blocks))
        after = one_after_another(pairs, before)
        launches, memory = in_waves(pairs, before)
        tally.launches.append(launches)
        tally.wrong["waves"] += memory != after
        tally.wrong["ordered"] += in_one_launch(pairs, before, timing) != after
        tally.wrong["snapshot"] += snapshot(pairs, before) != after
        tally.wrong["unordered"] += unordered(pairs, before, timing) != [(c,) * 4 for c in after]
    return tally


def main() -> None:
    """Counts over many lists of each kind and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv.waves", description=__doc__)
    parser.add_argument("--lists", type=int, default=100_000, help="lists of the smallest kind")
    arguments = parser.parse_args()
    table = Table(box=None, pad_edge=False)
    table.add_column("lists of")
    headings = "lists|> 1 wave|waves, mean|most|wrong: as it is|snapshot|in waves|in one launch"
    for heading in headings.split("|"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case in CASES:
        lists = arguments.lists if case is small else max(arguments.lists // 100, 1)
        tally = count(case, lists)
        ways = ("unordered", "snapshot", "waves", "ordered")
        table.add_row(
            str(case.__doc__),
            f"{lists:,}",
            f"{sum(n > 1 for n in tally.launches) / lists:.1%}",
            f"{sum(tally.launches) / lists:.1f}",
            str(max(tally.launches)),
            *(f"{tally.wrong[way]:,}" for way in ways),
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
