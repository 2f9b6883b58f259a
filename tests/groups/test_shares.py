"""Quotas: a partition for a namespace, in which nothing is felt of what others do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.groups.engine import SETS
from tests.groups.kinds import Kind, SlidingWindow
from tests.groups.model import ModelManager
from tests.groups.model_pool import NeverFits, OutOfBlocks, WrongStep
from tests.groups.world import FULL, STATE, World


def test_a_quota_is_neither_lent_nor_exceeded() -> None:
    world = World(12, 4, FULL, STATE, quotas={b"q": 4})
    manager = world.manager
    assert (manager.available(b"q"), manager.available()) == (4, 8)
    handle = manager.admit([1] * 12, b"q")  # three units and a state
    with pytest.raises(OutOfBlocks):
        manager.admit([1], b"q")
    with pytest.raises(NeverFits):
        manager.admit([1] * 13, b"q")
    with pytest.raises(OutOfBlocks):
        manager.fork(handle)
    manager.admit([1] * 28)  # seven units and a state
    with pytest.raises(OutOfBlocks):
        manager.admit([1])


def test_a_boundary_makes_room_in_its_own_share() -> None:
    world = World(12, 4, FULL, SlidingWindow(4), quotas={b"q": 6})
    manager = world.manager
    for namespace in (b"q", b""):
        handle = manager.admit([1] * 9, namespace)
        world.compute(handle, 9)
        manager.free(handle)
    manager.free(manager.admit([2] * 12))
    assert manager.match([1] * 9) == 0
    assert manager.match([1] * 9, b"q") == 8


def test_a_sequence_that_changes_its_parent_changes_its_share() -> None:
    world = World(16, 4, FULL, STATE, quotas={b"q": 6})
    manager = world.manager
    tenant, other = manager.admit([1] * 9, b"q"), manager.admit([2] * 9)
    world.compute(tenant, 9)
    world.compute(other, 9)
    manager.reparent([tenant, other], [0, 0])
    assert manager.available() == 10
    assert not manager.violations()
    manager.append(other, [3])
    world.compute(other, 10)


class Tenant:
    """Plays the calls of one namespace, and writes down all that it can see."""

    def __init__(self, manager: ModelManager, namespace: bytes, rng: random.Random) -> None:
        self.manager, self.namespace, self.rng = manager, namespace, rng
        self.handles: list[int] = []
        self.seen: list[Any] = []

    def play(self) -> None:
        rng, manager = self.rng, self.manager
        name = rng.choice(["admit", "admit", "append", "fork", "truncate", "preempt", "free"])
        text, number = [rng.randrange(2) for _ in range(rng.randint(1, 12))], rng.random()
        answer: object = None
        try:
            if name == "admit":
                self.seen.append(manager.match(text, self.namespace))
                self.handles.append(manager.admit(text, self.namespace))
            elif self.handles:
                handle = self.handles[int(number * len(self.handles))]
                if name == "fork":
                    self.handles += manager.fork(handle)
                elif name == "free":
                    self.handles.remove(handle)
                    manager.free(handle)
                elif name == "append":
                    manager.append(handle, text[:2])
                elif name == "truncate":
                    length = len(manager.seqs[handle].tokens)
                    answer = manager.truncate(handle, 1 + int(number * length))
                else:
                    manager.preempt(handle)
                    manager.resume(handle)
        except (OutOfBlocks, NeverFits, WrongStep) as error:
            answer = type(error)
            self.handles = [h for h in self.handles if not manager.seqs[h].preempted]
        self.look(name, answer)

    def commit(self) -> None:
        for handle in self.handles:
            seq = self.manager.seqs[handle]
            last = min(len(seq.tokens), self.manager.num_slots(seq))
            stop = min(seq.stops | {last}) if self.rng.random() < 0.7 else last
            self.manager.commit(handle, max(seq.computed, min(stop, last)))
        self.look("commit", None)

    def look(self, name: str, answer: object) -> None:
        manager = self.manager
        seqs = [manager.seqs[handle] for handle in self.handles]
        tables = [(manager.ids(seq), seq.computed, seq.stops.copy()) for seq in seqs]
        self.seen.append((name, answer, manager.available(self.namespace), tables))


def what_a_tenant_sees(kinds: tuple[Kind, ...], seed: int, *, others: bool) -> list[Any]:
    manager = ModelManager(40, 2, kinds, min_partial_tokens=1, quotas={b"q": 14})
    tenant = Tenant(manager, b"q", random.Random(seed))
    other = Tenant(manager, b"", random.Random(-seed - 1))
    for _ in range(60):
        tenant.play()
        if others:
            for _ in range(3):
                other.play()
        copies = manager.take_copies()
        tenant.seen.append([copy for copy in copies if copy.destination <= 14])
        manager.copies_applied()
        tenant.commit()
        if others:
            other.commit()
        assert not manager.violations()
    return tenant.seen


@pytest.mark.parametrize("kinds", SETS, ids=lambda kinds: " and ".join(map(str, kinds)))
def test_nothing_is_felt_of_what_other_namespaces_do(kinds: tuple[Kind, ...]) -> None:
    for seed in range(4):
        alone = what_a_tenant_sees(kinds, seed, others=False)
        assert what_a_tenant_sees(kinds, seed, others=True) == alone
