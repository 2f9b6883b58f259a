"""What a whole scheduler step costs the host, with ours and with vLLM's manager.

Run ``python -m benchmarks.step``. A batch of 1,024 sequences is in a steady state. In each step, 5
% of them arrive as requests, 2 % as second samples of arriving requests, and as many sequences end.
Half of the prompts start with one of 16 system prompts of 1,024 tokens; a prompt has 2,048 tokens
on average. The pool has one and a half times the blocks of the running sequences, and is full of
cached blocks, so that every allocated block is evicted. Both sides run the same steps on the same
tokens, in turns of a few steps each:

1. free the sequences that ended;
2. decode one token for each running sequence;
3. admit the prompts that arrived;
4. hand the block tables to the engine, as one NumPy array with a row for each sequence;
5. hand over the block copies that are due (ours; vLLM's list is empty);
6. after the forward: promote what it computed, and add the second samples.

Ours forks for a second sample, and copies the block that both write to in the next step. vLLM has
no fork: a second sample is the same prompt again, admitted through the prefix cache, as it does for
``n=2``. vLLM caches blocks when it allocates them, so its step 3 includes what ours does in step 6.

Not timed, because it is not the block manager's work: the scheduler's queues and budgets,
tokenization, sampling, and the copy of a table to the device. Each side gets prompts in its best
form: ours as an array, vLLM's ``Request`` as a list, whose hashing counts. Times are processor
time, so that they exclude other work of the machine.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import thread_time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.measure import RESULTS, machine, write_result
from blockmgr import BlockManager

BLOCK_SIZE = 16
VOCABULARY = 128_000
UNFILLED = -1


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the batch, and how many sequences arrive and end.

    Attributes:
        num_seqs: Running at the end of each step.
        num_arrivals: Requests that arrive in a step.
        num_second: How many of those ask for two samples.
        num_shared: Different system prompts.
        shared_tokens: Length of each.
        num_tokens: Average length of a prompt. The longest and the shortest differ from it by half
            of its length beyond a system prompt.
    """

    num_seqs: int = 1024
    num_arrivals: int = 51
    num_second: int = 20
    num_shared: int = 16
    shared_tokens: int = 1024
    num_tokens: int = 2048

    @property
    def num_blocks(self) -> int:
        """A pool of one and a half times the blocks of the batch."""
        return 3 * self.num_seqs * self.num_tokens // (2 * BLOCK_SIZE)

    @property
    def row_width(self) -> int:
        """Blocks for the longest prompt and for more decoded tokens than any sequence reaches."""
        return 3 * self.num_tokens // (2 * BLOCK_SIZE) + 32


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens in one step, the same for every side.

    Attributes:
        ended: Positions in the batch of the sequences that ended, ascending.
        kept: The other positions.
        tokens: Sampled for the kept ones, ``uint32``.
        prompts: The prompts that arrived, ``uint32`` each.
        second: Positions in ``prompts`` of the requests that ask for two samples.
    """

    ended: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.uint32]
    prompts: list[npt.NDArray[np.uint32]]
    second: list[int]


def turns(shape: Shape, seed: int = 0) -> Iterator[Turn]:
    """An endless series of steps. The first fill the batch; sequences end at random.

    The system prompts arrive alone in the first step, so that both sides have them from then on:
    only with vLLM do requests of one step find each other.
    """
    rng = np.random.default_rng(seed)

    def draw(count: int) -> npt.NDArray[np.uint32]:
        return rng.integers(0, VOCABULARY, count, dtype=np.uint32)

    shared = [draw(shape.shared_tokens) for _ in range(shape.num_shared)]

    def prompt() -> npt.NDArray[np.uint32]:
        head = shared[rng.integers(len(shared))] if rng.random() < 0.5 else shared[0][:0]
        own = shape.num_tokens - len(head)
        half = (shape.num_tokens - shape.shared_tokens) // 2
        num_tokens = int(rng.integers(own - half, own + half))
        # Never only full blocks, so that a second sample always has a block to copy.
        return np.concatenate([head, draw(num_tokens + (num_tokens % BLOCK_SIZE == 0))])

    nobody = np.empty(0, dtype=np.int64)
    yield Turn(nobody, nobody, draw(0), [np.append(head, draw(1)) for head in shared], [])
    num_running = len(shared)
    coming = shape.num_arrivals + shape.num_second
    while True:
        num_ended = max(0, num_running + coming - shape.num_seqs)
        ended = np.sort(rng.choice(num_running, num_ended, replace=False))
        kept = np.setdiff1d(np.arange(num_running), ended)
        second = np.sort(rng.choice(shape.num_arrivals, shape.num_second, replace=False)).tolist()
        yield Turn(
            ended, kept, draw(len(kept)), [prompt() for _ in range(shape.num_arrivals)], second
        )
        num_running += coming - num_ended


class Clock:
    """Seconds of a step by phase; the time since the last mark counts for the phase that ends.

    Processor time of this thread, which never waits here: on a busy machine, a step of vLLM is long
    enough to be interrupted.
    """

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = thread_time()

    def mark(self, phase: str) -> None:
        """Ends a phase."""
        now = thread_time()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now


@dataclass(frozen=True, slots=True)
class Counts:
    """What a side did and what it holds, for comparison.

    Attributes:
        hit_tokens: Tokens of arriving prompts found in the cache, without second samples.
        copies: Blocks to copy.
        used_blocks: Blocks of running sequences at the end, including those for copies to come.
        lengths: Tokens of each running sequence, in the order of the batch.
        widths: Blocks of each, in its row of the table.
    """

    hit_tokens: int
    copies: int
    used_blocks: int
    lengths: list[int]
    widths: list[int]


class Side(Protocol):
    """An engine's host side, built on one block manager."""

    name: str

    def ready(self, turn: Turn) -> Any:
        """Converts the turn to the form that this side takes; not timed."""

    def step(self, turn: Any, clock: Clock) -> None:
        """Runs one whole step."""

    def counts(self) -> Counts:
        """The values to compare; raises ``AssertionError`` if its table is wrong."""


class Ours:
    """blockmgr through its public interface, as docs/step-contract.md describes it."""

    def __init__(self, shape: Shape) -> None:
        self.name = f"blockmgr {version('blockmgr')}"
        self.manager = BlockManager(
            shape.num_blocks,
            BLOCK_SIZE,
            max_seqs=shape.num_seqs + shape.num_arrivals + shape.num_second,
            max_blocks_per_seq=shape.row_width,
        )
        self.handles = np.empty(0, dtype=np.int64)
        self.rows = np.empty(0, dtype=np.int64)
        self.slots = np.empty(0, dtype=np.int64)
        self.tables = self.manager.block_tables
        self.num_copies = 0
        self.samples: list[int] = []

    def ready(self, turn: Turn) -> Turn:
        return turn

    def step(self, turn: Turn, clock: Clock) -> None:
        manager, handles = self.manager, self.handles
        for handle in handles[turn.ended].tolist():
            manager.free(handle)
        handles = handles[turn.kept]
        clock.mark("free")

        self.slots = manager.decode(handles, turn.tokens) if len(handles) else handles
        clock.mark("decode")

        arrived = [manager.admit(prompt) for prompt in turn.prompts]
        clock.mark("admit")

        # The tables are the manager's own memory; an engine needs to know which rows.
        new_rows = [manager.row(handle) for handle in arrived]
        self.rows = np.append(self.rows[turn.kept], np.array(new_rows, dtype=np.int64))
        clock.mark("tables")

        plan = manager.take_copies()
        self.num_copies += len(plan)
        manager.copies_applied(plan.ticket)
        clock.mark("copies")

        for handle, prompt in zip(arrived, turn.prompts, strict=True):
            manager.commit(handle, len(prompt))
        clock.mark("commit")

        samples = self.samples = [manager.fork(arrived[i])[0] for i in turn.second]
        new_rows = [manager.row(handle) for handle in samples]
        self.rows = np.append(self.rows, np.array(new_rows, dtype=np.int64))
        self.handles = np.append(handles, np.array(arrived + samples, dtype=np.int64))
        clock.mark("second samples")

    def counts(self) -> Counts:
        manager = self.manager
        manager.check_invariants()
        sequences = [manager.sequence(handle) for handle in self.handles.tolist()]
        for sequence, row in zip(sequences, self.rows.tolist(), strict=True):
            blocks = sequence.block_ids
            assert np.array_equal(self.tables[row, : len(blocks)], blocks)
        stats = manager.stats()
        return Counts(
            hit_tokens=stats.hit_tokens,
            copies=self.num_copies,
            used_blocks=stats.used_blocks + len(self.samples),  # they copy in the next step
            lengths=[sequence.num_tokens for sequence in sequences],
            widths=[sequence.num_blocks for sequence in sequences],
        )


class Vllm:
    """vLLM's ``KVCacheManager``, called as its scheduler calls it, and its worker's block table.

    The scheduler sends new block ids only, and the worker adds them to the row of the request.
    """

    def __init__(self, shape: Shape, hash_name: str) -> None:
        from benchmarks.peers.vllm import Vllm as Peer

        peer = Peer(hash_name)
        self.name = peer.name
        self._open = peer.open(shape.num_blocks)
        self.manager = self._open._manager
        self.num_blocks = shape.num_blocks
        self.requests: list[Any] = []
        self.table = np.full((shape.num_seqs, shape.row_width), UNFILLED, dtype=np.int32)
        self.widths = np.zeros(shape.num_seqs, dtype=np.int64)
        self.free_rows = deque(range(shape.num_seqs))
        self.rows: list[int] = []
        self.hit_tokens = 0

    def ready(self, turn: Turn) -> Any:
        return (
            turn.ended.tolist(),
            turn.kept.tolist(),
            turn.tokens.tolist(),
            [prompt.tolist() for prompt in turn.prompts],
            turn.second,
        )

    def _add(self, row: int, block_ids: list[int]) -> None:
        width = self.widths[row]
        self.table[row, width : width + len(block_ids)] = block_ids
        self.widths[row] = width + len(block_ids)

    def _admit(self, prompt: list[int]) -> tuple[Any, int]:
        manager, request = self.manager, self._open._request(prompt)
        found, num_cached, _ = manager.get_computed_blocks(request)
        num_new = request.num_tokens - num_cached
        assert manager.allocate_slots(request, num_new, num_cached, found) is not None
        request.num_computed_tokens = request.num_tokens
        return request, num_cached

    def step(self, turn: Any, clock: Clock) -> None:
        ended, kept, tokens, prompts, second = turn
        manager, requests, rows = self.manager, self.requests, self.rows
        manager.new_step_starts()
        for i in ended:
            manager.free(requests[i])
            self.widths[rows[i]] = 0
            self.free_rows.append(rows[i])
        requests, rows = [requests[i] for i in kept], [rows[i] for i in kept]
        clock.mark("free")

        added = []
        for i, (request, token) in enumerate(zip(requests, tokens, strict=True)):
            request.append_output_token_ids(token)
            new = manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
            block_ids = new.get_block_ids(allow_none=True)
            if block_ids is not None:
                added.append((rows[i], block_ids[0]))
        clock.mark("decode")

        arrived = []
        for prompt in prompts:
            request, num_cached = self._admit(prompt)
            self.hit_tokens += num_cached
            arrived.append(request)
        clock.mark("admit")

        for row, block_ids in added:
            self._add(row, block_ids)
        for request in arrived:
            rows.append(self.free_rows.popleft())
            self._add(rows[-1], manager.get_block_ids(request.request_id)[0])
        clock.mark("tables")

        manager.take_new_block_ids()  # its scheduler drains both in each step
        manager.take_kv_cache_block_copies()
        clock.mark("copies")

        samples = [self._admit(prompts[i])[0] for i in second]
        for request in samples:
            rows.append(self.free_rows.popleft())
            self._add(rows[-1], manager.get_block_ids(request.request_id)[0])
        self.requests, self.rows = [*requests, *arrived, *samples], rows
        clock.mark("second samples")

    def counts(self) -> Counts:
        manager = self.manager
        widths = []
        for request, row in zip(self.requests, self.rows, strict=True):
            [blocks] = manager.get_block_ids(request.request_id)
            assert self.table[row, : self.widths[row]].tolist() == blocks
            widths.append(len(blocks))
        return Counts(
            hit_tokens=self.hit_tokens,
            copies=0,
            used_blocks=self.num_blocks - manager.block_pool.get_num_free_blocks(),
            lengths=[request.num_tokens for request in self.requests],
            widths=widths,
        )


SIDES: Mapping[str, Callable[[Shape], Side]] = {
    "blockmgr": Ours,
    "vLLM, xxhash": lambda shape: Vllm(shape, "xxhash"),
    "vLLM, sha256": lambda shape: Vllm(shape, "sha256"),
}


def run(sides: list[Side], shape: Shape, *, warm: int, timed: int, burst: int) -> list[Any]:
    """Runs the same steps on every side in turns of ``burst``; returns the time of each step.

    The first step of a turn runs but is not counted: it loads the side's data back into the
    processor's caches.
    """
    script = turns(shape)
    taken: list[list[dict[str, float]]] = [[] for _ in sides]
    played = 0
    while min(map(len, taken)) < timed:
        part = [next(script) for _ in range(burst + 1)]
        for side, steps in zip(sides, taken, strict=True):
            prepared = [side.ready(turn) for turn in part]
            gc.disable()
            for i, turn in enumerate(prepared):
                clock = Clock()
                side.step(turn, clock)
                if i and played >= warm:
                    steps.append(clock.phases)
            gc.enable()
        played += len(part)
    return taken


def check(sides: list[Side]) -> Counts:
    """Checks that all sides did the same work; ours is the first."""
    ours, *others = (side.counts() for side in sides)
    for theirs in others:
        assert theirs.hit_tokens == ours.hit_tokens, "the sides found different prefixes"
        assert theirs.lengths == ours.lengths
        assert theirs.widths == ours.widths
        assert theirs.used_blocks == ours.used_blocks
    return ours


def summary(side: Side, steps: list[dict[str, float]]) -> dict[str, Any]:
    """Microseconds: median and minimum of the whole step and of each of its phases."""
    by_phase = defaultdict(list)
    for phases in steps:
        for phase, seconds in phases.items():
            by_phase[phase].append(seconds)
    whole = [sum(phases.values()) for phases in steps]
    return {
        "side": side.name,
        "median_us": statistics.median(whole) * 1e6,
        "minimum_us": min(whole) * 1e6,
        "phases_median_us": {
            phase: statistics.median(seconds) * 1e6 for phase, seconds in by_phase.items()
        },
        "phases_minimum_us": {phase: min(seconds) * 1e6 for phase, seconds in by_phase.items()},
        "steps": len(steps),
    }


PHASES = ("free", "decode", "admit", "tables", "copies", "commit", "second samples")


def table(results: list[dict[str, Any]]) -> Table:
    """The phases of every side, one below the other."""
    whole = Table(box=None, pad_edge=False)
    whole.add_column("µs a step, median", no_wrap=True)
    for result in results:
        whole.add_column(result["side"], justify="right", no_wrap=True)
    for phase in PHASES:
        cells = [result["phases_median_us"].get(phase) for result in results]
        whole.add_row(phase, *("-" if cell is None else f"{cell:,.0f}" for cell in cells))
    whole.add_row("whole step", *(f"{result['median_us']:,.0f}" for result in results))
    whole.add_row("whole step, minimum", *(f"{result['minimum_us']:,.0f}" for result in results))
    for statistic in ("median", "minimum"):
        key = f"{statistic}_us"
        ratios = (f"{result[key] / results[0][key]:.1f}" for result in results)
        whole.add_row(f"times ours, {statistic}", *ratios)
    return whole


def main() -> None:
    """Runs the steps on every side that can be imported, prints a table, writes the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="timed steps of each side")
    parser.add_argument(
        "--warm-up", type=int, default=100, help="steps before timing, for a steady state"
    )
    parser.add_argument("--burst", type=int, default=5, help="timed steps in a turn")
    parser.add_argument("--seqs", type=int, default=1024, help="running sequences")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    arguments = parser.parse_args()

    scale = arguments.seqs / 1024
    shape = Shape(
        num_seqs=arguments.seqs, num_arrivals=round(51 * scale), num_second=round(20 * scale)
    )
    sides: list[Side] = []
    absent: list[str] = []
    for name, build in SIDES.items():
        try:
            sides.append(build(shape))
        except (ImportError, PackageNotFoundError) as error:
            absent.append(f"{name}: {error}")

    taken = run(sides, shape, warm=arguments.warm_up, timed=arguments.steps, burst=arguments.burst)
    counts = check(sides)
    results = [summary(side, steps) for side, steps in zip(sides, taken, strict=True)]

    about = machine()
    console = Console()
    if not console.is_terminal:
        console.width = 120
    for reason in absent:
        console.print(f"left out: {reason}", markup=False)
    console.print(table(results))
    rest = {
        "results": results,
        "left_out": absent,
        "checked": {
            "hit_tokens": counts.hit_tokens,
            "copies": counts.copies,
            "used_blocks": counts.used_blocks,
            "running": len(counts.lengths),
        },
    }
    path = write_result(arguments.results, "step", "benchmarks.step", about, rest)
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
