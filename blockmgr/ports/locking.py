"""One call of a port at a time, whatever the thread.

A call of a port looks at the core several times before it acts, so what it has seen must still be
so when it does. The core alone cannot see to that: each of its calls is whole, two in a row are
not.
"""

from __future__ import annotations

import os
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Mutex", "exclusive", "new_mutex"]

P = ParamSpec("P")
R = TypeVar("R")


class Mutex:
    """A lock that the thread which holds it may take again, and that a forked child has open."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forgets who holds it: in a forked child that thread does not exist."""
        self._lock = RLock()


class _HasMutex(Protocol):
    @property
    def _mutex(self) -> Any: ...


_every: WeakSet[Mutex] = WeakSet()


def new_mutex() -> Mutex:
    """The mutex of one port, or of several objects that share their books."""
    mutex = Mutex()
    _every.add(mutex)
    return mutex


def exclusive(
    call: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """Lets a method run while no other call of the same mutex does."""

    @wraps(call)
    def alone(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._mutex:
            return call(self, *args, **kwargs)

    return alone


def _renew() -> None:
    for mutex in _every:
        mutex.renew()


os.register_at_fork(after_in_child=_renew)
