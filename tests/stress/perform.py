"""Runs records as calls in a world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.blocks import Priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stress.draw import Record
    from tests.stress.world import Entry, World

__all__ = ["finish_up", "perform"]


def perform(world: World, record: Record) -> None:
    """Runs one operation; without sequences, an operation that needs one does nothing."""
    op = record["op"]
    if world.skips(op):
        return
    if op in OPERATIONS:
        OPERATIONS[op](world, record)
    elif world.entries:
        ON_ENTRY[op](world, world.entries[record["entry"] % len(world.entries)], record)
    if world.habits.eager and world.early and world.open is None:
        _commit_ahead(world, record)


def _commit_ahead(world: World, record: Record) -> None:
    """Commits what this step's forward will write, except what the engine leaves out."""
    for index, entry in enumerate(world.entries):
        computed = world.manager.sequence(entry.handle).num_computed_tokens
        if entry.running and (record["entry"] + index) % 4 and world.committable(entry) > computed:
            world.commit(entry, world.committable(entry))


def finish_up(world: World) -> None:
    """Frees everything, and checks that no block is missing afterwards."""
    world.let_go(0, len(world.holds))
    world.step()
    for entry in list(world.entries):
        world.free(entry)
    world.step()
    if world.in_flight_limit:
        world.complete(len(world.steps))
    stats = world.manager.stats()
    if stats.available != stats.capacity or world.leave():
        raise AssertionError(f"blocks leaked: {stats}")


def _admit(world: World, record: Record) -> None:
    extras = record["extras"] and {int(k): v.encode() for k, v in record["extras"].items()}
    tokens, namespace = list(record["tokens"]), record["namespace"].encode()
    reads = record.get("read_cache", True)
    entry = world.admit(
        tokens,
        namespace,
        extras,
        record["num_slots"],
        reads,
        by_match=record.get("by_match", False),
        session=record.get("session", "").encode(),
        **record.get("limits", {}),
    )
    if entry is not None and world.early and record["commit"]:
        world.commit(entry, world.committable(entry))


def _decode(world: World, record: Record) -> None:
    pairs = zip(record["batch"], record["tokens"], strict=True)
    chosen = [(world.entries[i], token) for i, token in pairs if i < len(world.entries)]
    chosen = [(entry, token) for entry, token in chosen if entry.running]
    world.decode([entry for entry, _ in chosen], [token for _, token in chosen])


def _reparent(world: World, record: Record) -> None:
    pairs = zip(record["batch"], record["parents"], strict=True)
    chosen = [(world.entries[i], parent) for i, parent in pairs if i < len(world.entries)]
    chosen = [(entry, parent) for entry, parent in chosen if entry.running]
    parents = [parent % len(chosen) for _, parent in chosen]
    world.reparent([entry for entry, _ in chosen], parents)


def _step(world: World, record: Record) -> None:
    world.step(record["skip"], record["held_back"])
    if record.get("pause") and not world.manager.stats().pending_copies:
        world.complete(len(world.steps))
        world.skip_steps(record["pause"])


def _begin(world: World, record: Record) -> None:
    world.begin(applied=record["applied"])


def _finish(world: World, record: Record) -> None:
    waiting = [launched for launched in world.steps if not launched.finished]
    if waiting:
        world.finish(waiting[record["entry"] % len(waiting)])


def _abort(world: World, record: Record) -> None:
    if record["nested"] and world.entries and world.open is None:
        entry = world.entries[record["entry"] % len(world.entries)]
        for child in world.fork(entry):
            world.append(child, [0])
            world.begin()
            for grandchild in world.fork(child):
                world.append(grandchild, [1])
    world.abort()


def _complete(world: World, record: Record) -> None:
    if world.in_flight_limit:
        world.complete(record["count"])


def _take_remaps(world: World, record: Record) -> None:
    world.take_remaps()


def _resume(world: World, record: Record) -> None:
    waiting = [entry for entry in world.entries if not entry.running]
    if waiting:
        entry = waiting[record["entry"] % len(waiting)]
        world.resume(entry, record["num_slots"], record.get("read_cache", True))


def _resume_together(world: World, record: Record) -> None:
    waiting = [entry for entry in world.entries if not entry.running]
    chosen = [waiting[i] for i in record["batch"] if i < len(waiting)]
    world.resume_together(chosen, num_slots=record["num_slots"], read_cache=record["read_cache"])


def _regroup(world: World, record: Record) -> None:
    if record["steps"]:
        world.step()
        world.complete(len(world.steps))
    world.regroup()


def _reset(world: World, record: Record) -> None:
    world.reset(reset_hit_rate=record["reset_hit_rate"])


def _hold(world: World, record: Record) -> None:
    world.hold(record["entry"], record["count"], twice=record["twice"])


def _let_go(world: World, record: Record) -> None:
    world.let_go(record["entry"], record["count"], again=record["again"])


def _touch_blocks(world: World, record: Record) -> None:
    world.touch_blocks(record["entry"], record["count"])


def _forget(world: World, record: Record) -> None:
    world.forget(record["entry"], record["count"])


def _shrink(world: World, record: Record) -> None:
    world.shrink(int(record["share"] * (world.limit + 2)))
    for entry in world.leave() if record["evacuates"] else ():
        world.preempt(entry)


def _grow(world: World, record: Record) -> None:
    world.grow(int(record["share"] * world.manager.config.num_blocks))


def _nonsense(world: World, record: Record) -> None:
    if world.dead:
        world.on_dead(record["call"], record["entry"])


def _next_turn(world: World, entry: Entry, record: Record) -> None:
    tokens = entry.tokens + record["tokens"]
    session = record.get("session", "").encode()
    child = world.admit(tokens, entry.namespace, entry.extras, session=session)
    if child is not None and record["cut"] is not None:
        world.truncate(child, max(1, len(tokens) - record["cut"]))
        world.append(child, record["tokens"][:2])


def _turn(world: World, entry: Entry, record: Record) -> None:
    """Ends a sequence, and admits the next turn of its conversation at once."""
    world.free(entry)
    if entry not in world.entries:
        world.admit(entry.tokens + record["tokens"], entry.namespace, entry.extras)


def _cache(world: World, entry: Entry, record: Record) -> None:
    world.cache_state(entry)


def _retain_prefix(world: World, entry: Entry, record: Record) -> None:
    world.retain_prefix(entry, Priority(record["priority"]))


def _append(world: World, entry: Entry, record: Record) -> None:
    world.append(entry, record["tokens"])


def _commit(world: World, entry: Entry, record: Record) -> None:
    n = record["num_computed"]
    world.commit(entry, world.committable(entry) if n is None else n)


def _reserve(world: World, entry: Entry, record: Record) -> None:
    world.reserve(entry, len(entry.tokens) + record["more"])


def _truncate(world: World, entry: Entry, record: Record) -> None:
    world.truncate(entry, int(record["share"] * (len(entry.tokens) + 2)))


def _fork(world: World, entry: Entry, record: Record) -> None:
    world.fork(entry, record["n"])


def _branch(world: World, entry: Entry, record: Record) -> None:
    """A fork of a fork, all written in one step: copies of copies."""
    if record.get("cut") is not None:
        return _stagger(world, entry, record)
    for child in world.fork(entry):
        family = [entry, child, *world.fork(child)]
        tokens = iter(record["tokens"])
        for index in record["order"]:
            if index < len(family):
                world.append(family[index], [next(tokens)])
                world.append(family[index], [next(tokens)])


def _stagger(world: World, entry: Entry, record: Record) -> None:
    """A sequence and its fork decode one after another, the fork cut back a little."""
    world.step()
    for child in world.fork(entry):
        world.decode([entry], record["tokens"][:1])
        if 0 < record["cut"] < len(child.tokens):
            world.truncate(child, len(child.tokens) - record["cut"])
        world.decode([child], record["tokens"][1:2])
        world.step()


def _free(world: World, entry: Entry, record: Record) -> None:
    config = world.manager.config
    hinted = config.retention and not config.groups
    hint = (None, None, True, False)[record["entry"] % 4] if hinted else None
    world.free(entry, hint, withdraw=record.get("withdraw", False))
    if world.habits.refills and entry not in world.entries:  # a manager gives out its row next
        world.admit(entry.tokens[: 1 + record["entry"] % len(entry.tokens)])


def _preempt(world: World, entry: Entry, record: Record) -> None:
    world.preempt(entry, withdraw=record.get("withdraw", False))


def _unpin(world: World, record: Record) -> None:
    if world.pins:
        world.unpin(record["entry"], again=record["again"])


def _set_time(world: World, record: Record) -> None:
    if world.manager.config.retention:
        world.same_answer("set_time", [world.manager.time + record["seconds"]])


def _end_session(world: World, record: Record) -> None:
    if record["session"]:
        key = {"namespace": record["namespace"].encode()}
        world.same_answer("end_session", [record["session"].encode()], **key)


def _signal(world: World, record: Record) -> None:
    if record["session"]:
        key: dict[str, Any] = {"namespace": record["namespace"].encode()}
        if record["signal"] != "done":
            key["expected_in"] = record["expected_in"]
        world.same_answer("signal", [record["session"].encode(), record["signal"]], **key)


def _retain(world: World, entry: Entry, record: Record) -> None:
    start, priority = record["start"], record["priority"]
    key = {"priority": None if priority is None else Priority(priority), "ttl": record["ttl"]}
    world.retain(entry, start, start + record["length"], **key)


def _pin(world: World, entry: Entry, record: Record) -> None:
    world.pin(entry.tokens, namespace=entry.namespace, extras=entry.extras)


def _touch(world: World, entry: Entry, record: Record) -> None:
    key = {"namespace": entry.namespace, "extras": entry.extras}
    world.same_answer("touch", [entry.tokens], **key)


OPERATIONS: dict[str, Callable[[World, Record], None]] = {
    "admit": _admit,
    "decode": _decode,
    "reparent": _reparent,
    "step": _step,
    "begin": _begin,
    "finish": _finish,
    "abort": _abort,
    "complete": _complete,
    "take_remaps": _take_remaps,
    "resume": _resume,
    "resume_together": _resume_together,
    "regroup": _regroup,
    "reset": _reset,
    "hold": _hold,
    "let_go": _let_go,
    "touch_blocks": _touch_blocks,
    "forget": _forget,
    "shrink": _shrink,
    "grow": _grow,
    "nonsense": _nonsense,
    "unpin": _unpin,
    "set_time": _set_time,
    "end_session": _end_session,
    "signal": _signal,
}
ON_ENTRY: dict[str, Callable[[World, Entry, Record], None]] = {
    "next_turn": _next_turn,
    "turn": _turn,
    "cache": _cache,
    "retain_prefix": _retain_prefix,
    "append": _append,
    "commit": _commit,
    "reserve": _reserve,
    "truncate": _truncate,
    "fork": _fork,
    "branch": _branch,
    "free": _free,
    "preempt": _preempt,
    "retain": _retain,
    "pin": _pin,
    "touch": _touch,
}
