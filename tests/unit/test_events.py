"""Events: what a mirror of the cache is notified of, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockmgr import BlockManager, EventKind, Events, Tier
from blockmgr.pool import BlockPool
from tests.unit.engine import cache, serve, step


def build(**options: Any) -> BlockManager:
    return BlockManager(16, 2, **{"events": True, **options})


def told(events: Events) -> list[tuple[str, int]]:
    return [(event.kind.name, len(event.digests)) for event in events]


def mirrored(mirror: set[bytes], events: Events) -> set[bytes]:
    for event in events:
        if event.kind is EventKind.CLEARED:
            mirror.clear()
        elif event.kind is EventKind.STORED:
            assert mirror.isdisjoint(event.digests)
            mirror.update(event.digests)
        else:
            assert mirror.issuperset(event.digests)
            mirror.difference_update(event.digests)
    return mirror


def test_blocks_stored_one_after_the_other_are_one_event() -> None:
    manager = build()
    prompt = [1, 2, 3, 4, 5, 6, 7]
    serve(manager, prompt, namespace=b"tenant", extras={1: b"image"})
    [event] = manager.take_events()
    key: dict[str, Any] = {"namespace": b"tenant", "extras": {1: b"image"}}
    assert event.kind is EventKind.STORED
    assert event.digests == manager.block_digests(prompt, **key)
    assert event.tokens.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert event.tokens.dtype == np.uint32
    assert (event.parent, event.extras) == (None, {1: b"image"})
    assert (event.namespace, event.group, event.tier) == (b"tenant", 0, Tier.DEVICE)


def test_the_next_blocks_of_a_prompt_name_their_parent_and_step() -> None:
    manager = build()
    running = serve(manager, [1, 2, 3], namespace=b"tenant")
    manager.take_events()
    running.append([4, 5])
    step(manager)
    [event] = manager.take_events()
    first, second = manager.block_digests([1, 2, 3, 4], namespace=b"tenant")
    assert (event.parent, event.digests) == (first, [second])
    assert (event.namespace, event.step) == (b"tenant", 2)


def test_the_parent_of_an_event_that_has_none_is_zeros() -> None:
    """Also where the log had the digest of another event's parent before it was drained."""
    manager = build()
    running = serve(manager, [1, 2, 3])
    manager.take_events()
    running.append([4, 5])
    step(manager)
    before = manager.take_events()
    assert (before.has_parent.tolist(), before.parent.any()) == ([True], True)
    serve(manager, [7, 8, 9])
    after = manager.take_events()
    assert (after.has_parent.tolist(), after.parent.any()) == ([False], False)


def test_a_block_that_is_evicted_is_removed() -> None:
    manager = build()
    cache(manager, [1] * 9)
    stored = {digest for event in manager.take_events() for digest in event.digests}
    serve(manager, list(range(100, 131)))
    events = list(manager.take_events())
    assert [event.kind.name for event in events] == ["REMOVED", "STORED"]
    assert set(events[0].digests) <= stored
    assert len(events[0].tokens) == 0


def test_nothing_is_told_twice() -> None:
    manager = build()
    serve(manager, [1, 2, 3])
    assert len(manager.take_events()) == 1
    assert len(manager.take_events()) == 0
    nothing = manager.take_events()
    assert (nothing.num_blocks, nothing.num_lost, list(nothing)) == (0, 0, [])
    assert (nothing.tokens.shape, nothing.digests.shape, len(nothing.start)) == ((0, 2), (0, 16), 1)


def test_a_block_that_has_a_twin_is_not_removed() -> None:
    """Its key passes to another sequence's twin, so the digest can still be found."""
    manager = build(dedup="append_only")
    first = serve(manager, [1, 2, 3, 4, 5])
    second = manager.admit([1, 2, 3, 4, 5], read_cache=False)
    step(manager)
    manager.take_events()
    assert set(first.block_ids.tolist()).isdisjoint(manager.block_ids(second))
    first.free()
    serve(manager, list(range(100, 119)))  # needs the whole pool
    events = manager.take_events()
    assert ("REMOVED", 2) not in told(events)
    assert manager.match([1, 2, 3, 4, 5]).num_cached_tokens == 4
    digests = manager.block_digests([1, 2, 3, 4])
    assert not {d for e in events if e.kind is EventKind.REMOVED for d in e.digests} & {*digests}


def test_a_reset_is_one_event() -> None:
    manager = build()
    cache(manager, [1] * 7)
    manager.take_events()
    manager.reset_prefix_cache()
    assert told(manager.take_events()) == [("CLEARED", 0)]


def test_a_partial_tail_has_no_events() -> None:
    """A tail cannot be requested by digest. The full block that supersedes it is stored once."""
    manager = build(min_partial_tokens=1)
    cache(manager, [1, 2, 3])
    assert told(manager.take_events()) == [("STORED", 1)]
    again = serve(manager, [1, 2, 3, 4, 5])
    assert told(manager.take_events()) == [("STORED", 1)]
    again.free()
    manager.forget([0])
    assert sum(count for kind, count in told(manager.take_events()) if kind == "STORED") == 0


def test_what_was_committed_ahead_and_is_withdrawn_is_removed() -> None:
    manager = build(early_commit=True)
    handle = manager.admit([1, 2, 3])
    manager.commit(handle, 3)
    assert told(manager.take_events()) == [("STORED", 1)]
    manager.free(handle, withdraw=True)
    assert told(manager.take_events()) == [("REMOVED", 1)]


def test_events_that_do_not_fit_are_counted_and_a_snapshot_mends_the_mirror() -> None:
    manager = build(event_blocks=4)
    mirror: set[bytes] = set()
    serve(manager, [1] * 7)
    serve(manager, [2] * 7)
    events = manager.take_events()
    assert (events.num_blocks, events.num_lost) == (4, 2)
    mirrored(mirror, events)
    mirrored(mirror, manager.take_snapshot())
    assert mirror == {*manager.block_digests([1] * 6), *manager.block_digests([2] * 6)}
    serve(manager, [3] * 3)
    events = manager.take_events()
    assert (told(events), events.num_lost) == ([("STORED", 1)], 0)


def test_nothing_is_logged_after_a_loss_though_there_is_room() -> None:
    """A clearing is an event without blocks, so the limit on events can be reached first."""
    manager = build(event_blocks=3)
    manager.reset_prefix_cache()
    for prompt in ([1] * 3, [2] * 3):  # the second is dropped
        serve(manager, prompt)
        manager.forget(manager.match(prompt).block_ids)
    events = manager.take_events()
    assert told(events) == [("CLEARED", 0), ("STORED", 1), ("REMOVED", 1)]
    assert events.num_lost == 2
    mirror = mirrored(set(), events)
    assert mirror == set()


def test_a_reset_makes_up_for_what_was_lost() -> None:
    """Nothing can be found afterwards, so earlier events are not needed."""
    manager = build(event_blocks=1)
    serve(manager, [1] * 7)
    manager.reset_prefix_cache()
    events = manager.take_events()
    assert (told(events), events.num_lost) == ([("CLEARED", 0)], 0)


def test_a_snapshot_says_all_and_what_follows_continues_it() -> None:
    manager = build()
    for prompt in ([1, 1, 2, 2, 3], [1, 1, 4, 4, 5], [6, 6, 7]):
        cache(manager, prompt, namespace=b"n" * (prompt[0] == 6))
    snapshot = manager.take_snapshot()
    events = list(snapshot)
    assert events[0].kind is EventKind.CLEARED
    known: set[bytes] = set()
    for event in events[1:]:
        assert event.parent is None or event.parent in known
        known.update(event.digests)
    assert len(known) == snapshot.num_blocks == 4
    assert {event.namespace for event in events[1:]} == {b"", b"n"}
    assert len(manager.take_events()) == 0


def test_what_is_resident_can_be_told_to_one_mirror_among_several() -> None:
    """Waiting events stay for other readers, and applying them twice is harmless."""
    manager = build()
    cache(manager, [1] * 5)
    serve(manager, [2] * 3)
    manager.forget(manager.match([1] * 5).block_ids.tolist())
    resident = manager.resident_events()
    told_late = manager.take_events()
    assert told(resident) == [("CLEARED", 0), ("STORED", 1)]
    assert told(told_late)[0] == ("STORED", 2)
    mirror = mirrored(set(), resident)
    for event in told_late:
        change = mirror.update if event.kind is EventKind.STORED else mirror.difference_update
        change(event.digests)
    assert mirror == {*manager.block_digests([2, 2])}


def test_a_namespace_outlives_its_blocks_in_the_log() -> None:
    """Otherwise its id could already name another one."""
    manager = build()
    cache(manager, [1, 1, 1], namespace=b"gone", extras={0: b"key"})
    manager.reset_prefix_cache()
    cache(manager, [2, 2, 2], namespace=b"new", extras={0: b"other"})
    events = list(manager.take_events())
    assert [event.namespace for event in events] == [b"gone", b"", b"new"]
    assert [event.extras for event in events] == [{0: b"key"}, {}, {0: b"other"}]
    manager.check_invariants()


def sessions(manager: BlockManager) -> list[tuple[list[list[int]], bytes]]:
    return [(event.tokens.tolist(), event.session) for event in manager.take_events()]


def commit(manager: BlockManager, tokens: list[int], session: bytes = b"") -> int:
    handle = manager.admit(tokens, session=session)
    manager.commit(handle, len(tokens))
    return handle


def test_stored_blocks_name_the_session_that_stored_them() -> None:
    manager = build(retention=True)
    first = commit(manager, [1, 2, 3, 4, 5], b"a")
    commit(manager, [1, 2, 3, 4, 9, 9, 9], b"b")
    commit(manager, [7, 7, 7])
    manager.append(first, [6, 7])
    manager.commit(first, 7)
    assert sessions(manager) == [
        ([[1, 2], [3, 4]], b"a"), ([[9, 9]], b"b"), ([[7, 7]], b""), ([[5, 6]], b"a"),
    ]  # fmt: skip
    commit(manager, [8, 8])
    assert sessions(manager) == [([[8, 8]], b"")]
    assert manager.take_events().session == ()


def test_a_block_of_another_session_is_another_event() -> None:
    manager = build(retention=True)
    handle = commit(manager, [1, 2], b"a")
    for tokens in ([3, 4], [5, 6]):
        manager.append(handle, tokens)
        manager.commit(handle, len(manager.sequence(handle).tokens))
    manager.free(handle)
    commit(manager, [*range(1, 9)], b"b")
    assert sessions(manager) == [([[1, 2], [3, 4], [5, 6]], b"a"), ([[7, 8]], b"b")]


def test_a_sequence_names_no_session_that_has_ended_or_gone_on() -> None:
    manager = build(retention=True)
    first, other = commit(manager, [1, 2], b"a"), commit(manager, [5, 6], b"b")
    commit(manager, [1, 2, 9], b"a")
    manager.end_session(b"b")
    manager.take_events()
    for handle in (first, other):
        manager.append(handle, [3, 4])
        manager.commit(handle, 4)
    assert sessions(manager) == [([[3, 4]], b""), ([[3, 4]], b"")]


def test_the_name_of_a_session_outlives_the_session_in_the_log() -> None:
    manager = build(retention=True, max_sessions=1)
    manager.free(commit(manager, [1, 2], b"a"))
    manager.free(commit(manager, [3, 4], b"b"))
    assert sessions(manager) == [([[1, 2]], b"a"), ([[3, 4]], b"b")]
    assert [event.session for event in manager.take_snapshot()] == [b"", b"", b""]


def test_names_that_do_not_fit_are_left_out_until_the_events_are_taken() -> None:
    manager = build(retention=True, event_blocks=16)
    names = [bytes([65 + n]) * 256 for n in range(4)]
    for _ in range(2):
        for number, name in enumerate(names):
            commit(manager, [number, number], name)
        found = sessions(manager)
        assert [session for _, session in found] == [*names[:2], b"", b""]
        manager.reset_prefix_cache()
        for handle in manager.handles():
            manager.free(handle)
        manager.take_events()


def test_events_are_off_unless_asked_for() -> None:
    manager = BlockManager(16, 2)
    for call in (manager.take_events, manager.take_snapshot, manager.resident_events):
        with pytest.raises(ValueError, match="needs events=True"):
            call()


def test_without_a_prefix_cache_there_are_no_events() -> None:
    manager = build(prefix_caching=False)
    serve(manager, [1, 2, 3])
    assert len(manager.take_events()) == 0
    assert told(manager.take_snapshot()) == [("CLEARED", 0)]


def test_a_pool_has_events_too() -> None:
    pool = BlockPool(4, 2, events=True)
    blocks = pool.take(2).tolist()
    pool.promote(blocks, [1, 2, 3, 4], namespace=b"n")
    pool.release(blocks)
    pool.evict(1)
    assert told(pool.take_events()) == [("STORED", 2), ("REMOVED", 1)]
    assert told(pool.take_snapshot()) == [("CLEARED", 0), ("STORED", 1)]
    with pytest.raises(ValueError, match="needs events=True"):
        BlockPool(4, 2).take_events()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"events": 1}, TypeError, "events must be a bool"),
        ({"event_blocks": 0}, ValueError, "event_blocks must be in"),
        ({"event_blocks": 2.0}, TypeError, "event_blocks must be an int"),
        ({"event_blocks": 9, "events": False}, ValueError, "event_blocks must be None without"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        build(**options)
