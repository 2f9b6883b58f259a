"""A random world: an engine, tiers and movers, some of which lie, against memory that knows better.

Each token's K/V is a number for the whole prefix that ends there and the group of layers, so
whatever is read in a wrong place shows. The store behind the tiers may lie: it says that a block is
written and has written other bytes, half of them, a flipped bit, another block, or nothing. What
proves a block is as in real movers: serial, key and checksum.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from blockmgr import (
    ChunkedAttention,
    CopyPlan,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    Priority,
    RecurrentState,
    SlidingWindow,
    StaleMatchError,
    StepError,
)
from blockmgr.groups import Group, table_group, tokens_per_block
from blockmgr.tiers import DEVICE, Slab, TierConfig, TieredManager, Transfer, key_bytes
from blockmgr.tiers.kinds import STORES
from blockmgr.tiers.paths import Path as TierPath
from blockmgr.tiers.paths import part_of, secret

SIZE = 4
SPACES = (b"", b"tenant")
IMAGE = b"image"
LIES = ("flip", "half", "elsewhere", "nothing")
FULL = FullAttention()
LAYOUTS: tuple[tuple[Group, ...], ...] = (
    (FULL, SlidingWindow(6)),
    (SlidingWindow(9), FULL, SlidingWindow(1)),
    (FULL, ChunkedAttention(8)),
    (FULL, ChunkedAttention(6, block_size=2), FULL),
    (FullAttention(2), SlidingWindow(5, block_size=4)),
    (SlidingWindow(7, block_size=1), FullAttention(2)),
    (FULL, RecurrentState()),
    (FULL, SlidingWindow(6, block_size=2), RecurrentState()),
)


def first_read(group: Group, position: int) -> int:
    """The first position that the query at this one reads."""
    if isinstance(group, SlidingWindow):
        return max(0, position - group.width + 1)
    return position - position % group.width if isinstance(group, ChunkedAttention) else 0


def prefixes(
    tokens: list[int], namespace: bytes, extras: dict[int, bytes], weights: int
) -> np.ndarray:
    """The K/V of each token: a number for the whole prefix that ends there, and the weights."""
    numbers, digest = [], b"in " + namespace + bytes([weights])
    for i, token in enumerate(tokens):
        digest += extras.get(i // SIZE, b"") + int(token).to_bytes(4, "little")
        digest = xxhash.xxh3_64_digest(digest)
        numbers.append(int.from_bytes(digest, "little"))
    return np.array(numbers, np.uint64)


class Memory:
    """The bytes of a tier, with a record beside each block, as in host memory."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros((size, SIZE), np.uint64)
        self.records: list[tuple[int, bytes, bytes] | None] = [None] * size

    def write(self, block: int, serial: int, key: bytes, data: np.ndarray, digest: bytes) -> None:
        self.data[block] = data
        self.records[block] = serial, key, digest

    def read(self, block: int, serial: int, key: bytes) -> tuple[np.ndarray, bytes | None]:
        data, record = self.data[block].copy(), self.records[block]
        good = record == (serial, key, xxhash.xxh3_128_digest(data.tobytes()))
        return data, record[2] if good and record else None


class File(Memory):
    """The same in a slab."""

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.data = np.zeros((slab.num_blocks, 0))

    def write(self, block: int, serial: int, key: bytes, data: np.ndarray, digest: bytes) -> None:
        self.slab.write(block, key, data.tobytes(), serial=serial, digest=digest)

    def read(self, block: int, serial: int, key: bytes) -> tuple[np.ndarray, bytes | None]:
        into = bytearray(8 * SIZE)
        digest = self.slab.read_digest(block, key, serial, into)
        return np.frombuffer(into, np.uint64).copy(), digest


def failing(file: int) -> None:
    """A sync that the disk fails."""
    raise OSError(errno.EIO, "Input/output error")


class World:
    """One world, from a seed, of a model with these groups of layers.

    A wild one also resizes its device, retains, cuts prompts short and names sessions. Its slab
    fails, and what is lost is lost several times in a row.
    """

    def __init__(
        self, seed: int, folder: Path, groups: tuple[Group, ...] = (), *, is_wild: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.is_wild = is_wild
        self.folder = folder
        self.has_slab = self.random.random() < 0.4
        self.lie = self.random.choice([0, 0.1, 0.4])
        self.counts: Counter[str] = Counter()
        self.jobs: list[Transfer] = []
        self.talks: list[tuple[list[int], bytes, dict[int, bytes]]] = []
        self.weights = dict.fromkeys(SPACES, 0)
        self.slab: Slab | None = None
        self.shared: tuple[int, ...] = ()  # tiers whose bytes others see
        draw = self.random.choice
        self.options: dict[str, Any] = {
            "num_blocks": draw([6, 8, 8, 12, 20]),
            "min_partial_tokens": draw([0, 1, 2]),
            "dedup": draw(["remap", "append_only"]),
            "eviction": draw(["lru", "lru", "s3fifo"]),
            "quotas": draw([{}, {}, {b"tenant": 4}]),
            "max_loading": draw([None, 2]),
            "max_storing": draw([None, 3]),
        }
        self.kinds = groups or (FULL,)
        if groups:
            self.options |= {"groups": groups, "null_block": True}
            parts = sum(SIZE // tokens_per_block(group, SIZE) for group in groups)
            self.options["num_blocks"] = 2 + self.options["num_blocks"] * parts * 2 // 3
            self.options["max_loading"] = draw([None, None, 8])
        self.sizes = [draw([4, 8, 24]), draw([40, 120])][: draw([1, 2, 2])]
        self.writes: dict[str, Any] = {"ahead": draw([None, 4, 999, 999])}
        self.writes["store"] = random.Random(f"{seed} store").choice(STORES)
        if groups:
            self.sizes = [size * parts for size in self.sizes]
        if is_wild:
            self.has_slab = seed % 4 > 0
            self.sizes[-1] = min(self.sizes[-1], draw([4, 8, 999]) * (parts if groups else 1))
            self.options |= {"retention": True, "max_sessions": draw([1, 5])}
            self.clock = 0.0
        self.start()

    def start(self) -> None:
        """Makes the manager, on what the slab has."""
        tiers = [TierConfig(num_blocks=size, **self.writes) for size in self.sizes]
        self.stores = [Memory(size) for size in self.sizes]
        self.set_up(tiers)
        self.manager = TieredManager(block_size=SIZE, tiers=tiers, **self.options)
        self.kv = np.zeros((self.options["num_blocks"], SIZE), np.uint64)
        self.in_use = self.options["num_blocks"]
        self.names: dict[int, tuple[bytes, dict[int, bytes]]] = {}
        self.jobs.clear()
        self.halves: list[tuple[Transfer, list[np.ndarray]]] = []

    def set_up(self, tiers: list[TierConfig]) -> None:
        """Puts the last tier into a slab, in some worlds."""
        if self.has_slab:
            layout: dict[str, str | int] = {"model": "numbers", "groups": str(self.kinds)}
            path, size = self.folder / "kv.slab", self.sizes[-1]
            self.slab = Slab(
                path,
                layout,
                num_blocks=size,
                block_bytes=8 * SIZE,
                key_bytes=key_bytes(SIZE),
            )
            tiers[-1] = TierConfig(slab=self.slab, **self.writes)
            self.stores[-1] = File(self.slab)

    def restart(self) -> None:
        """The process ends, and another one starts; only the slab is left."""
        is_clean = not (self.jobs or self.halves) and self.random.random() < 0.5
        if self.halves:
            self.write_half()  # and says nothing of it
        if is_clean:
            self.manager.close()
        elif self.slab is not None:
            self.slab.close()
        self.start()
        self.counts["restored"] += self.manager.tier_stats()[-1].restored
        if self.has_slab:
            self.audit()

    def audit(self) -> None:
        """Reads whatever a slab has that can be found, as far as it is proved."""
        names = {secret(name): name for name in (*SPACES, IMAGE)}
        books = self.manager._tiers[-1]
        into, number = bytearray(8 * SIZE), table_group(self.kinds)
        for block, serial, key in self.slab.found.tolist() if self.slab else ():
            if not books.pool.is_cached(block):
                continue
            prefix = books.pool.prefix_of(block)
            path = TierPath.of_tier(prefix, SIZE)
            is_part = any(map(part_of, path.extras.values()))
            if is_part or path.has_end or not self.slab.read(block, key, serial, into):
                continue
            namespace = names[path.namespace]
            extras = {i: names[name] for i, name in path.extras.items()}
            tokens = path.tokens.tolist()
            want = prefixes(tokens, namespace, extras, self.weights[namespace])
            count = tokens_per_block(self.kinds[number], SIZE)
            right = want[-SIZE:][:count] + np.uint64(number)
            self.counts["audited"] += 1
            self.counts["wrong"] += int((np.frombuffer(into, np.uint64)[:count] != right).sum())

    # Movers.

    def carry(self, job: Transfer) -> None:
        """Moves the bytes of a transfer and reports it, or abandons it."""
        if self.random.random() < 0.05:
            self.manager.abandon(job.ticket)
            return
        try:
            n, refused = self.load(job) if job.target == DEVICE else self.store(job)
        except OSError:  # a shared store that cannot be reached
            n, refused = 0, False
        done = self.manager.loads_done if job.target == DEVICE else self.manager.stores_done
        done(job.ticket, n, refused=refused)

    def lies(self) -> bool:
        return self.random.random() < self.lie

    def load(self, job: Transfer) -> tuple[int, bool]:
        store, proofs = self.stores[job.source], job.source_proofs
        assert proofs is not None
        good = []
        for i, (source, target) in enumerate(
            zip(job.source_blocks, job.target_blocks, strict=True)
        ):
            if self.lies() and self.random.random() < 0.2:
                return self.leading(good), False  # the store cannot be reached
            block = self.random.randrange(len(store.data)) if self.lies() else int(source)
            data, digest = store.read(block, int(proofs.serials[i]), proofs.keys[i])
            self.kv[target] = data  # written before it is judged
            good.append(digest is not None)
        self.counts["ends"] += job.num_tokens % SIZE > 0 and all(good)
        return self.leading(good), True

    def leading(self, good: list[bool]) -> int:
        self.counts["refused"] += good.count(False)
        return good.index(False) if False in good else len(good)

    def read_half(self) -> None:
        """Reads what a store has to write, as a mover does at once; it writes it later."""
        stores = [j for j in self.jobs if j.source == DEVICE and j.target == len(self.sizes) - 1]
        if self.slab is not None and stores:
            job = self.random.choice(stores)
            self.jobs.remove(job)
            count = self.manager.stores_read(job.ticket, len(job))
            data = [self.kv[block].copy() for block in job.source_blocks[:count]]
            self.halves.append((job, data))

    def write_half(self) -> tuple[int, int]:
        """Writes what ``read_half`` has read; the ticket, and how many blocks."""
        job, data = self.halves.pop(self.random.randrange(len(self.halves)))
        proofs = job.target_proofs
        assert proofs is not None
        for i, each in enumerate(data):
            digest = xxhash.xxh3_128_digest(each.tobytes())
            to, serial = int(job.target_blocks[i]), int(proofs.serials[i])
            self.stores[job.target].write(to, serial, proofs.keys[i], each, digest)
        return job.ticket, len(data)

    def store(self, job: Transfer) -> tuple[int, bool]:
        proofs, target = job.target_proofs, self.stores[job.target]
        assert proofs is not None
        count = len(job)
        if self.random.random() < 0.3 or job.target in self.shared:
            count = self.manager.stores_read(job.ticket, len(job))
        # Others read from a shared store at once, so nothing that was read too late goes there.
        sources = job.source_blocks[: count if job.target in self.shared else len(job)]
        for i, block in enumerate(sources):
            if job.source == DEVICE:
                data = self.kv[block].copy()
                digest: bytes | None = xxhash.xxh3_128_digest(data.tobytes())
            else:
                above = job.source_proofs
                assert above is not None
                source = self.stores[job.source]
                data, digest = source.read(int(block), int(above.serials[i]), above.keys[i])
            if digest is None:
                return i, True
            if self.lies() and self.random.random() < 0.3:
                return i, False
            to = int(job.target_blocks[i])
            how = self.random.choice(LIES) if self.lies() else ""
            if how == "flip":
                data[self.random.randrange(SIZE)] ^= np.uint64(1 << self.random.randrange(64))
            if how == "half":
                data[SIZE // 2 :] = 0
            if how == "elsewhere":
                to = int(self.random.choice(job.target_blocks))
            if how != "nothing":
                target.write(to, int(proofs.serials[i]), proofs.keys[i], data, digest)
        return len(sources), False

    def take_jobs(self) -> None:
        deadline = self.random.choice([None, 0.0, 9.0])
        loads = self.manager.take_loads(deadline=deadline)
        self.jobs += [*loads, *self.manager.take_stores(self.random.choice([None, 1, 5]))]
        for handle in self.manager.loads_late(5.0):
            self.manager.preempt(handle)
            self.counts["late"] += 1

    # The engine.

    def prompt(self) -> tuple[list[int], bytes, dict[int, bytes]]:
        draw = self.random
        if not self.talks or draw.random() < 0.25:
            words = [draw.randrange(3) for _ in range(draw.randrange(2, 12))]
            extras = {draw.randrange(3): IMAGE} if draw.random() < 0.2 else {}
            self.talks.append((words, draw.choice(SPACES), extras))
            del self.talks[:-8]
        talk, namespace, extras = draw.choice(self.talks)
        talk += [draw.randrange(3) for _ in range(draw.randrange(1, 6))]
        return talk[: draw.choice([10, 18, 24])], namespace, extras

    def admit(self) -> None:
        tokens, namespace, extras = self.prompt()
        if self.random.random() < 0.2:
            self.manager.prefetch(tokens, namespace=namespace, extras=extras)
        found = self.manager.match_tiers(tokens, namespace=namespace, extras=extras)
        load = self.random.choice([True, True, True, False, found])
        slots = self.random.choice([None, None, 1, 8])
        more: dict[str, Any] = {}
        if self.is_wild:
            more["session"] = self.random.choice([b"", b"a", b"b"])
            more["read_cache"] = self.random.random() < 0.9
            more["max_cached_tokens"] = self.random.choice([None, None, 5, 12])
        try:
            handle = self.manager.admit(
                tokens, namespace=namespace, extras=extras, num_slots=slots, load=load, **more
            )
        except (OutOfBlocksError, NeverFitsError, StaleMatchError):
            return
        self.names[handle] = namespace, extras
        self.counts["tokens"] += len(tokens)

    def settled(self) -> list[int]:
        views = map(self.manager.sequence, self.manager.handles())
        return [
            v.handle for v in views if not v.is_preempted and not self.manager.is_loading(v.handle)
        ]

    def expected(self, handle: int) -> np.ndarray:
        namespace, extras = self.names[handle]
        tokens = self.manager.sequence(handle).tokens.tolist()
        return prefixes(tokens, namespace, extras, self.weights[namespace])

    def cells(self, handle: int, number: int, start: int, stop: int) -> np.ndarray:
        """Where the K/V of some tokens is in a group; for states, where the state is."""
        group = self.kinds[number]
        if isinstance(group, RecurrentState):
            row = self.manager.sequence(handle).row
            return self.manager.group_table(number)[row] * SIZE
        size = tokens_per_block(group, SIZE)
        slots = self.manager.slot_mapping(handle, start, stop, group=number)
        return slots // size * SIZE + slots % size

    def copy(self) -> CopyPlan:
        """Runs the planned copies."""
        plan = self.manager.take_copies()
        for source, target, num_tokens in plan:
            self.kv[target, :num_tokens] = self.kv[source, :num_tokens]
        return plan

    def forward(self, handle: int) -> None:
        """Computes one sequence to its end, in the order of the step contract."""
        view = self.manager.sequence(handle)
        view.commit(view.num_computed_tokens)  # no forward of others has moved its state
        try:
            if self.random.random() < 0.3:
                view.append([self.random.randrange(3)])
            view.reserve(view.num_tokens)
        except (OutOfBlocksError, NeverFitsError):
            return
        for stop in sorted({*view.stops, view.num_tokens}):
            plan = self.copy()
            self.compute(handle, stop)
            self.manager.copies_applied(plan.ticket)
            view.commit(stop)

    def compute(self, handle: int, stop: int) -> None:
        """One forward: reads what it needs of each group, and writes the tokens up to ``stop``."""
        computed = self.manager.sequence(handle).num_computed_tokens
        flat, want = self.kv.reshape(-1), self.expected(handle)[:stop]
        for number, group in enumerate(self.kinds):
            right = want + np.uint64(number)  # each group has K/V of its own
            if isinstance(group, RecurrentState):
                [cell] = self.cells(handle, number, 0, stop)
                self.counts["wrong"] += bool(computed and flat[cell] != right[computed - 1])
                flat[cell] = right[-1]
                continue
            start = min(first_read(group, computed), computed)
            cells = self.cells(handle, number, start, stop)
            flat[cells[computed - start :]] = right[computed:]
            self.counts["wrong"] += int((flat[cells] != right[start:]).sum())

    def fork(self, handle: int) -> None:
        if len(self.manager.handles()) < 12:
            try:
                [child] = self.manager.fork(handle)
            except (OutOfBlocksError, StepError):  # its state is to be copied, or may have moved
                return
            self.names[child] = self.names[handle]

    def step(self) -> None:
        """One random thing that happens."""
        draw = self.random.random()
        handles, settled = self.manager.handles(), self.settled()
        if self.is_wild and self.random.random() < 0.1:
            self.stray(settled)
        elif draw < 0.2:
            self.admit()
        elif draw < 0.35:
            self.take_jobs()
        elif draw < 0.6 and self.jobs:
            self.carry(self.jobs.pop(self.random.randrange(len(self.jobs))))
        elif draw < 0.94 and settled:
            handle = self.random.choice(settled)
            self.forward(handle)
            if self.random.random() < 0.8:
                self.manager.free(handle)
            elif self.random.random() < 0.2:
                self.fork(handle)
        elif draw < 0.99 and handles:
            self.interrupt(self.random.choice(handles))
        elif draw > (0.98 if self.is_wild else 0.995):
            for _ in range(self.random.randrange(1, 4) if self.is_wild else 1):
                self.lose()

    def stray(self, settled: list[int]) -> None:
        """One of the things that happen in a wild world only."""
        draw, manager = self.random.random() * 1.5, self.manager
        if draw > 1.2:
            self.read_half()
        elif draw > 1:
            if self.halves:
                manager.stores_done(*self.write_half())
        elif draw < 0.1:
            self.in_use = self.random.randrange(6, self.in_use + 1)
            manager.shrink(self.in_use)
        elif draw < 0.5:
            for handle in {*chain(*manager.leaving().values())}:
                manager.preempt(handle)
            if manager.leaving():  # for the end of a transfer
                return
            self.kv[self.in_use :] = 0  # other memory
            self.in_use = self.options["num_blocks"]
            manager.grow(self.in_use)
        elif draw < 0.7:
            tokens, namespace, extras = self.prompt()
            priority = self.random.choice([None, Priority.LOW, Priority.HIGH])
            ttl = None if priority is None else self.random.choice([None, 5.0])
            manager.retain_prefix(
                tokens, priority=priority, ttl=ttl, namespace=namespace, extras=extras
            )
        elif draw < 0.85:
            self.clock += self.random.choice([0.0, 1.0, 1e6])
            manager.set_time(self.clock)
        elif settled:
            handle = self.random.choice(settled)
            num_tokens = manager.sequence(handle).num_tokens
            manager.truncate(handle, self.random.randrange(1, num_tokens + 1))

    def interrupt(self, handle: int) -> None:
        """A request is aborted, preempted or goes on, whatever it waits for."""
        view = self.manager.sequence(handle)
        self.counts["aborted"] += self.manager.is_loading(handle)
        if view.is_preempted and self.random.random() < 0.7:
            try:
                self.manager.resume(handle)
            except (OutOfBlocksError, NeverFitsError):
                return
        elif not view.is_preempted and self.random.random() < 0.5:
            self.manager.preempt(handle)
        else:
            self.manager.free(handle)

    def lose(self) -> None:
        """New weights, a device without memory, a block that is wrong, or a new process."""
        draw = self.random.uniform(0.15 if self.is_wild else 0, 1)
        if draw < 0.2:
            self.preempt(SPACES)
            self.surely(self.manager.reset_prefix_cache)
            for namespace in SPACES:
                self.weights[namespace] += 1
        elif draw < 0.4:
            self.preempt(SPACES)
            self.kv[:] = 0
            self.manager.reset_prefix_cache(tiers=False)
        elif draw < 0.6:
            namespace = self.random.choice(SPACES)
            self.preempt([namespace])
            self.surely(self.manager.retire, namespace)
            self.weights[namespace] += 1
        elif draw < 0.8:
            self.spoil(self.random.randrange(len(self.kinds) > 1, self.options["num_blocks"]))
        elif self.has_slab:
            self.restart()

    def preempt(self, namespaces: Iterable[bytes]) -> None:
        for handle in self.manager.handles():
            view = self.manager.sequence(handle)
            if not view.is_preempted and self.names[handle][0] in namespaces:
                self.manager.preempt(handle)

    def spoil(self, block: int) -> None:
        """The K/V of a block turns out to be wrong after it may have been stored."""
        self.preempt(SPACES)
        if not self.manager.is_cached(block):
            return
        self.kv[block] ^= np.uint64(1)
        for job in self.manager.take_stores():
            self.carry(job)
        self.surely(self.manager.forget, [block])

    def surely(self, call: Callable[..., object], *of: object) -> None:
        """Makes a call that must be done, also if the disk fails it at first."""
        if self.is_wild and self.slab is not None and self.random.random() < 0.3:
            before = self.manager.stats()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", failing)
                with suppress(OSError):
                    call(*of)
                    return  # there was nothing to write
            assert self.manager.stats() == before
        call(*of)

    def run(self, steps: int) -> None:
        """Lives, ends everything, and checks that nothing is left behind."""
        for i in range(steps):
            self.step()
            if i % 50 == 0:
                self.manager.check_invariants()
        self.take_jobs()
        while self.jobs:
            self.carry(self.jobs.pop())
        while self.halves:
            self.manager.stores_done(*self.write_half())
        for handle in self.settled():
            self.forward(handle)
        for handle in self.manager.handles():
            self.manager.free(handle)
        self.manager.check_invariants()
        for stats in self.manager.tier_stats():
            for name in stats.__dataclass_fields__:
                self.counts[name] += getattr(stats, name)
        leaks = self.leaks()
        if self.slab is not None:
            self.slab.close()
        assert not leaks, leaks

    def leaks(self) -> list[str]:
        manager = self.manager
        found = [f"device: {manager.stats().used_blocks}"] if manager.stats().used_blocks else []
        for number, books in enumerate(manager._tiers):
            if books.pool.num_used or books.storing:
                found.append(f"tier {number}: {books.pool.num_used}, {len(books.storing)} named")
        if manager._tickets.open or manager._loads.waiting:
            found.append("tickets")
        return found
