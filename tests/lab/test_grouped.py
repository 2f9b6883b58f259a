"""Replays with groups of layers: hits, blocks, refusals and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    prefix_granularity,
)
from blockmgr.groups import Group
from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.grouped import ByGroup, GroupCounts
from blockmgr.lab.models import named
from blockmgr.lab.optimum import optimum
from blockmgr.lab.planning import PoolSearch, plan
from blockmgr.lab.references import references
from blockmgr.lab.replay import EventLoop, ReplayConfig, ReplayResult, held_blocks, replay
from blockmgr.lab.request import HashedPrompt
from blockmgr.lab.study import ample_blocks, attainable, full_attention, parse_capacities, study
from blockmgr.lab.sweep import largest_request_blocks, sweep
from blockmgr.lab.trace import Request, Tokens, Trace
from blockmgr.lab.workloads import generate
from tests.lab.conftest import MakeRequest, MakeTrace
from tests.lab.worlds import as_tokens, conversations, hashed

FULL, STATE = FullAttention(), RecurrentState()
ONE_AT_A_TIME = ReplayConfig(block_size=4, min_service_ms=0, service_ms_per_token=0)
SETS: tuple[tuple[Group, ...], ...] = (
    (FULL, SlidingWindow(3)),
    (FULL, STATE),
    (SlidingWindow(5), FULL, STATE, STATE),
    (FULL, ChunkedAttention(4), SlidingWindow(9), FULL),
    (FULL, ChunkedAttention(6), STATE),
)
SIZED: tuple[tuple[Group, ...], ...] = (
    (FullAttention(2), SlidingWindow(5)),
    (FULL, SlidingWindow(4, 1), STATE),
    (ChunkedAttention(6, 4), FullAttention(1), SlidingWindow(9, 2)),
)
"""In blocks of four tokens."""


def of_groups(result: ReplayResult) -> ByGroup:
    assert result.by_group is not None
    return result.by_group


def counts_of(result: ReplayResult, group: Group) -> GroupCounts:
    [counts] = [c for c in of_groups(result).groups if c.group == repr(group)]
    return counts


@pytest.mark.parametrize("workload", ["chat", "few-shot", "tree-of-thought"])
def test_one_group_of_full_attention_counts_what_a_replay_without_groups_counts(
    workload: str,
) -> None:
    trace = generate(workload, 0)
    trace = replace(trace, requests=trace.requests[:150])
    for blocks in (400, 3000):
        plain = replay(trace, blocks, ReplayConfig())
        grouped = replay(trace, blocks, ReplayConfig(groups=(FULL,)))
        # Rows of its block table are narrower, and there is a null block.
        same = replace(plain, memory_bytes=grouped.memory_bytes, by_group=grouped.by_group)
        assert grouped == same


def of_a_quarter(model: str) -> tuple[Group, ...]:
    """The groups of a model, with a quarter of all sizes."""
    groups = []
    for group in named(model).groups:
        sizes = {name: getattr(group, name, 0) // 4 for name in ("width", "block_size")}
        groups.append(replace(group, **{name: size for name, size in sizes.items() if size}))
    return tuple(groups)


@pytest.mark.parametrize("model", ["gemma-4", "deepseek-v4"])
def test_models_with_block_sizes_find_all_whole_blocks_that_came_before(model: str) -> None:
    groups = of_a_quarter(model)
    size = prefix_granularity(groups)
    lengths = {"system_tokens": 2 * size, "question_tokens": 24, "answer_tokens": 64}
    trace = generate("chat", 0, **{"conversations": 3, "turns": 2, **lengths})
    config = replace(ONE_AT_A_TIME, block_size=size, groups=groups)
    came: set[tuple[int, ...]] = set()
    found = 0
    for request in trace.requests:
        tokens, [output] = request.tokens().tolist(), request.outputs
        ends = range(size, len(tokens), size)  # its last token is always computed
        found += size * sum(tuple(tokens[:end]) in came for end in ends)
        computed = [*tokens, *output.tolist()[:-1]]
        came.update(tuple(computed[:end]) for end in range(size, len(computed) + 1, size))
    assert replay(trace, ample_blocks(trace, config), config).hit_tokens == found > 0
    assert attainable(trace, config).hit_tokens == found


def test_a_state_is_kept_where_two_prompts_differ_and_serves_the_third(
    make_trace: MakeTrace,
) -> None:
    """The second prompt finds 8 tokens in full attention, but no state after them."""
    shared = list(range(8))
    trace = make_trace(*([*shared, *[value] * 12] for value in (50, 60, 70)))
    config = replace(ONE_AT_A_TIME, groups=(FULL, STATE))

    result = replay(trace, 60, config)

    assert result.hit_tokens == 8
    assert counts_of(result, STATE).refused_tokens == 8
    assert counts_of(result, FULL).refused_tokens == 0
    assert attainable(trace, config).hit_tokens == 8
    assert replay(trace, 60, replace(config, groups=(FULL,))).hit_tokens == 16


def test_prompts_that_differ_within_a_block_share_the_state_where_they_differ(
    make_trace: MakeTrace,
) -> None:
    """Five tokens of a block of eight: the second prompt stops there, the third continues."""
    trace = make_trace(*([*range(5), *[value] * 20] for value in (50, 60, 70)))
    config = replace(ONE_AT_A_TIME, block_size=8, min_partial_tokens=1, groups=(FULL, STATE))
    result = replay(trace, 60, config)
    assert (result.hit_tokens, result.partial_hit_tokens) == (5, 5)


def test_a_window_that_a_running_sequence_has_left_refuses_what_it_shares(
    make_request: MakeRequest, make_trace: MakeTrace
) -> None:
    """While a long prompt runs, others evict its windows; its full attention stays in use."""
    long = list(range(40))
    trace = make_trace(
        make_request(long, num_output_tokens=1000),
        make_request([100] * 80, arrival_ms=1),
        make_request([*long[:20], 200, 201], arrival_ms=2000),
    )
    groups = (FULL, SlidingWindow(4))
    config = replace(
        ONE_AT_A_TIME, service_ms_per_token=30, outputs="none", groups=groups, forward_tokens=8
    )

    small, large = (replay(trace, blocks, config) for blocks in (36, 90))

    assert (small.waited, large.waited) == (0, 0)
    assert small.hit_tokens < large.hit_tokens
    for result in (small, large):
        assert result.hit_tokens + counts_of(result, groups[1]).refused_tokens == 20


def test_a_sample_without_output_keeps_its_state_at_the_end_of_the_prompt(
    make_request: MakeRequest, make_trace: MakeTrace
) -> None:
    """The copies for its siblings take a step in which no forward advances its state."""
    samples = make_request(list(range(8)), outputs=[[], [30, 31]])
    trace = make_trace(samples, make_request([*range(8), 40], arrival_ms=1))
    assert replay(trace, 60, replace(ONE_AT_A_TIME, groups=(FULL, STATE))).hit_tokens == 8


def test_blocks_are_counted_by_group_when_a_request_has_been_admitted(
    make_trace: MakeTrace,
) -> None:
    """Two prompts of ten tokens each take three blocks of 4 and a state, also kept at 8.

    When the second is admitted, three blocks and two states of the first are also cached.
    """
    trace = make_trace(list(range(10)), list(range(50, 60)))
    config = replace(ONE_AT_A_TIME, min_partial_tokens=1, groups=(FULL, STATE))
    found = of_groups(replay(trace, 60, config))
    assert found.groups == (
        GroupCounts(
            group="FullAttention()",
            num_groups=1,
            used_blocks=3,
            unfilled_used_blocks=0.5,
            cached_blocks=1.5,
            unfilled_cached_blocks=0.25,
            refused_tokens=0,
        ),
        GroupCounts(
            group="RecurrentState()",
            num_groups=1,
            used_blocks=1,
            unfilled_used_blocks=0,
            cached_blocks=2,
            unfilled_cached_blocks=0,
            refused_tokens=0,
        ),
    )
    assert (found.moments, found.peak_blocks, found.cached_blocks_at_end) == (2, 10, 10)
    assert found.sized(100)[0]["unfilled_cached_bytes"] == 25


@pytest.mark.parametrize(("requests", "moments"), [(1, 1), (16, 16), (17, 9), (40, 14)])
def test_blocks_are_counted_at_no_more_than_16_moments(
    make_trace: MakeTrace, requests: int, moments: int
) -> None:
    trace = make_trace(*([[value] for value in range(requests)]))
    assert of_groups(replay(trace, 9, replace(ONE_AT_A_TIME, groups=(FULL,)))).moments == moments


def test_with_windows_and_states_the_states_are_named(make_trace: MakeTrace) -> None:
    groups = (FULL, SlidingWindow(4), STATE)
    trace = make_trace(*([*range(8), *[value] * 12] for value in (50, 60, 70)))
    result = replay(trace, 90, replace(ONE_AT_A_TIME, groups=groups))
    assert counts_of(result, STATE).refused_tokens == 8
    assert counts_of(result, groups[1]).refused_tokens == 0


class Stops(EventLoop):
    """Compares the length cached in full attention with the stop that the manager names."""

    def __init__(self, trace: Trace, num_blocks: int, config: ReplayConfig) -> None:
        super().__init__(trace, num_blocks, config)
        self.compared = 0
        self._refused = self._found = 0
        self._prefill = self._grouped._prefill
        self._grouped._prefill = self._compared  # type: ignore[method-assign]

    def _start(self, request: Request, tokens: Tokens) -> list[int]:
        assert self._watch is not None
        self._refused = self._watch._refused
        match = self.manager.match(tokens, namespace=request.namespace, num_slots=1)
        self._found = match.num_cached_tokens
        return super()._start(request, tokens)

    def _compared(self, handle: int, prompt: int) -> None:
        size = self._config.block_size
        last = (prompt - 1) // size * size
        reach = self._found + self._refused
        cached = self.manager.sequence(handle).num_cached_tokens
        between = [stop for stop in self.manager.stops(handle) if stop < last]
        if reach < last and cached == self._found:  # everything, if there is room
            assert between == [reach] * (self._refused > 0)
            self.compared += self._refused > 0
        self._prefill(handle, prompt)


@pytest.mark.parametrize("seed", [*range(30), 154, 203, 272, 304, 340])
def test_full_attention_reaches_as_far_as_the_manager_says_where_prompts_differ(seed: int) -> None:
    random = Random(seed)
    groups = random.choice([groups for groups in SETS if STATE in groups])
    config = ReplayConfig(
        block_size=random.choice((1, 2)),
        min_service_ms=random.choice((0, 3)),
        service_ms_per_token=0,
        groups=groups,
    )
    trace = conversations(random, 60)
    blocks = ample_blocks(trace, config) // random.choice((1, 4, 16)) + 20
    Stops(trace, blocks, config).run()


def test_those_comparisons_happen() -> None:
    """Checks the previous test, which proves nothing if full attention never exceeds the hit."""
    trace = conversations(Random(3), 200)
    stops = Stops(trace, 300, ReplayConfig(block_size=1, groups=(FULL, STATE)))
    stops.run()
    assert stops.compared > 5


@pytest.mark.parametrize("seed", range(120))
def test_every_request_that_fits_an_empty_pool_is_served_and_all_blocks_add_up(seed: int) -> None:
    """In a pool as small as the largest request, for any overlap, chunk and set of groups."""
    random = Random(seed)
    config = ReplayConfig(
        block_size=random.choice((1, 2, 3)),
        min_service_ms=random.choice((0, 4)),
        service_ms_per_token=random.choice((0, 2)),
        min_partial_tokens=random.choice((0, 1)),
        forward_tokens=random.choice((1, 2, 5, 100)),
        groups=random.choice(SETS),
    )
    if config.has_states and config.min_partial_tokens:
        config = replace(config, prompt_end_stop=random.choice((None, 0, 0, 1)))
    if seed % 3 == 0:
        config = replace(
            config, prompt_end_stop=None, block_size=4, groups=SIZED[seed // 3 % len(SIZED)]
        )
    trace = conversations(random, 40)
    blocks = largest_request_blocks(trace, config) + random.choice((0, 0, 1, 7))

    result = replay(trace, blocks, config)

    assert result.rejected == 0
    assert result.query_tokens == sum(request.num_prompt_tokens for request in trace.requests)
    found = of_groups(result)
    held = sum(group.used_blocks + group.cached_blocks for group in found.groups)
    assert held + found.free_blocks == pytest.approx(blocks)
    for group in found.groups:
        assert 0 <= group.unfilled_used_blocks <= group.used_blocks
        assert 0 <= group.unfilled_cached_blocks <= group.cached_blocks


@pytest.mark.parametrize("seed", [*range(20), 81, 95, 161, 195, 214])
def test_a_pool_of_the_working_set_finds_all_that_is_attainable(seed: int) -> None:
    random = Random(seed)
    groups = random.choice(SETS)
    config = replace(ONE_AT_A_TIME, block_size=random.choice((1, 2, 3)), groups=groups)
    if seed % 3 == 0:
        config = replace(config, block_size=4, groups=SIZED[seed // 3 % len(SIZED)])
    trace = conversations(random, 30)
    trace = replace(
        trace, requests=tuple(replace(r, arrival_ms=9 * i) for i, r in enumerate(trace.requests))
    )
    best = attainable(trace, config)
    ample = replay(trace, ample_blocks(trace, config), config)
    assert ample.evictions == 0
    assert best.hit_tokens == ample.hit_tokens
    assert best.hit_tokens <= attainable(trace, replace(config, groups=())).hit_tokens
    held = of_groups(ample).peak_blocks
    assert best.working_set_blocks >= held
    if config.has_states:
        within = replay(trace, best.working_set_blocks, config)
        assert (within.evictions, within.hit_tokens) == (0, best.hit_tokens)


def test_full_attention_alone_bounds_what_states_let_a_prompt_find(make_trace: MakeTrace) -> None:
    """The first two prompts diverge where no forward has stopped before."""
    trace = make_trace(*([*range(8), *[value] * 12] for value in (50, 60, 70)))
    config = replace(ONE_AT_A_TIME, groups=(FULL, STATE))
    found = study(trace, parse_capacities("100%"), config)
    assert found.full_attention is not None
    assert found.attainable is not None
    assert (found.attainable.hit_tokens, found.full_attention.hit_tokens) == (8, 16)
    assert study(trace, (), replace(config, groups=(FULL, SlidingWindow(4)))).full_attention is None


def test_full_attention_is_bounded_by_whole_ids_where_a_block_ends_within_one() -> None:
    ids = ([1, 2, 3], [1, 2, 4], [1, 2, 4, 5])
    trace = hashed(*((each, 4 * len(each)) for each in ids), size=4)
    config = replace(ONE_AT_A_TIME, block_size=6, groups=(FULL, STATE))
    assert full_attention(trace, config).hit_tokens == 8 + 12


def test_a_larger_request_than_the_pool_is_missed_as_a_whole(make_trace: MakeTrace) -> None:
    config = replace(ONE_AT_A_TIME, groups=(FULL, SlidingWindow(4), STATE))
    trace = make_trace([1] * 40, [2] * 4, [2] * 4 + [3])
    large, small = (held_blocks(trace.requests[i], config) for i in (0, 2))
    result = replay(trace, large - 1, config)
    assert large > small
    assert (result.rejected, result.hit_tokens, result.query_tokens) == (1, 4, 49)


def test_chunks_bound_what_windows_take_of_a_long_prompt(make_trace: MakeTrace) -> None:
    groups: tuple[Group, ...] = (FULL, *[SlidingWindow(8)] * 3)
    [request] = make_trace(list(range(400))).requests
    few, all_at_once = (
        held_blocks(request, replace(ONE_AT_A_TIME, forward_tokens=tokens, groups=groups))
        for tokens in (16, 400)
    )
    assert all_at_once == 4 * 100
    assert few == 100 + 3 * 7  # 23 tokens may start anywhere within a block


def test_a_block_that_ends_within_an_id_is_counted_by_its_tokens() -> None:
    """Blocks of 6 over ids of 4 tokens give the counts of the same prompts as tokens."""
    config = replace(ONE_AT_A_TIME, block_size=6, min_partial_tokens=2, groups=(FULL, STATE))
    random = Random(1)
    ids = (
        np.cumsum([random.randrange(1, 3) for _ in range(random.randint(1, 8))]).tolist()
        for _ in range(40)
    )
    prompts = ((each, 4 * len(each) - random.randrange(4)) for each in ids)
    by_ids = hashed(*prompts, size=4, outputs=3)
    written = as_tokens(by_ids)
    for blocks in (30, 500):
        assert replay(by_ids, blocks, config) == replay(written, blocks, config)
    assert attainable(by_ids, config) == attainable(written, config)
    with pytest.raises(ValueError, match="block_size must divide 4"):
        replay(by_ids, 30, replace(config, groups=()))


def test_a_block_that_may_hold_too_few_tokens_of_an_id_is_refused() -> None:
    """Ids take three words, and a block of 7 tokens may hold only one of them."""
    prompt = HashedPrompt(np.array([1 << 40], dtype=np.uint64), 4, tokens_per_id=4, words=3)
    trace = Trace("t", (Request(arrival_ms=0, prompt=prompt, num_output_tokens=1),))
    with pytest.raises(ValueError, match="block_size must have a divisor of at least 3 in common"):
        replay(trace, 30, replace(ONE_AT_A_TIME, block_size=7, groups=(FULL, STATE)))
    replay(trace, 30, replace(ONE_AT_A_TIME, block_size=8, groups=(FULL, STATE)))


def refused(config: ReplayConfig, trace: Trace) -> Sequence[Callable[[], Any]]:
    return (
        lambda: hit_rate_curve(trace, config),
        lambda: optimum(trace, 40, config),
        lambda: references(trace, config),
    )


@pytest.mark.parametrize("which", range(3))
def test_what_one_list_of_blocks_has_to_tell_is_refused_with_the_way_out(
    which: int, make_trace: MakeTrace
) -> None:
    config = replace(ONE_AT_A_TIME, groups=(FULL, STATE))
    with pytest.raises(ValueError, match=r"groups must be empty for .*any group lacks.*\(sweep\)"):
        refused(config, make_trace([1] * 9))[which]()


def test_the_curve_of_a_manager_with_groups_is_refused_with_the_way_out() -> None:
    manager = BlockManager(num_blocks=9, block_size=2, groups=[FULL, STATE], null_block=True)
    with pytest.raises(ValueError, match=r"groups must be empty for hit_rate_curve.*--model"):
        manager.hit_rate_curve()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dedup": "append_only"}, "dedup must be 'remap' with groups of layers"),
        (
            {"hints": "truth"},
            "hints must be 'none' or 'session' or 'tool' or 'ended_session' with groups",
        ),
        ({"forward_tokens": 0}, "forward_tokens must be at least 1, got 0"),
        ({"groups": (STATE,)}, "groups must have one of FullAttention for replays, got none"),
    ],
)
def test_a_setting_that_groups_exclude_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayConfig(**{"groups": (FULL, STATE), **settings})


def test_a_sweep_with_groups_has_no_optimum_and_says_so() -> None:
    trace = generate("few-shot", 0)
    trace = replace(trace, requests=trace.requests[:60])
    config = ReplayConfig(groups=(FULL, SlidingWindow(64)))
    found = sweep(trace, parse_capacities("30%,1"), config, policies=("lru", "arc"))
    assert [row.policy for row in found.rows] == ["lru", "arc"]
    assert found.rows[0].result == replay(trace, found.rows[0].result.num_blocks, config)
    assert (found.rows[0].optimum, found.rows[0].gap_closed) == (None, None)
    assert found.rows[0].attainable == attainable(trace, config)
    [small] = found.too_small
    assert small.least_blocks == max(held_blocks(request, config) for request in trace.requests)


def test_a_plan_with_groups_names_a_pool_that_reaches_the_rate_next_to_one_that_does_not() -> None:
    trace = generate("few-shot", 0)
    trace = replace(trace, requests=trace.requests[:120])
    config = ReplayConfig(groups=(FULL, SlidingWindow(64)))
    rate = Fraction(1, 4)

    steps: list[None] = []
    answer = plan(
        trace, [rate, Fraction(0)], config, bytes_per_token=10, advance=lambda: steps.append(None)
    )

    row, least = answer.rows
    assert len(steps) > 1 + len(answer.rows)  # the bar moves during a search, too
    assert row.num_blocks is not None
    assert row.replayed is not None
    assert row.replayed == replay(trace, row.num_blocks, config)
    assert row.replayed.hit_rate >= rate
    step = attainable(trace, config).working_set_blocks // 100
    assert replay(trace, row.num_blocks - step - 1, config).hit_rate < rate
    assert row.num_bytes == row.num_blocks * 16 * 10
    assert least.num_blocks == largest_request_blocks(trace, config)
    assert PoolSearch(trace, config).blocks_for(Fraction(1)) is None
    with pytest.raises(ValueError, match="hit rate must be at most"):
        plan(trace, [Fraction(1)], config)
