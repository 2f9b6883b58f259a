"""The router by events: its index compared with sets that apply the same events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from blockmgr import BlockManager
from blockmgr.event_columns import EventKind, Events
from blockmgr.groups import ChunkedAttention, FullAttention, Group, RecurrentState, SlidingWindow
from blockmgr.lab import demand
from blockmgr.lab.event_router import EventRouter
from blockmgr.lab.fleet import FleetOptions, fleet
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.routing import REPAIRS, Arrival, Delivery, Setting, View
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate
from tests.lab import worlds

CONFIG = ReplayConfig(block_size=2, min_service_ms=3, service_ms_per_token=2)


class Watched(EventRouter):
    """The router, and a set for each replica to which the same events are applied."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.delay_ms = setting.delivery.delay_ms
        self.history: list[tuple[int, int, frozenset[bytes]]] = []  # time, replica, its blocks
        self.has: list[set[bytes]] = [set() for _ in range(setting.num_replicas)]
        self.checked = 0

    def listen(self, place: int, now_ms: int, events: Events) -> None:
        known = self.has[place]
        for event in events:
            if event.kind is EventKind.CLEARED:
                known.clear()
            else:
                change = known.update if event.kind is EventKind.STORED else known.difference_update
                change(event.digests)
        self.history.append((now_ms, place, frozenset(known)))
        super().listen(place, now_ms, events)

    def had(self, place: int, now_ms: int) -> frozenset[bytes]:
        """What a replica had at a time, including its steps at that time."""
        past = [has for when, which, has in self.history if which == place and when <= now_ms]
        return past[-1] if past else frozenset()

    def knows(self, place: int) -> frozenset[bytes]:
        """The blocks that the index attributes to a replica."""
        every = {digest for _, _, has in self.history for digest in has}
        found = frozenset(each for each in every if self.index.found([each])[place].sum())
        assert self.index.num_blocks(str(place)) == len(found)
        return found

    def __call__(self, arrival: Arrival, replicas: Sequence[View]) -> int:
        choice = super().__call__(arrival, replicas)
        self.check(arrival, replicas)
        return choice

    def check(self, arrival: Arrival, replicas: Sequence[View]) -> None:
        """The check at each arrival."""


class Late(Watched):
    """Without losses, the index has the state of one delay ago."""

    def check(self, arrival: Arrival, replicas: Sequence[View]) -> None:
        now_ms = arrival.request.arrival_ms - self.delay_ms
        for place in range(len(replicas)):
            assert self.knows(place) == self.had(place, now_ms)
            self.checked += bool(self.knows(place))


class AtOnce(EventRouter):
    """Nothing is lost or late: it knows what all groups of a replica serve."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.checked = 0
        self.removed = 0

    def listen(self, place: int, now_ms: int, events: Events) -> None:
        self.removed += sum(event.kind is EventKind.REMOVED for event in events)
        super().listen(place, now_ms, events)

    def __call__(self, arrival: Arrival, replicas: Sequence[View]) -> int:
        choice = super().__call__(arrival, replicas)
        for count, replica in zip(self.counts(arrival, replicas[0]), replicas, strict=True):
            assert count == replica.cached_tokens(arrival) // 2
            self.checked += count > 0
        return choice

    def counts(self, arrival: Arrival, replica: View) -> list[int]:
        """Blocks found; the last token is never taken from the cache."""
        whole = (len(arrival.tokens) - 1) // 2
        return self.index.found(replica.block_digests(arrival)[:whole]).sum(axis=1).tolist()


def routed(
    kind: Any, trace: Trace, config: ReplayConfig = CONFIG, blocks: int = 9, **options: Any
) -> Any:
    made = []

    def factory(setting: Setting) -> Any:
        made.append(kind(setting))
        return made[0]

    fleet(trace, 3, blocks, config, factory, options=FleetOptions(**options))
    return made[0]


def test_events_that_are_neither_late_nor_lost_tell_what_each_replica_finds() -> None:
    checked = 0
    for seed in range(60):
        trace = worlds.conversations(Random(seed), 20)
        checked += routed(AtOnce, trace).checked
    assert checked > 200


@pytest.mark.parametrize("repair", REPAIRS)
def test_late_events_tell_what_was_there_a_delay_ago(repair: Any) -> None:
    checked = 0
    for seed in range(40):
        trace = worlds.conversations(Random(seed), 20)
        late = Delivery(delay_ms=4, repair=repair)
        checked += routed(Late, trace, delivery=late).checked
    assert checked > 100


@pytest.mark.parametrize(
    "groups",
    [
        (SlidingWindow(2), FullAttention()),
        (FullAttention(), SlidingWindow(3), RecurrentState()),
        (ChunkedAttention(4), FullAttention(), RecurrentState()),
    ],
    ids=repr,
)
def test_events_of_several_groups_tell_what_all_of_them_serve(groups: tuple[Group, ...]) -> None:
    """In pools with room for every prompt behind what is found of it, and less for the rest."""
    checked = removed = 0
    for seed in range(20):
        config = replace(CONFIG, groups=groups, forward_tokens=1 + seed % 5)
        trace = worlds.conversations(Random(seed), 80)
        router = routed(AtOnce, trace, config, blocks=60)
        checked += router.checked
        removed += router.removed
    assert checked > 300
    assert removed > 100


def test_what_is_replayed_makes_up_for_all_that_was_lost() -> None:
    for seed in range(30):
        trace = worlds.conversations(Random(seed), 20)
        for delay_ms in (0, 3, 7_000):
            lossy = Delivery(delay_ms=delay_ms, loss=0.4)
            router = routed(Watched, trace, delivery=lossy, seed=seed)
            end = max(when for when, _, _ in router.history)
            # A pause, then a request for a replay and its answer.
            router.deliver(end + 5_000 + 3 * delay_ms)
            router.deliver(end + 40_000)
            for place in range(3):
                assert router.knows(place) == router.had(place, end)


def test_without_a_look_at_numbers_what_was_lost_is_missing_to_the_end() -> None:
    wrong = 0
    for seed in range(30):
        lossy = Delivery(loss=0.4, repair="none")
        trace = worlds.conversations(Random(seed), 20)
        router = routed(Watched, trace, delivery=lossy, seed=seed)
        router.deliver(10**9)
        wrong += any(router.knows(place) != router.has[place] for place in range(3))
    assert wrong > 20


def second_lost() -> int:
    """A seed with which, at a loss of one half, only the second of three batches is lost."""
    for seed in range(1000):
        [only] = np.random.SeedSequence(seed).spawn(1)
        draws = np.random.Generator(np.random.PCG64(only)).random(3) < 0.5
        if draws.tolist() == [False, True, False]:
            return seed
    raise AssertionError


@pytest.mark.parametrize(
    ("repair", "while_asking", "afterwards"),
    [("replay", {"a"}, {"b"}), ("forget", {"b"}, {"b"}), ("none", {"a", "b"}, {"a", "b"})],
)
def test_a_removal_that_is_lost_is_believed_forgotten_or_replayed(
    repair: Any, while_asking: set[str], afterwards: set[str]
) -> None:
    trace = worlds.prompts(Random(1), 9, 9)
    way = Delivery(delay_ms=10, loss=0.5, repair=repair)
    router = EventRouter(Setting(trace=trace, block_size=2, seed=second_lost(), delivery=way))
    manager = BlockManager(2, 2, events=True)
    names = {}
    for now_ms, (name, tokens) in ((0, ("a", [1, 2, 3])), (100, ("b", [4, 5, 6]))):
        [names[name]] = manager.block_digests(tokens)
        manager.reset_prefix_cache()  # a separate batch that removes everything
        events = manager.take_events()
        if now_ms:
            router.listen(0, now_ms - 50, events)
        with manager.sequence(manager.admit(tokens, num_slots=2)) as sequence:
            sequence.commit(2)
        router.listen(0, now_ms, manager.take_events())

    def known() -> set[str]:
        return {name for name, digest in names.items() if router.index.found([digest]).sum()}

    router.deliver(109)
    assert known() == {"a"}
    router.deliver(129)
    assert known() == while_asking
    router.deliver(130)
    assert known() == afterwards


def test_if_all_is_lost_a_silent_line_is_asked() -> None:
    trace = worlds.prompts(Random(1), 9, 9)
    lossy = Delivery(delay_ms=10, loss=1)
    router = EventRouter(Setting(trace=trace, block_size=2, delivery=lossy))
    manager = BlockManager(4, 2, events=True)
    with manager.sequence(manager.admit([1, 2, 3])) as sequence:
        sequence.commit(3)
    router.listen(0, 1_000, manager.take_events())
    digests = manager.block_digests([1, 2, 3])
    router.deliver(6_019)
    assert not router.index.found(digests).sum()
    router.deliver(6_020)
    assert router.index.found(digests).sum() == 1


def test_events_that_a_full_log_lost_come_as_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = []

    def crowded(*arguments: Any, **options: Any) -> BlockManager:
        options["event_blocks"] = 1 if options["events"] else None
        return BlockManager(*arguments, **options)

    class Counting(AtOnce):
        def listen(self, place: int, now_ms: int, events: Events) -> None:
            lost.append(events.num_lost)
            super().listen(place, now_ms, events)

    monkeypatch.setattr(demand, "BlockManager", crowded)
    for seed in range(20):
        routed(Counting, worlds.conversations(Random(seed), 20))
    assert any(lost)


def test_each_replica_loses_batches_of_its_own() -> None:
    trace = worlds.prompts(Random(1), 9, 9)
    lossy = Delivery(loss=0.5, repair="none")
    router = EventRouter(Setting(trace=trace, block_size=1, num_replicas=2, delivery=lossy))
    manager = BlockManager(64, 1, events=True)
    for token in range(60):
        with manager.sequence(manager.admit([token, 0], num_slots=1)) as sequence:
            sequence.commit(1)
        events = manager.take_events()
        for place in range(2):
            router.listen(place, token, events)
    router.deliver(60)
    first, second = (
        [router.index.found(manager.block_digests([token]))[place].sum() for token in range(60)]
        for place in range(2)
    )
    assert 15 < sum(first) < 45
    assert 15 < sum(second) < 45
    assert first != second


def test_draws_of_what_is_lost_follow_the_seed() -> None:
    chat = generate("chat", 3, conversations=40, system_tokens=64, think_s=4)
    lossy = Delivery(delay_ms=100, loss=0.3, repair="none")

    def counts(seed: int) -> list[int]:
        config = ReplayConfig(block_size=16)
        options = FleetOptions(delivery=lossy, seed=seed)
        found = fleet(chat, 3, 700, config, "events", options=options)
        return [one.hit_tokens for one in found.replicas]

    assert counts(1) == counts(1) != counts(2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delay_ms": -1}, r"delay_ms must be in \[0, 2147483648\], got -1"),
        ({"loss": 1.5}, r"loss must be in \[0, 1\], got 1.5"),
        ({"loss": float("nan")}, r"loss must be in \[0, 1\], got nan"),
        ({"repair": "pray"}, "repair must be one of replay, forget, none, got 'pray'"),
    ],
)
def test_a_delivery_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Delivery(**changes)
