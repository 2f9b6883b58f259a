"""Eviction policies in Python: their notifications, and the effect of their errors."""

from __future__ import annotations

import gc
import pickle
import signal
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import BlockManager, ManagerConfig, PolicyError, Priority, ReentrancyError
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.trace import Request, Trace
from tests.reference_policies import Lru
from tests.unit.engine import cache, serve
from tests.unit.snapshot import snapshot


class Recorder(Lru):
    """Least recently used, with a log of all notifications."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.said: list[tuple[Any, ...]] = []

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        self.said.append(("cached", block, parent, len(digest)))
        super().on_cached(block, parent, digest)

    def on_hit(self, block: int) -> None:
        self.said.append(("hit", block))

    def on_idle(self, block: int) -> None:
        self.said.append(("idle", block))
        super().on_idle(block)

    def on_used(self, block: int) -> None:
        self.said.append(("used", block))
        super().on_used(block)

    def on_uncached(self, block: int, evicted: bool) -> None:
        self.said.append(("uncached", block, evicted))
        super().on_uncached(block, evicted)


class Mru(Lru):
    """Evicts the leaf that became idle last."""

    def victim(self) -> int:
        return next(b for b in reversed(self.order) if not self.children(b))


def build(policy: Any, num_blocks: int = 4, **options: Any) -> BlockManager:
    return BlockManager(num_blocks, 2, eviction=lambda capacity: policy, **options)


def test_a_policy_hears_of_every_turn_of_a_block() -> None:
    policy = Recorder(4)
    manager = build(policy)
    a, b = cache(manager, [1, 1, 2, 2])  # the tail becomes idle first
    assert policy.said == [
        ("cached", a, -1, 16),
        ("cached", b, a, 16),
        ("idle", b),
        ("idle", a),
    ]
    policy.said.clear()
    seq = serve(manager, [1, 1, 3])  # one of the two is found
    assert policy.said == [("hit", a), ("used", a)]
    policy.said.clear()
    seq.free()
    assert policy.said == [("idle", a)]
    policy.said.clear()
    cache(manager, [4, 4, 5, 5, 6, 6])  # two are free, so the oldest goes
    assert policy.said[0] == ("uncached", b, True)


def test_a_tail_has_no_digest_and_is_uncached_when_it_is_taken_over() -> None:
    policy = Recorder(4)
    manager = build(policy, min_partial_tokens=1)
    (tail,) = cache(manager, [1])
    assert policy.said == [("cached", tail, -1, 0), ("idle", tail)]
    policy.said.clear()
    serve(manager, [1, 2, 3])
    assert policy.said[:3] == [("hit", tail), ("used", tail), ("uncached", tail, False)]


def test_the_digest_of_a_block_is_the_same_when_it_comes_back() -> None:
    digests: list[bytes] = []

    class Digests(Lru):
        def on_cached(self, block: int, parent: int, digest: bytes) -> None:
            digests.append(digest)
            super().on_cached(block, parent, digest)

    manager = build(Digests(2), 2)
    for prompt in ([1, 1, 2, 2], [3, 3, 4, 4], [1, 1, 2, 2]):
        cache(manager, prompt)
    assert digests[:2] == digests[4:]
    assert len(set(digests)) == 4


def test_the_victim_is_the_policys() -> None:
    manager = BlockManager(3, 2, eviction=Mru)
    for prompt in ([1, 1], [2, 2], [3, 3], [4, 4]):
        cache(manager, prompt)
    found = [manager.match([t, t, 0]).num_cached_tokens for t in (1, 2, 3, 4)]
    assert found == [2, 2, 0, 2]  # least recently used would be 0, 2, 2, 2
    manager.check_invariants()


def test_a_factory_is_given_the_capacity_and_makes_one_policy_a_manager() -> None:
    made: list[int] = []

    def make(capacity: int) -> Lru:
        made.append(capacity)
        return Lru(capacity)

    config = ManagerConfig(num_blocks=5, block_size=2, null_block=True, eviction=make)
    BlockManager.from_config(config)
    BlockManager.from_config(config)
    assert made == [4, 4]


def test_what_lacks_a_method_is_refused() -> None:
    with pytest.raises(TypeError, match=r"type object without on_cached, on_hit, .*, victim"):
        BlockManager(4, 2, eviction=lambda _: object())  # type: ignore[arg-type,return-value]


def test_an_error_of_the_factory_comes_through() -> None:
    def make(capacity: int) -> Lru:
        raise RuntimeError(f"not with {capacity}")

    with pytest.raises(RuntimeError, match="not with 4"):
        BlockManager(4, 2, eviction=make)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, TypeError),
        ("arcc", ValueError),
        (3, TypeError),
        (True, TypeError),
    ],
)
def test_other_values_are_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"eviction must be one of lru, .*, got"):
        ManagerConfig(num_blocks=4, block_size=2, eviction=value)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got 's3fif'; did you mean 's3fifo'\?"):
        ManagerConfig(num_blocks=4, block_size=2, eviction="s3fif")


# ---- policies that are wrong -------------------------------------------------------------


def fails(where: str, what: Callable[[Any], Any]) -> Any:
    """A policy of least recently used with one changed method."""
    policy = Lru(4)
    setattr(policy, where, lambda *_: what(policy))
    return policy


def boom(policy: Any) -> None:
    raise LookupError("boom")


IMPOSSIBLE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a used block": (
        lambda policy: next(b for b in policy.parent if b not in policy.idle),
        "ValueError: victim must be an idle block, got",
    ),
    "a parent": (
        lambda policy: next(b for b in policy.idle if policy.children(b)),
        "ValueError: victim must be a block without cached children, got",
    ),
    "no block": (lambda _: 99, "ValueError: victim must be an idle block, got 99"),
    "a negative id": (lambda _: -1, "ValueError: victim must be an idle block, got -1"),
    "a huge id": (lambda _: 2**80, "victim"),
    "no number": (lambda _: "x", "TypeError: victim must be"),
    "nothing": (lambda _: None, "TypeError: victim must be"),
    "an exception": (boom, "LookupError: boom"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_victim_is_replaced_and_reported(case: str) -> None:
    what, message = IMPOSSIBLE[case]
    manager, twin = build(fails("victim", what)), BlockManager(4, 2)
    for each in (manager, twin):
        held = serve(each, [7, 7, 0])  # one used and cached block
        held.append([0])
        cache(each, [1, 1, 2, 2])
        cache(each, [3, 3, 4, 4])  # two evictions
    assert manager.blocks().state.tolist() == twin.blocks().state.tolist()
    assert manager.stats() == twin.stats()
    with pytest.raises(PolicyError, match=message) as caught:
        manager.check_policy()
    assert caught.value.error is caught.value.__cause__
    with pytest.raises(PolicyError, match=message):
        manager.check_invariants()
    twin.check_policy()


@pytest.mark.parametrize("where", ["retained", "pinned"])
def test_a_victim_that_is_retained_above_the_others_is_replaced_and_reported(where: str) -> None:
    """A policy sees such a block as in use, and the priority takes precedence over the policy."""
    first = fails("victim", lambda policy: 1)  # idle, and without children
    manager = build(first, retention=True, max_pinned_blocks=2)
    cache(manager, [1, 1, 2, 2])
    cache(manager, [3, 3, 4, 4])
    if where == "pinned":
        manager.pin([1, 1, 2, 2])
    else:
        manager.retain_prefix([1, 1, 2, 2], priority=Priority.EXPECTED)
    cache(manager, [5, 5])
    assert len(manager.match([1, 1, 2, 2, 0]).block_ids) == 2
    assert len(manager.match([3, 3, 4, 4, 0]).block_ids) == 1
    with pytest.raises(PolicyError, match="ValueError: victim must be an idle block, got 1, which"):
        manager.check_policy()


@pytest.mark.parametrize("where", ["on_cached", "on_hit", "on_idle", "on_used", "on_uncached"])
def test_an_exception_anywhere_leaves_the_pool_with_least_recently_used(where: str) -> None:
    manager, twin = build(fails(where, boom)), BlockManager(4, 2)
    for each in (manager, twin):
        for prompt in ([1, 1, 2, 2], [1, 1, 3], [4, 4, 5, 5], [6, 6], [1, 1, 3, 3], [7, 7]):
            cache(each, prompt)
    ours, theirs = snapshot(manager), snapshot(twin)
    assert ours["block_tables"] == theirs["block_tables"]
    assert ours["stats"] == theirs["stats"]
    with pytest.raises(PolicyError, match="boom"):
        manager.check_policy()


def test_the_first_error_is_the_one_that_is_kept_and_the_policy_is_left_alone() -> None:
    calls: list[str] = []

    def once(policy: Any) -> None:
        calls.append("called")
        raise LookupError(f"error {len(calls)}")

    manager = build(fails("on_idle", once))
    cache(manager, [1, 1, 2, 2])
    cache(manager, [3, 3, 4, 4])
    assert calls == ["called"]
    with pytest.raises(PolicyError, match="error 1"):
        manager.check_policy()


def test_a_policy_that_calls_its_manager_is_refused() -> None:
    class Meddler(Lru):
        manager: BlockManager
        errors: list[type] = []  # noqa: RUF012

        def on_idle(self, block: int) -> None:
            for call in (
                lambda: self.manager.admit([1]),
                self.manager.stats,
                lambda: self.manager.match([1, 1, 1]),
                self.manager.blocks,
            ):
                with pytest.raises(ReentrancyError):
                    call()
                self.errors.append(ReentrancyError)
            super().on_idle(block)
            self.manager.num_available  # noqa: B018

    policy = Meddler(4)
    manager = policy.manager = build(policy)
    cache(manager, [1, 1])
    assert len(policy.errors) == 4
    with pytest.raises(PolicyError, match="ReentrancyError"):
        manager.check_policy()
    assert manager.stats().idle_blocks == 1


def test_an_interrupt_inside_a_policy_comes_up_again() -> None:
    def interrupt(policy: Any) -> None:
        raise KeyboardInterrupt

    manager = build(fails("on_idle", interrupt))
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            cache(manager, [1, 1])  # signals are handled as soon as Python code runs again
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(PolicyError, match="KeyboardInterrupt"):
        manager.check_policy()


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_manager_its_policy_or_the_error_of_it_refers_to_is_collected(has_failed: bool) -> None:
    policy: Any = fails("on_idle", boom) if has_failed else Lru(4)
    manager = policy.manager = build(policy)
    cache(manager, [1, 1])
    gone = weakref.ref(manager)
    del manager, policy
    gc.collect()
    assert gone() is None


def test_the_error_survives_pickling() -> None:
    error = PolicyError(ValueError("wrong"))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "the eviction policy failed: ValueError: wrong"


# ---- replay ------------------------------------------------------------------------------


def trace(*prompts: list[int]) -> Trace:
    requests = [
        Request(
            arrival_ms=i,
            prompt=np.array(prompt, np.uint32),
            num_output_tokens=0,
            outputs=(),
            namespace=b"",
        )
        for i, prompt in enumerate(prompts)
    ]
    return Trace("prompts", tuple(requests))


def test_a_policy_is_replayed_and_its_hits_are_its_own() -> None:
    prompts = [[1, 1, 0], [2, 2, 0], [3, 3, 0]] * 4
    config = ReplayConfig(block_size=2, min_service_ms=0, service_ms_per_token=0, eviction="lru")
    lru = replay(trace(*prompts), 3, config)
    mru = replay(trace(*prompts), 3, ReplayConfig(block_size=2, min_service_ms=0, eviction=Mru))
    assert lru.hit_tokens == 0  # a cycle one longer than the cache
    assert mru.hit_tokens > 0


def test_a_replay_raises_what_its_policy_did_wrong() -> None:
    config = ReplayConfig(block_size=2, eviction=lambda _: fails("on_idle", boom))
    with pytest.raises(PolicyError, match="LookupError: boom"):
        replay(trace([1, 1, 0], [2, 2, 0]), 3, config)


def test_a_policy_is_told_where_a_key_has_passed_to() -> None:
    class Moving(Recorder):
        def on_moved(self, block: int, to: int) -> None:
            self.said.append(("moved", block, to))
            super().on_moved(block, to)

    policy = Moving(8)
    manager = BlockManager(8, 2, dedup="append_only", eviction=lambda _: policy)
    first, second = (manager.admit([1, 1, 1]) for _ in range(2))
    manager.commit(first, 3)
    manager.commit(second, 3)
    cached = manager.sequence(first).block_ids[0]
    to = manager.sequence(second).block_ids[0]
    serve(manager, [1, 1, 2, 2]).free()
    policy.said.clear()
    manager.free(first)
    assert policy.said == [("moved", cached, to)]
    manager.free(second)
    manager.check_invariants()
    assert policy.order[-1] == to


def test_append_only_needs_a_policy_that_follows_keys() -> None:
    class Still(Recorder):
        on_moved = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match="of type Still without on_moved"):
        BlockManager(8, 2, dedup="append_only", eviction=Still)
    BlockManager(8, 2, eviction=Still)
