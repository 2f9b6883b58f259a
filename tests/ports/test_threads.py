"""Ports in several threads: stops each call at every line while another thread calls.

The order is deterministic: the second thread starts at a given line of the first one's call, which
continues as soon as the second call has finished or waits for the first.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import RLock, Thread
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blockmgr.ports
from blockmgr import BlockMgrError
from blockmgr.ports import aphrodite, nano_vllm, radix, slots, tgi
from tests.ports.nano_driver import Seq

PACKAGE = str(Path(blockmgr.ports.__file__).parent)
PORTS = (aphrodite, nano_vllm, radix, slots, tgi)


class NoMutex:
    """Never blocks."""

    def acquire(self, blocking: bool = True) -> bool:
        return True

    def release(self) -> None:
        """Nothing to do."""

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Watched(NoMutex):
    """A mutex that reports when a thread has to wait for it."""

    def __init__(self, reports: SimpleQueue[str]) -> None:
        self.lock = RLock()
        self.reports = reports

    def acquire(self, blocking: bool = True) -> bool:
        if not self.lock.acquire(blocking=False):
            self.reports.put("waits")
            return self.lock.acquire()
        return True

    def release(self) -> None:
        self.lock.release()


@dataclass
class World:
    """A port, its calls by name, and a check of the results."""

    objects: list[Any]
    calls: dict[str, Callable[[], Any]]
    check: Callable[[dict[str, Any]], list[str]]
    results: dict[str, Any] = field(default_factory=dict)

    def run(self, which: str, name: str) -> None:
        try:
            self.results[which] = self.calls[name]()
        except (BlockMgrError, ValueError) as error:
            self.results[which] = error


def interleave(build: Callable[[], World], first: str, second: str, *, locked: bool) -> list[str]:
    """The errors after the second call ran at each line of the first in turn."""
    found: list[str] = []
    for stop in count():
        world = build()
        reports: SimpleQueue[str] = SimpleQueue()
        mutex = Watched(reports) if locked else NoMutex()
        for each in world.objects:
            each._mutex = mutex
        if not halted(world, first, second, stop, reports):
            return found
        found += [f"line {stop}: {wrong}" for wrong in world.check(world.results)]
    return found


def halted(world: World, first: str, second: str, stop: int, reports: SimpleQueue[str]) -> bool:
    """Makes a call, and another at a line of it; returns whether that line was reached."""
    lines = count()
    threads: list[Thread] = []

    def other() -> None:
        world.run("second", second)
        reports.put("done")

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and next(lines) == stop:
            threads.append(Thread(target=other))
            threads[0].start()
            reports.get()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        world.run("first", first)
    finally:
        sys.settrace(before)
    for thread in threads:
        thread.join()
    return bool(threads)


# Worlds.


def of_radix() -> World:
    cache = radix.CacheManager(None, 8)
    old, new = [1, 2, 3, 4], [5, 6, 7, 8]
    root = radix.RadixCacheHandle(0, cache.manager.root_node)
    cache.free_and_cache_finished_req(root, old, cache.allocate(4))
    held = cache.allocate(2)
    mine = [*held.tolist()]

    def reuse() -> Any:
        """Evicts everything and caches other tokens in the same pages."""
        cache.free_and_cache_finished_req(root, new, cache.allocate(4))

    def insert() -> None:
        cache.free_and_cache_finished_req(root, [9, 9], held)
        mine.clear()

    def check(results: dict[str, Any]) -> list[str]:
        try:
            cache.check_integrity()
        except BlockMgrError as error:
            return [str(error)]
        owned = Counter(mine)
        for result in results.values():
            if isinstance(result, np.ndarray):
                owned.update(result.tolist())
        wrong = [f"slot {slot} has {n} owners" for slot, n in owned.items() if n > 1]
        wrong += [f"slot {s} is free or cached" for s in owned if cache._pool.ref_count(s) != 1]
        wrong += [f"slot {s} is in the tree" for s in owned if cache._pool.is_cached(s)]
        for result in results.values():
            if isinstance(result, radix.MatchResult):
                try:
                    cache.lock(result.handle)
                except BlockMgrError:
                    continue  # evicted since, which the handle notices
                pages = result.indices
                tokens = [t for page in pages for t in cache._pool.tokens(page).tolist()]
                if tokens != old[: len(tokens)]:
                    wrong.append(f"a handle of {old} stands for {tokens}")
                cache.unlock(result.handle)
        return wrong

    tree = cache.manager
    calls = {
        "evict": lambda: tree.evict(1),
        "allocate": lambda: cache.allocate(3),
        "match": lambda: tree.match_prefix(old),
        "reuse": reuse,
        "insert": insert,
    }
    return World([cache, tree], calls, check)


def of_slots() -> World:
    allocator = slots.SlotAllocator(3)
    cache = slots.PrefixCacheManager(8, slots=allocator)
    first = allocator.alloc()
    cache.insert((1, 2), first, 1)
    cache.release((1, 2))
    allocator.free(first)
    mine = allocator.alloc()

    def check(results: dict[str, Any]) -> list[str]:
        allocator.check_invariants()
        cache.check_invariants()
        given = [slot for slot in results.values() if isinstance(slot, int) and slot >= 0]
        wrong = [f"slot {slot} has two owners" for slot in given if given.count(slot) > 1]
        length, slot, _ = cache.find((1, 2))
        wrong += [f"slot {slot} is handed out, and found"] if length and slot in given else []
        return wrong

    def occupy() -> int:
        allocator.occupy(first)
        return first

    calls = {
        "alloc": allocator.alloc,
        "occupy": occupy,
        "insert": lambda: cache.insert((1, 3, 4), mine, allocator.version(mine)),
        "pin": lambda: cache.pin((1, 2)),
        "free": lambda: allocator.free(mine),
    }
    return World([allocator, cache], calls, check)


def of_nano() -> World:
    blocks = nano_vllm.BlockManager(6, 2, max_seqs=4)
    seqs = [Seq(str(i), [1, 2, 3, 4, 5][: 5 - i], 9) for i in range(3)]
    blocks.allocate(seqs[0], blocks.can_allocate(seqs[0]))
    seqs[0].num_scheduled_tokens = 5
    blocks.hash_blocks(seqs[0])
    seqs[0].token_ids += [6, 7]

    def check(_: dict[str, Any]) -> list[str]:
        try:
            blocks.manager.check_invariants()
        except BlockMgrError as error:
            return [str(error)]
        holders = blocks._holders.values()
        rows = [blocks.manager.block_tables[blocks.manager.row(h.handle)] for h in holders]
        tables = [h.seq.block_table for h in holders]
        return [
            f"table {table} is {row[: len(table)].tolist()} in the core"
            for table, row in zip(tables, rows, strict=True)
            if row[: len(table)].tolist() != table
        ]

    calls = {
        "allocate": lambda: blocks.allocate(seqs[1], blocks.can_allocate(seqs[1])),
        "allocate another": lambda: blocks.allocate(seqs[2], blocks.can_allocate(seqs[2])),
        "append": lambda: blocks.may_append(seqs[0]),
        "deallocate": lambda: blocks.deallocate(seqs[0]),
    }
    return World([blocks], calls, check)


def of_aphrodite() -> World:
    manager = aphrodite.BlockSpaceManager(2, 6, 4, watermark=0, enable_caching=True)

    def group(name: int, tokens: list[int]) -> Any:
        seq = SimpleNamespace(seq_id=name, get_token_ids=lambda: tokens, tokens=tokens)
        return SimpleNamespace(get_seqs=lambda: [seq], seq=seq)

    first, second, third = group(0, [1, 2, 3]), group(1, [1, 2, 3, 4, 5]), group(2, [7, 8, 9])
    manager.allocate(first)
    child = group(3, first.seq.tokens)
    manager.fork(first.seq, child.seq)
    first.seq.tokens.append(4)

    def check(_: dict[str, Any]) -> list[str]:
        wrong: list[str] = []
        for device in aphrodite.Device:
            pool = manager.block_allocator.pool_of(device).pool
            pool.check_invariants()
            held = Counter(
                block
                for table in manager.block_tables.values()
                if table.device is device
                for block in table.pool_blocks()[1]
            )
            counts = pool.ref_count(range(pool.num_blocks)).tolist()
            wrong += [
                f"block {b} of {device} has {n} references and {held[b]} owners"
                for b, n in enumerate(counts)
                if n != held[b]
            ]
        return wrong

    calls = {
        "allocate": lambda: manager.allocate(second),
        "allocate another": lambda: manager.allocate(third),
        "append": lambda: manager.append_slots(first.seq),
        "swap out": lambda: manager.swap_out(first),
        "free": lambda: manager.free(first.seq),
        "mark": lambda: manager.mark_blocks_as_computed(first, 2),
    }
    return World([manager], calls, check)


WORLDS = {"radix": of_radix, "slots": of_slots, "nano_vllm": of_nano, "aphrodite": of_aphrodite}
PAIRS = [(port, first) for port, build in WORLDS.items() for first in build().calls]


@pytest.mark.parametrize(("port", "first"), PAIRS)
def test_a_call_halted_at_any_line_lets_no_other_in(port: str, first: str) -> None:
    build = WORLDS[port]
    for second in build().calls:
        assert not interleave(build, first, second, locked=True), second


@pytest.mark.parametrize(("port", "first", "second"), [
    ("radix", "match", "reuse"),
    ("slots", "alloc", "alloc"),
    ("aphrodite", "swap out", "free"),
])  # fmt: skip
def test_without_its_mutex_a_port_would_be_broken(port: str, first: str, second: str) -> None:
    """Shows that the test above can fail."""
    assert interleave(WORLDS[port], first, second, locked=False)


DOCUMENTED = ("one thread at a time", "belong to the loop's thread")


# Calls that make one locked call, or that keep no books.
WITHOUT_MUTEX = {
    "get_num_free_cpu_blocks",
    "get_num_free_gpu_blocks",
    "lock",
    "unlock",
}


def keeps_books(kind: Any) -> bool:
    """Whether the calls of a port's class change shared state."""
    changes = ("allocate", "alloc", "append_token_ids", "evict", "insert", "get_num_cached_tokens")
    return inspect.isclass(kind) and any(hasattr(kind, name) for name in changes)


def test_every_call_of_a_port_waits_for_the_others_or_says_that_it_does_not() -> None:
    unsaid = []
    for port in PORTS:
        for kind in filter(keeps_books, map(port.__dict__.__getitem__, port.__all__)):
            if not hasattr(kind, "_mutex"):
                doc = " ".join((kind.__doc__ or "").split())
                is_said = any(words in doc for words in DOCUMENTED)
                is_part = issubclass(kind, aphrodite.Block) or kind is aphrodite.BlockAllocator
                unsaid += [] if is_said or is_part else [kind]
                continue
            unsaid += [
                f"{kind.__name__}.{name}"
                for name, call in inspect.getmembers(kind, inspect.isfunction)
                if not name.startswith("_") and name not in WITHOUT_MUTEX
                if not hasattr(call, "__wrapped__")
            ]
    assert not unsaid
