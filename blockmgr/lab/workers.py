"""Runs the tasks of a sweep in this process, in several processes, or on a cluster.

A task is a function and its arguments after the ``Replays`` of the trace. Its result does not
depend on the worker, and results are returned in the order of the tasks.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from blockmgr.arguments import positive, text, whole
from blockmgr.lab.replays import Replays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.lab.trace import Trace

__all__ = ["Advance", "RayCluster", "Task", "Workers", "uninterrupted", "workers_on"]

Advance = Callable[[], None]
"""Called once for each finished piece of work."""

Task = tuple[Any, ...]
"""A function, and its arguments after the replays. Other processes get it pickled."""


LOSSES: Final = 3
"""How often in a row a process may be killed before the work fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A cluster of Ray, either existing or started for this work.

    Attributes:
        address: ``"local"`` starts a cluster on this machine; ``"auto"`` uses one that runs on this
            machine; ``"HOST:PORT"`` is the address of a cluster's head.
        num_cpus: Processors of a started cluster; None for all. Must be None for an existing
            cluster.
        connect_s: Longest wait for the cluster's answer, in seconds.
        silence_s: Longest time without a sign of life of its driver, in seconds.
        limit_s: Longest time for one batch of tasks, in seconds; None for no limit.
        retries: How often a task is restarted if its worker is killed.

    Raises:
        ValueError: A number is out of its bounds, or ``num_cpus`` is set for an existing cluster.
        TypeError: A value is of the wrong type.
    """

    address: str = "local"
    num_cpus: int | None = None
    connect_s: float = 60.0
    silence_s: float = 120.0
    limit_s: float | None = None
    retries: int = 5

    def __post_init__(self) -> None:
        text("address", self.address)
        if self.num_cpus is not None:
            whole("num_cpus", self.num_cpus, 1, 2**16)
            if self.address != "local":
                raise ValueError(
                    f"num_cpus must be None for a cluster that runs already, got {self.num_cpus}"
                )
        host, colon, port = self.address.rpartition(":")
        if self.address not in ("local", "auto") and not (host and colon and port.isdecimal()):
            raise ValueError(f"address must be local, auto or HOST:PORT, got {self.address!r}")
        positive("connect_s", self.connect_s)
        positive("silence_s", self.silence_s)
        if self.limit_s is not None:
            positive("limit_s", self.limit_s)
        whole("retries", self.retries, 0, 1000)


class Workers(Protocol):
    """Runs tasks on one trace, inside a ``with`` block."""

    def __enter__(self) -> Self:
        """Start the workers."""

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Stop the workers."""

    def run(self, tasks: Sequence[Task], advance: Advance) -> list[Any]:
        """Run tasks and return their results in order.

        Args:
            tasks: The tasks.
            advance: Called for each finished task.
        """


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
        # Imports Ray only for a cluster.
        from blockmgr.lab.on_ray import RayWorkers  # noqa: PLC0415

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
        return [results[place] for place in range(len(tasks))]

    def _collect(self, tasks: Sequence[Task], results: dict[int, Any], advance: Advance) -> None:
        """Adds the missing results, in any order.

        Raises:
            BrokenProcessPool: A process was killed. The results contain all finished tasks.
        """
        assert self._pool is not None
        places: dict[Future[Any], int] = {}
        lost: BrokenProcessPool | None = None
        try:
            with uninterrupted():
                for place, task in enumerate(tasks):
                    if place not in results:
                        places[self._pool.submit(_run_there, *task)] = place
        except BrokenProcessPool as error:
            lost = error
        for future in as_completed(places):
            try:
                results[places[future]] = future.result()
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


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT, and make processes that are started meanwhile ignore it.

    A terminal sends SIGINT to all processes of a command. The parent ends the others; otherwise
    each of them would print a traceback.
    """
    seen: list[tuple[int, Any]] = []
    handler = signal.getsignal(signal.SIGINT)
    # Python handles signals in the main thread, whichever thread received them: the mask alone
    # would not delay a signal there, and a process that was just started would be in no list.
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
"""In a spawned process, the replays of its trace."""


def _take_trace(trace: Trace, warmup: int) -> None:
    _replays[:] = [Replays(trace, warmup)]


def _run_there(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_replays[0], *arguments)
