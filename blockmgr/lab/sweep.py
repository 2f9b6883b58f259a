"""One trace under several eviction policies, pool sizes and block sizes, in several processes.

Every row stands beside two ceilings: the best any order of eviction could do in a pool of that
size, and an unbounded pool. Replays go by ids where that counts the same. Processes share nothing,
so a row does not depend on how many there are.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.by_ids import id_columns
from blockmgr.lab.replay_config import ReplayConfig, ReplayResult, held_blocks
from blockmgr.lab.replays import Replays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from blockmgr.lab.attainable import Attainable
    from blockmgr.lab.optimum import Optimum
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.trace import Trace

__all__ = [
    "Advance",
    "Sweep",
    "SweepRow",
    "TooSmall",
    "check_pool",
    "largest_request_blocks",
    "num_tasks",
    "sweep",
]

LEAST_GAP: Final = 0.0001

Advance = Callable[[], None]
"""Called once for each piece of work that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One policy at one pool size and one block size.

    Attributes:
        policy: Name of the eviction policy.
        block_size: Tokens per block.
        capacity: Pool size as it was asked for.
        result: What the replay counted.
        optimum: The best any order of eviction does at this pool size, one request at a time; None
            with groups of layers, for which none is known.
        attainable: What an unbounded pool does at this block size.
        baseline: What LRU without hints counts at this place; None if it was not replayed.
    """

    policy: str
    block_size: int
    capacity: Capacity
    result: ReplayResult
    optimum: Optimum | None
    attainable: Attainable
    baseline: ReplayResult | None

    @property
    def best(self) -> Optimum:
        """``optimum``, for readers of rows that have one.

        Raises:
            ValueError: The replay had groups of layers.
        """
        if self.optimum is None:
            raise ValueError("no optimum is known with groups of layers; attainable is a bound")
        return self.optimum

    @property
    def gap_closed(self) -> float | None:
        """The share of the gap between LRU and the optimum that this row closes; 1 is all.

        None where LRU without hints was not replayed, there is no optimum, or LRU is as good as the
        optimum to a hundredth of a point: a share of next to nothing says nothing.
        """
        if self.baseline is None or self.optimum is None:
            return None
        gap = self.optimum.hit_rate - self.baseline.hit_rate
        gained = self.result.hit_rate - self.baseline.hit_rate
        return gained / gap if gap >= LEAST_GAP else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSmall:
    """A pool smaller than the largest request, which cannot be compared with others.

    Attributes:
        block_size: Tokens per block.
        capacity: Pool size as it was asked for.
        num_blocks: The same in blocks.
        least_blocks: Blocks of the largest request.
    """

    block_size: int
    capacity: Capacity
    num_blocks: int
    least_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All rows: by block size, then by pool size, then by policy, each as asked for.

    Attributes:
        trace: Name of the trace.
        config: How it was replayed, but for what the rows say.
        rows: At least one.
        too_small: Pools that were asked for and not replayed, in the same order.
    """

    trace: str
    config: ReplayConfig
    rows: tuple[SweepRow, ...]
    too_small: tuple[TooSmall, ...] = ()


def largest_request_blocks(trace: Trace, config: ReplayConfig) -> int:
    """Blocks that the largest request of ``trace`` holds: the smallest pool that runs them all."""
    columns = None if config.groups else id_columns(trace, config.block_size)
    if columns is None:
        return max(held_blocks(request, config) for request in trace.requests)
    outputs = columns.num_output_tokens if config.outputs == "hold" else 0
    return int((-(-(columns.num_tokens + outputs) // config.block_size)).max())


def num_tasks(*, policies: int, capacities: int, block_sizes: int, hints: object = "none") -> int:
    """How often ``sweep`` calls ``advance`` with so many of each, none of the pools too small."""
    # With hints, what they are compared with is a replay of its own.
    return block_sizes * (2 + capacities * (policies + (hints != "none")))


def sweep(
    trace: Trace,
    capacities: Iterable[Capacity],
    config: ReplayConfig,
    *,
    policies: Sequence[str] = ("lru",),
    block_sizes: Sequence[int] = (),
    warmup: int = 0,
    jobs: int = 1,
    advance: Advance | None = None,
) -> Sweep:
    """Replay ``trace`` with every policy at every pool size and block size.

    Args:
        trace: The requests.
        capacities: Pool sizes; shares are of the working set at each block size.
        config: How to replay; its ``eviction`` and ``block_size`` give way to the next two.
        policies: Names of eviction policies, at least one.
        block_sizes: Tokens per block; empty for that of ``config``.
        warmup: Requests at the start that fill the pool and are not counted, fewer than there are.
        jobs: Processes at work, at least 1. With more than one they are spawned, so a program
            that calls this keeps its own start behind ``if __name__ == "__main__":``.
        advance: Called ``num_tasks`` times: twice for each block size, and for each replay; less
            often if some pools are too small.

    Raises:
        ValueError: Every pool is smaller than the largest request, ``jobs`` or ``warmup`` is out of
            bounds, there is no such policy, or the trace cannot be cut into blocks of such a size.
        ChildProcessError: A process was killed, as a system short of memory does.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    settings = [replace(config, block_size=size) for size in block_sizes or (config.block_size,)]
    sizes = tuple(capacities)
    with _Workers(trace, warmup, jobs, advance or (lambda: None)) as workers:
        ceilings = workers.run([(Replays.attainable, setting) for setting in settings])
        pools, too_small = _pools(trace, settings, ceilings, sizes)
        tasks: list[tuple[Any, ...]] = [
            (Replays.optima, [pool.blocks for pool in pools if pool.config is setting], setting)
            for setting in settings
        ]
        tasks += [
            (Replays.replay, pool.blocks, other)
            for pool in pools
            for other in pool.replayed(policies)
        ]
        found = workers.run(tasks)
    bests = [best for group in found[: len(settings)] for best in group]
    results = iter(found[len(settings) :])
    rows: list[SweepRow] = []
    for pool, best in zip(pools, bests, strict=True):
        counted = {other: next(results) for other in pool.replayed(policies)}
        rows += (
            SweepRow(
                policy=policy,
                block_size=pool.config.block_size,
                capacity=pool.capacity,
                result=counted[replace(pool.config, eviction=policy)],
                optimum=best,
                attainable=pool.ceiling,
                baseline=counted.get(replace(pool.config, eviction="lru", hints="none")),
            )
            for policy in policies
        )
    return Sweep(trace=trace.name, config=config, rows=tuple(rows), too_small=tuple(too_small))


@dataclass(frozen=True, slots=True)
class _Pool:
    """A place of the sweep: how it is replayed, the unbounded pool there, and its size."""

    config: ReplayConfig
    ceiling: Attainable
    capacity: Capacity
    blocks: int

    def replayed(self, policies: Sequence[str]) -> list[ReplayConfig]:
        """What is replayed there, each once; with hints, LRU without them as well."""
        configs = [replace(self.config, eviction=policy) for policy in policies]
        if self.config.hints != "none":
            configs.append(replace(self.config, eviction="lru", hints="none"))
        return list(dict.fromkeys(configs))


def _pools(
    trace: Trace,
    settings: Sequence[ReplayConfig],
    ceilings: Sequence[Attainable],
    sizes: Sequence[Capacity],
) -> tuple[list[_Pool], list[TooSmall]]:
    """The places of the sweep in order, and those that no replay there would compare with."""
    pools, too_small = [], []
    for setting, ceiling in zip(settings, ceilings, strict=True):
        least = largest_request_blocks(trace, setting)
        for capacity in sizes:
            blocks = capacity.blocks(ceiling.working_set_blocks)
            if blocks < least:
                place = TooSmall(
                    block_size=setting.block_size,
                    capacity=capacity,
                    num_blocks=blocks,
                    least_blocks=least,
                )
                too_small.append(place)
            else:
                pools.append(_Pool(setting, ceiling, capacity, blocks))
    if not pools:
        check_pool(trace, settings[0], sizes[0], ceilings[0].working_set_blocks)
    return pools, too_small


def check_pool(trace: Trace, config: ReplayConfig, capacity: Capacity, working_set: int) -> None:
    """Refuse a pool that would reject requests: its hit rate cannot be compared.

    Args:
        trace: The requests.
        config: How they are replayed.
        capacity: Pool size as it was asked for.
        working_set: Blocks that its share is of.

    Raises:
        ValueError: It is smaller than the largest request; says which is not.
    """
    blocks = capacity.blocks(working_set)
    least = largest_request_blocks(trace, config)
    if blocks < least:
        raise ValueError(
            f"capacity must be at least {least} blocks ({_rounded_up(least, working_set)}) with "
            f"blocks of {config.block_size}, the largest request of {trace.name}, got "
            f"{capacity.text}" + ("" if capacity.text == str(blocks) else f", {blocks} blocks")
        )


def _rounded_up(blocks: int, working_set: int) -> str:
    """The smallest share, in hundredths of a percent, that gives at least so many blocks."""
    return f"{-(-10_000 * blocks // working_set) / 100:g}%"


class _Workers:
    """Runs tasks on one trace, here or in spawned processes, and returns results in order."""

    def __init__(self, trace: Trace, warmup: int, jobs: int, advance: Advance) -> None:
        self._replays = Replays(trace, warmup)
        self._advance = advance
        self._pool: ProcessPoolExecutor | None = None
        if jobs > 1:
            # Spawned, because a fork would copy threads' locks. Each process gets the trace once.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                jobs, mp_context=spawn, initializer=_take_trace, initargs=(trace, warmup)
            )

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if error is not None:
            # The caller does not wait for their tasks, which may take minutes.
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """For each task, a function and what it takes after the replays: what it returns."""
        if self._pool is None:
            return list(self._run_here(tasks))
        with _uninterrupted():
            futures: list[Future[Any]] = [self._pool.submit(_run_there, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
                self._advance()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process of the sweep was killed; use fewer jobs, each needs its own memory"
            ) from None
        return [future.result() for future in futures]

    def _run_here(self, tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        for function, *arguments in tasks:
            yield function(self._replays, *arguments)
            self._advance()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold SIGINT back, and let processes that are started meanwhile never see one.

    A terminal sends it to all of them. The one that waits for the others ends them; on their own
    they would each end in a traceback, wherever their imports or replays had got to.
    """
    seen: list[tuple[int, Any]] = []
    handler = signal.getsignal(signal.SIGINT)
    # Python handles a signal in the main thread, whichever thread got it: the mask alone would not
    # hold it back there, and a process that was just started would be in no list.
    holds = callable(handler) and threading.current_thread() is threading.main_thread()
    if holds:
        signal.signal(signal.SIGINT, lambda number, frame: seen.append((number, frame)))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if holds:
            signal.signal(signal.SIGINT, handler)
    if seen and callable(handler):
        handler(*seen[0])


_replays: list[Replays] = []
"""In a spawned process, those of the one trace that it works on."""


def _take_trace(trace: Trace, warmup: int) -> None:
    _replays[:] = [Replays(trace, warmup)]


def _run_there(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_replays[0], *arguments)
