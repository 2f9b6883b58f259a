"""Every public call of the host side, each on a small world in which it has something to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from blockmgr import BlockManager, OutOfBlocksError, Priority
from blockmgr.pool import BlockPool
from tests.unit.snapshot import snapshot

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 9]


@dataclass
class World:
    """A manager, or a pool, and what calls on it refer to."""

    subject: Any
    named: dict[str, Any] = field(default_factory=dict)

    def state(self) -> Any:
        """Everything that can be seen of it."""
        if isinstance(self.subject, BlockManager):
            return snapshot(self.subject)
        return self.subject._core.fingerprint()

    def __getattr__(self, name: str) -> Any:
        return self.named[name]


@dataclass(frozen=True)
class Call:
    """A call by name: how its world is made, and how the call is put together there."""

    name: str
    world: Callable[[], World]
    bind: Callable[[World], Callable[[], Any]]
    first_part: Callable[[World], Callable[[], Any]] | None = None
    """Another call, after which this one only has to be made again."""


def managed(**options: Any) -> World:
    """Two sequences that share blocks, a third one preempted, and a prefix nobody uses."""
    options = {"max_seqs": 300, "min_partial_tokens": 1, **options}
    manager = BlockManager(num_blocks=24, block_size=2, **options)
    # Ints above 256 are made anew each time, so the handles of low rows would hide nothing anyway;
    # but tickets, lengths and counts are small at first.
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


def with_copies() -> World:
    """A pending copy, many tickets on."""
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
    """Deduplicated blocks in the log."""
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
    """A pin, of a manager that keeps what its callers ask for."""
    world = managed(retention=True, max_pinned_blocks=8)
    world.named["pin"] = world.subject.pin([1, 2, 3, 4])
    return world


def pooled(num_blocks: int = 600) -> World:
    """A chain that is held, one that is idle, and blocks with large numbers to come next."""
    pool = BlockPool(num_blocks, 2)
    low = pool.take(num_blocks - 20)
    chain = pool.take(4)
    chain = pool.promote_chain(chain, [1, 2, 3, 4, 5, 6, 7, 8])
    idle = pool.take(3)
    idle = pool.promote_chain(idle, [20, 21, 22, 23, 24, 25], extras={1: b"image"})
    pool.release(idle)
    one = int(pool.take(1)[0])
    return World(pool, {"low": low, "chain": chain, "idle": idle, "one": one})


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


def idle_pool() -> World:
    """Nothing in use."""
    world = pooled()
    world.subject.release([*world.low, *world.chain, world.one])
    return world


def _on(name: str, *arguments: Any, **keywords: Any) -> Callable[[World], Any]:
    """The call of that method; a string names what the world knows under it."""

    def bind(world: World) -> Callable[[], Any]:
        known = [world.named[a] if isinstance(a, str) else a for a in arguments]
        return partial(getattr(world.subject, name), *known, **keywords)

    return bind


def _by(make: Callable[[World], Any]) -> Callable[[World], Any]:
    return lambda world: partial(make, world)


def _view(make: Callable[[Any], Any]) -> Callable[[World], Any]:
    return lambda world: partial(make, world.subject.sequence(world.first))


def _admit_too_much(world: World) -> None:
    with suppress(OutOfBlocksError):
        world.subject.admit(world.too_much)


def _enter_and_leave(world: World) -> None:
    with world.subject.sequence(world.first):
        pass


def _set_debug(world: World) -> None:
    world.subject.debug = 1


FRESH = {"namespace": b"new tenant", "extras": {0: b"other image"}}

HERE = {"namespace": b"tenant", "extras": {1: b"image"}}

MANAGER_CALLS = [
    Call("BlockManager", managed, _by(lambda _: BlockManager(8, 2))),
    Call("admit", managed, _on("admit", [5, 6, 7, 8, 1], **FRESH)),
    Call("admit, found", managed, _on("admit", [1, 2, 3, 4, 5, 6])),
    Call("admit, refused", managed, _by(_admit_too_much)),
    Call("match", managed, _on("match", PROMPT)),
    Call("can_admit", managed, _on("can_admit", PROMPT)),
    Call("reserve", managed, _on("reserve", "first", 14)),
    Call("append", managed, _on("append", "second", [1, 2, 3])),
    Call("commit", managed, _on("commit", "first", 9)),
    Call("commit, twin", with_remaps, _on("commit", "first", 9)),
    Call("decode", managed, _by(lambda w: w.subject.decode([w.first, w.second], [400, 401]))),
    Call("truncate", managed, _on("truncate", "first", 4)),
    Call("fork", managed, _on("fork", "first", 3)),
    Call("reparent", managed, _by(lambda w: w.subject.reparent([w.first, w.second], [1, 1]))),
    Call("free", managed, _on("free", "first")),
    Call("preempt", managed, _on("preempt", "first")),
    Call("resume", managed, _on("resume", "third")),
    Call("take_copies", with_copies, _on("take_copies")),
    Call("copies_applied", with_ticket, _by(lambda w: w.subject.copies_applied(w.plan.ticket))),
    Call("copies_aborted", with_ticket, _by(lambda w: w.subject.copies_aborted(w.plan.ticket))),
    Call("complete", in_flight, _by(lambda w: w.subject.complete(w.plan.ticket))),
    Call("take_remaps", with_remaps, _on("take_remaps")),
    Call("slot_mapping", managed, _on("slot_mapping", "first", 0, 9)),
    Call("sequence", managed, _on("sequence", "first")),
    Call("row", managed, _on("row", "first")),
    Call("handles", managed, _on("handles")),
    Call("stats", managed, _on("stats")),
    Call("blocks", managed, _on("blocks")),
    Call("memory_usage", managed, _on("memory_usage")),
    Call("debug", managed, _by(_set_debug)),
    Call("check_invariants", managed, _on("check_invariants")),
    Call("repr", managed, _by(lambda w: repr(w.subject))),
    Call("explain", managed, _on("explain", PROMPT)),
    Call("retain", retaining, _on("retain", "first", 0, 4, priority=Priority.HIGH)),
    Call("retain_prefix", retaining, _on("retain_prefix", PROMPT, priority=Priority.HIGH, **HERE)),
    Call("pin", retaining, _on("pin", PROMPT, **HERE)),
    Call("unpin", retaining, _on("unpin", "pin")),
    Call("pinned", retaining, _on("pinned", "pin")),
    Call("touch", retaining, _on("touch", [1, 2, 3, 4, 5])),
    Call("set_time", retaining, _on("set_time", 5.0)),
    Call("free, expecting", retaining, _on("free", "first", expect_reuse=False)),
]
VIEW_CALLS = [
    Call("Sequence.append", managed, _view(lambda s: s.append([1]))),
    Call("Sequence.reserve", managed, _view(lambda s: s.reserve(14))),
    Call("Sequence.truncate", managed, _view(lambda s: s.truncate(4))),
    Call("Sequence.fork", managed, _view(lambda s: s.fork(3))),
    Call("Sequence.preempt", managed, _view(lambda s: s.preempt())),
    Call("Sequence.free", managed, _view(lambda s: s.free())),
    Call("Sequence.tokens", managed, _view(lambda s: s.tokens)),
    Call("Sequence.block_ids", managed, _view(lambda s: s.block_ids)),
    Call("Sequence.repr", managed, _view(repr)),
]
# What of these calls is done is done by two calls of the manager, one after the other.
TWO_STEP_CALLS = [Call("with sequence", managed, _by(_enter_and_leave))]
POOL_CALLS = [
    Call("pool.BlockPool", pooled, _by(lambda _: BlockPool(8, 2))),
    Call("pool.take", pooled, _on("take", 3)),
    Call("pool.acquire", pooled, _on("acquire", "idle")),
    Call("pool.release", pooled, _on("release", "chain")),
    Call("pool.touch", pooled, _on("touch", "idle")),
    Call("pool.find", pooled, _on("find", [1, 2, 3, 4, 5])),
    Call("pool.promote", pooled, _on("promote", "one", [90, 91], **{"extras": b"x"})),
    Call("pool.promote, twin", pooled, _on("promote", "one", [20, 21])),
    Call("pool.promote_chain", pooled, _by(lambda w: w.subject.promote_chain([w.one], [90, 91]))),
    Call("pool.evict", pooled, _on("evict", 2)),
    Call("pool.forget", pooled, _on("forget", 2)),
    Call("pool.reset", idle_pool, _on("reset")),
    Call("pool.make_writable", pooled, _by(lambda w: w.subject.make_writable(int(w.chain[-1]), 2))),
    Call("pool.take_copies", pool_with_copy, _on("take_copies")),
    Call("pool.copies_applied", pool_with_ticket, _by(lambda w: w.subject.copies_applied(1))),
    Call("pool.copies_aborted", pool_with_ticket, _by(lambda w: w.subject.copies_aborted(1))),
    Call("pool.ref_counts", pooled, _on("ref_counts", "chain")),
    Call("pool.children", pooled, _on("children")),
    Call("pool.tokens", pooled, _by(lambda w: w.subject.tokens(int(w.chain[0])))),
    Call("pool.idle_blocks", pooled, _on("idle_blocks")),
]
CALLS = {call.name: call for call in [*MANAGER_CALLS, *VIEW_CALLS, *TWO_STEP_CALLS, *POOL_CALLS]}
