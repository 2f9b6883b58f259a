"""Random lives of sequences in the ports that keep blocks or pages, beside a fake KV memory.

In the memory a slot remembers the prefix that it was computed from. So a wrong hit, a lost copy or
a recycled block is noticed when it is read, even if every count is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockmgr import BlockStateError, OutOfBlocksError, SequenceStateError
from blockmgr.ports import aphrodite, radix
from tests.ports.aphrodite_support import check

# Mostly prefixes of one text, so that most prompts find something.
TEXT = [0, 0, 1, 0, 1, 1, 0, 0]


class Aphrodite:
    """Sequences are block tables of the device, which go to the host and come back."""

    def __init__(self, num_blocks: int, size: int, kind: Any) -> None:
        self.num_blocks, self.size = num_blocks, size
        self.pools = aphrodite.CpuGpuBlockAllocator.create(kind, num_blocks, num_blocks, size)

    def start(self, tokens: list[int]) -> tuple[Any, int]:
        table = aphrodite.BlockTable(self.size, self.pools)
        table.allocate(tokens)
        found = self.pools.get_common_computed_block_ids([table.physical_block_ids])
        return table, len(found) * self.size

    def grow(self, table: Any, tokens: list[int]) -> None:
        table.append_token_ids(tokens[table.num_full_slots :])

    def fork(self, table: Any) -> Any:
        return table.fork()

    def slots(self, table: Any) -> list[int]:
        ids, size = table.physical_block_ids, self.size
        return [ids[p // size] * size + p % size for p in range(table.num_full_slots)]

    def copies(self) -> list[tuple[int, int]]:
        return self.pools.clear_copy_on_writes()

    def share(self, table: Any, tokens: list[int]) -> list[tuple[int, int]]:
        """All tokens are computed; a swap to the host copies them there, and back."""
        self.pools.mark_blocks_as_computed(table.physical_block_ids)
        if self.available() < len(table.blocks):  # forks no longer share when they come back
            return []
        out = self.pools.swap(table.blocks, aphrodite.Device.GPU, aphrodite.Device.CPU)
        back = self.pools.swap(table.blocks, aphrodite.Device.CPU, aphrodite.Device.GPU)
        return [*out.items(), *back.items()]

    def end(self, table: Any, tokens: list[int]) -> None:
        table.free()

    def available(self) -> int:
        return self.pools.get_num_free_blocks(aphrodite.Device.GPU)

    def check(self) -> None:
        check(self.pools)


class Radix:
    """Sequences are requests of the early interface: a locked handle, and slots."""

    def __init__(self, num_blocks: int, size: int, kind: Any) -> None:
        self.num_blocks, self.size = num_blocks, size
        self.cache = radix.CacheManager(None, num_blocks, size)

    def start(self, tokens: list[int]) -> tuple[Any, int]:
        handle, found = self.cache.match_req(radix.Request(0, tokens, 0, 0, 0))
        self.cache.lock(handle)
        request = SimpleNamespace(handle=handle, held=found.tolist(), count=0)
        try:
            self.grow(request, tokens)
        except OutOfBlocksError:
            self.cache.unlock(handle)
            raise
        return request, handle.cached_len

    def grow(self, request: Any, tokens: list[int]) -> None:
        if (more := len(tokens) - len(request.held)) > 0:
            request.held += self.cache.allocate(more).tolist()
        request.count = len(tokens)

    def slots(self, request: Any) -> list[int]:
        held: list[int] = request.held[: request.count]
        return held

    def copies(self) -> list[tuple[int, int]]:
        return []

    def share(self, request: Any, tokens: list[int]) -> list[tuple[int, int]]:
        old = request.handle
        used = self.slots(request)
        request.handle, shared = self.cache.cache_unfinished_req(old, tokens, used)
        request.held[: len(shared)] = shared.tolist()
        return []

    def end(self, request: Any, tokens: list[int]) -> None:
        if len(tokens) % 3 == 0:  # as after an abort
            self.cache.free(request.held[request.handle.cached_len :])
            self.cache.unlock(request.handle)
            return
        self.cache.free_and_cache_finished_req(request.handle, tokens, self.slots(request))
        with pytest.raises((SequenceStateError, BlockStateError)):
            self.cache.free_and_cache_finished_req(request.handle, tokens, self.slots(request))

    def available(self) -> int:
        return self.cache.available_size // self.size

    def check(self) -> None:
        self.cache.check_integrity()
        drawn = radix.format_tree(self.cache)
        sizes = self.cache.manager.size_info
        assert drawn.startswith(f"root: {sizes.evictable_size} evictable, {sizes.protected_size} p")
        if "…" not in drawn:
            slots = [line.partition("slots ")[2].partition(",")[0] for line in drawn.splitlines()]
            numbers = " ".join(slots).split()
            assert len(set(numbers)) == len(numbers) == sizes.total_size


class Paged:
    """Sequences are requests of the later interface, with a row of the page table."""

    def __init__(self, num_blocks: int, size: int, kind: Any) -> None:
        self.num_blocks, self.size = num_blocks, size
        self.cache = radix.PagedCacheManager(num_blocks, size, np.zeros((8, 64), np.int32))
        self.rows = list(range(8))

    def start(self, tokens: list[int]) -> tuple[Any, int]:
        request = SimpleNamespace(input_ids=tokens, table_idx=self.rows[-1])
        handle = request.cache_handle = self.cache.match_req(request).cuda_handle
        self.cache.lock(handle)
        request.cached_len = handle.cached_len
        row = self.cache.page_table[request.table_idx]
        row[: handle.cached_len] = handle.get_matched_indices()
        try:
            self.grow(request, tokens)
        except OutOfBlocksError:
            self.cache.unlock(handle)
            raise
        self.rows.pop()
        return request, int(handle.cached_len)

    def grow(self, request: Any, tokens: list[int]) -> None:
        request.input_ids, request.device_len = tokens, len(tokens)
        self.cache.allocate_paged([request])
        request.cached_len = len(tokens)

    def slots(self, request: Any) -> list[int]:
        slots: list[int] = self.cache.page_table[request.table_idx, : request.cached_len].tolist()
        return slots

    def copies(self) -> list[tuple[int, int]]:
        return []

    def share(self, request: Any, tokens: list[int]) -> list[tuple[int, int]]:
        self.cache.cache_req(request, finished=False)
        return []

    def end(self, request: Any, tokens: list[int]) -> None:
        with self.cache.lazy_free_region():
            self.cache.cache_req(request, finished=True)
        self.rows.append(request.table_idx)

    def available(self) -> int:
        return self.cache.available_size // self.size

    def check(self) -> None:
        self.cache.check_integrity()


class World:
    """Sequences that start alike, grow, share and end, in a pool that is often exhausted."""

    def __init__(self, port: Any, seed: int) -> None:
        self.port, self.size = port, port.size
        self.rng = random.Random(seed)
        self.memory: dict[int, tuple[int, ...]] = {}
        self.running: list[tuple[Any, list[int]]] = []
        self.num_found = self.num_short = 0

    def step(self) -> None:
        rng = self.rng
        what = rng.choice(["start", "start", "start", "grow", "grow", "share", "fork", "end"])
        if what == "start" and len(self.running) < 6:
            self.start([*TEXT[: rng.randrange(1, 9)], *rng.choices([0, 1], k=rng.randrange(3))])
        elif self.running:
            sequence, tokens = rng.choice(self.running)
            if what == "grow":
                self.grow(sequence, tokens)
            elif what == "share":
                self.copy(self.port.share(sequence, tokens))
            elif what == "fork" and hasattr(self.port, "fork"):
                self.running.append((self.port.fork(sequence), tokens.copy()))
            elif what == "end":
                self.running.remove((sequence, tokens))
                self.port.end(sequence, tokens)
        self.check()

    def start(self, tokens: list[int]) -> None:
        sequence, found = self.unless_short(lambda: self.port.start(tokens)) or (None, 0)
        if sequence is not None:
            assert found < len(tokens)  # one token is left to compute
            self.num_found += found
            self.forward(sequence, tokens, found)
            self.running.append((sequence, tokens))

    def grow(self, sequence: Any, tokens: list[int]) -> None:
        more = [*tokens, *self.rng.choices([0, 1], k=self.rng.randrange(1, 4))]
        if self.unless_short(lambda: self.port.grow(sequence, more) or True):
            self.forward(sequence, more, len(tokens))
            tokens[:] = more

    def unless_short(self, call: Callable[[], Any]) -> Any:
        available = self.port.available()
        try:
            return call()
        except OutOfBlocksError:
            self.num_short += 1
            assert self.port.available() == available
            return None

    def forward(self, sequence: Any, tokens: list[int], start: int) -> None:
        """Runs the copies, then writes the tokens from ``start`` on."""
        self.copy(self.port.copies())
        slots = self.port.slots(sequence)
        assert len(slots) == len(set(slots)) == len(tokens)
        for position in range(start, len(tokens)):
            self.memory[slots[position]] = tuple(tokens[: position + 1])

    def copy(self, copies: list[tuple[int, int]]) -> None:
        for source, destination in copies:
            for offset in range(self.size):
                read = self.memory.get(source * self.size + offset, ())
                self.memory[destination * self.size + offset] = read

    def check(self) -> None:
        for sequence, tokens in self.running:
            read = [self.memory[slot] for slot in self.port.slots(sequence)]
            assert read == [tuple(tokens[: position + 1]) for position in range(len(tokens))]
        self.port.check()


@pytest.mark.parametrize(
    ("port", "kind"),
    [(Aphrodite, "naive"), (Aphrodite, "prefix_caching"), (Radix, ""), (Paged, "")],
)
def test_any_life_reads_back_and_gives_everything_back(port: Any, kind: str) -> None:
    num_found = num_short = 0
    for seed in range(120):
        rng = random.Random(seed)
        world = World(port(rng.randrange(2, 10), rng.randrange(1, 4), kind), seed)
        for _ in range(60):
            world.step()
        for sequence, tokens in world.running:
            world.port.end(sequence, tokens)
        assert world.port.available() == world.port.num_blocks
        world.port.check()
        num_found, num_short = num_found + world.num_found, num_short + world.num_short
    assert num_short > 500
    assert num_found > 500 or kind == "naive"
