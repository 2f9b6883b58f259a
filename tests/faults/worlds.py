"""Small worlds: managers and pools in which the calls of ``calls.py`` have work to do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from blockmgr import BlockManager, Priority
from blockmgr._core import CopyChecker
from blockmgr.pool import BlockPool
from tests.fingerprints import fingerprint
from tests.unit.snapshot import snapshot

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 9]


@dataclass
class World:
    """A manager or a pool, and the objects that calls on it use."""

    subject: Any
    named: dict[str, Any] = field(default_factory=dict)

    def state(self) -> Any:
        """The full visible state."""
        if isinstance(self.subject, BlockManager):
            return snapshot(self.subject)
        return fingerprint(self.subject)

    def __getattr__(self, name: str) -> Any:
        return self.named[name]


def managed(**options: Any) -> World:
    """Two sequences that share blocks, a third one preempted, and an idle prefix."""
    options = {"num_blocks": 24, "max_seqs": 300, "min_partial_tokens": 1, **options}
    manager = BlockManager(block_size=2, **options)
    # Ints above 256 need an allocation. Handles are always that large, but tickets, lengths and
    # counts start small.
    old = manager.admit([1, 2, 3, 4, 5])
    manager.commit(old, 5)
    manager.free(old)
    first = manager.admit(PROMPT, namespace=b"tenant", extras={1: b"image"})
    manager.commit(first, len(PROMPT))
    [second] = manager.fork(first)
    third = manager.admit([40, 41, 42], num_slots=2)
    manager.preempt(third)
    return World(
        manager, {"first": first, "second": second, "third": third, "too_much": [*range(46)]}
    )


def family() -> World:
    """Preempted forks that continue what is cached, and a prompt of which ghosts are known."""
    manager = managed(ghost_blocks=12).subject
    for prompt in ([*range(40, 52)], [*range(60, 92)]):
        old = manager.admit(prompt)
        manager.commit(old, len(prompt))
        manager.free(old)
    first = manager.admit([*PROMPT, 300], namespace=b"tenant")
    handles = [first, *manager.fork(first, 2)]
    manager.append(handles[1], [301])
    handles.append(manager.admit([*range(40, 52), 52], num_slots=1, read_cache=False))
    for handle in handles:
        manager.preempt(handle)
    return World(manager, {"family": handles})


def with_copies() -> World:
    """A pending copy, after many tickets."""
    world = managed()
    for _ in range(300):
        world.subject.copies_applied(world.subject.take_copies().ticket)
    world.subject.append(world.second, [11])
    return world


def with_ticket() -> World:
    """A plan that is not resolved."""
    world = with_copies()
    world.named["plan"] = world.subject.take_copies()
    return world


def with_remaps() -> World:
    """Deduplicated blocks in the remap log."""
    world = managed()
    manager = world.subject
    for _ in range(2):
        handle = manager.admit([70, 71, 72, 73, 74])
        world.named.setdefault("twins", []).append(handle)
    for handle in world.twins:
        manager.commit(handle, 5)
    return world


def in_flight() -> World:
    """A step that runs on the device."""
    world = managed(steps_in_flight=2)
    world.named["plan"] = world.subject.take_copies()
    world.subject.copies_applied(world.plan.ticket)
    return world


def retaining() -> World:
    """A pin in a manager with retention."""
    world = managed(retention=True, max_pinned_blocks=8)
    world.named["pin"] = world.subject.pin([1, 2, 3, 4])
    world.named["digests"] = world.subject.cached_digests(world.first)
    world.named["parts"] = [digest[-8:] for digest in world.digests]
    return world


def with_sessions() -> World:
    """A path of more blocks than there are small ints, and a table with room for one session."""
    world = managed(retention=True, num_blocks=400, max_blocks_per_seq=400, max_sessions=1)
    manager = world.subject
    world.named["long"] = [*range(1000, 1600)]
    world.named["edited"] = [*range(1000, 1400), 1, 2]
    handle = manager.admit(world.long, session=b"long")
    manager.commit(handle, len(world.long))
    manager.free(handle)
    return world


def holding() -> World:
    """Blocks held by their ids: used ones and an idle one."""
    world = managed()
    manager = world.subject
    world.named["used"] = manager.block_ids(world.first)
    manager.acquire(world.used[:2])
    old = manager.admit([1, 2, 3, 4, 5])
    world.named["idle"] = manager.block_ids(old)[:2]
    manager.free(old)
    return world


def shrunk() -> World:
    """The same, with a pool of two blocks, others of which have not left."""
    world = holding()
    world.subject.shrink(2)
    return world


def own_digest(message: bytes) -> bytes:
    """A digest from outside the library, which therefore gets copies."""
    return hashlib.blake2b(message, digest_size=16).digest()


class FirstIn:
    """An eviction policy written in Python: the block cached first goes first."""

    def __init__(self, capacity: int) -> None:
        self.parents: dict[int, int] = {}
        self.idle: dict[int, None] = {}

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        self.parents[block] = parent

    def on_hit(self, block: int) -> None: ...

    def on_idle(self, block: int) -> None:
        self.idle[block] = None

    def on_used(self, block: int) -> None:
        self.idle.pop(block, None)

    def on_uncached(self, block: int, evicted: bool) -> None:
        self.idle.pop(block, None)
        self.parents.pop(block, None)

    def victim(self) -> int:
        continued = set(self.parents.values())
        return next(b for b in self.parents if b in self.idle and b not in continued)


def full(**options: Any) -> World:
    """Every block is idle, except those of one sequence: the next allocation evicts."""
    options = {"num_blocks": 9, "block_size": 2, "min_partial_tokens": 1, **options}
    manager = BlockManager(**options)
    for prompt in ([1, 2, 3, 4, 5], [1, 2, 6, 7, 8], [20, 21, 22]):
        handle = manager.admit(prompt)
        manager.commit(handle, len(prompt))
        manager.free(handle)
    held = manager.admit([30, 31, 32])
    return World(manager, {"first": held})


def own_policy() -> World:
    """The same under a policy written in Python."""
    return full(eviction=FirstIn)


def with_ghosts() -> World:
    """A manager with ghosts."""
    world = full(ghost_blocks=12)
    world.subject.free(world.subject.admit([*range(40, 52)]))
    return world


def divided(debug: int = 0) -> World:
    """A tenant that has used up its quota, and other sequences."""
    world = full(num_blocks=16, quotas={b"tenant": 3}, debug=debug)
    world.named["tenants"] = world.subject.admit([1, 2, 3], namespace=b"tenant")
    world.subject.commit(world.tenants, 3)
    return world


def checked() -> World:
    """A manager that checks everything after every call."""
    return divided(debug=2)


def preempted() -> World:
    """A preempted sequence, for calls on its view."""
    world = managed()
    world.subject.preempt(world.first)
    return world


def pooled(num_blocks: int = 600) -> World:
    """A chain that is held and one that is idle; the next blocks have large ids."""
    pool = BlockPool(num_blocks, 2)
    low = pool.take(num_blocks - 20)
    chain = pool.take(4)
    chain = pool.promote(chain, [1, 2, 3, 4, 5, 6, 7, 8])
    idle = pool.take(3)
    idle = pool.promote(idle, [20, 21, 22, 23, 24, 25], extras={1: b"image"})
    pool.release(idle)
    one = int(pool.take(1)[0])
    free = [num_blocks - 3, num_blocks - 1]
    named = {"low": low, "chain": chain, "idle": idle, "one": one, "free": free}
    return World(pool, named)


def rich_pool() -> World:
    """A pool with shares, each with a policy, pins, retention and remembered blocks."""
    pool = BlockPool(
        24,
        2,
        eviction="arc",
        retention=True,
        max_pinned_blocks=24,
        quotas={b"a": 8},
        ghost_blocks=6,
    )
    for namespace in (b"", b"a"):
        blocks = pool.take(6, namespace=namespace)
        pool.release(pool.promote(blocks, [*range(12)], namespace=namespace))
        pool.evict(1, namespace=namespace)
    chain = pool.acquire_prefix([*range(6)], namespace=b"a")
    pool.retain(chain[:1], priority=Priority.HIGH, ttl=5)
    named = {"chain": chain, "tail": int(chain[-1]), "pin": pool.pin(int(chain[0]))}
    return World(pool, named)


def pool_with_ticket() -> World:
    """A copy planned and taken."""
    world = pooled()
    world.subject.acquire(world.chain[-1:])
    world.named["fresh"] = world.subject.make_writable(int(world.chain[-1]), 1)
    world.named["plan"] = world.subject.take_copies()
    return world


def pool_with_copy() -> World:
    """A copy planned."""
    world = pooled()
    world.subject.acquire(world.chain[-1:])
    world.subject.make_writable(int(world.chain[-1]), 1)
    return world


@dataclass
class CopyWorld(World):
    """A checker of lists of copies, and the array into which it packs them."""

    def state(self) -> Any:
        return self.rows.tolist()


def copying() -> World:
    """A checker of copies within one pool."""
    nothing_to_check = SimpleNamespace(check_invariants=lambda: None)
    rows = np.full((5, 3), 99, np.int32)
    return CopyWorld(nothing_to_check, {"checker": CopyChecker(700, 2), "rows": rows})


def idle_pool() -> World:
    """Nothing in use."""
    world = pooled()
    world.subject.release([*world.low, *world.chain, world.one])
    return world
