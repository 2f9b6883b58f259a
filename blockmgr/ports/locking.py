"""Runs one call of a port at a time, from any thread.

A call of a port reads the core several times before it changes it, so the core must not change in
between. The core cannot ensure that: its single calls are atomic, but a series of calls is not.
"""

from __future__ import annotations

import os
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["exclusive", "new_mutex"]

P = ParamSpec("P")
R = TypeVar("R")


_every: WeakSet[Any] = WeakSet()


def new_mutex() -> Any:
    """The mutex of one port, or of several objects with common state.

    The thread that holds it may take it again.
    """
    mutex = RLock()
    _every.add(mutex)
    return mutex


def exclusive(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Runs a method while no other call holds the same mutex."""

    @wraps(method)
    def alone(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._mutex:
            return method(self, *args, **kwargs)

    return alone


def _open_all() -> None:
    # In a forked child, the thread that held a mutex does not exist and would never release it.
    for mutex in _every:
        mutex._at_fork_reinit()


os.register_at_fork(after_in_child=_open_all)
