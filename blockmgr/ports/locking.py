"""One call of a port at a time, whatever the thread.

A call of a port looks at the core several times before it acts, so what it has seen must still be
so when it does. The core alone cannot see to that: each of its calls is whole, two in a row are
not.
"""

from __future__ import annotations

import os
from functools import partial, wraps
from itertools import starmap
from operator import call
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
    """The mutex of one port, or of several objects that share their books.

    The thread that holds it may take it again.
    """
    mutex = RLock()
    _every.add(mutex)
    return mutex


def exclusive(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Lets a method run while no other call of the same mutex does."""

    @wraps(method)
    def alone(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        mutex = self._mutex
        held: list[bool] = []
        take = (held.extend, map(mutex.acquire, (True,)))
        work = (partial(method, self, *args, **kwargs),)
        try:
            # One line, as in ``at_once``: no exception from outside comes between the end of the
            # call and its result, or leaves the mutex taken.
            return [*starmap(call, (take, work, (mutex.release,), (held.clear,)))][1]  # type: ignore[no-any-return]
        except BaseException:
            if held:
                mutex.release()
            raise

    return alone


def _open_all() -> None:
    # In a forked child the thread that held one does not exist, and would never give it back.
    for mutex in _every:
        mutex._at_fork_reinit()


os.register_at_fork(after_in_child=_open_all)
