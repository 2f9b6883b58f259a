"""Replays with tiers: each token counts once, links are queues, and bounds hold."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from blockmgr.lab.demand import held_blocks
from blockmgr.lab.fleet import FleetOptions, PrefillModel, fleet
from blockmgr.lab.references import references
from blockmgr.lab.replay import EventLoop, ReplayConfig, replay
from blockmgr.lab.replays import Replays
from blockmgr.lab.study import attainable
from blockmgr.lab.tier_sizes import AskedLinks, AskedTiers
from blockmgr.lab.tiered import ByTier, ReplayTier
from blockmgr.lab.trace import HashedPrompt, Request, Trace
from blockmgr.lab.workloads import generate
from blockmgr.tiers.kinds import STORES, StoreName
from tests.lab import worlds
from tests.lab.conftest import MakeRequest, MakeTrace
from tests.lab.worlds import nodes

CONFIG = ReplayConfig(block_size=2, min_service_ms=0, service_ms_per_token=0)
HOST = ReplayTier(name="host", num_blocks=16)
A, B = ([start + token for token in range(9)] for start in (100, 200))  # four whole blocks each
FLUSH = [300 + token for token in range(17)]  # takes a pool of nine blocks


def tiered(trace: Trace, num_blocks: int, config: ReplayConfig) -> ByTier:
    found = replay(trace, num_blocks, config).by_tier
    assert found is not None
    return found


def timed(make_request: MakeRequest, *prompts: tuple[list[int], int]) -> Trace:
    """Prompts with their arrivals."""
    return Trace("test", tuple(make_request(prompt, arrival_ms=at) for prompt, at in prompts))


def first_of(name: str, seed: int) -> Trace:
    return Trace(name, tuple(generate(name, seed).requests[:150]))


def test_a_prompt_that_left_the_device_comes_from_the_host(make_trace: MakeTrace) -> None:
    config = replace(CONFIG, tiers=(HOST,), store="release")
    found = tiered(make_trace(A, FLUSH, A, FLUSH), 9, config)
    # The last prompt evicts what was loaded, which the host still has.
    assert found.tokens.tolist() == [[0, 0, 9], [0, 0, 17], [0, 8, 1], [8, 8, 1]]
    [host] = found.tiers
    assert (host.hit_tokens, host.moved.loaded, host.moved.stored) == (16, 8, 12)
    assert found.dropped_blocks == 0


def test_what_is_evicted_before_it_is_stored_is_dropped(make_trace: MakeTrace) -> None:
    # Of nine blocks, one is looked at: the end of the coldest prompt, which is stored whole. So the
    # second prompt is on the device alone when the third one takes its place.
    found = tiered(make_trace(A, B, FLUSH, B, A), 9, replace(CONFIG, tiers=(HOST,)))
    assert found.dropped_blocks == 4
    assert found.tokens[:, 1].tolist() == [0, 0, 0, 0, 8]


@pytest.mark.parametrize("least", [0, 1], ids=["whole blocks", "ends"])
@pytest.mark.parametrize("store", STORES)
def test_each_token_of_a_prompt_counts_once(store: StoreName, least: int) -> None:
    for seed in range(25):
        random = Random(seed)
        trace = worlds.conversations(random, 20)
        busy: dict[str, Any] = {"min_service_ms": 3, "service_ms_per_token": 2} if seed % 2 else {}
        tiers = (
            ReplayTier(name="host", num_blocks=random.randrange(1, 20)),
            ReplayTier(
                name="disk", num_blocks=random.randrange(1, 40), ms_per_block=random.random()
            ),
        )
        if any(request.num_samples > 1 for request in trace.requests):
            tiers = (tiers[0], replace(tiers[1], ms_per_block=0))
        size = 4 if least else 2
        config = replace(CONFIG, block_size=size, min_partial_tokens=least, tiers=tiers)
        config = replace(config, store=store, **busy)
        blocks = random.randrange(4, 30)
        result = replay(trace, blocks, config)
        assert result == replay(trace, blocks, config)
        found = result.by_tier
        assert found is not None
        asked = [request.num_prompt_tokens for request in trace.requests]
        assert found.tokens.sum(axis=1).tolist() == asked
        assert (found.tokens >= 0).all()
        assert found.tokens.sum(axis=0).tolist() == [
            found.device_tokens,
            *(counts.hit_tokens for counts in found.tiers),
            found.computed_tokens,
        ]
        assert result.query_tokens == found.query_tokens == sum(asked)
        assert result.hit_tokens == result.query_tokens - found.computed_tokens
        for counts in found.tiers:
            assert least or counts.hit_tokens == 2 * counts.moved.loaded
        assert 0 <= found.dropped_blocks <= result.evictions


@pytest.mark.parametrize("name", ["chat", "agent", "few-shot"])
def test_a_host_that_holds_everything_finds_what_an_unbounded_pool_finds(name: str) -> None:
    trace = first_of(name, 1)
    config = replace(CONFIG, block_size=64)
    most = attainable(trace, config)
    # Half of the device may wait for bytes.
    blocks = 2 * max(held_blocks(request, config) for request in trace.requests)
    for size in (blocks, most.working_set_blocks):
        tier = ReplayTier(name="host", num_blocks=size)
        result = replay(trace, blocks, replace(config, tiers=(tier,), store="release"))
        assert result.hit_tokens <= most.hit_tokens
    assert result.hit_tokens == most.hit_tokens


def exclusive(trace: Trace, config: ReplayConfig, device: int, host: int) -> int:
    """Blocks that two LRU memories find of which no block is in both, one request at a time."""
    stream = references(trace, config)
    near: OrderedDict[int, None] = OrderedDict()  # the coldest first
    far: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number, request in enumerate(trace.requests):
        asked, cached = (
            nodes(stream, int(stream.column(name)[number])) for name in ("limit", "prompt")
        )
        found = [node in near or node in far for node in asked]
        count = found.index(False) if False in found else len(found)
        hits += count
        for node in asked[:count]:
            (near if node in near else far).pop(node)
        while len(near) + held_blocks(request, config) > device:
            far[near.popitem(last=False)[0]] = None
            if len(far) > host:
                far.popitem(last=False)
        for node in reversed(cached):  # the end of a prompt goes first
            near.pop(node, None)
            far.pop(node, None)
            near[node] = None
    return hits


@pytest.mark.parametrize("name", ["chat", "agent", "few-shot", "shared-prompt"])
def test_two_tiers_that_drop_what_they_hand_up_are_one_pool_of_both(name: str) -> None:
    requests = (replace(one, outputs=()) for one in first_of(name, 2).requests)
    trace, config = Trace(name, tuple(requests)), replace(CONFIG, block_size=32, outputs="none")
    full = attainable(trace, config).working_set_blocks
    least = max(held_blocks(request, config) for request in trace.requests)
    for near, far in ((5, 5), (5, 20), (20, 5), (20, 40)):
        device, host = max(least, full * near // 100), full * far // 100
        tiers = (ReplayTier(name="host", num_blocks=host),)
        found = tiered(trace, device, replace(config, tiers=tiers))
        assert found.one_pool_hit_tokens == 32 * exclusive(trace, config, device, host)
        # A prefetch moves what the one pool has already.
        above = ReplayTier(name="above", num_blocks=1)
        both = replace(config, tiers=(above, replace(tiers[0], num_blocks=host)), prefetch=True)
        more = tiered(trace, device, both)
        assert more.one_pool_hit_tokens == 32 * exclusive(trace, config, device, host + 1)
        assert more.tiers[1].moved.promoted == 0  # one request at a time: none waits


def test_a_load_waits_for_its_link_and_delays_the_end(make_request: MakeRequest) -> None:
    slow = replace(HOST, ms_per_block=10)
    config = replace(CONFIG, min_service_ms=5, tiers=(slow,), store="release")
    # The first prompt is stored from 5 to 45, evicted at 100, and loaded from 200 to 240.
    trace = timed(make_request, (A, 0), (FLUSH, 100), (A, 200), (A, 300))
    loop = EventLoop(trace, 9, config)
    found = loop.run().by_tier
    assert found is not None
    assert found.tokens.tolist() == [[0, 0, 9], [0, 0, 17], [0, 8, 1], [8, 0, 1]]
    assert found.load_ms.tolist() == [0, 0, 40, 0]
    assert found.load_mean_ms == found.load_p99_ms == 40
    assert found.tiers[0].busy_ms == 40 + 80 + 40  # two stores and a load
    assert loop.time_ms == 305


def test_loads_of_one_link_pass_one_after_another(make_request: MakeRequest) -> None:
    slow = replace(HOST, num_blocks=40, ms_per_block=10)
    config = replace(CONFIG, tiers=(slow,), store="release")
    flush = [400 + token for token in range(39)]
    trace = timed(make_request, (A, 0), (B, 100), (flush, 200), (A, 1000), (B, 1000))
    assert tiered(trace, 20, config).load_ms.tolist() == [0, 0, 0, 40, 80]


def test_a_store_that_ends_after_its_block_was_evicted_brings_nothing(
    make_request: MakeRequest,
) -> None:
    config = replace(CONFIG, tiers=(replace(HOST, ms_per_block=10),), store="release")
    found = tiered(timed(make_request, (A, 0), (FLUSH, 20), (A, 500)), 9, config)
    assert found.tokens[2].tolist() == [0, 0, 9]
    assert found.tiers[0].moved.failed == 4
    assert found.dropped_blocks == 4


def waiting_for_disk(make_request: MakeRequest, config: ReplayConfig) -> ByTier:
    """A prompt that is on the disk alone, and waits for 200 ms for room on the device."""
    tiers = (
        ReplayTier(name="host", num_blocks=16, ms_per_block=1),
        ReplayTier(name="disk", num_blocks=64, ms_per_block=10),
    )
    flushes = [[start + token for token in range(17)] for start in (300, 400, 500)]
    prompts = [(A, 0), *((each, 1000 * i) for i, each in enumerate(flushes, start=1))]
    trace = timed(make_request, *prompts, (flushes[2], 5000), (A, 5050), (A, 6000))
    config = replace(config, min_service_ms=250, tiers=tiers, store="release")
    return tiered(trace, 9, config)


def test_a_prompt_that_waits_is_copied_to_the_fastest_tier(make_request: MakeRequest) -> None:
    alone = waiting_for_disk(make_request, CONFIG)
    assert alone.tokens[5].tolist() == [0, 0, 8, 1]
    assert alone.load_ms[5] == 40
    fetched = waiting_for_disk(make_request, replace(CONFIG, prefetch=True))
    assert fetched.tokens[5].tolist() == [0, 8, 0, 1]
    assert fetched.load_ms[5] == 4
    host, disk = fetched.tiers
    assert (host.moved.loaded - alone.tiers[0].moved.loaded, disk.moved.loaded) == (4, 0)
    assert (disk.moved.promoted, alone.tiers[1].moved.promoted) == (4, 0)
    assert disk.busy_ms == alone.tiers[1].busy_ms  # the same bytes, sooner


def test_a_prompt_larger_than_half_of_the_fastest_tier_is_not_fetched(
    make_request: MakeRequest,
) -> None:
    config = replace(CONFIG, prefetch=True, min_service_ms=250)
    small = ReplayTier(name="host", num_blocks=7)
    disk = ReplayTier(name="disk", num_blocks=64)
    trace = timed(make_request, (A, 0), (FLUSH, 1000), (FLUSH, 2000), (A, 2050))
    found = tiered(trace, 9, replace(config, tiers=(small, disk), store="release"))
    assert found.tiers[1].moved.promoted == 0
    wide = replace(config, tiers=(replace(small, num_blocks=8), disk), store="release")
    assert tiered(trace, 9, wide).tiers[1].moved.promoted == 4


def test_a_load_delays_the_first_token_in_a_fleet(make_request: MakeRequest) -> None:
    trace = timed(make_request, (A, 0), (FLUSH, 100), (A, 200))
    config = replace(CONFIG, store="release", tiers=(replace(HOST, ms_per_block=10),))
    options = FleetOptions(first_token=PrefillModel(ms_per_token=1, overhead_ms=3))
    result = fleet(trace, 1, 9, config, options=options)
    assert result.first_token_ms.tolist() == [3 + 9, 3 + 17, 40 + 3 + 1]
    assert result.replicas[0].hit_tokens == 8


def test_samples_are_refused_with_links_only() -> None:
    trace = generate("parallel-sampling", 0)
    instant = replace(CONFIG, block_size=16, tiers=(replace(HOST, num_blocks=500),))
    found = tiered(trace, 2000, instant)
    assert found.tokens.sum() == sum(request.num_prompt_tokens for request in trace.requests)
    slow = replace(instant, tiers=(replace(HOST, ms_per_block=1),))
    with pytest.raises(ValueError, match="requests must have one output each with links"):
        replay(trace, 2000, slow)


def test_the_first_requests_are_not_counted(make_trace: MakeTrace) -> None:
    config = replace(CONFIG, tiers=(HOST,), store="release")
    later = Replays(make_trace(A, FLUSH, A), 2).replay(9, config)
    assert later.by_tier is not None
    assert later.by_tier.tokens.tolist() == [[0, 8, 1]]
    assert later.hit_tokens == later.by_tier.loaded_tokens == 8
    assert later.by_tier.tiers[0].moved.loaded == 4
    assert later.by_tier.query_tokens == later.query_tokens == 9


def test_a_replay_with_tiers_does_not_go_by_ids() -> None:
    random = Random(3)
    prompts = [HashedPrompt(np.array([1, 2, random.randrange(9)]), 12, 4) for _ in range(40)]
    requests = (Request(arrival_ms=i, prompt=p, num_output_tokens=0) for i, p in enumerate(prompts))
    trace = Trace("test", tuple(requests))
    config = replace(CONFIG, block_size=4, tiers=(HOST,))
    replays = Replays(trace)
    blocks = max(held_blocks(request, config) for request in trace.requests)
    assert replays.replay(blocks, config) == replay(trace, blocks, config)
    assert replays.replay(blocks, config.of_device).by_tier is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"tiers": (HOST, HOST)}, "tiers must have different names, got host, host"),
        ({"store": "never"}, "store must be one of"),
    ],
)
def test_wrong_tiers_are_refused(change: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        replace(CONFIG, **change)  # type: ignore[arg-type]


def test_a_tier_needs_a_name_and_bounds() -> None:
    for wrong in ({"name": "a b"}, {"num_blocks": 0}, {"ms_per_block": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            replace(HOST, **wrong)
    with pytest.raises(TypeError, match="tiers must have ReplayTier only, got int"):
        replace(CONFIG, tiers=(8,))  # type: ignore[arg-type]


def test_sizes_of_tiers_are_blocks_shares_or_bytes() -> None:
    asked = AskedTiers.parse("host=2%,8, disk = 1MiB")
    found = asked.tiers(lambda: 200, 1024, AskedLinks.parse("1GB/s,1MiB/s").rates)
    assert [[tier.num_blocks for tier in tiers] for tiers in found] == [[4, 1024], [8, 1024]]
    assert [tier.name for tier in found[0]] == ["host", "disk"]
    assert [tier.ms_per_block for tier in found[0]] == [1024 / 1e6, 1000 / 1024]


@pytest.mark.parametrize(
    ("text", "links", "block_bytes", "error"),
    [
        ("5%", "", 16, "tiers must be sizes by name"),
        ("host=1MiB", "", None, "tiers in bytes need a model"),
        ("host=1MiB", "", 2**21, "tiers must hold a block of 2,097,152 bytes, got 1,048,576"),
        ("host=1KiB", "", 16, "size must be one with MiB"),
        ("host=8", "1GB/s,1GB/s", 16, "links must be one for each of 1 tiers, got 2"),
        ("host=8", "1GB/s", None, "links need a model"),
        ("host=8", "1GB", 16, "rate must be one with"),
        ("host=0", "", 16, "capacity must be a percentage"),
    ],
)
def test_wrong_sizes_and_links_are_refused(
    text: str, links: str, block_bytes: int | None, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        AskedTiers.parse(text).tiers(
            lambda: 100, block_bytes, AskedLinks.parse(links).rates if links else ()
        )


def test_the_end_of_a_request_is_stored_and_loaded_as_on_the_device(
    make_trace: MakeTrace,
) -> None:
    # Ten tokens: two whole blocks, and an end of two. The next turn has all of it.
    turn, flush = list(range(10)), [300 + token for token in range(32)]
    tiers = (ReplayTier(name="host", num_blocks=64),)
    config = replace(CONFIG, block_size=4, min_partial_tokens=1, tiers=tiers, store="release")
    trace = make_trace(turn, flush, [*turn, 50, 51], [1, 2], flush, [1, 2, 3])
    found = tiered(trace, 9, config)
    assert found.tokens[:, :2].sum(axis=1).tolist() == [0, 0, 10, 0, 28, 2]
    assert found.tokens[2].tolist() == [4, 6, 2]  # a block, and the end, come from the host
    whole = tiered(trace, 9, replace(config, min_partial_tokens=0))
    assert whole.tokens[:, :2].sum(axis=1).tolist() == [0, 0, 8, 0, 28, 0]
