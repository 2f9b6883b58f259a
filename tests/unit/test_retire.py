"""A namespace whose weights have changed: no prompt finds what was computed before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    FullAttention,
    MissReason,
    NeverFitsError,
    OutOfBlocksError,
    Priority,
    RecurrentState,
    SlidingWindow,
    StepError,
)
from blockmgr.config import EVICTION_POLICIES
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve, step
from tests.unit.snapshot import refused
from tests.unit.test_retention import A, B

OURS, THEIRS = b"ours", b"theirs"


def cached(manager: BlockManager, tokens: list[int], namespace: bytes = OURS) -> int:
    return manager.match([*tokens, 0], namespace=namespace).num_cached_tokens


def test_a_retired_namespace_is_not_found_and_others_are(make_manager: MakeManager) -> None:
    manager = make_manager(8)
    for name in (OURS, THEIRS, b""):
        cache(manager, A, namespace=name)
    assert manager.retire(OURS) == 0
    assert [cached(manager, A, name) for name in (OURS, THEIRS, b"")] == [0, 8, 8]
    assert manager.retire() == 0
    assert [cached(manager, A, name) for name in (OURS, THEIRS, b"")] == [0, 8, 0]
    assert manager.retire(b"never seen") == 0


def test_what_is_computed_later_is_cached_as_usual(make_manager: MakeManager) -> None:
    """Beside retired blocks with the same tokens, and with the same digests."""
    manager = make_manager(12)
    old = cache(manager, A, namespace=OURS)
    manager.retire(OURS)
    new = cache(manager, A, namespace=OURS)
    assert not {*old} & {*new}
    assert manager.match([*A, 0], namespace=OURS).block_ids.tolist() == new
    assert [manager.is_cached(block) for block in (*old, *new)] == [False] * 2 + [True] * 2
    manager.retire(OURS)
    assert cached(manager, A) == 0


def reasons(manager: BlockManager, tokens: list[int], namespace: bytes = OURS) -> list[MissReason]:
    return [miss.reason for miss in manager.explain([*tokens, 0], namespace=namespace).misses]


LOST = [MissReason.EVICTED, MissReason.LAST_TOKEN]
UNKNOWN = [MissReason.NOT_REMEMBERED, MissReason.LAST_TOKEN]


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_no_larger_pool_would_find_what_a_retired_namespace_has_lost(
    make_manager: MakeManager, eviction: str, holds: bool
) -> None:
    """Whether or not the namespace still has a sequence."""
    manager = make_manager(5, ghost_blocks=8, eviction=eviction, digest="xxh3_128")
    for name in (THEIRS, OURS):
        cache(manager, A, namespace=name)
    if holds:
        manager.admit([1], namespace=OURS)
    for tokens in ([21] * 16, [22] * 16):
        cache(manager, tokens)
    assert [reasons(manager, A, name) for name in (OURS, THEIRS)] == [LOST, LOST]
    assert manager.retire(OURS) == holds
    assert [reasons(manager, A, name) for name in (OURS, THEIRS)] == [UNKNOWN, LOST]
    hits = [manager.hit_rate_curve().hit_tokens[-1]]
    for name in (OURS, THEIRS):
        cache(manager, A, namespace=name)
        hits.append(manager.hit_rate_curve().hit_tokens[-1])
    assert hits[0] == hits[1] == hits[2] - 4
    manager.check_invariants()


def test_the_eviction_of_a_retired_block_is_no_loss(make_manager: MakeManager) -> None:
    """Evicted in the usual order, as it became idle after the last look at retired blocks."""
    manager = make_manager(33, ghost_blocks=40, digest="xxh3_128")
    cache(manager, [8] * 4)
    prompt = list(range(100, 227))
    held = manager.admit([*prompt, 1], namespace=OURS)
    manager.commit(held, 128)
    assert manager.num_available == 1
    manager.retire(OURS)
    other = manager.admit([9])
    manager.free(held)
    manager.admit([9])
    assert manager.stats().evicted_blocks == 2
    assert reasons(manager, [*prompt, 1]) == UNKNOWN
    manager.free(other)
    cache(manager, [*prompt, 1], namespace=OURS)
    manager.check_invariants()


def test_a_prompt_of_a_retired_namespace_is_not_said_to_be_new(make_manager: MakeManager) -> None:
    manager = make_manager(8, ghost_blocks=8)
    cache(manager, A, namespace=OURS)
    manager.retire(b"never seen")
    assert reasons(manager, B)[0] is MissReason.NEVER_SEEN
    manager.retire(OURS)
    assert reasons(manager, A) == UNKNOWN


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
@pytest.mark.parametrize("retention", [False, True])
def test_retired_blocks_go_before_all_others(
    make_manager: MakeManager, eviction: str, retention: bool
) -> None:
    """Before older ones, and whatever their retention was."""
    manager = make_manager(
        8, eviction=eviction, retention=retention, max_pinned_blocks=2 * retention
    )
    cache(manager, A, namespace=THEIRS)
    cache(manager, B, namespace=THEIRS)
    for tokens in (A, B):
        cache(manager, tokens, namespace=OURS)
    if retention:
        manager.retain_prefix(A, namespace=OURS, priority=Priority.HIGH)
        manager.pin(B, namespace=OURS)
        manager.retain_prefix(A, namespace=THEIRS, priority=Priority.LOW)
    manager.retire(OURS)
    manager.free(manager.admit([9], num_slots=16))
    assert [cached(manager, tokens, THEIRS) for tokens in (A, B)] == [8, 8]
    assert manager.stats().evicted_blocks == 0


def test_the_blocks_of_another_quota_stay(make_manager: MakeManager) -> None:
    """A share that needs room takes none of the retired blocks of another one."""
    manager = make_manager(8, quotas={OURS: 4})
    cache(manager, A, namespace=OURS)
    cache(manager, A, namespace=THEIRS)
    manager.retire(OURS)
    manager.free(manager.admit([9] * 16, namespace=THEIRS))
    assert manager.stats().evicted_blocks == 2
    manager.free(manager.admit([9] * 16, namespace=OURS))
    assert manager.stats().evicted_blocks == 2


def test_blocks_in_use_go_once_they_are_idle(make_manager: MakeManager) -> None:
    """Also where an idle branch hangs below a used one."""
    manager = make_manager(10)
    cache(manager, [*A, 5, 5, 5, 5], namespace=OURS)
    sequence = serve(manager, [*A, 6, 6, 6, 6, 7], namespace=OURS)
    cache(manager, A, namespace=THEIRS)
    assert manager.retire(OURS) == 1
    manager.free(manager.admit([9] * 16))  # three free blocks, and the branch
    assert cached(manager, A, THEIRS) == 8
    sequence.free()
    manager.free(manager.admit([9] * 32))
    assert cached(manager, A, THEIRS) == 8
    assert manager.stats().evicted_blocks == 0


def test_a_sequence_continues_and_its_forks_cache_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(16)
    sequence = serve(manager, [*A, 5], namespace=OURS)
    before = ids(sequence)
    assert manager.retire(OURS) == 1
    assert ids(sequence) == before
    [fork] = sequence.fork()
    for each in (sequence, fork):
        each.append([6, 6, 6, 6])
        step(manager)
    assert cached(manager, [*A, 5, 6, 6, 6]) == 0
    fork.free()
    sequence.preempt()
    assert cached(manager, [*A, 5, 6, 6, 6]) == 0
    sequence.resume()
    assert sequence.num_computed_tokens == 0
    step(manager)
    assert cached(manager, [*A, 5, 6, 6, 6]) == 12


def test_a_step_in_flight_brings_nothing_back(make_manager: MakeManager) -> None:
    manager = make_manager(8, steps_in_flight=1)
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    handle = manager.admit([*A, 5], namespace=OURS)
    assert manager.retire(OURS) == 1
    manager.commit(handle, 9)  # the forward has computed part of it with the old weights
    manager.free(handle)
    assert cached(manager, A) == 0
    manager.complete(plan.ticket)
    assert manager.num_available == 8


def test_a_block_that_is_not_written_yet_is_refused(make_manager: MakeManager) -> None:
    manager = make_manager(8, early_commit=True)
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    handle = manager.admit(A, namespace=OURS)
    manager.commit(handle, 8)
    if manager.match([*A, 0], namespace=OURS).num_cached_tokens:
        with refused(manager, StepError):
            manager.retire(OURS)
    assert manager.retire(THEIRS) == 0


def test_mirrors_learn_of_each_block() -> None:
    manager = BlockManager(8, 4, events=True)
    cache(manager, A, namespace=OURS)
    manager.take_events()
    manager.retire(OURS)
    removed = {digest for event in manager.take_events() for digest in event.digests}
    assert removed == {*manager.block_digests(A, namespace=OURS)}
    assert manager.stats().forgotten_blocks == 2


def test_digests_of_retired_blocks_have_no_effect() -> None:
    manager = BlockManager(12, 4, retention=True, debug=2)
    cache(manager, A, namespace=OURS)
    digests = manager.block_digests(A, namespace=OURS)
    manager.retire(OURS)
    assert manager.retain_digests(digests, priority=Priority.HIGH, namespace=OURS) == 0
    cache(manager, A, namespace=OURS)
    assert manager.retain_digests(digests, priority=Priority.HIGH, namespace=OURS) == 2
    assert manager.stats().high_priority_blocks == 2


WORLDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "append_only": {"dedup": "append_only"},
    "retention": {"retention": True, "max_pinned_blocks": 4},
    "steps in flight": {"steps_in_flight": 1},
    "a policy and ghosts": {"eviction": "s3fifo", "ghost_blocks": 8},
    "quotas": {"quotas": {OURS: 10}},
    "events": {"events": True},
    "a window": {"groups": (FullAttention(), SlidingWindow(6)), "null_block": True},
    "states": {"groups": (FullAttention(), RecurrentState()), "null_block": True},
}


class Epochs:
    """An engine whose blocks hold, for each token, the weights that computed it."""

    def __init__(self, manager: BlockManager, rng: random.Random) -> None:
        self.manager = manager
        self.rng = rng
        self.epoch = {OURS: 0, THEIRS: 0}
        self.memory: dict[int, tuple[int, ...]] = {}  # block -> the weights of its tokens
        self.names: dict[int, bytes] = {}
        self.waiting: list[int] = []

    def started(self, handle: int) -> None:
        """What is found was computed with the present weights: no stale token."""
        view = self.manager.sequence(handle)
        size = self.manager.config.block_size
        self.run_copies()
        for i, block in enumerate(ids(view)):
            found = min(max(view.num_computed_tokens - i * size, 0), size)
            weights = self.memory.get(block, ())[:found]
            assert weights == (self.epoch[self.names[handle]],) * found, i

    def run_copies(self) -> None:
        if self.waiting:
            self.manager.complete(self.waiting.pop())
        plan = self.manager.take_copies()
        for copy in plan:
            own = self.memory.get(copy.source, ())
            self.memory[copy.destination] = own[: copy.num_tokens]
        self.manager.copies_applied(plan.ticket)
        if self.manager.config.steps_in_flight:
            self.waiting.append(plan.ticket)

    def compute(self, handle: int) -> None:
        self.run_copies()
        view = self.manager.sequence(handle)
        size = self.manager.config.block_size
        blocks = ids(view)
        stop = min(view.num_tokens, view.num_slots)
        for position in range(view.num_computed_tokens, stop):
            block = blocks[position // size]
            known = self.memory.get(block, ())[: position % size]
            self.memory[block] = (*known, self.epoch[self.names[handle]])
        self.manager.commit(handle, stop)

    def act(self) -> None:
        manager, rng = self.manager, self.rng
        running = [h for h in self.names if not manager.sequence(h).is_preempted]
        stopped = [h for h in self.names if manager.sequence(h).is_preempted]
        call = rng.choice(["admit"] * 3 + ["append"] * 3 + ["free", "fork", "stop", "go", "retire"])
        try:
            if call == "admit":
                name = rng.choice([OURS, THEIRS])
                tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 14))]
                session = rng.choice([b"", b"chat"]) if manager.config.retention else b""
                handle = manager.admit(tokens, namespace=name, session=session)
                self.names[handle] = name
                self.started(handle)
                self.compute(handle)
            elif call == "retire":
                name = rng.choice([OURS, THEIRS])
                manager.retire(name)
                self.epoch[name] += 1
            elif call == "append" and running:
                handle = rng.choice(running)
                manager.append(handle, [rng.randrange(2) for _ in range(rng.randrange(1, 5))])
                self.compute(handle)
            elif call == "free" and running:
                handle = rng.choice(running)
                manager.free(handle)
                del self.names[handle]
            elif call == "fork" and running:
                handle = rng.choice(running)
                [child] = manager.fork(handle)
                self.names[child] = self.names[handle]
            elif call == "stop" and running:
                manager.preempt(rng.choice(running))
            elif call == "go" and stopped:
                handle = rng.choice(stopped)
                manager.resume(handle)
                self.started(handle)
                self.compute(handle)
        except (OutOfBlocksError, NeverFitsError):
            self.run_copies()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("seed", range(6))
def test_no_stale_token_is_ever_found(world: str, seed: int) -> None:
    """Through forks, preemption, copies, evictions and steps in flight."""
    manager = BlockManager(28, 2, debug=2, min_partial_tokens=1, **WORLDS[world])
    engine = Epochs(manager, random.Random(seed))
    for _ in range(400):
        engine.act()
    assert min(engine.epoch.values()) > 5
    manager.check_invariants()
