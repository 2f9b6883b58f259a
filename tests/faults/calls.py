"""Every public call of the host side, each on a small world in which it has work to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from blockmgr import (
    BlockManager,
    BlockMgrError,
    FullAttention,
    Priority,
    Prompt,
    RecurrentState,
    SlidingWindow,
)
from blockmgr._core import order_copies
from blockmgr.config import EVICTION_POLICIES
from blockmgr.digest import KeyedDigest, VllmDigest
from blockmgr.pool import BlockPool
from tests.faults.worlds import (
    PROMPT,
    World,
    checked,
    copying,
    divided,
    family,
    full,
    holding,
    idle_pool,
    in_flight,
    managed,
    own_digest,
    own_policy,
    pool_with_copy,
    pool_with_ticket,
    pooled,
    preempted,
    retaining,
    rich_pool,
    shrunk,
    with_copies,
    with_ghosts,
    with_remaps,
    with_sessions,
    with_ticket,
)


@dataclass(frozen=True)
class Call:
    """A named call: a factory of its world, and one of the call in that world."""

    name: str
    world: Callable[[], World]
    bind: Callable[[World], Callable[[], Any]]


def _on(name: str, *arguments: Any, **keywords: Any) -> Callable[[World], Any]:
    """A call of that method; strings stand for objects of the world."""

    def bind(world: World) -> Callable[[], Any]:
        known = [world.named[a] if isinstance(a, str) else a for a in arguments]
        return partial(getattr(world.subject, name), *known, **keywords)

    return bind


def _by(make: Callable[[World], Any]) -> Callable[[World], Any]:
    return lambda world: partial(make, world)


def _view(make: Callable[[Any], Any]) -> Callable[[World], Any]:
    return lambda world: partial(make, world.subject.sequence(world.first))


def _refused(error: str, make: Callable[[World], Any]) -> Callable[[World], Any]:
    """A call that raises this error of the library; the error itself needs memory."""

    def call(world: World) -> None:
        try:
            make(world)
        except (BlockMgrError, ValueError, TypeError) as raised:
            if type(raised).__name__ != error:
                raise
        else:
            raise AssertionError(f"{error} was not raised")

    return _by(call)


def _facts(view: Any) -> tuple[Any, ...]:
    computed, cached = view.num_computed_tokens, view.num_cached_tokens
    others = view.num_slots, view.is_preempted, view.stops, view.num_replayed_tokens
    return view.row, view.num_tokens, computed, cached, *others


def _pool_facts(pool: BlockPool) -> list[int]:
    names = (
        "num_free",
        "num_idle",
        "num_available",
        "num_used",
        "num_cached",
        "num_pending_copies",
    )
    return [getattr(pool, name) for name in names]


def _block_facts(world: World) -> list[int]:
    names = ("ref_count", "is_cached", "waits_for_copy", "generation", "parent")
    return [getattr(world.subject, name)(int(world.chain[1])) for name in names]


def _enter_and_leave(world: World) -> None:
    with world.subject.sequence(world.first):
        pass


def _set_debug(world: World) -> None:
    world.subject.debug = 1


FRESH = {"namespace": b"new tenant", "extras": {0: b"other image"}}

HERE = {"namespace": b"tenant", "extras": {1: b"image"}}

GROUPS = {
    "num_blocks": 64,
    "null_block": True,
    "groups": [FullAttention(), SlidingWindow(3), RecurrentState()],
}

MANAGER_CALLS = [
    Call("BlockManager", managed, _by(lambda _: BlockManager(8, 2))),
    Call("admit", managed, _on("admit", [5, 6, 7, 8, 1], **FRESH)),
    Call("admit, found", managed, _on("admit", [1, 2, 3, 4, 5, 6])),
    Call("match", managed, _on("match", PROMPT)),
    Call("Prompt", managed, _by(lambda _: Prompt([1, 2, 3], extras={0: b"x"}))),
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
    Call("resume_together", family, _by(lambda w: w.subject.resume_together(w.family))),
    Call("admit, unread", managed, _on("admit", PROMPT, read_cache=False)),
    Call("reset_prefix_cache", managed, _on("reset_prefix_cache")),
    Call("reset_hit_rate", managed, _on("reset_hit_rate")),
    Call("recent_hits", managed, _on("recent_hits")),
    Call("block_digests", managed, _on("block_digests", PROMPT, **FRESH)),
    Call(
        "num_common_prefix_blocks",
        managed,
        _by(lambda w: w.subject.num_common_prefix_blocks([w.first, w.second])),
    ),
    Call("take_copies", with_copies, _on("take_copies")),
    Call("copies_applied", with_ticket, _by(lambda w: w.subject.copies_applied(w.plan.ticket))),
    Call("copies_aborted", with_ticket, _by(lambda w: w.subject.copies_aborted(w.plan.ticket))),
    Call("complete", in_flight, _by(lambda w: w.subject.complete(w.plan.ticket))),
    Call("take_remaps", with_remaps, _on("take_remaps")),
    Call("take_events", partial(managed, events=True), _on("take_events")),
    Call("take_snapshot", partial(managed, events=True), _on("take_snapshot")),
    Call("resident_events", partial(managed, events=True), _on("resident_events")),
    Call("commit, events", partial(managed, events=True), _on("commit", "first", 9)),
    Call(
        "reset, lost events",
        partial(managed, events=True, event_blocks=1),
        _on("reset_prefix_cache"),
    ),
    Call(
        "admit, native digest",
        partial(managed, digest="sha256_cbor"),
        _on("admit", [1, 2, 3, 4, 5, 6], **FRESH),
    ),
    Call("slot_mapping", managed, _on("slot_mapping", "first", 0, 9)),
    *(
        Call(f"{name} with groups", partial(managed, **GROUPS), bind)
        for name, bind in {
            "slot_mapping": _on("slot_mapping", "first", 8, 9, group=1),
            "group_table": _on("group_table", 1),
            "stops": _on("stops", "third"),
            "cache_state": _on("cache_state", "first"),
            "mark_state_moved": _on("mark_state_moved", "first"),
            "place_state": _on("place_state", "first", 0),
            "admit": _on("admit", [1, 2, 3, 4, 5, 6], **FRESH),
            "match": _on("match", [1, 2, 3, 4, 5, 6]),
            "append": _on("append", "first", [7, 8, 9]),
            "reserve": _on("reserve", "first", 14),
            "decode": _by(lambda w: w.subject.decode([w.first, w.named["second"]], [70, 71])),
            "fork": _on("fork", "first", 2),
            "truncate": _on("truncate", "first", 3),
            "preempt": _on("preempt", "first"),
            "resume": _on("resume", "third"),
            "free": _on("free", "first"),
            "take_copies": _on("take_copies"),
            "reset_prefix_cache": _on("reset_prefix_cache"),
            "retire": _on("retire"),
            "blocks": _on("blocks"),
        }.items()
    ),
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
    Call(
        "retain_digests",
        retaining,
        _on("retain_digests", "digests", priority=Priority.HIGH, ttl=5.0),
    ),
    Call(
        "retain_digests, by parts",
        retaining,
        _on("retain_digests", "parts", priority=Priority.LOW),
    ),
    Call("pin_digests", retaining, _on("pin_digests", "digests")),
    Call("session_digests", retaining, _on("session_digests", b"session")),
    Call("cached_digests", retaining, _on("cached_digests", "first")),
    Call("unpin", retaining, _on("unpin", "pin")),
    Call("pinned", retaining, _on("pinned", "pin")),
    Call("touch", retaining, _on("touch", [1, 2, 3, 4, 5])),
    Call("set_time", retaining, _on("set_time", 5.0)),
    Call("admit, first session", retaining, _on("admit", PROMPT, session=b"a" * 40)),
    Call("admit, session", with_sessions, _on("admit", PROMPT, session=b"a" * 40)),
    Call("admit, superseding", with_sessions, _on("admit", "edited", session=b"long")),
    Call("end_session", with_sessions, _by(lambda w: w.subject.end_session(b"long"))),
    Call("signal", with_sessions, _by(lambda w: w.subject.signal(b"long", "resumed"))),
    Call(
        "signal, with a time",
        with_sessions,
        _by(lambda w: w.subject.signal(b"long", "tool_wait", expected_in=2.0)),
    ),
    Call("signal, done", with_sessions, _by(lambda w: w.subject.signal(b"long", "done"))),
    Call("free, expecting", retaining, _on("free", "first", expect_reuse=False)),
    Call("from_config", managed, _by(lambda w: BlockManager.from_config(w.subject.config))),
    Call("admit, ghosts", with_ghosts, _on("admit", [*range(60, 66)])),
    Call("explain, ghosts", with_ghosts, _on("explain", [1, 2, 3, 4, 5])),
    Call("hit_rate_curve", with_ghosts, _on("hit_rate_curve")),
    Call("admit, quota", divided, _on("admit", [5, 6], namespace=b"tenant")),
    Call("admit, beside a quota", divided, _on("admit", [*range(60, 72)])),
    Call("quota_usage", divided, _on("quota_usage", b"tenant")),
    Call("append, checked", checked, _on("append", "tenants", [4, 5])),
    Call("commit, own digest", partial(managed, digest=own_digest), _on("commit", "first", 9)),
    Call(
        "admit, keyed digest",
        partial(managed, digest=KeyedDigest(b"sixteen bytes ..")),
        _on("admit", [1, 2, 3, 4, 5, 6], **FRESH),
    ),
    Call(
        "admit, seeded digest",
        partial(managed, digest=VllmDigest("0")),
        _on("admit", [1, 2, 3, 4, 5, 6], **FRESH),
    ),
    Call("num_available", managed, _by(lambda w: w.subject.num_available)),
    Call("acquire", holding, _on("acquire", "used")),
    Call("acquire, idle", holding, _on("acquire", "idle")),
    Call("release", holding, _by(lambda w: w.subject.release(w.used[:2]))),
    Call("touch_blocks", holding, _on("touch_blocks", "idle")),
    Call("forget", holding, _on("forget", "idle")),
    Call("forget, used", holding, _by(lambda w: w.subject.forget(w.used[1:]))),
    Call("shrink", holding, _on("shrink", 2)),
    Call("shrink, again", shrunk, _on("shrink", 1)),
    Call("grow", shrunk, _on("grow", 6)),
    Call("leaving", shrunk, _on("leaving")),
    Call("idle_front", managed, _on("idle_front", 8)),
    Call("prefix_of", managed, _by(lambda w: w.subject.prefix_of(w.subject.block_ids(w.first)[2]))),
    Call("contents_of", holding, _on("contents_of", "used")),
    Call("is_cached", holding, _by(lambda w: w.subject.is_cached(w.used[0]))),
    Call("ref_count", holding, _by(lambda w: w.subject.ref_count(w.used[0]))),
    Call("block_ids", holding, _on("block_ids", "first", 1)),
    Call("debug, read", managed, _by(lambda w: w.subject.debug)),
    Call("time", retaining, _by(lambda w: w.subject.time)),
    Call("check_policy", own_policy, _on("check_policy")),
]
MANAGER_CALLS += [
    Call(f"admit, {name}", partial(full, eviction=name), _on("admit", [*range(40, 50)]))
    for name in EVICTION_POLICIES
]
# The manager stops calling a Python policy that runs out of memory: the call completes, but may
# evict another block.
POLICY_CALLS = [
    Call("admit, own policy", own_policy, _on("admit", [*range(40, 50)])),
    Call("commit, own policy", own_policy, _on("commit", "first", 3)),
    Call("free, own policy", own_policy, _on("free", "first")),
]
REFUSALS = [
    Call(
        "admit, refused",
        managed,
        _refused("OutOfBlocksError", lambda w: w.subject.admit(w.too_much)),
    ),
    Call(
        "admit, no row",
        partial(managed, max_seqs=4),
        _refused("OutOfSequencesError", lambda w: w.subject.fork(w.first, 2)),
    ),
    Call(
        "admit, too long", managed, _refused("NeverFitsError", lambda w: w.subject.admit([1] * 99))
    ),
    Call("admit, no tokens", managed, _refused("ValueError", lambda w: w.subject.admit([]))),
    Call("admit, a word", managed, _refused("TypeError", lambda w: w.subject.admit("word"))),
    Call(
        "append, a word",
        managed,
        _refused("TypeError", lambda w: w.subject.append(w.first, ["word"])),
    ),
    Call(
        "append, too large",
        managed,
        _refused("ValueError", lambda w: w.subject.append(w.first, [1 << 70])),
    ),
    Call(
        "free, unknown",
        managed,
        _refused("UnknownSequenceError", lambda w: w.subject.free(1 << 60)),
    ),
    Call(
        "append, preempted",
        managed,
        _refused("SequenceStateError", lambda w: w.subject.append(w.third, [1])),
    ),
    Call(
        "take_copies, open", with_ticket, _refused("StepError", lambda w: w.subject.take_copies())
    ),
    Call(
        "copies_applied, twice",
        managed,
        _refused("TicketError", lambda w: w.subject.copies_applied(1 << 60)),
    ),
    Call(
        "pin, refused",
        partial(managed, retention=True, max_pinned_blocks=1),
        _refused("PinBudgetError", lambda w: w.subject.pin([1, 2, 3, 4, 5])),
    ),
    Call(
        "unpin, unknown", retaining, _refused("UnknownPinError", lambda w: w.subject.unpin(1 << 60))
    ),
    Call(
        "admit, quota refused",
        checked,
        _refused(
            "OutOfBlocksError", lambda w: w.subject.admit([5, 6, 7, 8, 9, 10], namespace=b"tenant")
        ),
    ),
    Call(
        "pool.release, too often",
        pooled,
        _refused("BlockStateError", lambda w: w.subject.release([w.one, w.one])),
    ),
    Call("pool.take, refused", pooled, _refused("OutOfBlocksError", lambda w: w.subject.take(500))),
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
    Call("Sequence.commit", managed, _view(lambda s: s.commit(9))),
    Call("Sequence.resume", preempted, _view(lambda s: s.resume())),
    Call("Sequence.retain", retaining, _view(lambda s: s.retain(0, 4, priority=Priority.HIGH))),
    Call("Sequence.slot_mapping", managed, _view(lambda s: s.slot_mapping(0, 9))),
    Call("Sequence.facts", managed, _view(_facts)),
    Call("Sequence.equal", managed, _view(lambda s: (s == object(), hash(s)))),
]
# These calls make two calls of the manager, one after the other.
TWO_STEP_CALLS = [Call("with sequence", managed, _by(_enter_and_leave))]
POOL_CALLS = [
    Call("pool.BlockPool", pooled, _by(lambda _: BlockPool(8, 2))),
    Call("pool.take", pooled, _on("take", 3)),
    Call("pool.acquire", pooled, _on("acquire", "idle")),
    Call("pool.release", pooled, _on("release", "chain")),
    Call("pool.touch", pooled, _on("touch", "idle")),
    Call("pool.acquire_prefix", pooled, _on("acquire_prefix", [1, 2, 3, 4, 5])),
    Call("pool.find", pooled, _on("find", [1, 2, 3, 4, 5])),
    Call("pool.promote", pooled, _on("promote", "one", [90, 91], **{"extras": b"x"})),
    Call("pool.promote_end", pooled, _on("promote_end", "one", [90], **{"extras": b"x"})),
    Call("pool.promote, twin", pooled, _on("promote", "one", [20, 21])),
    Call("pool.promote, a chain", pooled, _by(lambda w: w.subject.promote([w.one], [90, 91]))),
    Call("pool.evict", pooled, _on("evict", 2)),
    Call("pool.forget", pooled, _on("forget", 2)),
    Call("pool.forget_blocks", pooled, _on("forget_blocks", "chain")),
    Call("pool.forget_blocks, idle", pooled, _on("forget_blocks", "idle")),
    Call("pool.take_blocks", pooled, _on("take_blocks", "free")),
    Call("pool.reset", idle_pool, _on("reset")),
    Call("pool.make_writable", pooled, _by(lambda w: w.subject.make_writable(int(w.chain[-1]), 2))),
    Call("pool.take_copies", pool_with_copy, _on("take_copies")),
    Call("pool.copies_applied", pool_with_ticket, _by(lambda w: w.subject.copies_applied(1))),
    Call("pool.copies_aborted", pool_with_ticket, _by(lambda w: w.subject.copies_aborted(1))),
    Call("pool.ref_count", pooled, _on("ref_count", "chain")),
    Call("pool.children", pooled, _on("children")),
    Call("pool.tokens", pooled, _by(lambda w: w.subject.tokens(int(w.chain[0])))),
    Call("pool.idle_blocks", pooled, _on("idle_blocks")),
    Call("pool.idle_front", pooled, _on("idle_front", 8)),
    Call("pool.prefix_of", pooled, _by(lambda w: w.subject.prefix_of(int(w.chain[-1])))),
    Call("pool.contents_of", pooled, _on("contents_of", "chain")),
    Call("pool.is_cached", pooled, _on("is_cached", "chain")),
    Call("pool.is_idle", pooled, _on("is_idle", "idle")),
    Call("pool.gauges", pooled, _by(lambda w: _pool_facts(w.subject))),
    Call("pool.facts of a block", pooled, _by(_block_facts)),
    Call("pool.memory_usage", pooled, _on("memory_usage")),
    Call("pool.check_invariants", pooled, _on("check_invariants")),
    Call("pool.acquire_prefix, shares", rich_pool, _on("acquire_prefix", [*range(4)])),
    Call("pool.take, shares", rich_pool, _on("take", 4, namespace=b"a")),
    Call("pool.retain", rich_pool, _on("retain", "chain", priority=Priority.LOW, ttl=2.0)),
    Call("pool.pin", rich_pool, _on("pin", "tail")),
    Call("pool.unpin", rich_pool, _on("unpin", "pin")),
    Call("pool.pinned", rich_pool, _on("pinned", "pin")),
    Call("pool.priority", rich_pool, _on("priority", "tail")),
    Call("pool.time", rich_pool, _by(lambda w: w.subject.time)),
    Call("pool.set_time", rich_pool, _on("set_time", 9.0)),
    Call("pool.quota_usage", rich_pool, _on("quota_usage", b"a")),
    Call("pool.hit_rate_curve", rich_pool, _on("hit_rate_curve", b"a")),
    Call("pool.repr", pooled, _by(lambda w: repr(w.subject))),
]
COPY_CALLS = [
    Call("copies.check", copying, _by(lambda w: w.checker.check([300], [301], [1], w.rows))),
    Call("copies.check_blocks", copying, _by(lambda w: w.checker.check_blocks([600, 2], w.rows))),
    Call("copies.pack", copying, _by(lambda w: w.checker.pack(0, w.rows))),
    Call("copies.order", copying, _by(lambda _: order_copies([1, 2], [2, 3], 700, False))),
    Call(
        "copies.check, refused",
        copying,
        _refused("CopyError", lambda w: w.checker.check([900], [301], [1], w.rows)),
    ),
]
HOST_CALLS = [*MANAGER_CALLS, *POLICY_CALLS, *REFUSALS, *VIEW_CALLS, *TWO_STEP_CALLS, *POOL_CALLS]
CALLS = {call.name: call for call in HOST_CALLS}
NATIVE_CALLS = {call.name: call for call in COPY_CALLS}  # no line of Python in them
