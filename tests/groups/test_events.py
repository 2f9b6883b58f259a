"""Events with groups tell a router where each prompt can continue, and never too much.

A router receives events of whole blocks, group by group, and derives the longest prefix that every
group serves. This is compared with what the manager finds: on the specification, whose events are
the differences of what can be found, and on the manager itself, through the bytes of a publisher
and an index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import blockmgr
from blockmgr import BlockManager, EventKind
from blockmgr.errors import NeverFitsError
from tests.groups.core import CoreManager
from tests.groups.engine import SETS, Engine
from tests.groups.model import ModelManager
from tests.groups.world import FULL, STATE
from tests.specification.blocks import Content, Prefix, cut
from tests.specification.layers import FullAttention, Kind, RecurrentState, SlidingWindow

pytest.importorskip("msgspec", reason="the extra 'events'")
pytest.importorskip("zmq", reason="the extra 'events'")

from blockmgr.events import Encoder
from blockmgr.events.codec import decode_hashes
from blockmgr.index import WorkerIndex

WITH_FULL = [kinds for kinds in SETS if any(isinstance(kind, FullAttention) for kind in kinds)]
SEEDS = 40
GROUPS = (blockmgr.FullAttention(), blockmgr.SlidingWindow(5))


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

    def __init__(self, manager: CoreManager) -> None:
        self.manager = manager
        self.told: set[Content] = set()
        self.prefixes: dict[bytes, Prefix] = {}
        self.index = WorkerIndex(max_workers=1)
        self.index.announce("w")
        self.encoder = Encoder(manager.size, epoch=1, groups=manager.core.config.groups)

    def listen(self) -> None:
        events = self.manager.core.take_events()
        assert not events.num_lost
        for event in events:
            before: Prefix = (event.namespace, ())
            if event.parent is not None:
                before = self.prefixes[event.parent]
            for row, digest in enumerate(event.digests):
                if event.kind is EventKind.STORED:
                    before = (before[0], before[1] + tuple(event.tokens[row].tolist()))
                    self.prefixes[digest] = before
                    assert (event.group, before) not in self.told
                    self.told.add((event.group, before))
                else:
                    self.told.remove((event.group, self.prefixes[digest]))
        for payload in self.encoder.batches(events, 0.0):
            self.index.apply("w", decode_hashes(payload))

    def check_snapshot(self) -> None:
        """A mirror that starts from a snapshot must have the same content."""
        late = Mirror(self.manager)
        resident = iter(self.manager.core.resident_events())
        assert next(resident).kind is EventKind.CLEARED
        for event in resident:
            before = late.prefixes[event.parent] if event.parent else (event.namespace, ())
            for row, digest in enumerate(event.digests):
                before = (before[0], before[1] + tuple(event.tokens[row].tolist()))
                late.prefixes[digest] = before
                late.told.add((event.group, before))
        assert late.told == self.told

    def claims(self, text: list[int], namespace: bytes) -> int:
        """The answer of the index, which must equal that of the router."""
        manager = self.manager
        digests = manager.core.block_digests(text, namespace=namespace)
        found = int(self.index.found(digests)[0].sum()) * manager.size
        assert found == claimed(self.told, manager.kinds, manager.size, (namespace, tuple(text)))
        return found


class Watched(Engine):
    """An engine that compares claimed and found tokens of each text after each call."""

    compared = 0
    mirror: Mirror | None = None

    def check(self) -> None:
        super().check()
        if isinstance(self.manager, CoreManager):
            if self.mirror is None:
                self.mirror = Mirror(self.manager)
            self.mirror.listen()
        for text in self.texts[-3:]:
            for namespace in {*self.namespaces}:
                self.compare(text, namespace)

    def claims(self, text: list[int], namespace: bytes) -> int:
        if self.mirror is not None:
            return self.mirror.claims(text, namespace)
        told = self.manager.told()
        return claimed(told, self.kinds, self.manager.size, (namespace, tuple(text)))

    def compare(self, text: list[int], namespace: bytes) -> None:
        try:
            found = self.manager.match([*text, 0], namespace)  # the last token is never found
        except NeverFitsError:
            return
        claims, size = self.claims(text, namespace), self.manager.size
        share = namespace if namespace in self.manager.quotas else None
        blocks = (len(text) // size + 2) * len(self.kinds) * 2
        if found % size:  # a tail continues it, and tails have no events
            assert claims < found or self.manager.available(share) < blocks
        elif self.manager.available(share) < blocks:  # a plan that does not fit finds less
            assert claims >= found
        else:
            assert claims == found
        self.compared += claims > 0


@pytest.mark.parametrize("kinds", WITH_FULL, ids=lambda kinds: " and ".join(map(str, kinds)))
def test_an_index_claims_what_the_manager_finds(kinds: tuple[Kind, ...]) -> None:
    compared = 0
    for seed in range(SEEDS):
        engine = Watched(seed, kinds, functools.partial(CoreManager, events=True))
        engine.run(20)
        assert engine.mirror is not None
        engine.mirror.check_snapshot()
        compared += engine.compared
    assert compared > 20 * SEEDS


def test_so_does_the_specification() -> None:
    compared = 0
    for seed in range(SEEDS):
        engine = Watched(seed, WITH_FULL[seed % len(WITH_FULL)], ModelManager, audits=False)
        engine.run(20)
        compared += engine.compared
    assert compared > 20 * SEEDS


# ---- small worlds ---------------------------------------------------------------------------


def build(*kinds: Kind, **options: Any) -> Mirror:
    return Mirror(CoreManager(33, 4, kinds, events=True, **options))


def run(mirror: Mirror, tokens: list[int], *stops: int) -> int:
    """A sequence that has computed this many tokens and is still running."""
    core = mirror.manager.core
    handle = core.admit(tokens)
    for stop in stops:
        core.copies_applied(core.take_copies().ticket)
        core.commit(handle, stop)
    return handle


def told(mirror: Mirror) -> list[tuple[str, int, int]]:
    return [(e.kind.name, e.group, len(e.digests)) for e in mirror.manager.core.take_events()]


def test_each_group_tells_of_its_blocks_in_one_run() -> None:
    mirror = build(SlidingWindow(5), FULL, STATE)
    run(mirror, list(range(13)), 12)
    # No boundary needs window blocks that the next query does not read.
    assert told(mirror) == [("STORED", 1, 3), ("STORED", 0, 3), ("REMOVED", 0, 2)]


def test_a_state_is_told_of_once_its_copy_is_applied() -> None:
    mirror = build(FULL, STATE)
    core = mirror.manager.core
    handle = run(mirror, list(range(9)), 8)
    assert core.stops(handle) == ()
    assert told(mirror) == [("STORED", 0, 2)]
    ticket = core.take_copies().ticket
    assert told(mirror) == []
    core.copies_applied(ticket)
    assert core.match(range(9)).num_cached_tokens == 8  # a look-up is no event
    assert told(mirror) == [("STORED", 1, 1)]


def test_a_state_whose_copy_nobody_waits_for_is_told_of_at_once() -> None:
    mirror = build(FULL, STATE)
    handle = run(mirror, list(range(9)), 8)
    mirror.manager.core.free(handle)
    assert told(mirror) == [("STORED", 0, 2), ("STORED", 1, 1)]


def test_the_state_of_a_sequence_that_ends_is_told_of() -> None:
    mirror = build(FULL, STATE)
    core = mirror.manager.core
    core.free(run(mirror, list(range(8)), 8))
    assert told(mirror) == [("STORED", 0, 2), ("STORED", 1, 1)]
    core.admit(range(30, 154))  # evicts everything
    assert sorted(told(mirror)) == [("REMOVED", 0, 2), ("REMOVED", 1, 1)]


def test_full_attention_alone_is_not_enough() -> None:
    """A router that uses this group alone sends prompts where they find nothing."""
    mirror = build(FULL, STATE)
    run(mirror, list(range(13)), 13)  # no forward has stopped at a useful position
    mirror.listen()
    digests = mirror.manager.core.block_digests(range(12))
    assert {group for group, _ in mirror.told} == {0}
    assert mirror.index.num_blocks("w") == 3
    assert mirror.index.found(digests)[0, 0] == 0
    assert mirror.manager.match(list(range(13))) == 0


def test_a_window_that_is_given_back_is_told_of() -> None:
    mirror = build(FULL, SlidingWindow(5))
    core = mirror.manager.core
    core.free(run(mirror, list(range(13)), 12, 13))
    mirror.listen()
    core.admit(range(50, 50 + 4 * 14))  # evicts passed boundaries
    mirror.listen()
    assert mirror.claims(list(range(12)), b"") == 12
    assert mirror.claims(list(range(8)), b"") == core.match(range(9)).num_cached_tokens == 0


def test_what_is_forgotten_at_once_is_one_event() -> None:
    mirror = build(FULL, STATE, SlidingWindow(5))
    core = mirror.manager.core
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
