"""Runs the tasks of a sweep on a cluster of Ray.

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
import socket
import tempfile
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from blockmgr import __version__
from blockmgr.errors import ClusterLostError, MissingExtraError
from blockmgr.lab.replays import Replays
from blockmgr.lab.tasks import RayCluster, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from blockmgr.lab.tasks import Advance, Task
    from blockmgr.lab.trace import Trace

__all__ = ["RayWorkers"]

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
        """As in ``Workers``.

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
"""In a worker, the replays of its trace."""


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
