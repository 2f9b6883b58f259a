"""Runs the tasks of a sweep in this process, in several processes, or on a cluster.

A task is a function and its arguments after the ``Replays`` of the trace. Its result does not
depend on the worker, and results are returned in the order of the tasks.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, Final, Self

from blockmgr.lab.on_ray import RayWorkers
from blockmgr.lab.replays import Replays
from blockmgr.lab.tasks import Advance, RayCluster, Task, Workers, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blockmgr.lab.trace import Trace

__all__ = ["Advance", "RayCluster", "Task", "Workers", "uninterrupted", "workers_on"]

LOSSES: Final = 3
"""How often in a row a process may be killed before the work fails."""


def workers_on(trace: Trace, jobs: int | RayCluster, warmup: int = 0) -> Workers:
    """Workers for a trace.

    Args:
        trace: The trace for the tasks.
        jobs: Number of processes, at least 1; or a cluster.
        warmup: Requests at the start that replays do not count, fewer than there are.

    Raises:
        ValueError: ``jobs`` is below 1, or there are not more requests than ``warmup``.
    """
    if isinstance(jobs, RayCluster):
        return RayWorkers(trace, jobs, warmup)
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    return Processes(trace, jobs, warmup)


class Processes:
    """Runs tasks in this process or in spawned processes.

    If a process is killed, no result is lost: all processes end, and the same number of new ones
    run the remaining tasks. If one of those is killed before any task is done, the next ones run
    one at a time, because the system may be short of memory.
    """

    def __init__(self, trace: Trace, jobs: int, warmup: int = 0) -> None:
        self._replays = Replays(trace, warmup)
        self._kept = trace, warmup
        self._jobs = jobs
        self._pool = self._spawn(jobs) if jobs > 1 else None

    def _spawn(self, jobs: int) -> ProcessPoolExecutor:
        # Spawned, because a fork would copy locks of other threads. Each process gets the trace
        # once.
        return ProcessPoolExecutor(
            jobs,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_take_trace,
            initargs=self._kept,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if error is not None:
            # Do not wait for their tasks, which may take minutes.
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[Task], advance: Advance) -> list[Any]:
        """As in ``Workers``.

        Raises:
            ChildProcessError: Processes were killed repeatedly, and no task finished meanwhile.
        """
        if self._pool is None:
            return list(self._run_here(tasks, advance))
        results: dict[int, Any] = {}
        in_a_row = 0
        while len(results) < len(tasks):
            before = len(results)
            try:
                self._collect(tasks, results, advance)
            except BrokenProcessPool:
                in_a_row = in_a_row + 1 if len(results) == before else 1
                if in_a_row == LOSSES:
                    raise ChildProcessError(
                        f"a process was killed {LOSSES} times, with no task done meanwhile; the "
                        "system may be short of memory: each process needs its own"
                    ) from None
                self._pool.shutdown()
                self._pool = self._spawn(self._jobs if in_a_row == 1 else 1)
        return [results[number] for number in range(len(tasks))]

    def _collect(self, tasks: Sequence[Task], results: dict[int, Any], advance: Advance) -> None:
        """Adds the missing results, in any order.

        Raises:
            BrokenProcessPool: A process was killed. The results contain all finished tasks.
        """
        assert self._pool is not None
        numbers: dict[Future[Any], int] = {}
        lost: BrokenProcessPool | None = None
        try:
            with uninterrupted():
                for number, task in enumerate(tasks):
                    if number not in results:
                        numbers[self._pool.submit(_run_there, *task)] = number
        except BrokenProcessPool as error:
            lost = error
        for future in as_completed(numbers):
            try:
                results[numbers[future]] = future.result()
            except BrokenProcessPool as error:
                lost = error
            else:
                advance()
        if lost is not None:
            raise lost

    def _run_here(self, tasks: Sequence[Task], advance: Advance) -> Iterator[Any]:
        for function, *arguments in tasks:
            yield function(self._replays, *arguments)
            advance()


_replays: list[Replays] = []
"""In a spawned process, the replays of its trace."""


def _take_trace(trace: Trace, warmup: int) -> None:
    _replays[:] = [Replays(trace, warmup)]


def _run_there(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_replays[0], *arguments)
