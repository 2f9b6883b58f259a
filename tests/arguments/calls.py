"""A table of every public call and of what each of its parameters takes.

``test_containers`` looks up every public callable here and fails if one of them, or one of its
parameters, is missing, so that no call can be forgotten.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, is_dataclass, replace
from typing import Any, Final

import numpy as np

from blockmgr import BlockManager, Priority, Prompt, _core
from blockmgr.pool import BlockPool
from tests import stubs
from tests.fingerprints import fingerprint

PROMPT: Final = [1, 2, 3, 4, 5, 6]
LONG: Final = list(range(1, 10))


class World:
    """An object of every kind that has calls, always the same except for handles."""

    def __init__(self) -> None:
        self.manager = BlockManager(
            16,
            4,
            max_seqs=6,
            retention=True,
            max_pinned_blocks=8,
            ghost_blocks=8,
            steps_in_flight=1,
            watermark_blocks=1,
        )
        manager = self.manager
        self.manager.set_time(5)
        manager.free(manager.admit([40, 41, 42], session=b"chat"))
        self.running = manager.admit(PROMPT)
        manager.commit(self.running, 6)
        self.second = manager.admit(LONG)
        self.preempted = manager.admit([7] * 3)
        manager.preempt(self.preempted)
        self.kept = manager.block_ids(self.second)[:2]
        manager.acquire(self.kept)
        self.sequence = manager.sequence(self.running)
        self.pin = manager.pin(PROMPT)
        self.ticket = manager.take_copies().ticket
        self.pool = BlockPool(16, 4, retention=True, max_pinned_blocks=8, ghost_blocks=4)
        self.held = self.pool.take(6).tolist()
        self.pool.promote(self.held[:2], LONG[:8])
        idle = self.pool.take(1).tolist()
        self.pool.promote(idle[0], [50, 51, 52, 53])
        self.pool.release(idle)
        self.pool.make_writable(self.held[0], 2)
        self.pool_pin = self.pool.pin(self.held[1])
        self.pool_ticket = self.pool.take_copies().ticket
        self.checker = _core.CopyChecker(16, 4)
        self.out = np.zeros((9, 3), np.int32)
        self.checker.check([1, 2, 3], [4, 5, 6], None, self.out)

    def memory(self) -> int:
        """Bytes that the manager and the pool hold."""
        return self.manager.memory_usage() + self.pool.memory_usage()

    def state(self) -> object:
        """Everything that a refused call must leave unchanged."""
        manager, pool = self.manager, self.pool
        return (
            fingerprint(manager),
            fingerprint(pool),
            self.out.tolist(),
        )

    def seen(self) -> object:
        """Everything that can be compared between worlds, which excludes the numbers of handles."""
        manager = self.manager
        manager.check_invariants()
        self.pool.check_invariants()
        views = [manager.sequence(handle) for handle in manager.handles()]
        return (
            astuple(manager.stats()),
            [(v.row, v.tokens.tolist(), v.block_ids.tolist(), v.is_preempted) for v in views],
            [v.num_computed_tokens for v in views],
            fingerprint(self.pool),
            self.out.tolist(),
        )


Values = Callable[[World], Any]


@dataclass(frozen=True)
class Role:
    """What a parameter takes, and a correct argument."""

    kind: str
    """``ints``, ``int``, ``keys`` (a mapping from blocks to bytes), ``bytes`` or ``other``."""

    plain: Values
    or_none: bool = False
    or_kinds: frozenset[str] = frozenset()
    """Kinds that are also correct, with another meaning."""


def role(kind: str) -> Callable[[Any], Role]:
    return lambda plain: Role(kind, plain if callable(plain) else lambda world: plain)


ints, number, keys, name, other = map(role, ("ints", "int", "keys", "bytes", "other"))


@dataclass(frozen=True)
class Call:
    """A call, and the roles of its parameters in order."""

    name: str
    of: Callable[[World], Callable[..., Any]]
    roles: dict[str, Role]
    by_position: bool = field(default=False, kw_only=True)

    def __call__(self, world: World, **given: Any) -> Any:
        """Calls it with correct arguments, except for the given ones."""
        arguments = {n: given.get(n, r.plain(world)) for n, r in self.roles.items()}
        function = self.of(world)
        return function(*arguments.values()) if self.by_position else function(**arguments)


def method(target: str, of: str, variant: str = "", **roles: Role) -> Call:
    """A method of the object with this name in the world; a variant takes other roles."""
    owner, call = of.split(".")
    private = hasattr(_core, owner)
    return Call(
        f"{of}{variant}", lambda w: getattr(getattr(w, target), call), roles, by_position=private
    )


def _parts(tokens: Any, namespace: Any, extras: Any, session: Any) -> Any:
    made = Prompt(tokens, namespace=namespace, extras=extras, session=session)
    return made.tokens.tolist(), made.namespace, made.extras, made.session


handle = number(lambda w: w.running)
handles = ints(lambda w: [w.running, w.second])
handles_or_none = Role("ints", lambda w: [w.running, w.second], or_none=True)
prompt = ints(PROMPT)
own = name(b"")
session = name(b"chat")
extras = keys({0: b"x", 1: b"y"})
high = other(Priority.HIGH)
held = ints(lambda w: w.held[2:5])
kept = ints(lambda w: w.kept)
off = other(False)
SEVERAL: Final = ", several"
"""A suffix for the variant with several blocks of a method that also takes one."""
one_block = replace(number(lambda w: w.held[1]), or_kinds=frozenset({"list", "array"}))
blocks = replace(held, or_kinds=frozenset({"int"}))


def or_none(plain: int) -> Role:
    """A number, or None for none."""
    return Role("int", lambda world: plain, or_none=True)


few = or_none(1)
out = other(lambda w: w.out)

CALLS: Final = (
    method(
        "manager",
        "BlockManager.admit",
        tokens=prompt,
        namespace=own,
        extras=extras,
        num_slots=or_none(8),
        read_cache=other(True),
        match=other(None),
        max_cached_tokens=few,
        watermark_blocks=few,
        session=session,
        num_loaded_tokens=few,
    ),
    method(
        "manager",
        "BlockManager.match",
        tokens=prompt,
        namespace=own,
        extras=keys(None),
        num_slots=or_none(8),
        max_cached_tokens=few,
        watermark_blocks=few,
    ),
    method(
        "manager",
        "BlockManager.can_admit",
        tokens=prompt,
        namespace=own,
        extras=extras,
        num_slots=or_none(8),
        read_cache=other(True),
        match=other(None),
        max_cached_tokens=few,
        watermark_blocks=few,
        num_loaded_tokens=few,
    ),
    Call(
        "Prompt",
        lambda w: _parts,
        {"tokens": prompt, "namespace": own, "extras": extras, "session": session},
    ),
    method("manager", "BlockManager.explain", tokens=prompt, namespace=own, extras=extras),
    method("manager", "BlockManager.reserve", handle=handle, num_slots=number(9)),
    method("manager", "BlockManager.append", handle=handle, tokens=prompt),
    method(
        "manager",
        "BlockManager.commit",
        handle=number(lambda w: w.second),
        num_computed_tokens=number(9),
    ),
    method("manager", "BlockManager.decode", handles=handles, tokens=ints([8, 9])),
    method("manager", "BlockManager.truncate", handle=handle, num_tokens=number(5)),
    method("manager", "BlockManager.fork", handle=handle, n=number(2)),
    method("manager", "BlockManager.reparent", handles=handles, parents=ints([1, 0])),
    method("manager", "BlockManager.free", handle=handle, expect_reuse=other(True), withdraw=off),
    method("manager", "BlockManager.preempt", handle=handle, withdraw=off),
    # Blocks by their ids.
    *(
        method("manager", f"BlockManager.{call}", blocks=kept)
        for call in ("acquire", "release", "touch_blocks", "forget")
    ),
    method("manager", "BlockManager.shrink", num_blocks=number(7)),
    Call("BlockManager.grow", lambda w: BlockManager(8, 4).grow, {"num_blocks": number(8)}),
    method("manager", "BlockManager.is_cached", block=number(lambda w: w.kept[0])),
    method("manager", "BlockManager.idle_front", most=number(5)),
    method(
        "manager",
        "BlockManager.prefix_of",
        block=number(lambda w: w.manager.block_ids(w.running)[0]),
    ),
    method("manager", "BlockManager.contents_of", blocks=kept),
    method("manager", "BlockManager.ref_count", block=number(lambda w: w.kept[0])),
    method("manager", "BlockManager.block_ids", handle=handle, start=number(1)),
    method(
        "manager",
        "BlockManager.resume",
        handle=number(lambda w: w.preempted),
        num_slots=or_none(5),
        read_cache=other(True),
    ),
    method(
        "manager",
        "BlockManager.resume_together",
        handles=ints(lambda w: [w.preempted]),
        num_slots=or_none(5),
        read_cache=other(True),
    ),
    method(
        "manager",
        "BlockManager.retain",
        handle=handle,
        start=number(1),
        stop=number(6),
        priority=high,
        ttl=other(3.0),
    ),
    method(
        "manager",
        "BlockManager.retain_prefix",
        tokens=prompt,
        priority=high,
        ttl=other(3.0),
        namespace=own,
        extras=keys(None),
    ),
    method("manager", "BlockManager.pin", tokens=prompt, namespace=own, extras=keys(None)),
    method(
        "manager",
        "BlockManager.retain_digests",
        digests=other(lambda w: w.manager.block_digests(PROMPT)),
        priority=high,
        ttl=other(3.0),
        namespace=own,
        max_blocks=few,
        leading=other(False),
    ),
    method(
        "manager",
        "BlockManager.pin_digests",
        digests=other(lambda w: w.manager.block_digests(PROMPT)),
        namespace=own,
        max_blocks=few,
        leading=other(False),
    ),
    method("manager", "BlockManager.cached_digests", handle=handle),
    method("manager", "BlockManager.session_digests", session=name(b"s"), namespace=own),
    method("manager", "BlockManager.unpin", pin=number(lambda w: w.pin)),
    method("manager", "BlockManager.pinned", pin=number(lambda w: w.pin)),
    method("manager", "BlockManager.touch", tokens=prompt, namespace=own, extras=keys(None)),
    method("manager", "BlockManager.end_session", session=session, namespace=own),
    method(
        "manager",
        "BlockManager.signal",
        session=session,
        signal=other("tool_wait"),
        expected_in=other(3.0),
        namespace=own,
    ),
    method("manager", "BlockManager.set_time", seconds=other(6)),
    method("manager", "BlockManager.copies_applied", ticket=number(lambda w: w.ticket)),
    method("manager", "BlockManager.copies_aborted", ticket=number(lambda w: w.ticket)),
    method("manager", "BlockManager.complete", ticket=number(lambda w: w.ticket)),
    method(
        "manager",
        "BlockManager.slot_mapping",
        handle=handle,
        start=number(1),
        stop=number(6),
        group=or_none(0),
    ),
    method("manager", "BlockManager.group_table", group=number(0)),
    method("manager", "BlockManager.stops", handle=handle),
    method("manager", "BlockManager.cache_state", handle=handle),
    method("manager", "BlockManager.mark_state_moved", handle=handle, num_slots=or_none(1)),
    method("manager", "BlockManager.place_state", handle=handle, slot=number(0)),
    method("manager", "BlockManager.sequence", handle=handle),
    method("manager", "BlockManager.row", handle=handle),
    Call(
        "BlockManager.retire",
        lambda w: BlockManager(8, 4).retire,
        {"namespace": own},
    ),
    method("manager", "BlockManager.quota_usage", namespace=own),
    method("manager", "BlockManager.hit_rate_curve", namespace=own),
    method(
        "manager", "BlockManager.block_digests", tokens=prompt, namespace=own, extras=keys(None)
    ),
    method("manager", "BlockManager.num_common_prefix_blocks", handles=handles_or_none),
    Call(
        "BlockManager.reset_prefix_cache",
        lambda w: BlockManager(8, 4).reset_prefix_cache,
        {"reset_hit_rate": other(True)},
    ),
    # Views.
    method("sequence", "Sequence.append", tokens=prompt),
    method("sequence", "Sequence.commit", num_computed_tokens=number(6)),
    method("sequence", "Sequence.reserve", num_slots=number(9)),
    method("sequence", "Sequence.truncate", num_tokens=number(5)),
    method("sequence", "Sequence.fork", n=number(2)),
    Call(
        "Sequence.resume",
        lambda w: w.manager.sequence(w.preempted).resume,
        {"num_slots": or_none(5), "read_cache": other(False)},
    ),
    method("sequence", "Sequence.slot_mapping", start=number(1), stop=number(6), group=or_none(0)),
    method(
        "sequence",
        "Sequence.retain",
        start=number(1),
        stop=number(6),
        priority=high,
        ttl=other(None),
    ),
    method("sequence", "Sequence.free", expect_reuse=other(None)),
    # Blocks without sequences.
    method("pool", "BlockPool.take", n=number(2), namespace=own),
    method("pool", "BlockPool.acquire", blocks=held, found=other(True)),
    method(
        "pool",
        "BlockPool.acquire_prefix",
        tokens=ints(LONG),
        namespace=own,
        extras=keys(None),
    ),
    method("pool", "BlockPool.retain", blocks=held, priority=high, ttl=other(3.0)),
    method("pool", "BlockPool.pin", block=number(lambda w: w.held[0])),
    method("pool", "BlockPool.unpin", pin=number(lambda w: w.pool_pin)),
    method("pool", "BlockPool.pinned", pin=number(lambda w: w.pool_pin)),
    method("pool", "BlockPool.set_time", seconds=other(6)),
    method("pool", "BlockPool.quota_usage", namespace=own),
    method("pool", "BlockPool.hit_rate_curve", namespace=own),
    method("pool", "BlockPool.priority", block=number(lambda w: w.held[1])),
    method("pool", "BlockPool.release", blocks=held),
    method("pool", "BlockPool.touch", blocks=held),
    method(
        "pool",
        "BlockPool.find",
        tokens=ints(LONG),
        parent=number(-1),
        namespace=own,
        extras=keys(None),
    ),
    method(
        "pool",
        "BlockPool.promote",
        blocks=number(lambda w: w.held[3]),
        tokens=ints(LONG[:4]),
        parent=number(lambda w: w.held[1]),
        namespace=own,
        extras=replace(name(b"k"), or_none=True),
    ),
    method(
        "pool",
        "BlockPool.promote",
        SEVERAL,
        blocks=ints(lambda w: w.held[3:5]),
        tokens=ints(list(range(60, 68))),
        parent=number(lambda w: w.held[1]),
        namespace=own,
        extras=extras,
    ),
    method(
        "pool",
        "BlockPool.promote_end",
        block=number(lambda w: w.held[3]),
        tokens=ints([60, 61]),
        parent=number(lambda w: w.held[1]),
        namespace=own,
        extras=name(b"k"),
    ),
    method("pool", "BlockPool.evict", n=number(1), namespace=own),
    method("pool", "BlockPool.forget", n=number(1), namespace=own),
    method("pool", "BlockPool.take_blocks", blocks=ints([10, 12])),
    method("pool", "BlockPool.forget_blocks", blocks=ints(lambda w: w.held[:2])),
    method(
        "pool", "BlockPool.make_writable", block=number(lambda w: w.held[1]), num_tokens=number(2)
    ),
    method("pool", "BlockPool.copies_applied", ticket=number(lambda w: w.pool_ticket)),
    method("pool", "BlockPool.copies_aborted", ticket=number(lambda w: w.pool_ticket)),
    *(
        method("pool", f"BlockPool.{call}", block=number(lambda w: w.held[1]))
        for call in ("waits_for_copy", "generation", "parent", "tokens")
    ),
    *(
        method("pool", f"BlockPool.{call}", variant, blocks=role)
        for call in ("ref_count", "is_cached", "is_idle")
        for variant, role in (("", one_block), (SEVERAL, blocks))
    ),
    method("pool", "BlockPool.children", parent=number(lambda w: w.held[0]), namespace=own),
    method("pool", "BlockPool.idle_blocks", most=or_none(1)),
    method("pool", "BlockPool.idle_front", most=number(1)),
    method("pool", "BlockPool.prefix_of", block=number(lambda w: w.held[1])),
    method("pool", "BlockPool.contents_of", blocks=held),
    # What blockmgr.kv is built on, and the estimator of a policy.
    method(
        "checker",
        "CopyChecker.check",
        sources=ints([7, 8, 9]),
        destinations=ints([1, 2, 3]),
        num_tokens=Role("ints", lambda w: [4, 3, 2], or_none=True),
        out=out,
    ),
    method("checker", "CopyChecker.check_blocks", blocks=ints([7, 8, 9]), out=out),
    method("checker", "CopyChecker.pack", start=number(1), out=out),
    Call(
        "order_copies",
        lambda w: _core.order_copies,
        {
            "sources": ints([1, 2, 3]),
            "destinations": ints([2, 3, 4]),
            "num_blocks": number(9),
            "sequential": other(True),
        },
        by_position=True,
    ),
)

OWNERS: Final = {
    "BlockManager": BlockManager,
    "Sequence": type(World().sequence),
    "BlockPool": BlockPool,
    "CopyChecker": _core.CopyChecker,
}
BEHIND: Final = {"Core": BlockManager, "PoolCore": BlockPool}
"""Classes whose methods are called by the methods of the same name of a public class."""

ELSEWHERE: Final = {
    "BlockManager.from_config": "a config has its own tests",
    "Core.admit_loading": "BlockManager.admit",
    "Core.free_expecting": "BlockManager.free",
    "Core.block_ids_from": "BlockManager.block_ids",
    "Core.view": "BlockManager.sequence",
    "Core.retain_named": "BlockManager.retain_digests",
    "Core.pin_named": "BlockManager.pin_digests",
    "Core.view_groups": "BlockManager.stops",
    "Core.group_slots": "BlockManager.slot_mapping",
    "Core.view_pin": "BlockManager.pinned",
    "Core.reuse_counts": "BlockManager.hit_rate_curve",
    "PoolCore.promote_chain": "BlockPool.promote",
    "PoolCore.ref_counts": "BlockPool.ref_count",
    "PoolCore.are_cached": "BlockPool.is_cached",
    "PoolCore.are_idle": "BlockPool.is_idle",
    "PoolCore.view_pin": "BlockPool.pinned",
    "PoolCore.reuse_counts": "BlockPool.hit_rate_curve",
    "PoolCore.level": "BlockPool.priority",
    "Core.block_ids": "Sequence.block_ids",
    "Core.tokens": "Sequence.tokens",
    "Core.set_debug": "BlockManager.debug, which is a property",
    "Core.take_copies": "takes a class",
    "Core.take_remaps": "takes a class",
    "Core.take_events": "takes a class",
    "Core.take_snapshot": "takes a class",
    "Core.resident_events": "takes a class",
    "PoolCore.resident_events": "takes a class",
    "PoolCore.take_events": "takes a class",
    "PoolCore.take_snapshot": "takes a class",
    "PoolCore.take_copies": "takes a class",
}


def parameters(function: Any) -> list[str]:
    """Names of a callable's parameters, also for a callable in C++."""
    if hasattr(function, "__nb_signature__"):
        names = stubs.parameters()[function.__qualname__]
    else:
        names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "cls")]


def public(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class that have parameters."""
    for name in dir(owner):
        function = getattr(owner, name)
        if not name.startswith("_") and callable(function) and parameters(function):
            yield name, function


def plain(value: Any) -> Any:
    """A result in a form that can be compared between worlds."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if hasattr(value, "row"):
        return ("sequence", value.row)
    if is_dataclass(value) and not isinstance(value, type):
        return [plain(getattr(value, name)) for name in value.__dataclass_fields__]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value) is int and value >= 2**32:
        return ("handle", value & 0xFFFFFFFF)
    return value
