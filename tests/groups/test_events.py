"""Events with groups tell a router where each prompt can continue, and never too much.

A router receives events of whole blocks, group by group, and derives the longest prefix that every
group serves. This is compared with what the manager finds: on the specification, whose events are
the differences of what can be found, and on the manager itself, through the bytes of a publisher
and an index.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import blockmgr
from blockmgr import BlockManager, EventKind
from blockmgr.errors import NeverFitsError
from tests.groups.adapter import group_of
from tests.groups.random_runs import WITH_FULL, Layout, play
from tests.groups.world import FULL, STATE
from tests.specification.blocks import Content, Prefix, cut, marked
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import Kind, RecurrentState, SlidingWindow
from tests.stress.run import Run
from tests.stress.world import World

pytest.importorskip("msgspec", reason="the extra 'events'")
pytest.importorskip("zmq", reason="the extra 'events'")

from blockmgr.events import Encoder
from blockmgr.events.codec import decode_hashes
from blockmgr.index import WorkerIndex

SEEDS = 16
Extras = Mapping[int, bytes]
GROUPS = (blockmgr.FullAttention(), blockmgr.SlidingWindow(5))


def prefix_of(text: list[int], namespace: bytes, extras: Extras, size: int) -> Prefix:
    starts = range(0, len(text), size)
    units = (marked(text[i : i + size], extras.get(i // size, b"")) for i in starts)
    return namespace, tuple(itertools.chain.from_iterable(units))


def claimed(told: set[Content], kinds: tuple[Kind, ...], size: int, prefix: Prefix) -> int:
    """The longest prefix, in whole units, at which every group has what the next query reads."""

    def serves(length: int) -> bool:
        for group, kind in enumerate(kinds):
            if isinstance(kind, RecurrentState):
                ends = [length]
            else:
                first = kind.first_read(length) // size
                ends = [(unit + 1) * size for unit in range(first, length // size)]
            if not all((group, cut(prefix, end)) in told for end in ends):
                return False
        return True

    return next(filter(serves, range(len(prefix[1]) // size * size, 0, -size)), 0)


class Mirror:
    """A router that stores prefixes from a manager's events, and an index."""

    def __init__(self, manager: BlockManager, kinds: tuple[Kind, ...]) -> None:
        self.manager, self.kinds, self.size = manager, kinds, manager.config.block_size
        self.told: set[Content] = set()
        self.prefixes: dict[bytes, Prefix] = {}
        self.index = WorkerIndex(max_workers=1)
        self.index.announce("w")
        self.encoder = Encoder(self.size, epoch=1, groups=manager.config.groups)

    def listen(self) -> None:
        events = self.manager.take_events()
        assert not events.num_lost
        for event in events:
            if event.kind is EventKind.CLEARED:
                self.told.clear()
            before: Prefix = (event.namespace, ())
            if event.parent is not None:
                before = self.prefixes[event.parent]
            for row, digest in enumerate(event.digests):
                if event.kind is EventKind.STORED:
                    unit = marked(event.tokens[row].tolist(), event.extras.get(row, b""))
                    before = (before[0], before[1] + unit)
                    self.prefixes[digest] = before
                    assert (event.group, before) not in self.told
                    self.told.add((event.group, before))
                else:
                    self.told.remove((event.group, self.prefixes[digest]))
        for payload in self.encoder.batches(events, 0.0):
            self.index.apply("w", decode_hashes(payload))

    def check_snapshot(self) -> None:
        """A mirror that starts from a snapshot must have the same content."""
        late = Mirror(self.manager, self.kinds)
        resident = iter(self.manager.resident_events())
        assert next(resident).kind is EventKind.CLEARED
        for event in resident:
            before = late.prefixes[event.parent] if event.parent else (event.namespace, ())
            for row, digest in enumerate(event.digests):
                unit = marked(event.tokens[row].tolist(), event.extras.get(row, b""))
                before = (before[0], before[1] + unit)
                late.prefixes[digest] = before
                late.told.add((event.group, before))
        assert late.told == self.told

    def claims(self, text: list[int], namespace: bytes, extras: Extras) -> int:
        """The answer of the index, which must equal that of the router."""
        digests = self.manager.block_digests(text, namespace=namespace, extras=extras)
        found = int(self.index.found(digests)[0].sum()) * self.size
        prefix = prefix_of(text, namespace, extras, self.size)
        assert found == claimed(self.told, self.kinds, self.size, prefix)
        return found


class Watched:
    """After each operation, compares claimed and found tokens of the latest sequences."""

    def __init__(self) -> None:
        self.compared = 0
        self.mirror: Mirror | None = None

    def after(self, run: Run) -> None:
        world = run.world
        if isinstance(world.manager, BlockManager):
            if self.mirror is None:
                self.mirror = Mirror(world.manager, world.kinds)
            self.mirror.listen()
        for entry in world.entries[-3:]:
            for namespace in (b"", b"tenant"):
                self.compare(world, entry.tokens, namespace, entry.extras)

    def claims(self, world: World, text: list[int], namespace: bytes, extras: Extras) -> int:
        if self.mirror is not None:
            return self.mirror.claims(text, namespace, extras)
        prefix = prefix_of(text, namespace, extras, world.size)
        return claimed(world.manager.told(), world.kinds, world.size, prefix)

    def compare(self, world: World, text: list[int], namespace: bytes, extras: Extras) -> None:
        key: dict[str, Any] = {"namespace": namespace, "extras": extras}
        try:  # the last token is never found
            found = world.manager.match([*text, 0], **key).num_cached_tokens
        except NeverFitsError:
            return
        claims, size = self.claims(world, text, namespace, extras), world.size
        usage = world.manager.quota_usage(namespace)
        room = usage.free_blocks + usage.idle_blocks
        blocks = (len(text) // size + 2) * len(world.kinds) * 2
        if found % size:  # a tail continues it, and tails have no events
            assert claims < found or room < blocks
        elif any(kind.block_size for kind in world.kinds):  # an event tells of the whole block
            assert claims <= found or room < blocks
        elif room < blocks:  # a plan that does not fit finds less
            assert claims >= found
        else:
            assert claims == found
        self.compared += claims > 0


@pytest.mark.parametrize("layout", WITH_FULL, ids=", ".join)
def test_an_index_claims_what_the_manager_finds(layout: Layout) -> None:
    compared = 0
    for seed in range(SEEDS):
        watched = Watched()
        play(
            seed,
            layout,
            ops=80,
            options={"events": True, "digest": "xxh3_128"},
            after=watched.after,
        )
        assert watched.mirror is not None
        watched.mirror.listen()
        watched.mirror.check_snapshot()
        compared += watched.compared
    assert compared > 10 * SEEDS


def test_so_does_the_specification() -> None:
    watched = Watched()
    for seed in range(SEEDS):
        layout = WITH_FULL[seed % len(WITH_FULL)]
        play(seed, layout, manager=ModelBoundaries, detectors="K", ops=80, after=watched.after)
    assert watched.compared > 10 * SEEDS


# ---- small worlds ---------------------------------------------------------------------------


def build(*kinds: Kind, **options: Any) -> Mirror:
    groups = [group_of(kind) for kind in kinds]
    return Mirror(
        BlockManager(33, 4, groups=groups, null_block=True, events=True, **options), kinds
    )


def run(mirror: Mirror, tokens: list[int], *stops: int) -> int:
    """A sequence that has computed this many tokens and is still running."""
    core = mirror.manager
    handle = core.admit(tokens)
    for stop in stops:
        core.copies_applied(core.take_copies().ticket)
        core.commit(handle, stop)
    return handle


def told(mirror: Mirror) -> list[tuple[str, int, int]]:
    return [(e.kind.name, e.group, len(e.digests)) for e in mirror.manager.take_events()]


def test_each_group_tells_of_its_blocks_in_one_run() -> None:
    mirror = build(SlidingWindow(5), FULL, STATE)
    run(mirror, list(range(13)), 12)
    # No boundary needs window blocks that the next query does not read.
    assert told(mirror) == [("STORED", 1, 3), ("STORED", 0, 3), ("REMOVED", 0, 2)]


def test_a_state_is_told_of_once_its_copy_is_applied() -> None:
    mirror = build(FULL, STATE)
    core = mirror.manager
    handle = run(mirror, list(range(9)), 8)
    assert core.stops(handle) == ()
    assert told(mirror) == [("STORED", 0, 2)]
    ticket = core.take_copies().ticket
    assert told(mirror) == []
    core.copies_applied(ticket)
    assert core.match(range(9)).num_cached_tokens == 8
    assert told(mirror) == [("STORED", 1, 1)]


def test_a_state_whose_copy_nobody_waits_for_is_told_of_at_once() -> None:
    mirror = build(FULL, STATE)
    handle = run(mirror, list(range(9)), 8)
    mirror.manager.free(handle)
    assert told(mirror) == [("STORED", 0, 2), ("STORED", 1, 1)]


def test_the_state_of_a_sequence_that_ends_is_told_of() -> None:
    mirror = build(FULL, STATE)
    core = mirror.manager
    core.free(run(mirror, list(range(8)), 8))
    assert told(mirror) == [("STORED", 0, 2), ("STORED", 1, 1)]
    core.admit(range(30, 154))  # evicts everything
    assert sorted(told(mirror)) == [("REMOVED", 0, 2), ("REMOVED", 1, 1)]


def test_full_attention_alone_is_not_enough() -> None:
    """A router that uses this group alone sends prompts where they find nothing."""
    mirror = build(FULL, STATE)
    run(mirror, list(range(13)), 13)  # no forward has stopped at a useful position
    mirror.listen()
    digests = mirror.manager.block_digests(range(12))
    assert {group for group, _ in mirror.told} == {0}
    assert mirror.index.num_blocks("w") == 3
    assert mirror.index.found(digests)[0, 0] == 0
    assert mirror.manager.match(list(range(13))).num_cached_tokens == 0


def test_a_window_that_is_given_back_is_told_of() -> None:
    mirror = build(FULL, SlidingWindow(5))
    core = mirror.manager
    core.free(run(mirror, list(range(13)), 12, 13))
    mirror.listen()
    core.admit(range(50, 50 + 4 * 14))  # evicts passed boundaries
    mirror.listen()
    assert mirror.claims(list(range(12)), b"", {}) == 12
    assert mirror.claims(list(range(8)), b"", {}) == core.match(range(9)).num_cached_tokens == 0


def test_what_is_forgotten_at_once_is_one_event() -> None:
    mirror = build(FULL, STATE, SlidingWindow(5))
    core = mirror.manager
    run(mirror, list(range(9)), 8)
    core.take_events()
    core.reset_prefix_cache()
    assert told(mirror) == [("CLEARED", 0, 0)]
    run(mirror, list(range(9)), 8)
    assert told(mirror) == [("STORED", 0, 2), ("STORED", 2, 2), ("REMOVED", 2, 1)]


@pytest.mark.parametrize("digests", [lambda data: bytes(16), "xxh3_128"], ids=["one", "many"])
def test_parts_with_one_digest_are_told_of_once(digests: Callable[[bytes], bytes] | str) -> None:
    manager = BlockManager(
        65, 4, groups=GROUPS, null_block=True, events=True, digest=digests, debug=2
    )
    known: set[tuple[int, bytes]] = set()
    for start in range(6):
        with manager.sequence(manager.admit([*range(start, start + 9)])) as sequence:
            sequence.commit(9)
        for event in manager.take_events():
            keys = {(event.group, each) for each in event.digests}
            assert known.isdisjoint(keys) if event.kind is EventKind.STORED else known >= keys
            known = known | keys if event.kind is EventKind.STORED else known - keys
        resident = {(e.group, d) for e in manager.resident_events() for d in e.digests}
        assert known == resident
    assert len(known) == (2 if callable(digests) else 24)
