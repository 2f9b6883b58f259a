"""The promises of every eviction policy, built-in or written in Python."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from blockmgr import BlockManager, BlockState, NeverFitsError, OutOfBlocksError, OutOfSequencesError
from blockmgr.config import EVICTION_POLICIES
from blockmgr.lab.replay import EventLoop, ReplayConfig
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workloads import generate
from tests.fingerprints import fingerprint
from tests.reference_policies import Lru, Sieve
from tests.stress.profiles import constant_digest
from tests.unit.engine import cache, serve, step
from tests.unit.snapshot import refused, snapshot

POLICIES: dict[str, Any] = {name: name for name in EVICTION_POLICIES}
POLICIES |= {"Python lru": Lru, "Python sieve": Sieve}
CONVERSATION = Path(__file__).parents[2].parent / "shared" / "traces" / "conversation_trace.jsonl"


@pytest.fixture(params=POLICIES.values(), ids=list(POLICIES))
def eviction(request: pytest.FixtureRequest) -> Any:
    return request.param


def orphans(manager: BlockManager) -> list[int]:
    """Cached blocks whose parent is gone."""
    blocks = manager.blocks()
    lost = (BlockState.FREE, BlockState.OWNED)
    parents = enumerate(blocks.parent.tolist())
    return [block for block, parent in parents if parent >= 0 and blocks.state[parent] in lost]


def one_call(manager: BlockManager, rng: random.Random, old: list[list[int]]) -> None:
    """Makes a random call of an engine; skips it if there are too few blocks."""
    what = rng.choice(["admit"] * 6 + ["free"] * 4 + ["append"] * 3 + ["fork", "shorten"])
    handles = manager.handles()
    handle = rng.choice(handles) if handles else -1
    if what == "admit" or not handles:
        prompt = rng.choice(old) + [rng.randrange(2) for _ in range(rng.randint(1, 6))]
        old[:] = [*old[-4:], prompt]
        manager.admit(prompt)
    elif what == "free":
        manager.free(handle)
    elif what == "append":
        manager.append(handle, [rng.randrange(2) for _ in range(rng.randint(1, 3))])
    elif what == "fork":
        manager.reparent([handle, *manager.fork(handle)], [1, 0])
    else:
        manager.truncate(handle, rng.randint(1, manager.sequence(handle).num_tokens))
        manager.preempt(handle)
        try:
            manager.resume(handle)
        except OutOfBlocksError:
            manager.free(handle)


def live(manager: BlockManager, seed: int, steps: int) -> None:
    """Random calls with a step after each; checks that no child outlives its parent."""
    rng = random.Random(seed)
    tickets: list[int] = []
    old: list[list[int]] = [[0]]
    for number in range(1, steps + 1):
        with suppress(OutOfBlocksError, OutOfSequencesError, NeverFitsError):
            one_call(manager, rng, old)
        if manager.config.steps_in_flight and len(tickets) == manager.config.steps_in_flight:
            manager.complete(tickets.pop(0))
        step(manager)
        tickets.append(number)
        manager.take_remaps()
        manager.check_invariants()
        assert not orphans(manager)


OPTIONS: dict[str, dict[str, Any]] = {
    "remap": {},
    "append_only": {"dedup": "append_only"},
    "tails": {"min_partial_tokens": 1},
    "null block": {"null_block": True},
    "fences": {"steps_in_flight": 2},
    "constant digest": {"digest": constant_digest},
    "everything": {
        "dedup": "append_only",
        "min_partial_tokens": 1,
        "null_block": True,
        "steps_in_flight": 1,
        "digest": constant_digest,
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_no_cached_block_outlives_its_parent(eviction: Any, options: dict[str, Any]) -> None:
    evicted = 0
    for seed in range(4):
        for num_blocks in (6, 20):
            manager = BlockManager(num_blocks, 2, max_seqs=5, eviction=eviction, **options)
            live(manager, seed, 60)
            evicted += manager.stats().evicted_blocks
    assert evicted > 50


def test_one_history_has_one_end(eviction: Any) -> None:
    ends = []
    for _ in range(2):
        manager = BlockManager(12, 2, max_seqs=5, eviction=eviction, min_partial_tokens=1)
        live(manager, 7, 100)
        ends.append(fingerprint(manager))
    assert ends[0] == ends[1]


def test_everything_idle_can_be_evicted(eviction: Any) -> None:
    """A sequence that needs n available blocks gets them, whatever the policy's queues hold."""
    for shape in (range(1, 9), [8] * 3, [1] * 12, range(8, 0, -1)):
        manager = BlockManager(12, 2, eviction=eviction, min_partial_tokens=1)
        for i, length in enumerate(shape):
            cache(manager, [i % 3] * (2 * length))
            cache(manager, [i % 3] * (2 * length) + [i])
        cached = manager.stats().idle_blocks
        assert manager.stats().available == 12
        seq = serve(manager, [99] * 24)
        stats = manager.stats()
        assert (stats.used_blocks, stats.idle_blocks, stats.free_blocks) == (12, 0, 0)
        assert stats.evicted_blocks >= cached > 0
        seq.free()
        assert manager.stats().idle_blocks == 12
        manager.check_invariants()


def test_a_block_in_use_is_never_given_up(eviction: Any) -> None:
    manager = BlockManager(8, 2, eviction=eviction)
    held = serve(manager, [1, 1, 2, 2, 3])
    for i in range(40):
        cache(manager, [10 + i, 0, 0, 0, 0, 0, 0])
        assert manager.match([1, 1, 2, 2, 3]).block_ids.tolist() == held.block_ids.tolist()[:2]
    held.free()
    serve(manager, [99] * 16)
    assert manager.match([1, 1, 2, 2, 3]).num_cached_tokens == 0


def test_promoted_blocks_are_cached_or_evicted(eviction: Any) -> None:
    manager = BlockManager(10, 2, eviction=eviction)
    rng = random.Random(3)
    for _ in range(200):
        cache(manager, [rng.randrange(3) for _ in range(rng.randint(1, 12))])
        stats = manager.stats()
        assert stats.promoted_blocks == stats.cached_blocks + stats.evicted_blocks
        assert stats.free_blocks + stats.idle_blocks == stats.capacity


def test_nothing_is_evicted_while_there_is_a_free_block(eviction: Any) -> None:
    manager = BlockManager(8, 2, eviction=eviction)
    for i in range(4):
        cache(manager, [i, i, i])
    assert manager.stats().evicted_blocks == 0
    assert all(manager.match([i, i, i]).num_cached_tokens == 2 for i in range(4))


def test_a_shortage_changes_no_order(eviction: Any) -> None:
    manager = BlockManager(8, 2, eviction=eviction)
    held = [serve(manager, [i] * 5) for i in range(2)]
    cache(manager, [1, 1, 2, 2])
    with refused(manager, OutOfBlocksError):
        manager.admit([7] * 12)
    with refused(manager, OutOfBlocksError):
        held[0].append([1] * 10)
    with refused(manager, NeverFitsError):
        manager.admit([7] * 99)


def test_looking_up_changes_no_order(eviction: Any) -> None:
    manager = BlockManager(8, 2, eviction=eviction)
    for i in range(4):
        cache(manager, [i, i, i])
    before = snapshot(manager)
    for i in range(4):
        manager.match([i, i, i])
        manager.can_admit([i, i, i])
    assert snapshot(manager) == before


def test_a_manager_without_a_cache_takes_any_policy(eviction: Any) -> None:
    manager = BlockManager(4, 2, eviction=eviction, prefix_caching=False)
    for i in range(10):
        cache(manager, [i] * 6)
    assert manager.stats().evicted_blocks == manager.stats().idle_blocks == 0
    manager.check_invariants()


def test_a_pool_of_one_block_works(eviction: Any) -> None:
    manager = BlockManager(1, 2, eviction=eviction)
    for i in range(10):
        cache(manager, [i % 3] * 2)
        step(manager)
        manager.check_invariants()
    assert manager.stats().evicted_blocks == 9


def follow(trace: Trace, num_blocks: int, config: ReplayConfig, looks: int) -> BlockManager:
    """Replays a trace and checks for orphans on the way; returns the manager."""
    for stop in range(1, looks + 1):
        loop = EventLoop(trace, num_blocks, config, stop_after=stop * len(trace.requests) // looks)
        loop.run()
        loop.manager.check_invariants()
        assert not orphans(loop.manager)
    return loop.manager


@pytest.mark.parametrize("workload", ["chat", "agent"])
def test_a_generated_workload_leaves_no_orphans(eviction: Any, workload: str) -> None:
    trace = Trace(workload, generate(workload, 1).requests[:80])
    config = ReplayConfig(block_size=16, eviction=eviction, min_partial_tokens=4)
    manager = follow(trace, 600, config, 4)
    assert manager.stats().evicted_blocks > 100


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the trace is not part of the repository")
def test_the_beginning_of_a_production_trace_leaves_no_orphans(eviction: Any) -> None:
    trace = read_trace(CONVERSATION)
    trace = Trace(trace.name, trace.requests[:400])
    config = ReplayConfig(block_size=512, eviction=eviction)
    manager = follow(trace, 700, config, 5)
    assert manager.stats().evicted_blocks > 1000
