"""Tasks of a sweep, and what every kind of worker that runs them has in common."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from blockmgr.arguments import positive, text, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Advance", "RayCluster", "Task", "Workers", "uninterrupted"]

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
