"""One trace under several eviction policies, pool sizes and block sizes, in several processes.

Every row stands beside two ceilings: the best any order of eviction could do in a pool of that
size, and an unbounded pool. Processes share nothing, so a row does not depend on how many there
are.
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
from typing import TYPE_CHECKING, Any

from blockmgr.lab.optimum import optima
from blockmgr.lab.replay import ReplayConfig, ReplayResult, held_blocks, replay
from blockmgr.lab.study import Capacity, attainable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from blockmgr.lab.attainable import Attainable
    from blockmgr.lab.optimum import Optimum
    from blockmgr.lab.trace import Trace

__all__ = ["Advance", "Sweep", "SweepRow", "largest_request_blocks", "num_tasks", "sweep"]

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
        optimum: The best any order of eviction does at this pool size, one request at a time.
        attainable: What an unbounded pool does at this block size.
    """

    policy: str
    block_size: int
    capacity: Capacity
    result: ReplayResult
    optimum: Optimum
    attainable: Attainable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All rows: by block size, then by pool size, then by policy, each as asked for.

    Attributes:
        trace: Name of the trace.
        config: How it was replayed, but for what the rows say.
        rows: At least one.
    """

    trace: str
    config: ReplayConfig
    rows: tuple[SweepRow, ...]

    def gap_closed(self, row: SweepRow) -> float | None:
        """How much of the way from LRU to the optimum ``row`` goes, 1 being all of it.

        None where LRU was not replayed, or reaches the optimum already.
        """
        for other in self.rows:
            place = (other.policy, other.block_size, other.capacity)
            if place == ("lru", row.block_size, row.capacity):
                gap = row.optimum.hit_rate - other.result.hit_rate
                gained = row.result.hit_rate - other.result.hit_rate
                return gained / gap if gap > 0 else None
        return None


def largest_request_blocks(trace: Trace, config: ReplayConfig) -> int:
    """Blocks that the largest request of ``trace`` holds: the smallest pool that runs them all."""
    return max(held_blocks(request, config) for request in trace.requests)


def num_tasks(*, policies: int, capacities: int, block_sizes: int) -> int:
    """How often ``sweep`` calls ``advance`` with so many of each."""
    return block_sizes * (2 + capacities * policies)


def sweep(
    trace: Trace,
    capacities: Iterable[Capacity],
    config: ReplayConfig,
    *,
    policies: Sequence[str] = ("lru",),
    block_sizes: Sequence[int] = (),
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
        jobs: Processes at work, at least 1. With more than one they are spawned, so a program
            that calls this keeps its own start behind ``if __name__ == "__main__":``.
        advance: Called ``num_tasks`` times: twice for each block size, and for each replay.

    Raises:
        ValueError: A pool is smaller than the largest request, ``jobs`` is below 1, there is no
            such policy, or the trace cannot be cut into blocks of such a size.
        ChildProcessError: A process was killed, as a system short of memory does.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    settings = [replace(config, block_size=size) for size in block_sizes or (config.block_size,)]
    sizes = tuple(capacities)
    with _Workers(trace, jobs, advance or (lambda: None)) as workers:
        ceilings = workers.run([(attainable, setting) for setting in settings])
        pools = [
            (setting, ceiling, capacity, capacity.blocks(ceiling.working_set_blocks))
            for setting, ceiling in zip(settings, ceilings, strict=True)
            for capacity in sizes
        ]
        for setting, ceiling, capacity, blocks in pools:
            _check_pool(trace, setting, capacity, blocks, ceiling.working_set_blocks)
        tasks: list[tuple[Any, ...]] = [
            (optima, [blocks for other, _, _, blocks in pools if other is setting], setting)
            for setting in settings
        ]
        tasks += [
            (replay, blocks, replace(setting, eviction=policy))
            for setting, _, _, blocks in pools
            for policy in policies
        ]
        found = workers.run(tasks)
    bests = [best for group in found[: len(settings)] for best in group]
    results = iter(found[len(settings) :])
    rows = tuple(
        SweepRow(
            policy=policy,
            block_size=setting.block_size,
            capacity=capacity,
            result=next(results),
            optimum=best,
            attainable=ceiling,
        )
        for (setting, ceiling, capacity, _), best in zip(pools, bests, strict=True)
        for policy in policies
    )
    return Sweep(trace=trace.name, config=config, rows=rows)


def _check_pool(
    trace: Trace, config: ReplayConfig, capacity: Capacity, blocks: int, working_set: int
) -> None:
    """Refuse a pool that would reject requests: its hit rate would compare with no other."""
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

    def __init__(self, trace: Trace, jobs: int, advance: Advance) -> None:
        self._trace = trace
        self._advance = advance
        self._pool: ProcessPoolExecutor | None = None
        if jobs > 1:
            # Spawned, because a fork would copy threads' locks. Each process gets the trace once.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                jobs, mp_context=spawn, initializer=_take_trace, initargs=(trace,)
            )

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if error is not None:
            # Nobody waits for what they are at, which may take minutes.
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """For each task, a function and what it takes after the trace: what it returns."""
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
            yield function(self._trace, *arguments)
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
    # hold it back there, and a process that was just started would be in nobody's list.
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


_traces: list[Trace] = []
"""In a spawned process, the one trace that it works on."""


def _take_trace(trace: Trace) -> None:
    _traces[:] = [trace]


def _run_there(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_traces[0], *arguments)
