"""Slow, obviously correct cache simulations: dictionaries, lists, one block at a time.

No code here is shared with ``blockmgr.lab``. A *use* is one request: the blocks of its path from
the root, with any hashable names; how many of them it looks up; and how many it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from heapq import heappop, heappush
from itertools import combinations
from typing import NamedTuple

from blockmgr.lab.trace import HashedPrompt, Request, Trace

IDS = "ids"
SERVED = "served"
MANAGER = "manager"


class Use(NamedTuple):
    path: tuple[object, ...]
    looked_up: int
    held: int


def uses(trace: Trace, block_size: int, rule: str) -> Iterator[Use]:
    """The uses of a trace without outputs."""
    for request in trace.requests:
        num_tokens = request.num_prompt_tokens
        whole, ceiling = num_tokens // block_size, -(-num_tokens // block_size)
        but_one = (num_tokens - 1) // block_size
        cached, looked_up, held = {
            IDS: (ceiling, ceiling, ceiling),
            SERVED: (but_one, but_one, but_one),
            MANAGER: (whole, but_one, ceiling),
        }[rule]
        yield Use(_names(request, block_size, cached), looked_up, held)


def _names(request: Request, block_size: int, blocks: int) -> tuple[object, ...]:
    if isinstance(request.prompt, HashedPrompt):
        # An id of these traces follows only one prefix, so it names its prefix.
        parts = 512 // block_size
        ids = request.prompt.ids.tolist()
        return tuple(ids[n // parts] * parts + n % parts for n in range(blocks))
    tokens = request.tokens().tolist()
    ends = [min((n + 1) * block_size, len(tokens)) for n in range(blocks)]
    return tuple((request.namespace, *tokens[:end]) for end in ends)


def unbounded_hits(all_uses: list[Use]) -> int:
    seen: set[object] = set()
    hits = 0
    for use in all_uses:
        hits += sum(block in seen for block in use.path[: use.looked_up])
        seen.update(use.path)
    return hits


def lru_hits(all_uses: list[Use], num_blocks: int) -> int:
    """Hits of a pool that evicts the block released first, tails before heads."""
    idle: OrderedDict[object, None] = OrderedDict()  # the next victim comes first
    hits = 0
    for path, looked_up, held in all_uses:
        found = _found(path[:looked_up], idle)
        hits += found
        for block in path[:found]:
            del idle[block]
        while len(idle) + held > num_blocks:
            idle.popitem(last=False)
        for block in reversed(path):
            idle[block] = None
            idle.move_to_end(block)
    return hits


def farthest_first_hits(all_uses: list[Use], num_blocks: int) -> int:
    """Hits of a pool that evicts the block whose next use is farthest.

    Any of the blocks with the same next use may be evicted: the number of hits is the same.
    """
    never = len(all_uses)
    upcoming: dict[object, int] = {}
    next_uses: list[list[int]] = []
    for number in range(never - 1, -1, -1):
        path, looked_up, _ = all_uses[number]
        next_uses.append([upcoming.get(block, never) for block in path])
        for depth, block in enumerate(path):
            upcoming[block] = number if depth < looked_up else never
    next_uses.reverse()
    due: list[dict[object, None]] = [{} for _ in range(never + 1)]  # blocks by next use
    farthest: list[int] = []  # a heap of next uses, negated
    where: dict[object, int] = {}
    hits = 0
    for number, (path, looked_up, held) in enumerate(all_uses):
        hits += sum(block in where for block in path[:looked_up])
        for block in path:
            if block in where:
                del due[where.pop(block)][block]
        for _ in range(len(where) - (num_blocks - held)):
            while not due[-farthest[0]]:
                heappop(farthest)
            gone, _ = due[-farthest[0]].popitem()
            del where[gone]
        for block, use in zip(path, next_uses[number], strict=True):
            if not due[use]:
                heappush(farthest, -use)
            where[block] = use
            due[use][block] = None
    return hits


def most_hits(all_uses: list[Use], num_blocks: int) -> int:
    """Most hits over all ways to evict, by trying each. A block never outlives its parent."""
    parents = {
        block: path[depth - 1] if depth else None
        for path, _, _ in all_uses
        for depth, block in enumerate(path)
    }

    @cache
    def best(number: int, cached: frozenset[object]) -> int:
        if number == len(all_uses):
            return 0
        path, looked_up, held = all_uses[number]
        found = _found(path[:looked_up], cached)
        idle = cached - set(path[:found])
        surplus = max(0, len(idle) + held - num_blocks)
        return found + max(
            best(number + 1, (cached - set(gone)) | set(path))
            for gone in combinations(sorted(idle, key=repr), surplus)
            if _keeps_parents(cached - set(gone), parents)
        )

    return best(0, frozenset())


def hits_with_company(
    all_uses: list[Use], num_blocks: int, lasts: list[int], pick: Callable[[int], int]
) -> int:
    """Hits when requests overlap and ``pick`` chooses victims among idle leaves.

    Request ``n`` ends ``lasts[n]`` admissions later, or earlier if there is no room for the next.
    """
    parents: dict[object, object] = {}
    cached: set[object] = set()
    running: list[tuple[int, Use]] = []
    hits = 0
    for number, use in enumerate(all_uses):
        running = [entry for entry in running if entry[0] > number]
        while True:
            used = {block for _, other in running for block in other.path}
            found = _found(use.path[: use.looked_up], cached)
            mine = set(use.path[:found])
            private = sum(other.held - len(other.path) for _, other in running)
            needed = use.held - found + private
            if len(used | mine) + needed <= num_blocks:
                break
            running.pop(0)
        hits += found
        while len(cached) + needed > num_blocks:
            idle = cached - used - mine
            leaves = [b for b in idle if not any(parents[child] == b for child in cached)]
            cached.remove(sorted(leaves, key=repr)[pick(len(leaves))])
        parents.update(zip(use.path, (None, *use.path), strict=False))
        cached.update(use.path)
        running.append((number + lasts[number], use))
    return hits


def _found(path: tuple[object, ...], cached: OrderedDict[object, None] | frozenset[object]) -> int:
    for depth, block in enumerate(path):
        if block not in cached:
            return depth
    return len(path)


def _keeps_parents(kept: frozenset[object], parents: dict[object, object]) -> bool:
    return all(parents[block] is None or parents[block] in kept for block in kept)
