"""Runs the tasks of a sweep in this process, in several processes, or on a cluster of Ray.

A task is a function and its arguments after the ``Replays`` of the trace. Its result does not
depend on the worker, and results are returned in the order of the tasks.

Ray's driver runs in a separate process, because Ray ends the driver process when the head of the
cluster dies. ::

    this process ◄── pipe ──► driver ◄── Ray ──► tasks, anywhere
       waits, with bounds        │
       raises typed errors       └─ keeps the trace for them, submits, collects

Ray restarts a task whose worker or machine is gone. Tasks share no state and have no side effects,
so that only costs time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from blockmgr import __version__
from blockmgr.arguments import positive, text, whole
from blockmgr.errors import ClusterLostError, MissingExtraError
from blockmgr.lab.replays import Replays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from blockmgr.lab.trace import Trace


__all__ = ["Advance", "Processes", "RayCluster", "RayWorkers", "Task", "workers_on"]

POLL_S: Final = 1.0
"""Interval between a driver's signs of life."""

STOP_S: Final = 20.0
"""Time for a driver to stop before it is killed."""


class RayWorkers:
    """Runs tasks on a cluster; made by ``blockmgr.lab.workers.workers_on``.

    Args:
        trace: The trace for the tasks.
        cluster: The cluster.
        warmup: Requests at the start that replays do not count, fewer than there are.

    Raises:
        ValueError: There are not more requests than ``warmup``.
        MissingExtraError: The extra ``ray`` is not installed.
    """

    def __init__(self, trace: Trace, cluster: RayCluster, warmup: int = 0) -> None:
        if find_spec("ray") is None:
            raise MissingExtraError("ray", "a cluster of Ray")
        Replays(trace, warmup)  # which looks at both
        self._kept = trace, warmup
        self._cluster = cluster

    def __enter__(self) -> Self:
        cluster = self._cluster
        check_reachable(cluster)
        # Ray writes logs and sockets; those of a temporary cluster are removed with it.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        with uninterrupted():
            self._driver = spawn.Process(
                target=drive, args=(theirs, self._kept, cluster, self._folder.name), daemon=True
            )
            self._driver.start()
        theirs.close()
        try:
            self._receive(cluster.connect_s, f"did not answer within {cluster.connect_s:g} s")
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._pipe.close()  # the driver stops when it notices the closed pipe
        if error is not None:
            self._driver.terminate()
        self._driver.join(STOP_S)
        if self._driver.is_alive():
            self._driver.kill()
            self._driver.join()
        self._folder.cleanup()

    def run(self, tasks: Sequence[Task], advance: Advance) -> list[Any]:
        """As in ``Processes``.

        Raises:
            ClusterLostError: The cluster is gone.
            ChildProcessError: A task killed every worker that ran it.
            TimeoutError: The tasks take longer than ``limit_s``.
        """
        cluster = self._cluster
        began = time.monotonic()
        silent = f"gave no sign of life for {cluster.silence_s:g} s"
        results: dict[int, Any] = {}
        self._send(list(tasks))
        while len(results) < len(tasks):
            number, result = self._receive(cluster.silence_s, silent)
            if number is not None:
                results[number] = result
                advance()
            if cluster.limit_s is not None and time.monotonic() - began > cluster.limit_s:
                raise TimeoutError(
                    f"tasks must end within limit_s, {cluster.limit_s:g} s; "
                    f"{len(results)} of {len(tasks)} have"
                )
        return [results[number] for number in range(len(tasks))]

    def _send(self, what: object) -> None:
        try:
            self._pipe.send(what)
        except OSError:
            raise ClusterLostError(self._cluster.address, "its driver has ended") from None

    def _receive(self, limit_s: float, silent: str) -> tuple[int | None, Any]:
        """The next message of the driver; raises an error that it contains."""
        try:
            if not self._pipe.poll(limit_s):
                raise ClusterLostError(self._cluster.address, silent)
            number, what = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            # Ray ends the driver if the cluster is gone.
            raise ClusterLostError(self._cluster.address, "its driver has ended") from None
        if isinstance(what, Exception):
            raise what
        return number, what


def check_reachable(cluster: RayCluster) -> None:
    """Raise ``ClusterLostError`` if nothing listens there; Ray itself would retry for minutes."""
    host, _, port = cluster.address.rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), cluster.connect_s).close()
    except (OSError, OverflowError) as error:
        raise ClusterLostError(cluster.address, f"does not answer: {error}") from None


def drive(
    pipe: Connection, kept_by_all: tuple[Trace, int], cluster: RayCluster, folder: str
) -> None:
    """Drive a cluster for the process at the other end of a pipe, until the pipe is closed.

    Messages are pairs: the index of a task and its result; or None, and an error or None.
    """
    # Ray's processes print to stdout and stderr.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    import ray  # noqa: PLC0415  (only in this process)

    try:
        _connect(ray, cluster, folder)
        kept = ray.put(kept_by_all)
        remote = ray.remote(max_retries=cluster.retries)(run_there)
        pipe.send((None, None))
        while True:
            tasks = pipe.recv()
            references = [remote.remote([kept], __version__, *task) for task in tasks]
            _collect(ray, pipe, references, cluster)
    except (EOFError, BrokenPipeError):
        pass  # the caller has closed its end
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        pipe.send((None, ClusterLostError(cluster.address, reason)))
    finally:
        ray.shutdown()


def _connect(ray: Any, cluster: RayCluster, folder: str) -> None:
    options: dict[str, Any] = {"address": cluster.address}
    if cluster.address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves this machine
        num_cpus = cluster.num_cpus or len(os.sched_getaffinity(0))
        options |= {"num_cpus": num_cpus, "include_dashboard": False, "_temp_dir": folder}
    ray.init(log_to_driver=False, configure_logging=False, **options)


def _collect(ray: Any, pipe: Connection, references: list[Any], cluster: RayCluster) -> None:
    """Send each result as soon as Ray is installed, or an error instead of the remaining ones."""
    numbers = {reference: number for number, reference in enumerate(references)}
    waiting = references
    while waiting:
        done, waiting = ray.wait(waiting, timeout=POLL_S)
        if pipe.poll():
            raise EOFError
        if not done:
            pipe.send((None, None))
        for reference in done:
            try:
                pipe.send((numbers[reference], ray.get(reference)))
            except ray.exceptions.RayTaskError as error:
                pipe.send((None, error.cause))
                return
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                often = cluster.retries + 1
                problem = f"a task of the sweep ended its worker {often} times: {error}"
                pipe.send((None, ChildProcessError(problem)))
                return


_replays: dict[bytes, Replays] = {}
"""In a process of a worker, the replays of its trace, by the name that Ray gives it."""


def run_there(kept: list[Any], version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task in a worker of the cluster.

    Args:
        kept: Reference to the trace and its warm-up, in a list, so that Ray does not fetch them for
            every task.
        version: Version of the caller's package.
        function: As in a task.
        arguments: Likewise.
    """
    if version != __version__:
        raise ValueError(
            f"version must be {version} on each machine of the cluster, got {__version__} on "
            f"{socket.gethostname()}"
        )
    [reference] = kept
    name = reference.binary()
    if name not in _replays:
        import ray  # noqa: PLC0415  (there it is)

        _replays.clear()
        _replays[name] = Replays(*ray.get(reference))
    return function(_replays[name], *arguments)


Advance = Callable[[], None]
"""Called once for each finished piece of work."""

Task = tuple[Any, ...]
"""A function, and its arguments after the replays. Other processes get it pickled."""


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


LOSSES: Final = 3
"""How often in a row a process may be killed before the work fails."""


def workers_on(trace: Trace, jobs: int | RayCluster, warmup: int = 0) -> Processes | RayWorkers:
    """Workers for a trace, which run inside a ``with`` block.

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
        """Run tasks and return their results in order.

        Args:
            tasks: The tasks.
            advance: Called for each finished task.

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


def _take_trace(trace: Trace, warmup: int) -> None:
    _replays[b""] = Replays(trace, warmup)


def _run_there(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_replays[b""], *arguments)
