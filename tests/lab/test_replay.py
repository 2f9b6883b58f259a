"""Replay against a simple simulation, and a golden trace worked by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockmgr.lab.replay import ReplayConfig, ReplayResult, held_blocks, replay
from blockmgr.lab.study import attainable
from blockmgr.lab.trace import Request, Trace
from tests.lab.conftest import MakeRequest, MakeTrace

ONE_AT_A_TIME = ReplayConfig(block_size=2, min_service_ms=0, service_ms_per_token=0)


@dataclass(eq=False)
class Block:
    """A block: its references, the prefix by which it is found, its cached and private twins."""

    references: int = 1
    prefix: tuple[Any, ...] | None = None
    twin: Block | None = None
    private_twins: list[Block] = field(default_factory=list)


@dataclass
class Pool:
    """A count of blocks in use, a dict of findable ones, a list of idle ones, oldest first."""

    capacity: int
    used: int = 0
    peak_used: int = 0
    evictions: int = 0
    findable: dict[tuple[Any, ...], Block] = field(default_factory=dict)
    idle: list[Block] = field(default_factory=list)

    def take(self) -> Block:
        if self.used + len(self.idle) == self.capacity:
            victim = self.idle.pop(0)
            assert victim.prefix is not None
            orphans = [p for p in self.findable if p[:-1] == victim.prefix]
            assert not orphans, "a child is always evicted before its parent"
            del self.findable[victim.prefix]
            self.evictions += 1
        self.use()
        return Block()

    def use(self) -> None:
        self.used += 1
        self.peak_used = max(self.peak_used, self.used)

    def acquire(self, block: Block) -> None:
        if block.references == 0:
            self.idle.remove(block)
            self.use()
        block.references += 1

    def release(self, block: Block) -> None:
        block.references -= 1
        if block.references:
            return
        self.used -= 1
        if block.private_twins:
            self.hand_over(block, block.private_twins[-1])
        elif block.prefix is not None:
            self.idle.append(block)
        elif block.twin is not None:
            block.twin.private_twins.remove(block)

    def hand_over(self, block: Block, twin: Block) -> None:
        """Replaces a cached block that no table names by its twin."""
        assert block.prefix is not None
        if block in self.idle:
            self.idle.remove(block)
        self.findable[block.prefix] = twin
        twin.prefix, twin.twin, block.prefix = block.prefix, None, None
        twin.private_twins = [other for other in block.private_twins if other is not twin]
        for other in twin.private_twins:
            other.twin = twin


class Simulation:
    """Applies the rules of replay.py's docstring millisecond by millisecond, block by block."""

    def __init__(self, trace: Trace, capacity: int, config: ReplayConfig) -> None:
        self.trace = trace
        self.config = config
        self.pool = Pool(capacity)
        self.queue: list[Request] = []
        # (end, request, one block table a sample), in order of admission
        self.running: list[tuple[int, Request, list[list[Block]]]] = []
        self.counts = dict.fromkeys(
            ("hit_tokens", "query_tokens", "copies", "rejected", "waited", "wait_ms", "steps"), 0
        )
        self.counts["deduplicated"] = 0

    def run(self) -> dict[str, int]:
        arrivals = list(self.trace.requests)
        now = 0
        while arrivals or self.queue or self.running:
            busy = self.end(now)
            while arrivals and arrivals[0].arrival_ms == now:
                self.queue.append(arrivals.pop(0))
                busy |= self.admit_from_queue(now)
                busy |= self.end(now)
            self.counts["steps"] += busy
            now += 1
        peak = self.pool.peak_used
        return {**self.counts, "evictions": self.pool.evictions, "peak_used_blocks": peak}

    def end(self, now: int) -> bool:
        busy = False
        while ending := [item for item in self.running if item[0] == now]:
            busy = True
            self.running = [item for item in self.running if item[0] != now]
            for _, request, tables in ending:
                for table, output in zip(tables, request.outputs, strict=False):
                    tokens = [*request.tokens().tolist(), *output.tolist()]
                    if len(output):
                        self.promote(table, request, tokens[:-1])
                for table in tables:
                    for block in reversed(table):
                        self.pool.release(block)
            self.admit_from_queue(now)
        return busy

    def admit_from_queue(self, now: int) -> bool:
        busy = False
        while self.queue:
            request = self.queue[0]
            if self.never_fits(request):
                self.counts["rejected"] += 1
                self.counts["query_tokens"] += request.num_prompt_tokens
            elif not self.fits(request):
                return busy
            else:
                tables = self.admit(request)
                self.running.append((now + self.config.service_ms(request), request, tables))
                self.counts["waited"] += now > request.arrival_ms
                self.counts["wait_ms"] += now - request.arrival_ms
                busy = True
            self.queue.pop(0)
        return busy

    def never_fits(self, request: Request) -> bool:
        too_many = request.num_samples > self.config.max_seqs
        return too_many or self.new_blocks(request, found=0) > self.pool.capacity

    def fits(self, request: Request) -> bool:
        rows = sum(len(tables) for _, _, tables in self.running)
        found = self.find(request)
        idle = len([block for block in found if block.references == 0])
        room = self.pool.capacity - self.pool.used - idle
        return (
            rows + request.num_samples <= self.config.max_seqs
            and self.new_blocks(request, len(found)) <= room
        )

    def new_blocks(self, request: Request, found: int) -> int:
        """Counts full prompt blocks once, and later blocks once for each sample that writes them.

        Without remapping, a full last prompt block may have to be held beside its cached twin.
        """
        size, prompt = self.config.block_size, request.num_prompt_tokens
        places = set()
        outputs = [len(output) for output in request.outputs] or [0]
        for number, output in enumerate(outputs):
            for position in range(prompt + output):
                index = position // size
                own = output > 0 and index >= prompt // size
                places.add((index, number if own else None))
        aligned = prompt % size == 0 and len(outputs) > 1
        twin = aligned and self.config.dedup == "append_only"
        return len(places) + twin - found

    def find(self, request: Request) -> list[Block]:
        """The longest cached chain that leaves the last prompt token to compute."""
        tokens, size = request.tokens().tolist(), self.config.block_size
        found = []
        for end in range(size, len(tokens), size):
            block = self.pool.findable.get(self.prefix(request, tokens[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def prefix(self, request: Request, tokens: list[int]) -> tuple[Any, ...]:
        size = self.config.block_size
        blocks = [tuple(tokens[i : i + size]) for i in range(0, len(tokens), size)]
        return (request.namespace, *blocks)

    def admit(self, request: Request) -> list[list[Block]]:
        size, tokens = self.config.block_size, request.tokens().tolist()
        outputs = [len(output) for output in request.outputs] or [0]
        table = self.find(request)
        self.counts["query_tokens"] += len(tokens)
        self.counts["hit_tokens"] += len(table) * size
        for block in table:
            self.pool.acquire(block)
        while len(table) * size < len(tokens) + outputs[0]:
            table.append(self.pool.take())
        self.promote(table, request, tokens)
        used_by_prompt = -(-len(tokens) // size)
        tables = [table] + [table[:used_by_prompt] for _ in outputs[1:]]
        for block in table[:used_by_prompt]:
            block.references += len(outputs) - 1
        for own, output in zip(tables, outputs, strict=True):
            if not output:
                continue
            tail = len(tokens) // size
            if tail < used_by_prompt and own[tail].references > 1:
                copy = self.pool.take()
                self.pool.release(own[tail])
                own[tail] = copy
                self.counts["copies"] += 1
            while len(own) * size < len(tokens) + output:
                own.append(self.pool.take())
        return tables

    def promote(self, table: list[Block], request: Request, tokens: list[int]) -> None:
        size = self.config.block_size
        for index in range(len(tokens) // size):
            block = table[index]
            if block.prefix is not None or block.twin is not None:
                continue
            prefix = self.prefix(request, tokens[: (index + 1) * size])
            twin = self.pool.findable.get(prefix)
            if twin is None:
                block.prefix = prefix
                self.pool.findable[prefix] = block
            else:
                self.counts["deduplicated"] += 1
                if self.config.dedup == "remap":
                    self.pool.release(block)
                    table[index] = twin
                    self.pool.acquire(twin)
                elif twin.references:
                    block.twin = twin
                    twin.private_twins.append(block)
                else:
                    self.pool.hand_over(twin, block)


def counted(result: ReplayResult) -> dict[str, int]:
    """The counts of a replay that the simulation also has."""
    names = ("hit_tokens", "query_tokens", "copies", "rejected", "waited", "wait_ms", "steps")
    more = ("deduplicated", "evictions", "peak_used_blocks")
    return {name: getattr(result, name) for name in (*names, *more)}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Two token values and short prompts: prefixes collide and blocks run out all the time."""
    text = st.lists(st.integers(0, 1), max_size=5)
    prompt = st.one_of(text, st.integers(1, 9).map(lambda n: [0] * n)).filter(bool)
    now, requests = 0, []
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.integers(0, 3))
        outputs = tuple(
            np.array(tokens, dtype=np.uint32) for tokens in draw(st.lists(text, max_size=3))
        )
        requests.append(
            Request(
                arrival_ms=now,
                prompt=np.array(draw(prompt), dtype=np.uint32),
                num_output_tokens=max(map(len, outputs), default=draw(st.integers(0, 3))),
                outputs=outputs,
                namespace=draw(st.sampled_from([b"", b"", b"tenant"])),
            )
        )
    return Trace("random", tuple(requests))


configs = st.builds(
    ReplayConfig,
    block_size=st.integers(1, 3),
    max_seqs=st.sampled_from([1, 3, 100]),
    min_service_ms=st.integers(0, 6),
    service_ms_per_token=st.integers(0, 3),
    dedup=st.sampled_from(["remap", "append_only"]),
    outputs=st.just("none"),  # the simulation supports only outputs with given tokens
)


@settings(max_examples=400, deadline=None)
@given(trace=traces(), capacity=st.integers(1, 14), config=configs)
def test_every_count_agrees_with_the_simulation(
    trace: Trace, capacity: int, config: ReplayConfig
) -> None:
    result = replay(trace, capacity, config)
    assert counted(result) == Simulation(trace, capacity, config).run()


@settings(max_examples=300, deadline=None)
@given(trace=traces(), config=configs)
def test_the_working_set_is_enough_and_gives_the_attainable_rate(
    trace: Trace, config: ReplayConfig
) -> None:
    config = replace(config, max_seqs=100)
    best = attainable(trace, config)

    result = replay(trace, best.working_set_blocks, config)

    assert result.hit_tokens == best.hit_tokens
    assert result.query_tokens == best.query_tokens
    assert (result.evictions, result.waited, result.rejected) == (0, 0, 0)


@settings(max_examples=200, deadline=None)
@given(trace=traces(), capacity=st.integers(1, 14), config=configs)
def test_without_known_outputs_no_pool_beats_the_attainable_rate(
    trace: Trace, capacity: int, config: ReplayConfig
) -> None:
    trace = Trace("prompts", tuple(replace(request, outputs=()) for request in trace.requests))
    result = replay(trace, capacity, config)
    assert result.hit_tokens <= attainable(trace, config).hit_tokens


@settings(max_examples=300, deadline=None)
@given(trace=traces(), capacity=st.integers(1, 14), config=configs)
def test_with_parts_of_blocks_every_request_is_served_and_ample_room_finds_no_less(
    trace: Trace, capacity: int, config: ReplayConfig
) -> None:
    parts = replace(config, min_partial_tokens=1)

    result = replay(trace, capacity, parts)

    whole = replay(trace, capacity, config)
    assert (result.query_tokens, result.rejected) == (whole.query_tokens, whole.rejected)
    assert result.hit_tokens >= result.partial_hit_tokens
    assert attainable(trace, parts).hit_tokens >= attainable(trace, config).hit_tokens


# Blocks of 2, a pool of 4, one request at a time. Letters are blocks; a tail of one token takes a
# block while its request runs and is gone afterwards. Idle blocks are written oldest first.
#
#   request      hits    takes        idle afterwards                evicted
#   A B +1       none    A B tail     B A                            none
#   A C +1       A       C tail       B C A                          none
#   D +1         none    D tail       C A D  (B went for the tail)   B
#   A C +1       A C     tail         D C A                          none
#   A B +1       A       B tail       C B A  (D went for the tail)   D
#
# 4 hits of 2 tokens in 23 prompt tokens.
A, B, C, D = [1, 1], [2, 2], [3, 3], [4, 4]


def test_the_golden_trace_counts_as_worked_by_hand(make_trace: MakeTrace) -> None:
    trace = make_trace([*A, *B, 9], [*A, *C, 9], [*D, 9], [*A, *C, 9], [*A, *B, 9])

    result = replay(trace, 4, ONE_AT_A_TIME)

    assert (result.query_tokens, result.hit_tokens, result.evictions) == (23, 8, 2)
    assert (result.waited, result.rejected, result.copies) == (0, 0, 0)
    assert (result.peak_used_blocks, result.steps) == (3, 5)


def test_a_request_waits_until_its_blocks_are_free(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    config = replace(ONE_AT_A_TIME, min_service_ms=10)
    trace = make_trace(
        make_request([1, 2, 3, 4], arrival_ms=0),
        make_request([5, 6, 7, 8], arrival_ms=1),
        make_request([5, 6, 7], arrival_ms=2),
    )

    result = replay(trace, 3, config)

    # The second needs 2 of 3 blocks and 2 are taken; the third would fit, and waits behind it.
    assert (result.waited, result.wait_ms) == (2, 9 + 8)
    assert result.hit_tokens == 2


def test_the_next_turn_finds_the_answer_but_for_its_last_token(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    turn = make_request([1, 2, 3], outputs=[[4, 5, 6]])
    following = make_request([1, 2, 3, 4, 5, 6, 7], arrival_ms=1)

    result = replay(make_trace(turn, following), 20, ONE_AT_A_TIME)

    # Computed were 1 to 5, so two blocks of two; 6 is the last output token.
    assert result.hit_tokens == 4


def test_an_answer_is_found_only_once_it_is_finished(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    config = replace(ONE_AT_A_TIME, min_service_ms=10)
    turn = make_request([1, 2, 3], outputs=[[4, 5, 6]])
    early = make_request([1, 2, 3, 4, 5, 6, 7], arrival_ms=9)
    assert replay(make_trace(turn, early), 20, config).hit_tokens == 2


def test_samples_share_the_prompt_and_copy_its_tail(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    request = make_request([1, 2, 3], outputs=[[4], [5], [6]])

    result = replay(make_trace(request), 20, ONE_AT_A_TIME)

    assert held_blocks(request, ONE_AT_A_TIME) == 4
    assert result.peak_used_blocks == 4
    assert result.copies == 2


def test_samples_end_in_order_so_the_first_is_given_up_first(
    make_trace: MakeTrace, make_request: MakeRequest
) -> None:
    samples = make_request([1, 1], outputs=[[2, 2, 2], [3, 3, 3]])  # 1 + 2 x 2 blocks
    filler = make_request([7, 7, 7, 7, 7], arrival_ms=1)  # 2 are free, 1 is evicted
    continued = make_request([1, 1, 3, 3, 9], arrival_ms=2)

    result = replay(make_trace(samples, filler, continued), 5, ONE_AT_A_TIME)

    assert (result.hit_tokens, result.evictions) == (4, 1)


def test_parts_of_blocks_are_reused_when_asked_for(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9, 9])
    config = replace(ONE_AT_A_TIME, block_size=4)
    assert replay(trace, 8, config).hit_tokens == 4

    partial = replay(trace, 8, replace(config, min_partial_tokens=1))

    assert (partial.hit_tokens, partial.partial_hit_tokens, partial.copies) == (6, 2, 1)
    assert attainable(trace, replace(config, min_partial_tokens=1)).hit_tokens == 6


def test_progress_is_told_of_every_request(make_trace: MakeTrace) -> None:
    told: list[None] = []
    replay(make_trace([1], [2] * 99, [3]), 4, ONE_AT_A_TIME, progress=lambda: told.append(None))
    assert len(told) == 3


def test_host_time_is_the_processors_for_this_thread_and_not_compared(
    make_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(100))
    trace = make_trace([1], [2])
    # Not wall time, which includes other processes.
    monkeypatch.setattr(time, "thread_time", lambda: float(next(ticks)))
    result = replay(trace, 4, ONE_AT_A_TIME)
    # Two admissions and two ends, of one tick each.
    assert result.host_s == 4.0
    assert result == replace(result, host_s=7.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, r"block_size must be in \[1, 65535\], got 0"),
        ({"max_seqs": 0}, r"max_seqs must be in \[1, 2147483647\], got 0"),
        ({"min_service_ms": -1}, r"min_service_ms must be in \[0, 2147483647\], got -1"),
        ({"service_ms_per_token": -1}, r"service_ms_per_token must be in \[0, 21.*\], got -1"),
        ({"min_partial_tokens": 17}, r"min_partial_tokens must be in \[0, 16\], got 17"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayConfig(**changes)  # type: ignore[arg-type]
