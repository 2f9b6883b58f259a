"""Replays by ids have the same counts as replays through a manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from blockmgr.config import EVICTION_POLICIES
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.by_ids import IdReplays, id_columns, id_replays
from blockmgr.lab.optimum import optima_of
from blockmgr.lab.references import References, Rule, references
from blockmgr.lab.replay import ReplayConfig, held_blocks, replay
from blockmgr.lab.replays import Replays
from blockmgr.lab.request import words_of
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.sweep import largest_request_blocks, sweep
from blockmgr.lab.trace import HashedPrompt, Request, Trace, read_trace
from tests.lab.worlds import as_tokens, nodes

TRACES = Path(__file__).parent / "traces"
WIDE = 1 << 40


def tiny(random: Random) -> Trace:
    """A few prompts that repeat a few ids, with overlapping times."""
    tokens_per_id = random.choice((1, 2, 4, 6, 12))
    wide = random.random() < 0.2
    names = [WIDE + i if wide else i for i in range(random.randint(1, 4))]
    words = words_of(max(names))
    requests: list[Request] = []
    now = 0
    for _ in range(random.randint(1, 25)):
        now += random.choice((0, 0, 1, 3))
        ids = [random.choice(names) for _ in range(random.randint(1, 6))]
        if requests and random.random() < 0.5:
            before = random.choice(requests).prompt
            assert isinstance(before, HashedPrompt)
            ids = [*before.ids.tolist()[: random.randint(0, 5)], *ids][:8]
        cut = random.choice((0, 0, random.randrange(tokens_per_id)))
        requests.append(
            Request(
                arrival_ms=now,
                prompt=HashedPrompt(
                    np.array(ids, dtype=np.uint64),
                    len(ids) * tokens_per_id - cut,
                    tokens_per_id,
                    words,
                ),
                num_output_tokens=random.choice((0, 0, 1, random.randrange(20))),
                namespace=random.choice((b"", b"", b"a", b"b")),
            )
        )
    return Trace("tiny", tuple(requests))


def sessions(random: Random, num_requests: int, base: int = 0) -> Trace:
    """Conversations that grow turn by turn under a few system prompts, as in services."""
    fresh = iter(range(base + 1000, base + 10_000_000))
    open_: list[list[int]] = []
    requests = []
    now = 0
    for _ in range(num_requests):
        now += random.randrange(40)
        if not open_ or random.random() < 0.4:
            open_.append([base + random.randrange(3)] * random.randint(1, 4))
        # Half of them continue soon or never, the others much later.
        ids = random.choice(open_[-random.choice((5, 400)) :])
        ids += [next(fresh) for _ in range(random.randint(1, 6))]
        cut = random.randrange(8)
        words = words_of(base)
        prompt = HashedPrompt(np.array(ids, dtype=np.uint64), len(ids) * 8 - cut, 8, words)
        requests.append(
            Request(arrival_ms=now, prompt=prompt, num_output_tokens=random.randrange(30))
        )
        if cut:
            ids[-1] = next(fresh)
    return Trace("sessions", tuple(requests))


def block_size_of(trace: Trace, random: Random) -> int | None:
    """A block size at which an id holds whole blocks and a block identifies its id, or None."""
    size = trace.tokens_per_id
    least = 3 if any(r.prompt.words > 1 for r in trace.requests) else 1  # type: ignore[union-attr]
    sizes = [each for each in range(least, size + 1) if size % each == 0]
    return random.choice(sizes) if sizes else None


def config_of(random: Random, block_size: int) -> ReplayConfig:
    return ReplayConfig(
        block_size=block_size,
        max_seqs=random.choice((1, 2, 3, 1024)),
        min_service_ms=random.choice((0, 0, 1, 4)),
        service_ms_per_token=random.choice((0, 0, 1)),
        dedup=random.choice(("remap", "append_only")),
        digest=random.choice(("xxh3_128", "xxh3_128", "sha256", "sha256_cbor")),
        eviction=random.choice(EVICTION_POLICIES),
        outputs=random.choice(("hold", "none")),
    )


def by_ids(trace: Trace, config: ReplayConfig) -> IdReplays:
    found = id_replays(trace, config)
    assert found is not None
    assert found.exact(config)
    return found


def of_every_block(trace: Trace, config: ReplayConfig, rule: Rule = "manager") -> References:
    """``references``, which visits each block in Python."""
    with patch("blockmgr.lab.references.id_replays", return_value=None):
        return references(trace, config, rule)


@pytest.mark.parametrize("seed", range(400))
def test_tiny_traces_count_the_same_by_ids_as_through_a_manager(seed: int) -> None:
    random = Random(seed)
    trace = tiny(random)
    size = block_size_of(trace, random)
    if size is None:
        return
    config = config_of(random, size)
    replays = by_ids(trace, config)
    for num_blocks in random.sample(range(1, 60), 4):
        assert replays.replay(num_blocks, config) == replay(trace, num_blocks, config)


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
@pytest.mark.parametrize(("service_ms", "base"), [(0, 0), (200, 0), (0, WIDE)])
def test_sessions_count_the_same_by_ids_under_every_policy(
    eviction: str, service_ms: int, base: int
) -> None:
    trace = sessions(Random(eviction), 1200, base)
    config = ReplayConfig(
        block_size=4, eviction=eviction, min_service_ms=service_ms, service_ms_per_token=service_ms
    )
    replays = by_ids(trace, config)
    results = [replays.replay(num_blocks, config) for num_blocks in (150, 1000, 1500, 2500, 30_000)]
    assert results == [replay(trace, result.num_blocks, config) for result in results]
    assert results[0].evictions > results[-1].evictions


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("rule", ["manager", "served", "ids"])
def test_the_references_of_ids_are_those_that_every_block_gives(seed: int, rule: Rule) -> None:
    random = Random(seed)
    trace = tiny(random)
    config = config_of(random, block_size_of(trace, random) or 1)
    if id_columns(trace, config.block_size) is None or config.block_size < 3:
        trace = sessions(random, 20)
        config = replace(config, block_size=random.choice((1, 2, 4, 8)))
    by_ids, by_blocks = (find(trace, config, rule) for find in (references, of_every_block))
    for column in ("parent", "length", "end", "requests", "ends"):
        assert np.array_equal(getattr(by_ids, column), getattr(by_blocks, column))


@pytest.mark.parametrize("seed", range(200))
def test_bounds_of_ids_are_those_of_their_tokens(seed: int) -> None:
    random = Random(seed)
    trace = tiny(random)
    size = block_size_of(trace, random)
    if size is None:
        return
    config = config_of(random, size)
    tokens = as_tokens(trace)
    assert unbounded(trace, config) == unbounded(tokens, config)
    sizes = random.sample(range(1, 60), 5)
    one, other = (references(each, config) for each in (trace, tokens))
    assert optima_of(one, sizes, config) == [optima_of(other, [n], config)[0] for n in sizes]
    longest = max(held_blocks(request, config) for request in trace.requests)
    assert largest_request_blocks(trace, config) == longest


@pytest.mark.parametrize("seed", range(5))
def test_a_sweep_over_ids_equals_one_over_their_tokens(seed: int) -> None:
    trace = sessions(Random(seed), 80)
    configs = [ReplayConfig(block_size=size, min_service_ms=seed % 2 * 100) for size in (2, 8)]
    capacities = parse_capacities("10%,40%,2000")
    one = sweep(trace, capacities, configs, policies=EVICTION_POLICIES)
    other = sweep(as_tokens(trace), capacities, configs, policies=EVICTION_POLICIES)
    assert one == replace(other, trace=one.trace)
    assert len({row.result.hit_tokens for row in one.rows}) > 1


def always(_: object) -> bool:
    return True


SLOW: list[dict[str, object]] = [
    {"min_partial_tokens": 2},
    {"hints": "truth"},
    {"hints": always},
]


@pytest.mark.parametrize("options", SLOW)
def test_what_ids_cannot_tell_goes_through_a_manager(options: dict[str, object]) -> None:
    trace = sessions(Random(1), 60)
    config = replace(ReplayConfig(block_size=4), **options)  # type: ignore[arg-type]
    found = id_replays(trace, config)
    assert found is not None
    assert not found.exact(config)
    assert Replays(trace).replay(100, config) == replay(trace, 100, config)
    assert Replays(trace).attainable(config).working_set_blocks > 0


def test_tokens_and_blocks_that_ids_do_not_divide_into_have_no_names() -> None:
    trace = sessions(Random(1), 5)
    assert id_columns(trace, 3) is id_columns(trace, 16) is None
    assert id_columns(as_tokens(trace), 4) is None


def hashed(ids: list[int], num_tokens: int, words: int = 1) -> Request:
    prompt = HashedPrompt(np.array(ids, dtype=np.uint64), num_tokens, 4, words)
    return Request(arrival_ms=0, prompt=prompt, num_output_tokens=0)


def test_parts_of_blocks_make_a_difference_that_ids_would_miss() -> None:
    trace = Trace("tail", (hashed([1, 2], 6), hashed([1, 2, 3], 12)))
    config = ReplayConfig(block_size=4, min_service_ms=0)
    assert Replays(trace).replay(9, config).hit_tokens == 4
    assert Replays(trace).replay(9, replace(config, min_partial_tokens=1)).hit_tokens == 6


def test_prompts_with_more_or_fewer_ids_than_tokens_have_no_names() -> None:
    for ids in ([1], [1, 2, 3]):
        trace = Trace("odd", (hashed(ids, 8), hashed(ids, 8)))
        assert id_columns(trace, 4) is None
        config = ReplayConfig(block_size=4)
        assert unbounded(trace, config).hit_tokens == 4
        assert references(trace, config).query_blocks == 2


@pytest.mark.parametrize(
    "requests",
    [
        (hashed([WIDE], 4), hashed([1], 4)),
        (hashed([WIDE], 4, words=3), hashed([1], 4)),
    ],
    ids=["too wide for their words", "told apart in two ways"],
)
def test_ids_that_a_manager_would_tell_apart_otherwise_are_left_to_it(
    requests: tuple[Request, ...],
) -> None:
    config = ReplayConfig(block_size=4)
    found = id_replays(Trace("odd", requests), config)
    assert found is not None
    assert not found.exact(config)


def test_a_block_too_small_for_the_ids_is_refused_as_by_a_manager() -> None:
    trace = Trace("wide", (hashed([WIDE], 4, words=3),))
    config = ReplayConfig(block_size=2)
    calls: list[Callable[[], object]] = [
        lambda: Replays(trace).replay(4, config),
        lambda: replay(trace, 4, config),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="block_size must be at least 3"):
            call()


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_a_pool_without_blocks_is_refused_as_by_a_manager(num_blocks: int) -> None:
    trace = sessions(Random(1), 5)
    config = ReplayConfig(block_size=4)
    with pytest.raises(ValueError, match="num_blocks") as slow:
        replay(trace, num_blocks, config)
    with pytest.raises(ValueError, match="num_blocks") as fast:
        Replays(trace).replay(num_blocks, config)
    assert str(fast.value) == str(slow.value)


def test_columns_of_a_file_are_those_of_its_requests() -> None:
    trace = read_trace(TRACES / "mooncake.jsonl")
    other = Trace(trace.name, tuple(trace.requests))
    one, two = (id_columns(each, trace.tokens_per_id) for each in (trace, other))
    assert one is not None
    assert two is not None
    for name in ("arrival_ms", "num_tokens", "num_output_tokens", "space", "ids"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert (one.spaces, one.words, one.tokens_per_id) == (two.spaces, two.words, two.tokens_per_id)


def test_outputs_of_prompts_that_fill_no_block_have_blocks_of_their_own() -> None:
    prompt = HashedPrompt(np.array([1], dtype=np.uint64), 2, 4)
    requests = tuple(
        Request(arrival_ms=number, prompt=prompt, num_output_tokens=10) for number in range(2)
    )
    trace, config = Trace("short", requests), ReplayConfig(block_size=4)
    for stream in (
        references(trace, config),
        of_every_block(trace, config),
        references(as_tokens(trace), config),
    ):
        assert [nodes(stream, end) for end in stream.ends.tolist()] == [[0, 1], [2, 3]]
