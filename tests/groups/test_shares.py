"""Quotas, which isolate namespaces; levels of retention; the order of eviction."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from blockmgr.errors import NeverFitsError, OutOfBlocksError, StepError
from tests.groups import broken
from tests.groups.adapter import Adapter
from tests.groups.random_runs import SETS
from tests.groups.world import FULL, STATE, World
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import Kind, SlidingWindow


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
    """Makes the calls of one namespace and records everything it can observe."""

    def __init__(self, manager: Adapter, namespace: bytes, rng: random.Random) -> None:
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
        except (OutOfBlocksError, NeverFitsError, StepError) as error:
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
        tables = [(seq.tables, seq.computed, seq.stops) for seq in seqs]
        self.seen.append((name, answer, manager.available(self.namespace), tables))


def what_a_tenant_sees(kinds: tuple[Kind, ...], seed: int, *, others: bool) -> list[Any]:
    manager = Adapter(40, 2, kinds, min_partial_tokens=1, quotas={b"q": 14})
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


# Levels


@pytest.mark.specification_alone
def test_a_level_holds_up_all_that_comes_before_it() -> None:
    world = World(12, 4, FULL)
    manager = world.manager
    for token in (1, 2):
        world.serve([token] * 17)
    assert manager.retain([1] * 16, 1) == 4
    manager.core.levels = {(b"", (1,) * 16): 1}  # only of the deepest one
    assert [manager.level((b"", (1,) * n)) for n in (4, 8, 12, 16)] == [1, 1, 1, 1]
    manager.free(manager.admit([3] * 32))  # eight blocks: four are free, and 2 is the younger one
    assert manager.match([1] * 17) == 16
    assert manager.match([2] * 17) == 0


@pytest.mark.specification_alone
def test_a_level_promises_nothing_against_a_running_sequence() -> None:
    world = World(6, 4, FULL, SlidingWindow(4))
    world.serve([1] * 9)
    assert world.manager.retain([1] * 8, 2) > 0
    world.manager.free(world.manager.admit([2] * 12))
    assert world.manager.match([1] * 9) == 0
    assert not world.manager.levels


def wrong_eviction(build: Callable[..., ModelBoundaries], seed: int) -> str | None:
    """Serves prompts one by one; evicted boundaries have no higher level than remaining ones.

    The test tracks levels independently; the level of a boundary is the highest of all units that
    continue it. Passed boundaries go first at any level, except for the end of a retained prefix.
    """
    rng = random.Random(seed)
    kinds = rng.choice([k for k in SETS if k[0] == FULL])
    manager = Adapter(rng.choice([12, 20]) * len(kinds), 2, kinds, build=build)
    levels: dict[Any, int] = {}
    ends: set[Any] = set()

    def findable() -> set[Any]:
        return {block.content[1] for block in manager.live if block.content is not None}

    def level(boundary: Any, among: list[Any]) -> int:
        length = len(boundary[1])
        longer = [p for p in among if p[1][:length] == boundary[1]]
        return max(levels.get(p, 0) for p in longer)

    texts: list[list[int]] = [[0]]
    for _ in range(40):
        known = rng.choice(texts)
        text = known[: rng.randint(0, 12)] + rng.choices([0, 1], k=rng.randint(2, 8))
        texts = [*texts[-5:], text]
        before = list(manager.stamps)
        passed = set(manager.passed) - ends
        needs = {p: manager.needs(p) for p in before}
        held = {p: level(p, [*findable(), *before]) for p in before}
        handle = manager.admit(text)
        found = manager.seqs[handle].prefix(manager.seqs[handle].cached)
        gone = [p for p in before if p not in manager.stamps]
        left = [p for p in before if p in manager.stamps]
        in_use = {c for n in range(len(found[1]) + 1) for c in manager.needs((b"", found[1][:n]))}
        idle = [p for p in left if not in_use.issuperset(needs[p]) and p[1] != found[1]]
        taken_over = [p for p in gone if p == found]
        for p in gone:
            higher = [o for o in idle if held[o] < held[p]]
            if p not in taken_over and p not in passed and higher:
                return f"{p} of level {held[p]} went before {higher[0]} of level {held[higher[0]]}"
        levels = {p: value for p, value in levels.items() if p in findable()}
        length = len(text)
        for stop in sorted(s for s in {*manager.seqs[handle].stops, length} if s):
            manager.take_copies()
            manager.copies_applied()
            manager.commit(handle, max(stop, manager.seqs[handle].computed))
        manager.free(handle)
        levels = {p: value for p, value in levels.items() if p in findable()}
        ends &= set(manager.stamps)
        if rng.random() < 0.5:
            text, value = rng.choice(texts), rng.choice([-1, 1, 2])
            served = max(
                n for n in range(0, len(text) + 1, 2) if manager.match([*text[:n], 2]) == n
            )
            manager.retain(text, value)
            paths = [(b"", tuple(text[:end])) for end in range(2, served + 1, 2)]
            levels.update(dict.fromkeys(paths, value))
            if value > 0 and served:
                ends.add(paths[-1])
    return None


@pytest.mark.specification_alone
def test_a_higher_level_goes_later() -> None:
    for seed in range(40):
        assert wrong_eviction(ModelBoundaries, seed) is None


@pytest.mark.specification_alone
@pytest.mark.parametrize("build", broken.LEVELS, ids=lambda build: build.__name__)
def test_each_broken_order_of_levels_is_noticed(build: Callable[..., ModelBoundaries]) -> None:
    assert any(wrong_eviction(build, seed) for seed in range(200))


# Order


@pytest.mark.specification_alone
def test_what_a_running_sequence_left_goes_last_and_its_deepest_boundary_first() -> None:
    """The window has dropped units 0 to 2, which the boundaries at 4, 8 and 12 need."""
    world = World(13, 4, FULL, SlidingWindow(4))
    manager = world.manager
    handle = manager.admit([1] * 16)
    world.compute(handle, 16)
    world.serve([2] * 5)
    manager.passed.clear()  # as if prompts continued from all of them
    assert manager.match([2] * 5) == 4
    manager.free(manager.admit([3] * 8))  # four blocks, and three are free
    assert manager.match([2] * 5) == 0
    assert {len(boundary[1]) for boundary in manager.stamps} == {4, 8, 12, 16}
    manager.admit([3] * 12)  # six, and five are free
    assert {len(boundary[1]) for boundary in manager.stamps} == {4, 8, 16}


def test_a_window_that_is_computed_again_where_prompts_diverge_is_kept() -> None:
    world = World(50, 4, FULL, SlidingWindow(5))
    manager = world.manager
    prompt = list(range(60))
    world.serve(prompt)
    world.serve([100 + i for i in range(60)])  # the first one's passed boundary is gone
    other = [*prompt[:40], *[7] * 9]
    assert manager.match(other) < 40
    world.serve(other)
    manager.free(manager.admit([8] * 40))
    assert manager.match(other[:41]) == 40
